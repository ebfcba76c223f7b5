"""Files below a root, and never outside it: every path is walked directory by directory, and symbolic links are followed by us.

A race that swaps a directory for a link changes nothing: each step opens the next name in the directory that is open already, and refuses
to follow. Links that lead outside count as missing. What is no regular file is neither read nor written, so that no FIFO hangs us.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import grp
import itertools
import os
import pwd
import secrets
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hekla.sandbox.daemon.becoming import may_choose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MOST_LINKS = 40
LONGEST_PATH = 4096
MOST_LISTED = 100_000
LISTED_AT_ONCE = 100
"""Names that are looked at before others have their turn: 15 ms where a machine is busy."""
LISTINGS = 4
"""That go on at once: each keeps a directory open for every level, and a sandbox has 4096 descriptors."""
MOST_DEEP = 256
"""Levels of directories that are listed or removed at once: each keeps one open."""
PIECE = 256 * 1024
_INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
METADATA = "user.hekla."
"""Extended attributes that clients set and see."""


class TreeError(Exception):
    """A file operation that did not happen; `code` is a stable word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        """not_found, already_exists, not_a_file, not_a_directory, not_empty, denied, invalid, full, too_many, failed."""


@dataclass(frozen=True)
class Entry:
    """One file, directory or link."""

    name: str
    path: str
    """As clients say it: from the root, beginning with a slash."""
    kind: str
    """file, directory, symlink, or other."""
    size: int
    mode: int
    """Permission bits."""
    owner: str
    group: str
    modified: float
    """Seconds since 1970."""
    target: str = ""
    """Where a link leads, as it stands."""
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Spot:
    """A name in an open directory; the name is empty for the root itself."""

    directory: int
    name: str
    path: str


