"""Packs what a sandbox has written into one archive, and unpacks it in another: done by the sandbox itself, so nothing can lead outside.

A tar file of regular files, directories, links and, over an image, the marks of what was deleted. Sockets, fifos and devices stay behind.
Times, modes and owners (as the sandbox numbers them) come along, and holes stay holes (GNU's sparse format 1.0).

Programs of the sandbox go on meanwhile: what is deleted is left out, what shrinks ends in zeros, and what was swapped for something else
is not followed: it might be the daemon's. So every entry is reached from its directory, and every directory from the one above it, both
here and where the archive is laid out; no path is ever resolved as a whole.
"""

from __future__ import annotations  # images have older interpreters, too

import contextlib
import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, NamedTuple

MOST_ENTRIES = 1_000_000
SKIPPED = frozenset(("dev", "proc", "sys", "run", "etc/hostname", "etc/hosts", "etc/resolv.conf"))
"""A sandbox's own, or nothing but mounts."""
MOST_PIECES = 10_000
"""Of one file with holes; what comes after them is packed as a whole."""
MOST_BESIDE_HOLES = 1 << 32
PIECE = 1 << 20
_OPAQUE = "SCHILY.xattr.user.overlay.opaque"
_BLOCK = 512
MOST_BYTES_OF_PATH = 4095
"""What a program can say in one call; who makes deeper trees, step by step, does it to be a nuisance."""
SHOWN = 200
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO)
"""It is not there any more, or is now a file, a link or a socket."""
_ENTRY = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Given:
    """What a sandbox was made with. As long as it is unchanged it is not packed: who unpacks has it too, and forty entries take 5 ms."""

    names: frozenset[str] = frozenset()
    before_ns: int = 0
    """When the first code ran that may have changed something."""

    def has(self, path: str, found: os.stat_result) -> bool:
        """Whether an entry is still as it was made."""
        return found.st_ctime_ns < self.before_ns and path in self.names


def pack(directory: int, output: int, given: Given = Given()) -> dict[str, Any]:
    """Write all below an open directory to a descriptor, nothing at all if there is nothing; mounts laid over it are not its.

    Told are how many `files` there are, and up to 100 paths each that are `left_out` for what they are, or `unreadable`. Raises OSError.
    """
    left_out: list[str] = []
    unreadable: list[str] = []
    count, path = 0, ""
    with _worded(lambda: path), contextlib.ExitStack() as stack:
        folders = stack.enter_context(_Folders(directory))
        tar: tarfile.TarFile | None = None
        seen: dict[tuple[int, int], str] = {}
        for path, found in _entries(folders, given, unreadable):
            if tar is None:
                file = stack.enter_context(os.fdopen(os.dup(output), "wb"))
                tar = stack.enter_context(tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT))
            try:
                is_packed = _add(tar, folders, path, found, seen)
            except PermissionError:
                unreadable.append(path)
                continue
            except OSError as problem:
                if problem.errno in _GONE:
                    continue
                raise
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all, to find one by its name
            count += 1
            if count > MOST_ENTRIES:
                raise OSError(f"more than {MOST_ENTRIES} files: too many for one checkpoint")
            if not is_packed:
                left_out.append(path)
    return {
        "files": count,
        "left_out": [_shown(path) for path in left_out[:100]],
        "unreadable": [_shown(path) for path in unreadable[:100]],
    }


def _shown(path: str) -> str:
    """A path for people: names may be of any bytes, and of any number of them."""
    text = os.fsencode(path).decode("utf-8", "replace")
    return f"/{text}" if len(text) < SHOWN else f"/{text[:SHOWN]}…"


@contextlib.contextmanager
def _worded(path: Callable[[], str]) -> Iterator[None]:
    """Say it where there is no room; that may show, and show again, as late as when what was gathered is written at the end."""
    try:
        yield
    except OSError as problem:
        if problem.errno not in (errno.EFBIG, errno.ENOSPC, errno.EDQUOT):
            raise
        raise OSError(
            f"no room for all files of the sandbox in one checkpoint, at {_shown(path())} ({problem.strerror}); delete what is not needed any more"
        ) from problem


