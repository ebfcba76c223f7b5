"""What programs of a cell print into one pipe of their interpreter, until somebody is told (`contexts.py`).

Standard output and error have a pipe each: what a compiler or `pip` says on its error stream is not among its results.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

READS_AT_ONCE = 16
MOST_PRINTED, LATEST_PRINTED = 1 << 20, 64 * 1024
"""Bytes of what programs of a cell print that wait for its client, and of what they print while no cell runs."""
BETWEEN_CELLS_S = 0.05
"""Between two looks at what programs print while no cell runs: a pipe holds 64 KiB, so 1.3 MB a second at the least."""


class Heard:
    """The pipes of an interpreter that is made: standard output and error."""

    def __init__(self) -> None:
        out, to_out = os.pipe()
        try:
            error, to_error = os.pipe()
        except OSError:
            os.close(out)
            os.close(to_out)
            raise
        self.outputs, self.written = (out, error), (to_out, to_error)
        for one in self.outputs:
            os.set_blocking(one, False)

    def close_written(self) -> None:
        """The interpreter has them."""
        for one in self.written:
            os.close(one)

    def close(self) -> None:
        """There is no interpreter."""
        for one in self.outputs:
            os.close(one)


class Printed:
    """One pipe of an interpreter; `name` is `stdout` or `stderr`, and `wake` is called when something has come."""

    def __init__(self, name: str, descriptor: int, wake: Callable[[], None]) -> None:
        self.name = name
        self._descriptor = descriptor
        self._wake = wake
        self._waiting = bytearray()
        """What nobody was told yet."""
        self._is_gathering = False
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self.keeps_all = False
        """A cell runs: programs that print faster than its client reads wait. Otherwise their latest words are kept."""

    def text(self) -> str:
        """What was printed since; half a character waits for its other half."""
        if not self._waiting:
            return ""
        text = self._text.decode(bytes(self._waiting))
        self._waiting.clear()
        self.gather()
        return text

    def gather(self) -> None:
        """Take what is printed from now on; between cells, too, or what they left running would stand still."""
        if not self._is_gathering and self._descriptor >= 0:
            self._is_gathering = True
            asyncio.get_running_loop().add_reader(self._descriptor, self._gather)

    def _gather_no_more(self) -> None:
        if self._is_gathering:
            self._is_gathering = False
            asyncio.get_running_loop().remove_reader(self._descriptor)

    def _gather(self) -> None:
        """Between cells now and then: one that prints without end had the daemon read all the time."""
        if len(self._waiting) >= MOST_PRINTED:
            self._gather_no_more()  # until somebody was told
        else:
            self.read()
            if not self.keeps_all and self._is_gathering:
                self._gather_no_more()
                asyncio.get_running_loop().call_later(BETWEEN_CELLS_S, self.gather)
        self._wake()

    def read(self) -> None:
        """Take what is there."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(BlockingIOError):
            for _ in range(READS_AT_ONCE):  # more may come faster than it is read
                piece = os.read(self._descriptor, 65_536)
                if not piece:  # nobody is left who could print
                    self.close()
                    break
                self._waiting += piece
                if not self.keeps_all:
                    del self._waiting[:-LATEST_PRINTED]

    def close(self) -> None:
        """Hear no more."""
        if self._descriptor >= 0:
            self._gather_no_more()
            os.close(self._descriptor)
            self._descriptor = -1
