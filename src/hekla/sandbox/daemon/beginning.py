"""How a program of somebody else's begins: without a copy of the daemon where that can be, forked where not.

A fork of the daemon takes 1.1 ms, and both sides copy what either writes to afterwards: 750 pages of the daemon's, each time. `posix_spawn`
lends its memory to the child until that runs its program (0.2 ms) but knows nothing of users; all it does is make real ids effective
ones. So the daemon's real ids are the program's user's for that moment, where that gives nobody a hold on it (`becoming.may_lend`).
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import os
import signal
import subprocess
import termios
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.becoming import c_library, in_program, lend_real_ids, may_lend

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Streams = tuple[int, int, int]

_CLOSE_RANGE, _ON_EXEC, _ALL = 436, 4, 0xFFFF_FFFF
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)


def begin(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    streams: Streams,
    user: tuple[str, int, int],
    has_terminal: bool = False,
) -> int:
    """Run a program as the first of a session and a process group of its own; its number. `user` is a name or none, and two numbers."""
    if has_terminal or not _is_quick():
        return _forked(argv, cwd, env, streams, user, has_terminal=has_terminal)
    name, uid, gid = user
    os.chdir(cwd)
    try:
        _close_on_exec()
        with lend_real_ids(uid, gid, os.getgrouplist(name, gid) if name else []):
            return _spawned(argv, env, streams)
    finally:
        os.chdir("/")


@functools.cache
def _is_quick() -> bool:
    return may_lend() and hasattr(os, "posix_spawn") and _close_on_exec()


def _close_on_exec() -> bool:
    """Let no program have a descriptor that it was not given; False where the kernel is older than 5.11."""
    done = c_library().syscall(
        ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(3), ctypes.c_uint(_ALL), ctypes.c_uint(_ON_EXEC)
    )
    return bool(done == 0)


def _spawned(argv: Sequence[str], env: Mapping[str, str], streams: Streams) -> int:
    moves = [(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)]
    refused: OSError | None = None
    for path in _places(argv[0], env):
        try:
            return os.posix_spawn(
                path, list(argv), env, file_actions=moves, resetids=True, setsid=True, setsigdef=_IGNORED_BY_PYTHON
            )
        except (FileNotFoundError, NotADirectoryError) as error:
            refused = refused or error
        except OSError as error:  # there it is: of those that may not be run the first is told of
            refused = (
                error if refused is None or isinstance(refused, (FileNotFoundError, NotADirectoryError)) else refused
            )
    raise refused or FileNotFoundError(argv[0])


def _places(program: str, env: Mapping[str, str]) -> Iterator[str]:
    if "/" in program:
        yield program
        return
    for directory in os.get_exec_path(env):
        place = os.path.join(directory, program)
        if os.path.lexists(place):  # a try takes a hundred times as long
            yield place


def _forked(
    argv: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    streams: Streams,
    user: tuple[str, int, int],
    *,
    has_terminal: bool,
) -> int:
    child = subprocess.Popen(
        argv, cwd=cwd, env=env, stdin=streams[0], stdout=streams[1], stderr=streams[2], start_new_session=True,
        preexec_fn=_take_terminal if has_terminal else None, **in_program(*user),
    )  # fmt: skip
    child.returncode = 0  # the daemon reaps; the object must neither wait nor warn
    return child.pid


def _take_terminal() -> None:
    """In a child that leads a session: what it reads from is its terminal."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