class Tree:
    """The files below one directory. Paths are text; bytes that are no UTF-8 are carried as surrogates."""

    def __init__(self, root: str = "/") -> None:
        self._root = os.path.realpath(root)
        self._listings: asyncio.Semaphore | None = None
        """Made in its loop, which old Pythons look for at once."""

    @property
    def root(self) -> str:
        """The directory itself, as the host of this process sees it."""
        return self._root

    def stat(self, path: str) -> Entry:
        """What is there; a link at the end is not followed."""
        with self._spot(path, follows=False) as spot, _told(path):
            return _entry(spot)

    def open(self, path: str) -> tuple[int, int]:
        """An open regular file and its size; the caller closes it."""
        with self._spot(path) as spot, _told(path):
            descriptor = _open_at(spot, os.O_RDONLY | os.O_NONBLOCK)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise TreeError("not_a_file", f'"{path}" is {_a(found.st_mode)} and no file')
        os.set_blocking(descriptor, True)
        return descriptor, found.st_size

    def read(self, path: str, most: int = 64 * 1024 * 1024) -> bytes:
        """All of a file."""
        descriptor, size = self.open(path)
        with os.fdopen(descriptor, "rb") as file:
            if size > most:
                raise TreeError("too_many", f'"{path}" has {size} bytes; at most {most} are read at once')
            return file.read(most)

    def entries(self, path: str, depth: int = 1) -> list[Entry]:
        """What is below a directory, so many levels deep, by path; links that lead nowhere are listed, those outside are not."""
        found: list[Entry] = []
        for _ in self._listing(path, depth, found):
            pass
        return sorted(found, key=lambda one: one.path)

    async def listed(self, path: str, depth: int = 1) -> list[Entry]:
        """The same, in turns with what else the daemon does: a hundred thousand files take 15 s and more."""
        found: list[Entry] = []
        if self._listings is None:
            self._listings = asyncio.Semaphore(LISTINGS)
        async with self._listings:
            for _ in self._listing(path, depth, found):
                await asyncio.sleep(0)
        return sorted(found, key=lambda one: one.path)

    def _listing(self, path: str, depth: int, found: list[Entry]) -> Iterator[None]:
        top = self.enter(path)
        with self._spot(top) as spot, _told(path):
            directory = _open_at(spot, os.O_RDONLY | os.O_DIRECTORY)
        yield from self._list(directory, top, min(depth, MOST_DEEP), found, itertools.count(1))

    def enter(self, path: str) -> str:
        """The path of a directory, links followed; refuses what is none."""
        with self._spot(path) as spot, _told(path):
            os.close(_open_at(spot, os.O_RDONLY | os.O_DIRECTORY))
            return spot.path

    def writer(self, path: str, *, mode: int | None = None, owner: tuple[int, int] | None = None) -> Writer:
        """Writes a file beside its place; it takes it when it is whole. Missing directories are made."""
        parent, _, name = path.rstrip("/").rpartition("/")
        if not name or name in (".", ".."):
            raise TreeError("invalid", f'"{path}" names no file')
        self.make(parent or "/", owner=owner)
        with self._spot(path) as spot, _told(path):
            with contextlib.suppress(FileNotFoundError):
                there = (
                    os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)
                    if spot.name
                    else os.fstat(spot.directory)
                )
                if not stat.S_ISREG(there.st_mode):
                    raise TreeError("not_a_file", f'"{path}" is {_a(there.st_mode)} and no file')
                mode = stat.S_IMODE(there.st_mode) if mode is None else mode
            return Writer(os.dup(spot.directory), spot.name, path, 0o644 if mode is None else mode, owner)

    def write(self, path: str, data: bytes, *, mode: int | None = None, owner: tuple[int, int] | None = None) -> int:
        """Write a whole file; how many bytes it has."""
        with self.writer(path, mode=mode, owner=owner) as writer:
            writer.write(data)
        return len(data)

    def make(self, path: str, *, owner: tuple[int, int] | None = None) -> bool:
        """Make a directory and those above it, in one walk; False if it was there."""
        chosen = owner if owner is not None and may_choose() else None

        def made(directory: int, name: str) -> None:
            os.mkdir(name, 0o755, dir_fd=directory)
            if chosen is not None:
                os.chown(name, *chosen, dir_fd=directory, follow_symlinks=False)

        with self._spot(path, makes=made) as spot, _told(path):
            if not spot.name:
                return False
            try:
                made(spot.directory, spot.name)
            except FileExistsError:
                if not stat.S_ISDIR(os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False).st_mode):
                    raise TreeError("not_a_directory", f'"{spot.path}" is there and no directory') from None
                return False
            return True

    def move(self, old: str, new: str) -> Entry:
        """Give a file or directory another name."""
        with self._spot(old, follows=False) as source, self._spot(new, follows=False) as target, _told(old):
            if not source.name or not target.name:
                raise TreeError("invalid", "the root cannot be moved or replaced")
            os.rename(source.name, target.name, src_dir_fd=source.directory, dst_dir_fd=target.directory)
            return _entry(target)

    def remove(self, path: str, *, recursive: bool = True) -> None:
        """Remove a file, a link, or a directory with what is in it; the root is emptied."""
        with self._spot(path, follows=False) as spot, _told(path):
            if not spot.name:
                if not recursive:
                    raise TreeError("not_empty", "the root is not removed")
                _empty(os.dup(spot.directory), path)
                return
            found = os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(spot.name, dir_fd=spot.directory)
                return
            if recursive:
                _empty(_open_at(spot, os.O_RDONLY | os.O_DIRECTORY), path)
            os.rmdir(spot.name, dir_fd=spot.directory)

    def copy(self, old: str, new: str, *, mode: int | None = None) -> None:
        """Write another file with what a file holds."""
        descriptor, _ = self.open(old)
        with os.fdopen(descriptor, "rb") as file, self.writer(new, mode=mode) as writer:
            while piece := file.read(PIECE):
                writer.write(piece)

    def set_mode(self, path: str, mode: int) -> None:
        """Change a file's permission bits."""
        descriptor, _ = self.open(path)
        try:
            with _told(path):
                os.fchmod(descriptor, mode & 0o7777)
        finally:
            os.close(descriptor)

    def set_metadata(self, path: str, metadata: dict[str, str]) -> None:
        """Words that clients keep beside a file."""
        descriptor, _ = self.open(path)
        try:
            for key, value in metadata.items():
                with _told(path):
                    os.setxattr(descriptor, METADATA + key, value.encode())
        finally:
            os.close(descriptor)

    def _list(self, directory: int, path: str, depth: int, found: list[Entry], looked: Iterator[int]) -> Iterator[None]:
        """List an open directory, and close it; those in it are opened from it, so that nothing is walked to twice. Stops now and then."""
        try:
            for name in os.listdir(directory):
                if not next(looked) % LISTED_AT_ONCE:
                    yield
                inner = f"{path.rstrip('/')}/{name}"
                try:
                    with _unless_gone(inner):
                        entry = _entry(_Spot(directory, name, inner))
                        is_outside = entry.kind == "symlink" and self._leads_out(inner)
                except _GoneError:
                    continue
                if entry.kind == "symlink" and self._root != "/":
                    yield  # the walk to where one leads may be as long as a path, and through forty others
                if is_outside:
                    continue
                if len(found) >= MOST_LISTED:
                    raise TreeError("too_many", f'"{path}" holds more than {MOST_LISTED} files; list a part of it')
                found.append(entry)
                if entry.kind == "directory" and depth > 1:
                    try:
                        with _unless_gone(inner):
                            below = os.open(name, _INTO, dir_fd=directory)
                    except _GoneError:
                        continue
                    yield from self._list(below, inner, depth - 1, found, looked)
        finally:
            os.close(directory)

    def _leads_out(self, path: str) -> bool:
        if self._root == "/":
            return False
        try:
            with self._spot(path):
                return False
        except TreeError as error:
            if error.code == "too_many":
                raise
            return error.code == "denied"

    @contextlib.contextmanager
    def _spot(
        self, path: str, *, follows: bool = True, makes: Callable[[int, str], None] | None = None
    ) -> Iterator[_Spot]:
        """Walk to the directory that holds the path's last name; `makes` makes those that are missing on the way."""
        if "\0" in path:
            raise TreeError("invalid", "a path has no NUL in it")
        if len(os.fsencode(path)) >= LONGEST_PATH:
            raise TreeError("invalid", f"the path is longer than {LONGEST_PATH} bytes")
        with _told(path):
            opened = [os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
        try:
            with _told(path):
                spot = self._walk(path, opened, follows=follows, makes=makes)
            yield spot
        finally:
            for descriptor in opened:
                os.close(descriptor)

    def _walk(self, path: str, opened: list[int], *, follows: bool, makes: Callable[[int, str], None] | None) -> _Spot:
        left = [one for one in reversed(path.split("/")) if one not in ("", ".")]
        names: list[str] = []
        links = 0
        while left:
            name = left.pop()
            if name == "..":
                if not names and self._root != "/":
                    raise TreeError("denied", f'"{path}" leads outside')
                if names:
                    names.pop()
                    os.close(opened.pop())
                continue
            target = _link(opened[-1], name) if left or follows else None
            if target is not None:
                links += 1
                if links > MOST_LINKS:
                    raise TreeError("invalid", f'"{path}" goes in circles')
                if target.startswith("/"):
                    if self._root != "/":
                        raise TreeError("denied", f'"{path}" leads outside')
                    names.clear()
                    for descriptor in opened[1:]:
                        os.close(descriptor)
                    del opened[1:]
                left += [one for one in reversed(target.split("/")) if one not in ("", ".")]
                continue
            if not left:
                return _Spot(opened[-1], name, "/" + "/".join([*names, name]))
            try:
                inner = os.open(name, _INTO, dir_fd=opened[-1])
            except FileNotFoundError:
                if makes is None:
                    raise
                makes(opened[-1], name)
                inner = os.open(name, _INTO, dir_fd=opened[-1])
            except NotADirectoryError:
                if makes is None:
                    raise
                there = "/" + "/".join([*names, name])
                raise TreeError("not_a_directory", f'"{there}" is there and no directory') from None
            opened.append(inner)
            names.append(name)
        return _Spot(opened[-1], "", "/" + "/".join(names))


class Writer:
    """A file that is written beside its place, and takes it when it is whole."""

    def __init__(self, directory: int, name: str, path: str, mode: int, owner: tuple[int, int] | None) -> None:
        self._directory = directory
        self._name = name
        self._path = path
        self._beside = f".hekla-{secrets.token_hex(8)}"
        with _told(path):
            self._file = os.open(
                self._beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory
            )
            os.fchmod(self._file, mode & 0o7777)
            if owner is not None and may_choose():
                os.fchown(self._file, *owner)

    def write(self, data: bytes) -> None:
        """The next bytes."""
        with _told(self._path):
            view = memoryview(data)
            while view:
                view = view[os.write(self._file, view) :]

    def commit(self) -> None:
        """Put it into its place."""
        with _told(self._path):
            os.rename(self._beside, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._close()

    def drop(self) -> None:
        """Leave nothing."""
        with contextlib.suppress(OSError):
            os.unlink(self._beside, dir_fd=self._directory)
        self._close()

    def __enter__(self) -> Writer:
        """Write within a block: what fails leaves nothing."""
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        """Commit, or drop."""
        if kind is None:
            try:
                self.commit()
            except TreeError:
                self.drop()
                raise
        else:
            self.drop()

    def _close(self) -> None:
        for descriptor in (self._file, self._directory):
            with contextlib.suppress(OSError):
                os.close(descriptor)


@contextlib.contextmanager
def _told(path: str) -> Iterator[None]:
    """The system's refusals as sentences."""
    try:
        yield
    except OSError as error:
        code = _CODES.get(error.errno or 0, "failed")
        raise TreeError(code, f'"{path}": {(error.strerror or str(error)).lower()}') from error


class _GoneError(Exception):
    """What was listed went away while we looked, became a link, or is not ours to read: the list goes on without it."""


_PASSING = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM))


