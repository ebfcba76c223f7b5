"""How a child of the daemon becomes whoever a command runs as, and loses what only the daemon may.

In a sandbox of Hekla's node the daemon is a user whom nobody inside can become: its number has no name in the sandbox's user
namespace. Where there is one user only, everybody is that one, and the daemon guards its memory by not being dumpable.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from typing import Any

_CAP_SETUID = 7
_CAPSET = {"x86_64": 126, "aarch64": 91}
_PR_SET_DUMPABLE = 4


@functools.cache
def may_choose() -> bool:
    """Whether commands can run as other users than the daemon."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            users = sum(int(line.split()[2]) for line in file)
    except OSError:
        users = 2
    return users > 1 and bool(_capabilities("CapEff") >> _CAP_SETUID & 1)


def become(name: str, uid: int, gid: int) -> None:
    """In a child: be this user, for good. Capabilities are those that the sandbox leaves to its root, or none."""
    if not may_choose():
        return
    kept = _capabilities("CapBnd") if uid == 0 else 0
    if name:
        os.initgroups(name, gid)
    else:
        os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _keep(kept & _capabilities("CapPrm"))


def in_program(name: str, uid: int, gid: int) -> dict[str, Any]:
    """The same for `subprocess`, which does it in C: a child that runs no Python copies few of the daemon's pages, 2 ms instead of 8.

    Capabilities need no call: a program that root starts has those of the bounding set, anybody else's has none.
    """
    if not may_choose():
        return {}
    return {"user": uid, "group": gid, "extra_groups": os.getgrouplist(name, gid) if name else []}


def may_be_looked_into(*, is_allowed: bool) -> None:
    """Whether processes of the same user may read this one's memory."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, int(is_allowed), 0, 0, 0)


def _capabilities(kind: str) -> int:
    try:
        with open("/proc/self/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(kind):
                    return int(line.split()[1], 16)
    except OSError:
        pass
    return 0


def _keep(kept: int) -> None:
    low, high = kept & 0xFFFF_FFFF, kept >> 32
    data = struct.pack("=6I", low, low, 0, high, high, 0)
    number = _CAPSET.get(os.uname().machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if number is None or libc.syscall(ctypes.c_long(number), struct.pack("=Ii", 0x2008_0522, 0), data) != 0:
        raise PermissionError("capabilities cannot be given up")
