"""Keeps an `emptyDir` with `medium: Memory` in memory: a tmpfs of its own where we may mount, with its limit as its size; else a
directory in the machine's `/dev/shm` that has room for it; else on disk, which an event says.

In `/dev/shm` nothing holds back who writes past the limit: `eviction.py` looks every ten seconds, as at volumes on disk.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

import structlog

from hekla.api.pods import Pod
from hekla.api.volumes import Volume
from hekla.lib import quantity
from hekla.node.shim import linux

log = structlog.get_logger(__name__)

ON_DISK = "PossibleMemoryBackedVolumesOnDisk"
"""The kubelet's reason for an event about volumes that were to be memory."""

SHARED = Path("/dev/shm")
_CAP_SYS_ADMIN = 21
TMPFS_MAGIC = 0x01021994
LEAST_ROOM = 1 << 30
"""Bytes free in /dev/shm for a volume that names no limit: container engines leave 64 MiB there, which fills with one batch."""

_VOLUMES = "volumes"


def is_memory(volume: Volume) -> bool:
    """Whether it is to lie in memory."""
    return volume.empty_dir is not None and volume.empty_dir.medium == "Memory"


@dataclass(slots=True)
class MemoryVolumes:
    """The memory volumes of one agent, by its digest."""

    digest: str
    shared: Path = SHARED
    _place: Path | None = None
    """Our directory in /dev/shm, once it was looked for."""
    exposed: str = ""
    """Why containers would see what is put in /dev/shm, so that nothing is; empty: they do not."""

    def hidden(self) -> tuple[Path, ...]:
        """What containers must not see: the pods' volumes in /dev/shm, where they may lie there. Made, so that it can be covered."""
        if _may_mount():
            return ()
        with contextlib.suppress(OSError):
            self._all().mkdir(mode=0o700, exist_ok=True)
        if self._is_ours():
            return (self._all(),)
        self.exposed = f"{self._all()} was not ours to hide from containers when the node started"
        return ()

    def close(self) -> None:
        """Leave nothing in /dev/shm of an agent that has let go of all its pods."""
        with contextlib.suppress(OSError):
            if self._is_ours():
                self._all().rmdir()

    def make(self, directory: Path, pod: Pod, volume: Volume, *, is_running: bool) -> tuple[Path, str]:
        """Where the volume lies, and a sentence if that is on disk. `directory` is the pod's; of one that is running, what its
        containers have stays where it is. Raises OSError.
        """
        own = directory / _VOLUMES / volume.name
        in_shared = self._of(pod.metadata.uid) / volume.name
        if self._is_ours() and in_shared.is_dir():
            return in_shared, ""
        own.mkdir(parents=True, exist_ok=True)
        if os.path.ismount(own) or is_running or any(own.iterdir()):
            return own, ""
        most = _most_bytes(pod, volume)
        try:
            _mount(own, most)
        except OSError as refusal:
            own.chmod(0o777)
            why = self._no_room(most)
            if why:
                mounting = f"this node may mount no tmpfs ({refusal.strerror or refusal})"
                return own, f"{mounting}, and {why}"
            self._make_shared(in_shared)
            return in_shared, ""
        return own, ""

    def drop(self, directory: Path, uid: str) -> None:
        """Let go of what a pod had in memory; `directory` is its own."""
        with contextlib.suppress(OSError):
            for place in (directory / _VOLUMES).iterdir():
                if place.is_dir() and os.path.ismount(place):
                    linux.unmount(str(place))
        if self._is_ours():
            shutil.rmtree(self._of(uid), ignore_errors=True)

    def leftovers(self) -> list[str]:
        """Uids of the pods that have something in /dev/shm."""
        with contextlib.suppress(OSError):
            if self._is_ours():
                return sorted(each.name for each in self._all().iterdir())
        return []

    def _all(self) -> Path:
        """Ours as an earlier life left it; else a free name: whoever takes the one that can be guessed has us take one that cannot."""
        if self._place is None:
            first = self.shared / f"hekla-{os.geteuid()}-{self.digest}"
            ours = [one for one in (first, *sorted(self.shared.glob(f"{first.name}-*"))) if _is_ours(one)]
            guessed = os.path.lexists(first)
            self._place = (
                ours[0] if ours else first.with_name(f"{first.name}-{secrets.token_hex(16)}") if guessed else first
            )
            if guessed and not ours:
                log.warning("somebody else took the name in shared memory; another is used", name=str(first))
        return self._place

    def _is_ours(self) -> bool:
        return _is_ours(self._all())

    def _of(self, uid: str) -> Path:
        return self._all() / uid

    def _no_room(self, most: int) -> str:
        if self.exposed:
            return self.exposed
        try:
            if _kind_of_file_system(self.shared) != TMPFS_MAGIC:
                return f"{self.shared} is not in memory"
            found = os.statvfs(self.shared)
        except OSError as problem:
            return f"{self.shared} is not there ({problem.strerror})"
        free, wanted = found.f_bavail * found.f_frsize, most or LEAST_ROOM
        if free < wanted:
            return f"{self.shared} has {free >> 20} MiB left, less than {-(-wanted >> 20)} MiB"
        return "" if os.access(self.shared, os.W_OK | os.X_OK) else f"{self.shared} is not ours to write"

    def _make_shared(self, place: Path) -> None:
        self._all().mkdir(mode=0o700, exist_ok=True)
        if not self._is_ours():
            taken, self._place = self._all(), None  # in this very moment: the next try takes another name
            raise PermissionError(
                errno.EACCES, "somebody else made this directory, so no volume is put there", str(taken)
            )
        place.mkdir(parents=True)
        place.chmod(0o777)


def _is_ours(place: Path) -> bool:
    """Whether a directory in /dev/shm is one that nobody else has made, or can write to. /dev/shm is everybody's, and only its owner can
    rename what is there: so it stays ours.
    """
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def _most_bytes(pod: Pod, volume: Volume) -> int:
    """The least of what the volume and the pod's containers may have, as a kubelet sizes it; 0: none of them says."""
    assert volume.empty_dir is not None
    limit = quantity.to_int(volume.empty_dir.size_limit or "0")
    every = [
        quantity.to_int(each.resources.limits.get("memory", "0") if each.resources else "0")
        for each in pod.spec.containers
    ]
    pods = sum(every) if every and all(each > 0 for each in every) else 0
    named = [each for each in (limit, pods) if each > 0]
    return min(named, default=0)


def _mount(place: Path, most: int) -> None:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    size = f",size={most}" if 0 < most < memory else ""
    linux.mount("tmpfs", str(place), "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, f"mode=0777{size}")


def _may_mount() -> bool:
    """Whether we have CAP_SYS_ADMIN."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def _kind_of_file_system(path: Path) -> int:
    """`f_type` of statfs(2), which Python does not show."""
    buffer = (ctypes.c_long * 32)()
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), ctypes.byref(buffer)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    return buffer[0]
