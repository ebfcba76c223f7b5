"""One file for what a sandbox was: its files, then its interpreters' variables, then where the second begins.

Both parts are written and read by sandboxes; the node looks into neither.
"""

import contextlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from hekla.node.runtimes.sandbox import SandboxError

_TAIL = struct.Struct(">8sQQ")
_MAGIC = b"HKLBOX01"
_PIECE = 1 << 20


@dataclass(frozen=True)
class Parts:
    """Open files of both parts."""

    files: int
    variables: int
    has_files: bool = True
    has_variables: bool = True

    @property
    def filled(self) -> list[int]:
        """Those in which there is something."""
        return [self.files] * self.has_files + [self.variables] * self.has_variables


@contextlib.contextmanager
def writing(output: int) -> Iterator[Parts]:
    """Places for both parts; leaving joins them in `output`. Files go there at once, variables come after them."""
    variables = os.memfd_create("variables", os.MFD_CLOEXEC)
    try:
        yield Parts(output, variables)
        end_of_files = os.lseek(output, 0, os.SEEK_END)
        size = os.fstat(variables).st_size
        _copy(variables, 0, size, output)
        os.write(output, _TAIL.pack(_MAGIC, end_of_files, size))
    finally:
        os.close(variables)


@contextlib.contextmanager
def reading(source: int) -> Iterator[Parts]:
    """Both parts of a bundle, each from its beginning: what is read there says itself where it ends, so nothing is copied.

    Each has a position of its own: several may read one bundle at a time.
    """
    whole = os.fstat(source).st_size
    if whole < _TAIL.size:
        raise SandboxError(422, "this is no checkpoint: it is too short")
    magic, end_of_files, size = _TAIL.unpack(os.pread(source, _TAIL.size, whole - _TAIL.size))
    if magic != _MAGIC or end_of_files + size + _TAIL.size != whole:
        raise SandboxError(422, "this is no checkpoint: its end is not where it should be")
    opened = [os.open(f"/proc/self/fd/{source}", os.O_RDONLY | os.O_CLOEXEC) for _ in range(2)]
    try:
        os.lseek(opened[1], end_of_files, os.SEEK_SET)
        yield Parts(opened[0], opened[1], end_of_files > 0, size > 0)
    finally:
        for one in opened:
            os.close(one)


def _copy(source: int, start: int, size: int, sink: int) -> None:
    while size > 0:
        piece = os.pread(source, min(_PIECE, size), start)
        if not piece:
            raise SandboxError(422, "this is no checkpoint: it ends early")
        start, size = start + len(piece), size - len(piece)
        view = memoryview(piece)
        while view:
            view = view[os.write(sink, view) :]