def _entries(folders: _Folders, given: Given, unreadable: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """All that is to be packed, each after the directories that it is in."""
    home = os.fstat(folders.root).st_dev
    pending = [""]
    held_back: dict[str, os.stat_result] = {}
    while pending:
        below = pending.pop()
        for name in _names(folders, below, unreadable):
            path = f"{below}/{name}".lstrip("/")
            if len(os.fsencode(path)) > MOST_BYTES_OF_PATH:
                unreadable.append(path)
                continue
            try:
                found = _look(folders, path)
            except PermissionError:
                unreadable.append(path)
                continue
            if found is None or path in SKIPPED or found.st_dev != home:
                continue
            if stat.S_ISDIR(found.st_mode):
                pending.append(path)
            if given.has(path, found):
                held_back[path] = found
                continue
            for above in _above(path):
                if above in held_back:
                    yield above, held_back.pop(above)
            yield path, found


def _look(folders: _Folders, path: str) -> os.stat_result | None:
    try:
        holder, name = folders.holding(path)
        return os.lstat(name, dir_fd=holder)
    except OSError as problem:
        if problem.errno in _GONE:
            return None
        raise


def _names(folders: _Folders, below: str, unreadable: list[str]) -> list[str]:
    try:
        holder, name = folders.holding(below)
        descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _ENTRY, dir_fd=holder)
        try:
            return sorted(os.listdir(descriptor))
        finally:
            os.close(descriptor)
    except PermissionError:
        unreadable.append(below)
    except OSError as problem:
        if problem.errno not in _GONE:
            raise
    return []