@contextlib.contextmanager
def _unless_gone(path: str) -> Iterator[None]:
    """The system's refusals as sentences, but those that only say that there is nothing to list: a list that is short of something says so."""
    try:
        with _told(path):
            yield
    except TreeError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in _PASSING:
            raise _GoneError from None
        raise


_CODES = {
    errno.ENOENT: "not_found", errno.EEXIST: "already_exists", errno.ENOTDIR: "not_a_directory", errno.EISDIR: "not_a_file",
    errno.ENOTEMPTY: "not_empty", errno.EACCES: "denied", errno.EPERM: "denied", errno.EROFS: "denied", errno.ELOOP: "denied",
    errno.ENOSPC: "full", errno.EDQUOT: "full", errno.ENAMETOOLONG: "invalid", errno.EINVAL: "invalid", errno.EFBIG: "full",
    errno.ENXIO: "not_a_file", errno.EMFILE: "too_many", errno.ENFILE: "too_many",
}  # fmt: skip


def _open_at(spot: _Spot, flags: int) -> int:
    return os.open(spot.name or ".", flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=spot.directory)


def _link(directory: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT, errno.ENOTDIR):  # no link, or nothing there
            return None
        raise


def _entry(spot: _Spot) -> Entry:
    found = os.stat(spot.name, dir_fd=spot.directory, follow_symlinks=False) if spot.name else os.fstat(spot.directory)
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "other")
    return Entry(
        name=spot.name or "/",
        path=spot.path,
        kind=kind,
        size=found.st_size,
        mode=stat.S_IMODE(found.st_mode),
        owner=_name_of(found.st_uid, of_group=False),
        group=_name_of(found.st_gid, of_group=True),
        modified=found.st_mtime,
        target=os.readlink(spot.name, dir_fd=spot.directory) if kind == "symlink" else "",
        metadata=_metadata(spot) if kind == "file" else {},
    )


_KINDS = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symlink"}


def _metadata(spot: _Spot) -> dict[str, str]:
    try:
        descriptor = _open_at(spot, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _PASSING or error.errno == errno.ENXIO:
            return {}
        raise
    try:
        names = [one for one in os.listxattr(descriptor) if one.startswith(METADATA)]
        return {one[len(METADATA) :]: os.getxattr(descriptor, one).decode("utf-8", "replace") for one in names}
    except OSError:  # a file system without attributes
        return {}
    finally:
        os.close(descriptor)


def _name_of(number: int, *, of_group: bool) -> str:
    try:
        return grp.getgrgid(number).gr_name if of_group else pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def _empty(directory: int, path: str, levels: int = MOST_DEEP) -> None:
    """Remove what is in an open directory, and close it; nothing outside is followed to."""
    try:
        if not levels:
            raise TreeError("too_many", f'"{path}" is more than {MOST_DEEP} directories deep; remove it by rm -r')
        for name in os.listdir(directory):
            try:
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                os.unlink(name, dir_fd=directory)
                continue
            _empty(inner, path, levels - 1)
            os.rmdir(name, dir_fd=directory)
    finally:
        os.close(directory)


def _a(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
