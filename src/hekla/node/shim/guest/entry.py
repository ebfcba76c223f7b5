"""What the file that travels inside begins with: `python3 -I -S guest.pyz container <spec>`, or `machine` as the first program of a virtual machine.

The container's runtime has set apart what it sets apart; the bridge and the daemon give up the rest (`sandbox/inside.py`) and know no more of the
outside than a pipe each way.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from hekla.node.shim.guest.bridge import serve

if TYPE_CHECKING:
    import socket

DAEMON = "hekla.sandbox.daemon.parked"
DIRECTORY = "/run/hekla"
OWN = 3
"""The descriptor of what the sandbox writes into, where the runtime hands one over."""


def main() -> int:
    """Be a sandbox until the node lets go."""
    if sys.argv[1] == "machine":
        machine = importlib.import_module("hekla.node.shim.guest.machine")
        return int(machine.main())
    spec = json.loads(sys.argv[2])
    link = (os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nothing, standard)
    os.close(nothing)
    own = OWN if spec["has_own"] else os.open("/", os.O_RDONLY | os.O_DIRECTORY)
    os.set_inheritable(own, False)
    # an image's upper layer lies below no directory that commands see, so it has no name to be allowed by
    spec["also_writable"] = [f"/proc/self/fd/{own}"] if spec["has_own"] and spec["has_image"] else []
    spec["is_layered"] = bool(spec["also_writable"])
    return live(spec, link, own)


def live(spec: dict[str, Any], link: tuple[int, int], own: int) -> int:
    """Lock, fork the daemon, stand before it."""
    inside = importlib.import_module("hekla.node.shim.sandbox.inside")
    daemon = importlib.import_module(DAEMON)
    for descriptor in link:
        os.set_inheritable(descriptor, False)
    os.umask(0o022)
    inside.lock(spec)

    def become_daemon(control: socket.socket, listener: socket.socket) -> None:
        inside.park(spec, daemon, (control, listener), own)

    return serve(link, DIRECTORY, become_daemon)
