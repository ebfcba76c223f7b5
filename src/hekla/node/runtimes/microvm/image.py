"""Finds the guest's kernel and files, and lays our own part over them: the daemon and what a sandbox of this node is made of."""

import json
import os
from pathlib import Path

from hekla.node.runtimes.guest.carry import contents
from hekla.node.runtimes.sandbox.plan import Host, spec_of
from hekla.node.shim.guest.cpio import archive_with

INSTALLED = Path("/usr/share/hekla/microvm")
GUEST_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Image:
    """Files that a machine boots from; ours is written when the first one does."""

    def __init__(self, found: Path, state: Path) -> None:
        """`found` has `vmlinuz` and `initrd`."""
        self.kernel, self._base, self._state = found / "vmlinuz", found / "initrd", state
        self.plain_kernel = found / "vmlinux"
        """The same, not compressed: Firecracker and Cloud Hypervisor boot no other. There only if somebody put it there."""
        self._made: Path | None = None

    def initrd(self) -> Path:
        """The image's files and ours: the kernel unpacks one archive after the other."""
        if self._made is None:
            made = self._state / f"initrd.{os.getpid()}"
            ours = {"hekla/guest.pyz": contents(), "hekla/spec.json": json.dumps(guest_spec()).encode()}
            with made.open("wb") as file:
                file.write(self._base.read_bytes())
                file.write(archive_with(ours))
            made.chmod(0o644)  # its monitor is another user
            self._made = made
        return self._made

    def close(self) -> None:
        """Ours is not needed any more."""
        if self._made is not None:
            self._made.unlink(missing_ok=True)


def find_image(directories: tuple[Path, ...]) -> Path | None:
    """The first directory that has an image; None: none has."""
    return next((each for each in directories if (each / "vmlinuz").is_file() and (each / "initrd").is_file()), None)


def guest_spec() -> dict[str, object]:
    """What a sandbox is made of, as `plan.py` has it for those of this host's kernel, without what is the host's."""
    host = Host(is_root=True, has_landlock=False, preload=())
    spec = spec_of(host, slot=0, hostname="sandbox", container=None, groups=())
    kept = (
        "files",
        "homes",
        "storage_bytes",
        "storage_files",
        "workspace",
        "default_user",
        "rlimits",
        "uid_base",
        "preload",
    )
    return {name: spec[name] for name in kept} | {
        "links": [],
        "env": {"PATH": GUEST_PATH, "LANG": "C.UTF-8", "HOME": spec["env"]["HOME"]},
    }
