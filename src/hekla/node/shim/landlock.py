"""Landlock: where there is no mount namespace, the kernel itself refuses writes outside a pod's own places.

It can only allow, never deny; so to hide a directory everything beside the way to it is allowed. Needs Linux 5.13 and
no privilege at all.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Collection
from typing import Any

from hekla.node.shim import linux
from hekla.node.shim.mounts import below, is_within, ways_to

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
READS = READ_FILE | READ_DIR
WRITES_BY_ABI = (
    (1, WRITE_FILE | sum(1 << bit for bit in range(4, 13))),
    (2, 1 << 13),  # renaming or linking into another directory
    (3, 1 << 14),  # truncating
)
FILE_RIGHTS = EXECUTE | WRITE_FILE | READ_FILE | (1 << 14)

DEV = "/dev"

MAX_SIBLINGS = 4096
"""Entries beside a hidden directory, at each level, that stay visible. A volume that has more is refused."""


def version() -> int:
    """The kernel's Landlock version; 0 if it has none."""
    try:
        return linux.syscall(linux.SYS_LANDLOCK_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


def restrict(wish: dict[str, Any]) -> None:
    """Allow writes below `writable` alone, and reads everywhere but below `hidden` (what is `readable` there excepted).

    Of /dev all is allowed, or the `devices` that are named. Neither it nor what is hidden shows through a place that holds it: there
    all that is beside the way to it is allowed, and nothing new can be made on that way. OSError: a place leads to what is hidden, or
    could be allowed in part alone.
    """
    devices = wish.get("devices") or [DEV]
    is_dev_closed = DEV not in devices
    hidden = wish["hidden"] + ([DEV] if is_dev_closed else [])
    visible = _visible(hidden)
    guarded = [(each, way) for each in wish["hidden"] for way in ways_to(each)]
    writes = sum(rights for since, rights in WRITES_BY_ABI if version() >= since)
    handled = writes | (READS if hidden else 0)
    # an eight-byte attribute is the first version's; later kernels accept it
    ruleset = linux.syscall(linux.SYS_LANDLOCK_CREATE, struct.pack("Q", handled), ctypes.c_size_t(8), ctypes.c_uint(0))
    for paths, rights in ((wish["writable"], writes | (handled & READS)), (wish["readable"], READS & handled)):
        for path in paths:
            descriptor = _opened_place(path, wish.get("exact") or ())
            if descriptor >= 0:
                _allow_place(ruleset, path, descriptor, rights, guarded, visible, is_dev_closed=is_dev_closed)
    for path in (*devices, "/proc"):
        _allow(ruleset, path, WRITE_FILE | (writes & 1 << 14) | (handled & READS))
    for path in visible:
        _allow(ruleset, path, READS)
    linux.syscall(linux.SYS_LANDLOCK_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint(0))
    os.close(ruleset)


def _opened_place(path: str, exact: Collection[str]) -> int:
    try:
        return linux.open_place(path, exact)
    except OSError as problem:
        if path in exact and problem.errno == errno.ELOOP:
            raise
        return -1


def _allow_place(
    ruleset: int,
    path: str,
    descriptor: int,
    rights: int,
    guarded: list[tuple[str, str]],
    visible: list[str],
    *,
    is_dev_closed: bool,
) -> None:
    """Allow a volume. Its descriptor is what is looked at and allowed: the path may lead elsewhere a moment later."""
    try:
        shown = os.readlink(f"/proc/self/fd/{descriptor}")
        covered = bool(below(shown, path, guarded))
        if is_dev_closed:
            if _is_device(descriptor, shown):
                return
            covered = covered or is_within(os.path.realpath(DEV), shown)
        if not covered:
            _allow_opened(ruleset, descriptor, rights)
            return
    finally:
        os.close(descriptor)
    _check_whole(path, shown, guarded)
    for each in visible:
        if is_within(each, shown):
            _allow(ruleset, each, rights)


def _check_whole(path: str, shown: str, guarded: list[tuple[str, str]]) -> None:
    for directory in sorted(_crossed({way for _, way in guarded})):
        entries = len(_names(directory)) if is_within(directory, shown) else 0
        if entries > MAX_SIBLINGS:
            sentence = f"volume {path}: {directory} holds what containers must not see, and {entries} entries: more than {MAX_SIBLINGS}"
            raise OSError(errno.E2BIG, sentence)


def _is_device(descriptor: int, shown: str) -> bool:
    """Whether it is a device, or lies with them in /dev: those that a container has are allowed by their names."""
    found = os.fstat(descriptor)
    return (
        stat.S_ISCHR(found.st_mode)
        or stat.S_ISBLK(found.st_mode)
        or (found.st_dev == os.stat(DEV).st_dev and is_within(shown, os.path.realpath(DEV)))
    )


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        _allow_opened(ruleset, descriptor, rights)
    finally:
        os.close(descriptor)


def _allow_opened(ruleset: int, descriptor: int, rights: int) -> None:
    allowed = rights if stat.S_ISDIR(os.fstat(descriptor).st_mode) else rights & FILE_RIGHTS
    if allowed:
        attributes = struct.pack("=Qi", allowed, descriptor)
        linux.syscall(linux.SYS_LANDLOCK_ADD, ctypes.c_int(ruleset), ctypes.c_int(1), attributes, ctypes.c_uint(0))


def _visible(hidden: list[str]) -> list[str]:
    """Everything that is on no way to a hidden directory. No links: where one leads is visible by itself, or hidden."""
    if not hidden:
        return []
    ways = {os.path.realpath(path) for path in hidden}
    crossed = _crossed(ways)
    visible: list[str] = []
    for directory in sorted(crossed - ways):
        paths = [f"{directory.rstrip('/')}/{name}" for name in _names(directory)[:MAX_SIBLINGS]]
        visible += [path for path in paths if path not in crossed and path not in ways and not os.path.islink(path)]
    return visible


def _crossed(ways: set[str]) -> set[str]:
    """The directories above."""
    return {"/".join(way.split("/")[:depth]) or "/" for way in ways for depth in range(1, way.count("/") + 1)}


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
