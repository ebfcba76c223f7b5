"""What happens below a directory, told by inotify: created, written, removed, renamed, permissions changed.

Directories that appear below are watched too where that is asked for. Bounds: directories watched, events that nobody has taken yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
from collections import deque
from dataclasses import dataclass

MOST_DIRECTORIES = 4096
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


class Watch:
    """One directory watched."""

    def __init__(self, directory: str, *, recursive: bool = False) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "no more directories can be watched")
        self._root = directory
        self._recursive = recursive
        self._paths: dict[int, str] = {}
        self._names: set[str] = set()
        """What is there: a file that takes its place is created if it was not, else written."""
        self._scratch: set[int] = set()
        """Cookies of scratch files that are just being renamed."""
        self._events: deque[Happening] = deque(maxlen=MOST_EVENTS)
        self._filled = asyncio.Event()
        try:
            self._add("")
        except OSError:
            os.close(self._descriptor)
            raise
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    async def next(self) -> Happening:
        """The next event."""
        while not self._events:
            self._filled.clear()
            await self._filled.wait()
        return self._events.popleft()

    def taken(self) -> list[Happening]:
        """All events so far; they are not told again."""
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
        """A directory and, where that is asked for, those below it, the nearest first. Raises OSError where itself is not to be watched."""
        waiting = deque((path,))
        while waiting and len(self._paths) < MOST_DIRECTORIES:
            waiting.extend(self._added(waiting.popleft()))

    def _added(self, path: str) -> list[str]:
        """Watch one; the directories in it that are to be watched, too."""
        full = os.path.join(self._root, path)
        watched = self._libc.inotify_add_watch(self._descriptor, os.fsencode(full), _WATCHED)
        if watched < 0:
            error = ctypes.get_errno()
            if path:  # it has gone again
                return []
            raise OSError(error, os.strerror(error), full)
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
        offset = 0
        while offset < len(data):
            watched, mask, cookie, length = _HEAD.unpack_from(data, offset)
            name = os.fsdecode(data[offset + _HEAD.size : offset + _HEAD.size + length].rstrip(b"\0"))
            offset += _HEAD.size + length
            if mask & _IGNORED:
                self._paths.pop(watched, None)
            elif watched in self._paths and name:
                self._note(os.path.join(self._paths[watched], name), mask, cookie)
        self._filled.set()

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
        if mask & _ISDIR and mask & (_CREATE | _MOVED_TO) and self._recursive:
            with contextlib.suppress(OSError):  # it has gone again
                self._add(path)
        for bit, kind in _KINDS:
            if mask & bit:
                self._events.append(Happening(kind, path))

    def _keep_name(self, path: str, mask: int) -> None:
        if mask & (_DELETE | _MOVED_FROM):
            self._names.discard(path)
        elif len(self._names) < MOST_NAMES:
            self._names.add(path)


_KINDS = (
    (_CREATE, CREATE), (_MOVED_TO, CREATE), (_MODIFY, WRITE), (_DELETE, REMOVE), (_MOVED_FROM, RENAME), (_ATTRIB, CHMOD),
)  # fmt: skip
