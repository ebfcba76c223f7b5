"""Programs that a cell runs by `!` and by magics: their output goes where the cell's goes while they run, and an interrupt ends them."""

from __future__ import annotations

import codecs
import contextlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

INTERRUPT_GRACE_S = 1.0
LOOK_S = 0.1
"""How often is looked whether a program ended whose output another one, which it left running, keeps open."""
BACKGROUND = (
    "a command that ends with & has nobody who reads what it prints once its cell is over; "
    'start it with subprocess.Popen("...", shell=True, stdout=open("log", "w"), stderr=subprocess.STDOUT), '
    "or as a command of the sandbox that runs in the background"
)


class Lines(list):  # type: ignore[type-arg]  # Python 3.9 subscribes no list at run time here
    """The lines that a command printed, as IPython hands them on: `.n` is all of them as a text, `.s` with blanks between."""

    @property
    def n(self) -> str:
        """One text."""
        return "\n".join(self)

    @property
    def s(self) -> str:
        """One line."""
        return " ".join(self)

    @property
    def l(self) -> list[str]:  # noqa: E743 - IPython's word for it
        """A plain list."""
        return list(self)


def shell() -> str:
    """The shell of this sandbox."""
    return shutil.which("bash") or "/bin/sh"


def script(program: Sequence[str], text: str) -> int:
    """Run a program over a script; returns its exit code. What it prints to standard error goes to the cell's.

    A Python reads it from standard input, to its end before it begins: so it finds the modules of the working directory.
    """
    file = os.memfd_create("script")
    try:
        with open(file, "wb", closefd=False) as written:
            written.write(text.encode("utf-8", "surrogateescape"))
        if os.path.basename(program[0]).startswith(("python", "pypy")):
            os.lseek(file, 0, os.SEEK_SET)
            return run([*program, "-"], is_parted=True, stdin=file)
        return run([*program, f"/proc/self/fd/{file}"], is_parted=True, pass_fds=(file,))
    finally:
        os.close(file)


def run(
    argv: Sequence[str],
    *,
    hear: Callable[[str], Any] | None = None,
    is_parted: bool = False,
    envs: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
    stdin: int = subprocess.DEVNULL,
) -> int:
    """Run a program to its end; returns its exit code. `hear` is told what it prints, otherwise the cell's streams are."""
    told = hear or sys.stdout.write
    with subprocess.Popen(
        argv, stdin=stdin, stdout=subprocess.PIPE, env=None if envs is None else dict(envs),
        stderr=subprocess.PIPE if is_parted else subprocess.STDOUT, start_new_session=True, pass_fds=pass_fds,
    ) as process:  # fmt: skip
        try:
            _hear(process, {process.stdout: told, process.stderr: sys.stderr.write})
            return process.wait()
        except BaseException:
            _end(process)
            raise


def _hear(process: subprocess.Popen[bytes], streams: Mapping[Any, Callable[[str], Any]]) -> None:
    with selectors.DefaultSelector() as selector:
        for stream, told in streams.items():
            if stream is not None:
                decoder = codecs.getincrementaldecoder("utf-8")("replace")
                selector.register(stream, selectors.EVENT_READ, (decoder, told))
        while selector.get_map():
            ready = selector.select(LOOK_S)
            if not ready and process.poll() is not None:
                return
            for key, _ in ready:
                piece = os.read(key.fd, 65_536)
                decoder, told = key.data
                if text := decoder.decode(piece, not piece):
                    told(text)
                if not piece:
                    selector.unregister(key.fileobj)


def _end(process: subprocess.Popen[bytes]) -> None:
    """As Ctrl-C does to all that a shell started, and then at once."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(INTERRUPT_GRACE_S)
            return
