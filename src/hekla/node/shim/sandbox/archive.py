"""Packs what a sandbox has written into one archive, and unpacks it in another: done by the sandbox itself, so nothing can lead outside.

A tar file of regular files, directories, links and, over an image, the marks of what was deleted. Sockets, fifos and devices stay behind.
Times, modes and owners (as the sandbox numbers them) come along, and holes stay holes (GNU's sparse format 1.0).

Programs of the sandbox go on meanwhile: what is deleted is left out, what shrinks ends in zeros, and what was swapped for something else
between a look and an open is not followed: it might be the daemon's.
"""

from __future__ import annotations  # images have older interpreters, too

import contextlib
import errno
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

MOST_ENTRIES = 1_000_000
SKIPPED = frozenset(("dev", "proc", "sys", "run", "etc/hostname", "etc/hosts", "etc/resolv.conf"))
"""A sandbox's own, or nothing but mounts."""
MOST_PIECES = 10_000
"""Of one file with holes; what comes after them is packed as a whole."""
MOST_BESIDE_HOLES = 1 << 32
PIECE = 1 << 20
_OPAQUE = "SCHILY.xattr.user.overlay.opaque"
_BLOCK = 512
_GONE = (FileNotFoundError, NotADirectoryError)


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
    count = 0
    with contextlib.ExitStack() as stack:
        tar: tarfile.TarFile | None = None
        seen: dict[tuple[int, int], str] = {}
        for path, found in _entries(directory, given, unreadable):
            if tar is None:
                file = stack.enter_context(os.fdopen(os.dup(output), "wb"))
                tar = stack.enter_context(tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT))
            try:
                is_packed = _add(tar, directory, path, found, seen)
            except _GONE:
                continue
            except PermissionError:
                unreadable.append(f"/{path}")
                continue
            except OSError as problem:
                raise _worded(problem, path) from problem
            count += 1
            if count > MOST_ENTRIES:
                raise OSError(f"more than {MOST_ENTRIES} files: too many for one checkpoint")
            if not is_packed:
                left_out.append(f"/{path}")
    return {"files": count, "left_out": left_out[:100], "unreadable": unreadable[:100]}


def _worded(problem: OSError, path: str) -> OSError:
    if problem.errno not in (errno.EFBIG, errno.ENOSPC):
        return problem
    return OSError(
        f"no room for all files of the sandbox in one checkpoint, at /{path} ({problem.strerror}); delete what is not needed any more"
    )


