"""The few system calls that Python does not wrap (or wraps only in newer versions): clone, mount, pivot_root, prctl.

Used in single-threaded processes only. `mounts.py` and `confinement.py` say what they are for.
"""

import contextlib
import ctypes
import errno
import os
import platform
import signal
from collections.abc import Collection

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_PARENT = 0x8000
"""The child is born as a sibling: its parent is the caller's."""
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET, CLONE_NEWCGROUP = 0x1000_0000, 0x2000_0000, 0x4000_0000, 0x0200_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE, MS_SLAVE = 4096, 8192, 16384, 1 << 18, 1 << 19
MNT_DETACH = 2

PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 38, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_SECUREBITS = 36, 4, 28
SECBIT_NO_SETUID_FIXUP = 4

_X86 = platform.machine() == "x86_64"
SYS_CLONE = 56 if _X86 else 220
SYS_PIVOT_ROOT = 155 if _X86 else 41
SYS_CAPSET = 126 if _X86 else 91
SYS_SECCOMP = 317 if _X86 else 277
SYS_SETNS = 308 if _X86 else 268
SYS_MOUNT_SETATTR = 442
SYS_LANDLOCK_CREATE, SYS_LANDLOCK_ADD, SYS_LANDLOCK_RESTRICT = 444, 445, 446
SYS_PIDFD_GETFD = 438

AT_FDCWD = -100
AT_RECURSIVE, AT_EMPTY_PATH = 0x8000, 0x1000
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_FSCONFIG, SYS_FSPICK = 428, 429, 431, 433
FSPICK_CLOEXEC, FSCONFIG_SET_STRING, FSCONFIG_CMD_RECONFIGURE = 1, 1, 7
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC, MOVE_MOUNT_F_EMPTY_PATH = 1, 0o2000000, 4
MOUNT_ATTR_IDMAP = 0x10_0000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 1, 2, 4


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number: int, *args: object) -> int:
    """Any system call; a negative result raises OSError."""
    return _check(_libc.syscall(ctypes.c_long(number), *args), f"system call {number}")


def fork_into(namespaces: int) -> int:
    """Fork with the child in new namespaces; as os.fork, 0 in the child."""
    flags = ctypes.c_ulong(namespaces | 17)  # SIGCHLD at its end
    tail = (None, ctypes.c_ulong(0)) if _X86 else (ctypes.c_ulong(0), None)
    pid = _libc.syscall(ctypes.c_long(SYS_CLONE), flags, None, None, *tail)
    return _check(pid, "new namespaces")


def join_groups(groups: list[str]) -> None:
    """Be in control groups from now on, with all that come from this process; it must have one thread.

    A single thread that moves itself holds up no other: to move a process, the kernel waits until nobody on the machine is about to
    fork, 2 ms for each hierarchy of version 1. Version 2 moves whole processes only.
    """
    for group in groups:
        try:
            joined = os.open(f"{group}/tasks", os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            joined = os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(joined, b"0")
        finally:
            os.close(joined)


def kill_groups(groups: list[str]) -> None:
    """SIGKILL for all in these control groups: at once where the kernel has it (version 2, Linux 5.14), else one after the other."""
    for group in groups:
        try:
            with open(f"{group}/cgroup.kill", "w", encoding="ascii") as file:
                file.write("1")
        except OSError:
            with contextlib.suppress(OSError), open(f"{group}/cgroup.procs", encoding="ascii") as file:
                for pid in file.read().split():
                    with contextlib.suppress(OSError):
                        os.kill(int(pid), signal.SIGKILL)


def was_oom_killed(groups: list[str]) -> bool:
    """Whether the kernel killed in one of these control groups for want of memory: by its counter, of either version."""
    for group in groups:
        for file in ("memory.events", "memory.oom_control"):
            try:
                with open(f"{group}/{file}", encoding="ascii") as counters:
                    if any(name == "oom_kill" and int(count) for name, count in map(str.split, counters)):
                        return True
            except (OSError, ValueError):
                continue
    return False


def open_place(path: str, exact: Collection[str] = ()) -> int:
    """A descriptor of what lies at a path, for mounting. OSError: the path is one of the `exact`, and there is a link in it."""
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if path in exact and os.readlink(f"/proc/self/fd/{descriptor}") != path:
        os.close(descriptor)
        raise OSError(errno.ELOOP, "a link was put into the way of a subPath", path)
    return descriptor


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Mount a file system, or bind one directory to another."""
    done = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None
    )
    _check(done, f"mount {kind or 'bind'} {source} on {target}")


def unmount(target: str, flags: int = MNT_DETACH) -> None:
    """Unmount, as in umount2(2)."""
    _check(_libc.umount2(os.fsencode(target), flags), f"umount {target}")


def resize_tmpfs(path: str, size: int) -> None:
    """Give the tmpfs at a path, in whichever mount namespace, room for so many bytes; it is the caller's who owns its user namespace."""
    picked = syscall(SYS_FSPICK, ctypes.c_int(AT_FDCWD), os.fsencode(path), ctypes.c_uint(FSPICK_CLOEXEC))
    try:
        text = str(size).encode()
        syscall(SYS_FSCONFIG, ctypes.c_int(picked), ctypes.c_uint(FSCONFIG_SET_STRING), b"size", text, ctypes.c_int(0))
        syscall(
            SYS_FSCONFIG, ctypes.c_int(picked), ctypes.c_uint(FSCONFIG_CMD_RECONFIGURE), None, None, ctypes.c_int(0)
        )
    finally:
        os.close(picked)


def pivot_root(new: str, old: str) -> None:
    """Change the root of this mount namespace."""
    syscall(SYS_PIVOT_ROOT, os.fsencode(new), os.fsencode(old))


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("set", ctypes.c_uint64), ("clear", ctypes.c_uint64), ("propagation", ctypes.c_uint64),
        ("userns", ctypes.c_uint64),
    )  # fmt: skip


