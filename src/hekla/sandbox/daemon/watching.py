"""What happens below a directory, told by inotify: created, written, removed, renamed, permissions changed.

Directories that appear below are watched too where that is asked for. Bounds: directories watched, ours and the kernel's; events that
nobody has taken yet, ours and the kernel's. At each of them the watch ends, and says so once what it saw is told: who went on hearing of a
part would take the rest for still. What its user may not read, and what is deeper than a path is long, is not watched.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import struct
from collections import deque
from dataclasses import dataclass

MOST_DIRECTORIES = 16_384
"""Of one watch: each is a call as the watch begins, 0.3 s for all, and the kernel has so many for all sandboxes of one user."""
MOST_EVENTS = 10_000
CREATE, WRITE, REMOVE, RENAME, CHMOD = "create", "write", "remove", "rename", "chmod"
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200, 0x400
_ISDIR, _OVERFLOW, _IGNORED, _ONLYDIR = 0x40000000, 0x4000, 0x8000, 0x1000000
_WATCHED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _ONLYDIR
_HEAD = struct.Struct("iIII")
SCRATCH = ".hekla-"
"""How names begin under which `tree.py` writes a file before it takes its place: nobody is told of them, but of the file that is written."""
MOST_NAMES = 100_000


@dataclass(frozen=True)
class Happening:
    """One event."""

    kind: str
    name: str
    """Path of what it happened to, relative to the watched directory."""


class WatchEndedError(Exception):
    """More happens, or is to be watched, than can be; the sentence names the bound."""


class Watch:
    """One directory watched."""

    def __init__(self, directory: str, *, recursive: bool = False) -> None:
        """Raises OSError where the directory is not to be watched, WatchEndedError where it or one below is one too many."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise _no_watcher(ctypes.get_errno())
        self._root = directory
        self._recursive = recursive
        self._paths: dict[int, str] = {}
        self._names: set[str] = set()
        """What is there: a file that takes its place is created if it was not, else written."""
        self._scratch: set[int] = set()
        """Cookies of scratch files that are just being renamed."""
        self._events: deque[Happening] = deque()
        self._filled = asyncio.Event()
        self._ended: WatchEndedError | None = None
        """Why it sees no more; told when its events are."""
        try:
            self._add("")
        except (OSError, WatchEndedError):
            os.close(self._descriptor)
            raise
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    async def next(self) -> Happening:
        """The next event; WatchEndedError when there will be none."""
        while not self._events:
            if self._ended is not None:
                raise self._ended
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()

    def taken(self) -> list[Happening]:
        """All events so far; they are not told again. WatchEndedError when there will be none."""
        if not self._events and self._ended is not None:
            raise self._ended
        events = list(self._events)
        self._events.clear()
        return events

    def close(self) -> None:
        """Watch no more."""
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _add(self, path: str) -> None:
        """A directory and, where that is asked for, those below it, the nearest first.

        Raises OSError where itself is not to be watched, WatchEndedError where one is too many.
        """
        waiting = deque((path,))
        while waiting:
            waiting.extend(self._added(waiting.popleft()))

    def _added(self, path: str) -> list[str]:
        """Watch one; the directories in it that are to be watched, too."""
        full = os.path.join(self._root, path)
        watched = self._libc.inotify_add_watch(self._descriptor, os.fsencode(full), _WATCHED)
        if watched < 0:
            error = ctypes.get_errno()
            if error in (errno.ENOSPC, errno.ENOMEM):
                raise WatchEndedError(f'"{full}" is not watched: {_setting("max_user_watches")}')
            if path:  # it has gone again, or is nobody's to read
                return []
            raise OSError(error, os.strerror(error), full)
        if watched not in self._paths and len(self._paths) >= MOST_DIRECTORIES:
            raise WatchEndedError(f'"{full}" is not watched: one watch has at most {MOST_DIRECTORIES} directories')
        self._paths[watched] = path
        below = []
        try:
            for entry in os.scandir(full):
                if len(self._names) < MOST_NAMES:
                    self._names.add(os.path.join(path, entry.name))
                if self._recursive and entry.is_dir(follow_symlinks=False):
                    below.append(os.path.join(path, entry.name))
        except OSError:
            if not path:
                raise
        return below

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 65_536)
        except BlockingIOError:
            return
        try:
            self._note_all(data)
        except WatchEndedError as error:
            self.close()
            self._ended = error
        self._filled.set()

    def _note_all(self, data: bytes) -> None:
        offset = 0
        while offset < len(data):
            watched, mask, cookie, length = _HEAD.unpack_from(data, offset)
            name = os.fsdecode(data[offset + _HEAD.size : offset + _HEAD.size + length].rstrip(b"\0"))
            offset += _HEAD.size + length
            if mask & _OVERFLOW:
                raise WatchEndedError(f"more happened than was read in time: {_setting('max_queued_events')}")
            if mask & _IGNORED:
                self._paths.pop(watched, None)
            elif watched in self._paths and name:
                self._note(os.path.join(self._paths[watched], name), mask, cookie)
            if len(self._events) > MOST_EVENTS:
                raise WatchEndedError(f"more than {MOST_EVENTS} events wait, and nobody takes them")

    def _note(self, path: str, mask: int, cookie: int) -> None:
        if os.path.basename(path).startswith(SCRATCH):
            if mask & _MOVED_FROM and len(self._scratch) < MOST_DIRECTORIES:
                self._scratch.add(cookie)
            return
        if mask & _MOVED_TO and cookie in self._scratch:
            self._scratch.discard(cookie)
            kinds = (WRITE,) if path in self._names else (CREATE, CHMOD, WRITE)
            self._events.extend(Happening(kind, path) for kind in kinds)
            self._keep_name(path, mask)
            return
        self._keep_name(path, mask)
        for bit, kind in _KINDS:
            if mask & bit:
                self._events.append(Happening(kind, path))
        if mask & _ISDIR and mask & (_CREATE | _MOVED_TO) and self._recursive:
            with contextlib.suppress(OSError):  # it has gone again
                self._add(path)

    def _keep_name(self, path: str, mask: int) -> None:
        if mask & (_DELETE | _MOVED_FROM):
            self._names.discard(path)
        elif len(self._names) < MOST_NAMES:
            self._names.add(path)


_KINDS = (
    (_CREATE, CREATE), (_MOVED_TO, CREATE), (_MODIFY, WRITE), (_DELETE, REMOVE), (_MOVED_FROM, RENAME), (_ATTRIB, CHMOD),
)  # fmt: skip


def _no_watcher(error: int) -> Exception:
    if error in (errno.EMFILE, errno.ENFILE):
        return WatchEndedError(f"there are as many watchers as may be: {_setting('max_user_instances')}")
    return OSError(error, os.strerror(error))


def _setting(name: str) -> str:
    """One of the kernel's bounds, with its number where that can be read."""
    try:
        with open(f"/proc/sys/fs/inotify/{name}") as file:
            return f"the kernel's fs.inotify.{name} is {file.read().strip()}"
    except OSError:
        return f"the kernel's fs.inotify.{name}"
