"""Packs what a sandbox has written into one archive, and unpacks it in another: done by the sandbox itself, so nothing can lead outside.

A tar file of regular files, directories, links and, over an image, the marks of what was deleted. Sockets, fifos and devices stay behind.
Times, modes and owners (as the sandbox numbers them) come along.
"""

import contextlib
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MOST_ENTRIES = 1_000_000
SKIPPED = frozenset(("dev", "proc", "sys", "run", "etc/hostname", "etc/hosts", "etc/resolv.conf"))
"""A sandbox's own, or nothing but mounts."""
_OPAQUE = "SCHILY.xattr.user.overlay.opaque"


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
    """Write all below an open directory to a descriptor, nothing at all if there is nothing; mounts laid over it are not its."""
    left_out: list[str] = []
    count = 0
    with contextlib.ExitStack() as stack:
        tar: tarfile.TarFile | None = None
        seen: dict[tuple[int, int], str] = {}
        for path, found in _entries(directory, given):
            if tar is None:
                file = stack.enter_context(os.fdopen(os.dup(output), "wb"))
                tar = stack.enter_context(tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT))
            count += 1
            if count > MOST_ENTRIES:
                raise OSError(f"more than {MOST_ENTRIES} files: too many for one checkpoint")
            if not _add(tar, directory, path, found, seen) and len(left_out) < 100:
                left_out.append(f"/{path}")
    return {"files": count, "left_out": left_out}


def _entries(directory: int, given: Given) -> Iterator[tuple[str, os.stat_result]]:
    """All that is to be packed, each after the directories that it is in."""
    home = os.stat(f"/proc/self/fd/{directory}").st_dev
    pending = [""]
    held_back: dict[str, os.stat_result] = {}
    while pending:
        below = pending.pop()
        for name in sorted(os.listdir(_path(directory, below))):
            path = f"{below}/{name}".lstrip("/")
            found = os.lstat(_path(directory, path))
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
        member.type, member.linkname = tarfile.SYMTYPE, os.readlink(whole)
    elif stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
        if _is_opaque(whole):
            member.pax_headers = {_OPAQUE: "y"}
    elif stat.S_ISREG(found.st_mode):
        inode = (found.st_dev, found.st_ino)
        if found.st_nlink > 1 and inode in seen:
            member.type, member.linkname = tarfile.LNKTYPE, seen[inode]
        else:
            seen[inode] = path
            with open(whole, "rb") as content:
                member.size = os.fstat(content.fileno()).st_size
                tar.addfile(member, content)
            return True
    elif stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
        member.type = tarfile.CHRTYPE  # overlay's mark of a deleted file
    else:
        return False
    tar.addfile(member)
    return True


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
        content = tar.extractfile(member)
        assert content is not None, "a regular file has content"
        with open(path, "xb") as file:
            while piece := content.read(1 << 20):
                file.write(piece)
    elif member.ischr() and not member.devmajor and not member.devminor:
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def _own(path: str, member: tarfile.TarInfo) -> None:
    if member.ischr() or member.islnk():
        return
    with contextlib.suppress(OSError):  # where there is one user only, all is his
        os.chown(path, member.uid, member.gid, follow_symlinks=False)
    if not member.issym():
        os.chmod(path, member.mode)
        os.utime(path, (member.mtime, member.mtime))


def _clear(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _path(directory: int, path: str) -> str:
    return f"/proc/self/fd/{directory}/{path}"


def _is_opaque(path: str) -> bool:
    try:
        return os.getxattr(path, "user.overlay.opaque", follow_symlinks=False) == b"y"
    except OSError:
        return False
