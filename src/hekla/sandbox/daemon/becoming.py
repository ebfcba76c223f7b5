"""How a child of the daemon becomes whoever a command runs as, and loses what only the daemon may.

In a sandbox of Hekla's node the daemon is a user whom nobody inside can become: its number has no name in the sandbox's user
namespace. Where there is one user only, everybody is that one, and the daemon guards its memory by not being dumpable.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_CAP_SETUID = 7
_CAPSET = {"x86_64": 126, "aarch64": 91}
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS = 1, 2, 4, 8
_AS_IT_IS = 0xFFFF_FFFF
"""As a number of a user: tell what it is."""
NOBODY = 65534
"""How whoever has no number here is seen, and a number that is nobody's."""


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
    """In a child: be this user, for good. Capabilities are those that the sandbox leaves to its root, or none.

    Where there is one user only the daemon's own have to go as well: a program loses them by being run, an interpreter is a fork.
    """
    kept = _capabilities("CapBnd") if uid == 0 else 0
    if may_choose():
        if name:
            os.initgroups(name, gid)
        else:
            os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
    permitted = _capabilities("CapPrm")
    if kept & permitted != permitted:
        _keep(kept & permitted)


def in_program(name: str, uid: int, gid: int) -> dict[str, Any]:
    """The same for `subprocess`, which does it in C: a child that runs no Python copies few of the daemon's pages, 2 ms instead of 8.

    Capabilities need no call: a program that root starts has those of the bounding set, anybody else's has none.
    """
    if not may_choose():
        return {}
    return {"user": uid, "group": gid, "extra_groups": os.getgrouplist(name, gid) if name else []}


@functools.cache
def may_lend() -> bool:
    """Whether the daemon's real ids may be a command's user's.

    It needs none: who it is, its effective and saved ones say, and those have no number in its namespace, so real ones that were changed do
    not come back. Who has the same may send it signals; the first process of a namespace takes none from inside that it has no handler for,
    not even SIGKILL. How urgent it is may be changed, too: among this sandbox's processes. All else asks for the other two as well.
    """
    return os.getpid() == 1 and os.geteuid() == NOBODY and may_choose()


@contextlib.contextmanager
def lend_real_ids(uid: int, gid: int, groups: Sequence[int]) -> Iterator[None]:
    """Have a command's user as the real one, and its groups; nobody's afterwards, and one's own groups, whatever happens.

    The kernel takes a change of ids as a reason to forget as whom a process uses files, whom it dies with, who may look into it and, when
    one of them was root, its capabilities; so these are said again.
    """
    libc, own = c_library(), _Own.once()
    libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)  # until the child runs its program
    try:
        os.setgroups(groups)
        os.setresgid(gid, -1, -1)
        os.setresuid(uid, -1, -1)
        yield
    finally:
        os.setresuid(NOBODY, -1, -1)
        os.setresgid(NOBODY, -1, -1)
        os.setgroups(own.groups)
        libc.setfsgid(ctypes.c_uint(own.file_gid))
        libc.setfsuid(ctypes.c_uint(own.file_uid))
        for option, value in ((_PR_SET_KEEPCAPS, 0), (_PR_SET_DUMPABLE, 0), (_PR_SET_PDEATHSIG, own.dies_by)):
            libc.prctl(option, value, 0, 0, 0)


class _Own:
    """What a change of ids makes the kernel forget of the daemon; it stays the same while that lives."""

    def __init__(self) -> None:
        libc, dies_by = c_library(), ctypes.c_int()
        self.groups = os.getgroups()
        self.file_uid = int(libc.setfsuid(ctypes.c_uint(_AS_IT_IS)))
        self.file_gid = int(libc.setfsgid(ctypes.c_uint(_AS_IT_IS)))
        libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(dies_by), 0, 0, 0)
        self.dies_by = dies_by.value

    @classmethod
    @functools.cache
    def once(cls) -> _Own:
        """Asked for once."""
        return cls()


@functools.cache
def c_library() -> ctypes.CDLL:
    """Looked up once: to do so makes a class, 0.1 ms."""
    return ctypes.CDLL(None, use_errno=True)


def may_be_looked_into(*, is_allowed: bool) -> None:
    """Whether processes of the same user may read this one's memory."""
    c_library().prctl(_PR_SET_DUMPABLE, int(is_allowed), 0, 0, 0)


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
    if number is None or c_library().syscall(ctypes.c_long(number), struct.pack("=Ii", 0x2008_0522, 0), data) != 0:
        raise PermissionError("capabilities cannot be given up")
