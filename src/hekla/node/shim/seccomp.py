"""Seccomp: system calls that no training job needs and that reach beyond its container fail with EPERM."""

import ctypes
import errno
import platform
import struct

from hekla.node.shim import linux

_ALLOW, _ERRNO = 0x7FFF_0000, 0x0005_0000
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_SECCOMP_SET_MODE_FILTER = 1
_NAMESPACE_FLAGS = 0x7E02_0000

# name: number on x86_64, number on aarch64
_REFUSED = {
    "acct": (163, 89), "add_key": (248, 217), "bpf": (321, 280), "clock_adjtime": (305, 266),
    "clock_settime": (227, 112), "delete_module": (176, 106), "finit_module": (313, 273), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fsopen": (430, 430), "init_module": (175, 105), "ioperm": (173, -1), "iopl": (172, -1),
    "kexec_file_load": (320, 294), "kexec_load": (246, 104), "keyctl": (250, 219), "lookup_dcookie": (212, 18),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241), "pivot_root": (155, 41), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "request_key": (249, 218), "setns": (308, 268),
    "settimeofday": (164, 170), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116),
    "umount2": (166, 39), "unshare": (272, 97), "userfaultfd": (323, 282), "vhangup": (153, 58),
}  # fmt: skip
_REFUSED_IN_SANDBOXES = {
    "fanotify_init": (300, 262), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425), "kcmp": (312, 272), "listmount": (458, 458), "memfd_secret": (447, 447),
    "migrate_pages": (256, 238), "move_pages": (279, 239), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "fspick": (433, 433), "chroot": (161, 51), "statmount": (457, 457),
}  # fmt: skip
_NEWEST = 469
"""The newest call that was looked at, of Linux 6.18. What kernels add later nobody here has judged: open_tree_attr, of 6.15, was a second
way to mounts that no list refused."""
_SOCKETS, _IOCTL = ((41, 198), (53, 199)), (16, 29)
"""Pairs too: the kernel loads a family's module for whoever asks for a pair of it."""
_UNIX, _INTERNET, _NETLINK = 1, (2, 10), 16
_PROTOCOLS = (0, 1, 6, 17, 58)
"""Of the Internet: what the kind of socket means, echoes, TCP and UDP. SCTP, DCCP and others are modules that a socket would load.
Netlink only as ROUTE, which programs list interfaces by."""
_PRLIMIT = (302, 261)
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_CLONE, _CLONE3 = (56, 220), (435, 435)
_ARCHITECTURES = {"x86_64": (0xC000_003E, 0), "aarch64": (0xC000_00B7, 1)}


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_known_machine() -> bool:
    """Whether the numbers of this machine's system calls are known here."""
    return platform.machine() in _ARCHITECTURES


def refuse_dangerous_calls(*, is_sandbox: bool = False) -> None:
    """Install the filter for this process and all that come from it. Needs no_new_privs (or CAP_SYS_ADMIN).

    In a sandbox more is refused: looking into other processes, limits by pid, io_uring, sockets other than unix, TCP, UDP, echoes and
    netlink's ROUTE, typing into a terminal (TIOCSTI). Calls newer than `_NEWEST` are absent there.
    """
    code = _filter(platform.machine(), is_sandbox=is_sandbox)
    program = _Program(len(code) // 8, code)
    linux.syscall(linux.SYS_SECCOMP, ctypes.c_uint(_SECCOMP_SET_MODE_FILTER), ctypes.c_uint(0), ctypes.byref(program))


def _filter(machine: str, *, is_sandbox: bool = False) -> bytes:
    """Straight-line BPF: each test either returns or falls through to the next."""
    architecture, column = _ARCHITECTURES[machine]
    refuse, pretend_absent = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    lines = [(_LOAD, 0, 0, 4), (_JUMP_EQ, 1, 0, architecture), (_RETURN, 0, 0, refuse), (_LOAD, 0, 0, 0)]
    if column == 0:
        lines += [(_JUMP_GE, 0, 1, 0x4000_0000), (_RETURN, 0, 0, refuse)]  # the x32 twin numbers
    for numbers in (_REFUSED | _REFUSED_IN_SANDBOXES if is_sandbox else _REFUSED).values():
        if numbers[column] >= 0:
            lines += [(_JUMP_EQ, 0, 1, numbers[column]), (_RETURN, 0, 0, refuse)]
    if is_sandbox:
        lines += [(_JUMP_GE, 0, 1, _NEWEST + 1), (_RETURN, 0, 0, pretend_absent)]
        for numbers in _SOCKETS:
            lines += _sockets(numbers[column])
        lines += _others_limits(_PRLIMIT[column]) + _terminals(column)
    # clone3 hides its flags behind a pointer; libraries fall back to clone, whose flags can be read
    lines += [(_JUMP_EQ, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, pretend_absent)]
    lines += [
        (_JUMP_EQ, 0, 3, _CLONE[column]),
        (_LOAD, 0, 0, 16),
        (_JUMP_SET, 0, 1, _NAMESPACE_FLAGS),
        (_RETURN, 0, 0, refuse),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def _sockets(number: int) -> list[tuple[int, int, int, int]]:
    family, protocol = (_LOAD, 0, 0, 16), (_LOAD, 0, 0, 32)
    refuse, allow = (_RETURN, 0, 0, _ERRNO | errno.EAFNOSUPPORT), (_RETURN, 0, 0, _ALLOW)
    netlink = [protocol, (_JUMP_EQ, 0, 1, 0), allow, refuse]
    internet = [protocol]
    for known in _PROTOCOLS:
        internet += [(_JUMP_EQ, 0, 1, known), allow]
    internet += [(_RETURN, 0, 0, _ERRNO | errno.EPROTONOSUPPORT)]
    body = [family, (_JUMP_EQ, 0, 1, _UNIX), allow, (_JUMP_EQ, 0, len(netlink), _NETLINK), *netlink]
    body += [(_JUMP_EQ, len(_INTERNET) - each, 0, one) for each, one in enumerate(_INTERNET)]
    body += [refuse, *internet]
    return [(_JUMP_EQ, 0, len(body), number), *body]


def _others_limits(number: int) -> list[tuple[int, int, int, int]]:
    """Limits are set for whoever asks, as pid 0: where there is one user only, a command gave the daemon three descriptors, and processor time
    that ended it. A filter does not know its own pid: by that they are refused too, `prlimit --pid $$` as well.

    `setpriority`, `sched_setaffinity` and their like take others' pids still: programs place their own threads by these, by number. Where there
    is one user only, code can make its own sandbox's daemon slow by them.
    """
    body = [
        (_LOAD, 0, 0, 16), (_JUMP_EQ, 4, 0, 0),  # for whom; 0 is oneself
        (_LOAD, 0, 0, 32), (_JUMP_EQ, 0, 3, 0), (_LOAD, 0, 0, 36), (_JUMP_EQ, 0, 1, 0),  # both halves of where new ones stand
        (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _ERRNO | errno.EPERM),
    ]  # fmt: skip
    return [(_JUMP_EQ, 0, len(body), number), *body]


def _terminals(column: int) -> list[tuple[int, int, int, int]]:
    refuse = _ERRNO | errno.EPERM
    body = [(_LOAD, 0, 0, 24)]
    for request in (_TIOCSTI, _TIOCLINUX):
        body += [(_JUMP_EQ, 0, 1, request), (_RETURN, 0, 0, refuse)]
    body += [(_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQ, 0, len(body), _IOCTL[column]), *body]
