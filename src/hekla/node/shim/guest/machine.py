"""The first process of a virtual machine: lays a root over the image that lives in memory only, opens the link, stands before the daemon.

`images/microvm/build.py` makes the image, whose `/init` mounts /proc, /sys and /dev, loads modules and starts this. When it ends the kernel
panics, which the command line turns into the machine's end.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import stat
import sys
import time
from typing import Any

from hekla.node.shim import linux
from hekla.node.shim.guest.bridge import serve
from hekla.node.shim.sandbox import inside

IMAGE_SPEC = "/hekla/spec.json"
PORT = "hekla.0"
"""The name of the virtio-serial port that is the link."""
VSOCK_PORT = 1024
"""Where the link is awaited, on machines whose hypervisor has vsock instead."""
OVER, NEW = "/over", "/new"
PATIENCE_S = 30.0


def main() -> int:
    """Become the sandbox; returns when the node lets go."""
    with open(IMAGE_SPEC, encoding="utf-8") as file:
        spec = json.load(file)
    own = lay_root(spec)
    inside.loopback_up()
    spec["is_layered"] = True
    spec["landlock"] = False  # what it would guard is this machine's own
    link, again = _open_link()
    daemon = importlib.import_module("hekla.sandbox.daemon.parked")

    def become_daemon(control: socket.socket, listener: socket.socket) -> None:
        inside.lock(spec)  # the bridge keeps what sets the clock and the dice
        inside.park(spec, daemon, (control, listener), own)

    return serve(link, "/run/hekla", become_daemon, own, again)


def lay_root(spec: dict[str, Any]) -> int:
    """What the sandbox writes lies over the image, within bounds; a descriptor of it."""
    for place in (OVER, NEW):
        os.makedirs(place, exist_ok=True)
    size = f"mode=0755,size={spec['storage_bytes']},nr_inodes={spec['storage_files']}"
    linux.mount("tmpfs", OVER, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, size)
    for name in ("upper", "work"):
        os.mkdir(f"{OVER}/{name}", 0o755)
    layers = f"lowerdir=/,upperdir={OVER}/upper,workdir={OVER}/work,userxattr"
    linux.mount("overlay", NEW, "overlay", linux.MS_NOSUID | linux.MS_NODEV, layers)
    own = os.open(f"{OVER}/upper", os.O_RDONLY | os.O_DIRECTORY)
    inside.make_places(NEW, spec)
    for name, mode in inside.DIRECTORIES:  # the image's own too: its archive was made by whoever built it
        os.chmod(f"{NEW}/{name}", mode)
    linux.mount("/dev", f"{NEW}/dev", flags=linux.MS_BIND | linux.MS_REC)
    for place in ("/dev/pts", "/dev/shm"):
        os.makedirs(place, exist_ok=True)
    options = "newinstance,ptmxmode=0666,mode=0620"
    linux.mount("devpts", f"{NEW}/dev/pts", "devpts", linux.MS_NOSUID | linux.MS_NOEXEC, options)
    linux.mount("shm", f"{NEW}/dev/shm", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "mode=1777,size=64m")
    linux.mount("proc", f"{NEW}/proc", "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, "hidepid=2")
    os.chdir(NEW)
    linux.mount(".", "/", flags=linux.MS_MOVE)
    os.chroot(".")
    os.chdir("/")
    _lock_devices()
    return own


def _lock_devices() -> None:
    """Of the machine's devices only what every sandbox has is anybody's but root's; memory and the link are nobody's."""
    for name in os.listdir("/dev"):
        path = f"/dev/{name}"
        found = os.lstat(path)
        if (
            stat.S_ISCHR(found.st_mode)
            and name not in inside.DEVICES
            and name != "ptmx"
            and not name.startswith("vport")
        ):
            os.unlink(path)
        elif name in inside.DEVICES:
            os.chmod(path, 0o666)
    for name, target in inside.LINKS:
        if name.startswith("dev/") and not os.path.lexists(f"/{name}"):
            os.symlink(target, f"/{name}")


def _open_link() -> tuple[tuple[int, int], socket.socket | None]:
    """The port by its name, opened once, so that nobody else can; else a connection over vsock, and where the next one comes."""
    port = _port()
    if port:
        link = os.open(port, os.O_RDWR)
        os.unlink(port)
        return (link, link), None
    listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    listener.bind((socket.VMADDR_CID_ANY, VSOCK_PORT))
    listener.listen(1)
    made, _ = listener.accept()
    link = made.detach()
    return (link, link), listener


def _port() -> str:
    """Where the link's port is; empty: this machine has none."""
    directory = "/hekla/ports"
    os.makedirs(directory, exist_ok=True)
    linux.mount("sysfs", directory, "sysfs")
    try:
        known = f"{directory}/class/virtio-ports"
        deadline = time.monotonic() + (PATIENCE_S if os.path.isdir(known) else 0.0)
        while True:
            for name in os.listdir(known) if os.path.isdir(known) else []:
                with open(f"{known}/{name}/name", encoding="ascii") as file:
                    if file.read().strip() == PORT:
                        return f"/dev/{name}"
            if time.monotonic() >= deadline:
                return ""
            time.sleep(0.01)
    finally:
        linux.unmount(directory)


if __name__ == "__main__":
    sys.exit(main())