def set_read_only(path: str, *, is_read_only: bool, is_recursive: bool) -> None:
    """Make a mount (and all below it) read-only, or writable again: mount_setattr(2), Linux 5.12."""
    bit = MOUNT_ATTR_RDONLY
    _set_attributes(path, bit if is_read_only else 0, 0 if is_read_only else bit, is_recursive=is_recursive)


def refuse_devices(path: str) -> None:
    """No file below a mount opens as a device any more."""
    _set_attributes(path, MOUNT_ATTR_NODEV, 0, is_recursive=True)


def harden(path: str, *, is_read_only: bool) -> None:
    """Nothing below a mount gives privileges or is a device any more; nor can it be written, if so asked."""
    bits = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | (MOUNT_ATTR_RDONLY if is_read_only else 0)
    _set_attributes(path, bits, 0, is_recursive=True)


def seen_by(path: str, users: int) -> int:
    """A place as a user namespace sees it, its files' owners numbered as there: a mount that lies nowhere yet, Linux 5.12."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    tree = syscall(SYS_OPEN_TREE, ctypes.c_int(AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags))
    attributes = _MountAttr(set=MOUNT_ATTR_IDMAP, userns=users)
    try:
        syscall(
            SYS_MOUNT_SETATTR, ctypes.c_int(tree), b"", ctypes.c_uint(AT_EMPTY_PATH), ctypes.byref(attributes),
            ctypes.c_size_t(ctypes.sizeof(attributes)),
        )  # fmt: skip
    except OSError:
        os.close(tree)
        raise
    return tree


def alone(path: str, *, is_recursive: bool) -> int:
    """A directory as a mount that lies nowhere: whoever holds the descriptor sees what is below it and no way up."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC | (AT_RECURSIVE if is_recursive else 0)
    return syscall(SYS_OPEN_TREE, ctypes.c_int(AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags))


def lay(tree: int, target: str) -> None:
    """Put a mount that lies nowhere yet at a place."""
    syscall(
        SYS_MOVE_MOUNT, ctypes.c_int(tree), b"", ctypes.c_int(AT_FDCWD), os.fsencode(target),
        ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH),
    )  # fmt: skip


def _set_attributes(path: str, bits: int, cleared: int, *, is_recursive: bool) -> None:
    attributes = _MountAttr(set=bits, clear=cleared)
    flags = AT_RECURSIVE if is_recursive else 0
    syscall(
        SYS_MOUNT_SETATTR, ctypes.c_int(AT_FDCWD), os.fsencode(path), ctypes.c_uint(flags),
        ctypes.byref(attributes), ctypes.c_size_t(ctypes.sizeof(attributes)),
    )  # fmt: skip


def prctl(option: int, *args: int) -> int:
    """Set one of the process's own settings."""
    padded = [ctypes.c_ulong(each) for each in (*args, 0, 0, 0, 0)[:4]]
    return _check(_libc.prctl(option, *padded), f"prctl {option}")


def setns(descriptor: int, namespaces: int) -> None:
    """Join namespaces, all at once if the descriptor is a pidfd (Linux 5.8)."""
    syscall(SYS_SETNS, ctypes.c_int(descriptor), ctypes.c_int(namespaces))


def unshare(namespaces: int) -> None:
    """Leave namespaces for new ones (os.unshare from Python 3.12 on)."""
    _check(_libc.unshare(ctypes.c_int(namespaces)), "new namespaces")


def set_file_owner(uid: int, gid: int) -> None:
    """Who this process is where files are concerned, whoever it is otherwise: setfsuid(2), checked."""
    for change, wanted in ((_libc.setfsgid, gid), (_libc.setfsuid, uid)):
        change(ctypes.c_uint(wanted))
        if change(ctypes.c_uint(0xFFFFFFFF)) != wanted:
            raise OSError(1, f"cannot use files as {wanted}")


def set_hostname(name: str) -> None:
    """Name this uts namespace."""
    text = name.encode()[:64]
    _check(_libc.sethostname(text, len(text)), f"set the host name {name}")


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def set_capabilities(kept: int) -> None:
    """Hold exactly these capabilities, a bit for each."""
    header = _CapHeader(0x20080522, 0)
    data = (_CapData * 2)()
    for half in range(2):
        bits = (kept >> (32 * half)) & 0xFFFFFFFF
        data[half] = _CapData(bits, bits, 0)
    syscall(SYS_CAPSET, ctypes.byref(header), ctypes.byref(data))