def _entries(directory: int, given: Given, unreadable: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """All that is to be packed, each after the directories that it is in."""
    home = os.stat(f"/proc/self/fd/{directory}").st_dev
    pending = [""]
    held_back: dict[str, os.stat_result] = {}
    while pending:
        below = pending.pop()
        for name in _names(directory, below, unreadable):
            path = f"{below}/{name}".lstrip("/")
            try:
                found = os.lstat(_path(directory, path))
            except (*_GONE, PermissionError):
                continue
            if path in SKIPPED or found.st_dev != home:
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


def _names(directory: int, below: str, unreadable: list[str]) -> list[str]:
    try:
        return sorted(os.listdir(_path(directory, below)))
    except _GONE:
        return []
    except PermissionError:
        unreadable.append(f"/{below}")
        return []


def _above(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def unpack(directory: int, source: int, *, is_layer: bool = True) -> dict[str, Any]:
    """Lay an archive over an open directory. One that is not a layer itself shows what lies below it, so marks of deletion delete."""
    owners: list[tuple[str, tarfile.TarInfo]] = []
    count = 0
    with os.fdopen(os.dup(source), "rb") as file, tarfile.open(fileobj=file, mode="r|") as tar:
        for member in tar:
            count += 1
            path = _path(directory, member.name)
            if count > MOST_ENTRIES or ".." in member.name.split("/") or member.name.startswith("/"):
                raise OSError(f"the archive has an entry that no sandbox wrote: {member.name[:200]}")
            if not is_layer and _delete_as_marked(member, path):
                continue
            _lay(tar, directory, member, path)
            owners.append((path, member))
    for path, member in reversed(owners):  # a directory after all that is in it, for its time
        _own(path, member)
    return {"files": count}


def _delete_as_marked(member: tarfile.TarInfo, path: str) -> bool:
    """What the mark of an upper layer means where there is no layer to put it in; True: that was all of the entry."""
    is_gone = member.ischr() and not member.devmajor and not member.devminor
    is_new = bool(member.pax_headers.get(_OPAQUE))
    member.pax_headers = {}
    if (is_gone or is_new) and os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif is_gone:
        _clear(path)
    return is_gone


def _add(
    tar: tarfile.TarFile, directory: int, path: str, found: os.stat_result, seen: dict[tuple[int, int], str]
) -> bool:
    member = tarfile.TarInfo(path)
    member.mode, member.uid, member.gid, member.mtime = (
        stat.S_IMODE(found.st_mode),
        found.st_uid,
        found.st_gid,
        found.st_mtime,
    )
    whole = _path(directory, path)
    if stat.S_ISLNK(found.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, _target(whole)
    elif stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
        if _is_opaque(whole):
            member.pax_headers = {_OPAQUE: "y"}
    elif stat.S_ISREG(found.st_mode):
        inode = (found.st_dev, found.st_ino)
        if found.st_nlink > 1 and inode in seen:
            member.type, member.linkname = tarfile.LNKTYPE, seen[inode]
        else:
            _add_content(tar, member, whole, found)
            seen[inode] = path
            return True
    elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
        member.type = tarfile.CHRTYPE  # overlay's mark of a deleted file
    else:
        return False
    tar.addfile(member)
    return True


def _target(whole: str) -> str:
    try:
        return os.readlink(whole)
    except OSError as problem:
        if problem.errno == errno.EINVAL:  # a link no more
            raise FileNotFoundError(whole) from None
        raise


def _add_content(tar: tarfile.TarFile, member: tarfile.TarInfo, whole: str, found: os.stat_result) -> None:
    descriptor = os.open(whole, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        now = os.fstat(descriptor)
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) or not stat.S_ISREG(now.st_mode):
            raise FileNotFoundError(whole)  # it is another one, or a directory above it leads elsewhere now
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


def _lay(tar: tarfile.TarFile, directory: int, member: tarfile.TarInfo, path: str) -> None:
    if member.isdir():
        if not os.path.isdir(path) or os.path.islink(path):
            _clear(path)
            os.mkdir(path)
        if member.pax_headers.get(_OPAQUE):
            os.setxattr(path, "user.overlay.opaque", b"y")
        return
    if member.issym() and os.path.islink(path) and os.readlink(path) == member.linkname:
        return  # `/bin` and its like, in a directory that nobody writes
    _clear(path)
    if member.issym():
        os.symlink(member.linkname, path)
    elif member.islnk():
        os.link(_path(directory, member.linkname), path, follow_symlinks=False)
    elif member.isreg():
        pieces: Any = ((0, member.size),) if member.sparse is None else member.sparse
        found: Any = tar.extractfile(member)
        content = found.raw  # its buffer asks a stream whether it can go back
        with open(path, "xb") as file:
            for place, size in pieces:
                content.seek(place)
                file.seek(place)
                _write(content, size, file)
            file.truncate(member.size)  # a hole at its end
    elif member.ischr() and not member.devmajor and not member.devminor:
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def _write(content: IO[bytes], size: int, file: BinaryIO) -> None:
    while size > 0 and (piece := content.read(min(size, PIECE))):
        size -= file.write(piece)


def _own(path: str, member: tarfile.TarInfo) -> None:
    if member.ischr() or member.islnk():
        return
    with contextlib.suppress(OSError):  # where there is one user only, all is his
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        os.chmod(path, member.mode)
        os.utime(path, (member.mtime, member.mtime))


def _clear(path: str) -> None:
    """Make room for an entry: where every sandbox has a directory, this one may have had a file or a link."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
        return
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _path(directory: int, path: str) -> str:
    return f"/proc/self/fd/{directory}/{path}"


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
