"""Makes the guest image of the runtime `microvm` from Debian packages: `python3 images/microvm/build.py [DIRECTORY]`.

It downloads with apt-get and unpacks with dpkg-deb, needs no root, and installs nothing. What comes out: `vmlinuz`, `initrd` (an uncompressed
cpio archive: unpacking it is a copy) and `manifest.json` with every package's version. The daemon is not in it: the node lays its own over it.
The same packages make the same bytes.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "src"))

from hekla.node.shim.guest.cpio import archive_of

DEFAULT = Path("/usr/share/hekla/microvm")
KERNEL = "linux-image-cloud-amd64"
PACKAGES = (
    "busybox-static", "bash", "python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libgcc-s1", "zlib1g",
    "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5", "libsqlite3-0", "libuuid1", "libncursesw6", "libtinfo6",
    "libreadline8", "libcrypt1", "ca-certificates", "netbase", "media-types",
)  # fmt: skip
PYTHON = "python3.11"
MODULES = (
    "drivers/virtio/virtio_ring", "drivers/virtio/virtio", "drivers/virtio/virtio_mmio", "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci_modern_dev", "drivers/virtio/virtio_pci", "drivers/char/virtio_console", "net/vmw_vsock/vsock",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common", "net/vmw_vsock/vmw_vsock_virtio_transport", "fs/overlayfs/overlay",
)  # fmt: skip
"""In the order in which they are loaded."""
LEFT_OUT = (
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "usr/share/info",
    "usr/share/lintian",
    "usr/share/bug",
)
LEFT_OUT_OF_PYTHON = ("test", "idlelib", "lib2to3", "ensurepip", "pydoc_data", "turtledemo", "distutils", "tkinter")
INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for module in {modules}; do /bin/busybox insmod /hekla/modules/$module.ko; done
/bin/busybox umount /proc
exec /usr/bin/python3 -I -S /hekla/guest.pyz machine
"""


def main() -> int:
    """Build, and say what came out."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    with tempfile.TemporaryDirectory(prefix="hekla-microvm-") as scratch:
        debs, tree, kernel = (Path(scratch) / name for name in ("debs", "tree", "kernel"))
        for each in (debs, tree, kernel):
            each.mkdir()
        versions = _download(debs)
        for file in sorted(debs.glob("*.deb")):
            _run("dpkg-deb", "-x", str(file), str(kernel if file.name.startswith("linux-image") else tree))
        _thin(tree)
        _furnish(tree, kernel)
        target.mkdir(parents=True, exist_ok=True)
        image = next((kernel / "boot").glob("vmlinuz-*"))
        shutil.copyfile(image, target / "vmlinuz")
        (target / "initrd").write_bytes(archive_of(tree))
        release = image.name.removeprefix("vmlinuz-")
    manifest = {
        "kernel": release,
        "packages": versions,
        "sha256": {name: hashlib.sha256((target / name).read_bytes()).hexdigest() for name in ("vmlinuz", "initrd")},
    }
    (target / "manifest.json").write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n")
    sys.stdout.write(
        f"{target}: kernel {release}, initrd {(target / 'initrd').stat().st_size >> 20} MiB, {len(versions)} packages\n"
    )
    return 0


def _download(debs: Path) -> dict[str, str]:
    """Fetch what is wanted, the kernel that the meta package names among it; versions by package."""
    told = _run("apt-cache", "depends", KERNEL)
    kernel = next(line.split()[-1] for line in told.splitlines() if "Depends: linux-image-" in line)
    _run("apt-get", "download", "-q", kernel, *PACKAGES, cwd=debs)
    versions = {}
    for file in debs.glob("*.deb"):
        name, version, _ = file.name.removesuffix(".deb").split("_")
        versions[name] = version.replace("%3a", ":")
    return versions


def _thin(tree: Path) -> None:
    """Leave out what nobody in a sandbox reads."""
    for name in LEFT_OUT:
        shutil.rmtree(tree / name, ignore_errors=True)
    library = tree / "usr/lib" / PYTHON
    for name in LEFT_OUT_OF_PYTHON:
        shutil.rmtree(library / name, ignore_errors=True)
    if sys.version_info[:2] == (3, 11):  # then the files are what the guest's Python would write
        _run(
            sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(tree), str(library)
        )  # fmt: skip


def _furnish(tree: Path, kernel: Path) -> None:
    """Directories, busybox's names, modules, the first program and the users."""
    for name in ("bin", "sbin", "lib", "lib64"):  # as Debian merges them
        old, new = tree / name, tree / "usr" / name
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
        new.mkdir(exist_ok=True)
        (tree / name).symlink_to(f"usr/{name}")
    for name in ("proc", "sys", "dev", "tmp", "run", "over", "new", "hekla/modules"):
        (tree / name).mkdir(parents=True, exist_ok=True)
    (tree / "usr/bin/python3").symlink_to(PYTHON)
    (tree / "usr/bin/python").symlink_to(PYTHON)
    busybox = str(tree / "usr/bin/busybox")
    for name in _run(busybox, "--list").split():
        if not os.path.lexists(tree / "usr/bin" / name):
            (tree / "usr/bin" / name).symlink_to("busybox")
    modules = next((kernel / "lib/modules").iterdir()) / "kernel"
    for name in MODULES:
        shutil.copyfile(modules / f"{name}.ko", tree / "hekla/modules" / f"{Path(name).name}.ko")
    (tree / "init").write_text(INIT.format(modules=" ".join(Path(name).name for name in MODULES)))
    (tree / "init").chmod(0o755)


def _run(*argv: str, cwd: Path | None = None) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv[:3])} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