class _Folders:
    """The directories below an open one, each reached from the one above it and never over a link. The last one stays open."""

    def __init__(self, root: int) -> None:
        self.root = root
        self._path, self._descriptor = "", root

    def __enter__(self) -> _Folders:
        return self

    def __exit__(self, *_: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Let go of the last one."""
        if self._descriptor != self.root:
            os.close(self._descriptor)
        self._path, self._descriptor = "", self.root

    def holding(self, path: str) -> tuple[int, str]:
        """The directory that an entry is in, open until the next call, and its name there. Raises OSError where a part of the way is none."""
        above, _, name = path.rpartition("/")
        if above != self._path:
            self._go(above)
        return self._descriptor, name or "."

    def _go(self, path: str) -> None:
        left = path
        if self._path and path.startswith(f"{self._path}/"):
            left = path[len(self._path) + 1 :]
        else:
            self.forget()
        for name in left.split("/") if left else ():
            below = os.open(name, os.O_PATH | os.O_DIRECTORY | _ENTRY, dir_fd=self._descriptor)
            if self._descriptor != self.root:
                os.close(self._descriptor)
            self._descriptor = below
            self._path = f"{self._path}/{name}".lstrip("/")


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def unpack(directory: int, source: int, *, is_layer: bool = True) -> dict[str, Any]:
    """Lay an archive over an open directory. One that is not a layer itself shows what lies below it, so marks of deletion delete.

    Programs may run there, too: what they swap for a link meanwhile ends it with OSError, for nothing is written through one.
    """
    made: list[_Made] = []
    count = 0
    with (
        os.fdopen(os.dup(source), "rb") as file,
        tarfile.open(fileobj=file, mode="r|") as tar,
        _Folders(directory) as folders,
    ):
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # it would keep them all
            count += 1
            if count > MOST_ENTRIES or not _is_inside(member.name):
                raise OSError(f"the archive has an entry that no sandbox wrote: {_shown(member.name)[1:]}")
            if not is_layer and _delete_as_marked(member, folders):
                continue
            _lay(tar, folders, member)
            if member.isdir():
                made.append(_Made(member.name, member.mode, member.uid, member.gid, member.mtime))
        for one in reversed(made):  # a directory after all that is in it, for its time
            holder, name = folders.holding(one.path)
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _ENTRY, dir_fd=holder)
            try:
                _own(descriptor, one)
            finally:
                os.close(descriptor)
    return {"files": count}


class _Made(NamedTuple):
    """Whose an entry is to be."""

    path: str
    mode: int
    uid: int
    gid: int
    mtime: float


def _is_inside(path: str) -> bool:
    return bool(path) and not {"", ".", ".."} & set(path.split("/"))


def _delete_as_marked(member: tarfile.TarInfo, folders: _Folders) -> bool:
    """What the mark of an upper layer means where there is no layer to put it in; True: that was all of the entry."""
    is_gone = member.ischr() and not member.devmajor and not member.devminor
    is_new = bool(member.pax_headers.get(_OPAQUE))
    member.pax_headers = {}
    if is_gone or (is_new and _is_directory(folders, member.name)):
        _clear(folders, member.name)
    return is_gone


def _add(
    tar: tarfile.TarFile, folders: _Folders, path: str, found: os.stat_result, seen: dict[tuple[int, int], str]
) -> bool:
    member = tarfile.TarInfo(path)
    member.mode, member.uid, member.gid, member.mtime = (
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_mtime,
    )
    holder, name = folders.holding(path)
    if stat.S_ISLNK(found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, _target(holder, name)
    elif stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
        if _is_opaque(holder, name):
            member.pax_headers = {_OPAQUE: "y"}
    elif stat.S_ISREG(found.st_mode):
        inode = (found.st_dev, found.st_ino)
        if inode in seen and _is_still(folders, seen[inode], inode):
            member.type, member.linkname = tarfile.LNKTYPE, seen[inode]
        else:
            _add_content(tar, member, folders.holding(path), found)
            if found.st_nlink > 1:
                seen[inode] = path
            return True
    elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
        member.type = tarfile.CHRTYPE  # overlay's mark of a deleted file
    else:
        return False
    tar.addfile(member)
    return True


def _is_still(folders: _Folders, path: str, inode: tuple[int, int]) -> bool:
    """Whether a path that was packed has that file yet: a file that was deleted leaves its number to the next new one."""
    try:
        found = _look(folders, path)
    except PermissionError:
        return False
    return found is not None and (found.st_dev, found.st_ino) == inode


def _target(holder: int, name: str) -> str:
    try:
        return os.readlink(name, dir_fd=holder)
    except OSError as problem:
        if problem.errno == errno.EINVAL:  # a link no more
            raise _gone(name) from None
        raise


def _gone(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "it became something else", name)


def _add_content(tar: tarfile.TarFile, member: tarfile.TarInfo, place: tuple[int, str], found: os.stat_result) -> None:
    holder, name = place
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _ENTRY, dir_fd=holder)
    now = os.fstat(descriptor)
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) or not stat.S_ISREG(now.st_mode):
        os.close(descriptor)
        raise _gone(name)
    with open(descriptor, "rb", buffering=0) as file:
        pieces = _pieces(descriptor, now)
        head = b""
        if pieces is not None:
            head = _sparse_map([*pieces, (now.st_size, 0)])
            member.pax_headers = {
                "GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(now.st_size)
            }  # fmt: skip
        laid_out = [(0, now.st_size)] if pieces is None else pieces
        member.size = len(head) + sum(size for _, size in laid_out)
        tar.addfile(member, _Content(file, head, laid_out))  # type: ignore[arg-type]  # all that is asked of it is `read`


def _pieces(descriptor: int, found: os.stat_result) -> list[tuple[int, int]] | None:
    """Where a file with holes has content, as places and sizes in bytes; None: it has no hole, or too much beside them for `tarfile`."""
    size = found.st_size
    if found.st_blocks * _BLOCK >= size:
        return None
    pieces: list[tuple[int, int]] = []
    at = 0
    try:
        while at < size and len(pieces) < MOST_PIECES:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = min(os.lseek(descriptor, start, os.SEEK_HOLE), size)
            if start < at:
                pieces.append((start, at - start))
    except OSError as problem:
        if problem.errno != errno.ENXIO:  # no more content
            return None
    else:
        if at < size:
            pieces[-1] = (pieces[-1][0], size - pieces[-1][0])
    content = sum(length for _, length in pieces)
    return pieces if content < min(size, MOST_BESIDE_HOLES) else None


def _sparse_map(pieces: list[tuple[int, int]]) -> bytes:
    """Before the content: how many pieces there are, then place and size of each."""
    numbers = [len(pieces), *(number for piece in pieces for number in piece)]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % _BLOCK)


class _Content:
    """What is read of a file while others write it: exactly as many bytes as were foretold."""

    def __init__(self, file: BinaryIO, head: bytes, pieces: list[tuple[int, int]]) -> None:
        self._file, self._head, self._pieces = file, head, pieces[::-1]

    def read(self, size: int) -> bytes:
        """Up to so many bytes, fewer only at the end; where the file ended early, zeros."""
        read, self._head = self._head[:size], self._head[size:]
        while len(read) < size and self._pieces:
            place, left = self._pieces.pop()
            take = min(left, size - len(read))
            data = os.pread(self._file.fileno(), take, place)
            data = data or bytes(take)
            read += data
            if left > len(data):
                self._pieces.append((place + len(data), left - len(data)))
        return read


def _lay(tar: tarfile.TarFile, folders: _Folders, member: tarfile.TarInfo) -> None:
    holder, name = folders.holding(member.name)
    if member.isdir():
        if not _is_directory(folders, member.name):
            holder, name = _clear(folders, member.name)
            os.mkdir(name, 0o700, dir_fd=holder)
        if member.pax_headers.get(_OPAQUE):
            os.setxattr(_path(holder, name), "user.overlay.opaque", b"y", follow_symlinks=False)
        return
    if member.issym() and _leads_to(holder, name, member.linkname):
        return  # `/bin` and its like, in a directory that nobody writes
    holder, name = _clear(folders, member.name)
    if member.issym():
        os.symlink(member.linkname, name, dir_fd=holder)
        with contextlib.suppress(OSError):  # where there is one user only, all is his
            os.chown(name, member.uid, member.gid, dir_fd=holder, follow_symlinks=False)
    elif member.islnk():
        _link(folders, member)
    elif member.isreg():
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _ENTRY, 0o600, dir_fd=holder)
        with open(descriptor, "wb") as file:
            _fill(tar, member, file)
            file.flush()
            _own(descriptor, member)
    elif member.ischr() and not member.devmajor and not member.devminor:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=holder)


def _link(folders: _Folders, member: tarfile.TarInfo) -> None:
    """Another name of a file that is there already."""
    if not _is_inside(member.linkname):
        raise OSError(f"the archive has a link that no sandbox wrote: {_shown(member.linkname)[1:]}")
    holder, name = folders.holding(member.linkname)
    file = os.open(name, os.O_PATH | _ENTRY, dir_fd=holder)
    try:
        holder, other = folders.holding(member.name)
        os.link(f"/proc/self/fd/{file}", other, dst_dir_fd=holder, follow_symlinks=True)
    finally:
        os.close(file)


def _fill(tar: tarfile.TarFile, member: tarfile.TarInfo, file: BinaryIO) -> None:
    pieces: Any = ((0, member.size),) if member.sparse is None else member.sparse
    found: Any = tar.extractfile(member)
    content = found.raw  # its buffer asks a stream whether it can go back
    for place, size in pieces:
        content.seek(place)
        file.seek(place)
        _write(content, size, file)
    file.truncate(member.size)  # a hole at its end


def _write(content: IO[bytes], size: int, file: BinaryIO) -> None:
    while size > 0 and (piece := content.read(min(size, PIECE))):
        size -= file.write(piece)


def _own(descriptor: int, whose: tarfile.TarInfo | _Made) -> None:
    with contextlib.suppress(OSError):  # where there is one user only, all is his
        os.fchown(descriptor, whose.uid, whose.gid)
    os.fchmod(descriptor, whose.mode)
    os.utime(descriptor, (whose.mtime, whose.mtime))


def _clear(folders: _Folders, path: str) -> tuple[int, str]:
    """Make room for an entry, and tell where: where every sandbox has a directory, this one may have had a file or a link."""
    if _is_directory(folders, path):
        shutil.rmtree(_path(*folders.holding(path)))  # it follows no link either
    else:
        holder, name = folders.holding(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=holder)
    return folders.holding(path)


def _is_directory(folders: _Folders, path: str) -> bool:
    found = _look(folders, path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def _leads_to(holder: int, name: str, target: str) -> bool:
    try:
        return os.readlink(name, dir_fd=holder) == target
    except OSError:
        return False


def _path(holder: int, name: str) -> str:
    """For the few calls that take no directory: the kernel resolves one name, below what is open."""
    return f"/proc/self/fd/{holder}/{name}"


def _is_opaque(holder: int, name: str) -> bool:
    try:
        return os.getxattr(_path(holder, name), "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
