"""Lets a container live at its pod's own address, although all pods share the host's network.

Each pod has a loopback address. The kernel stops the few calls in which a process would see, or take, the host's addresses
instead (a seccomp filter with a listener), and the container's init answers them, on the very same socket. `address_calls.py`
says how each is answered; whatever it has no opinion on goes on untouched. Needs Linux 5.6 (pidfd_getfd); no privilege.
"""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct

from hekla.node.shim import linux
from hekla.node.shim.address_calls import ADDRESS_REQUESTS, ANSWERS, Caller

_CALLS = {
    "x86_64": {"bind": 49, "connect": 42, "getsockname": 51, "ioctl": 16},
    "aarch64": {"bind": 200, "connect": 203, "getsockname": 204, "ioctl": 29},
}
_ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_ALLOW, _NOTIFY = 0x7FFF_0000, 0x7FC0_0000
_SET_MODE_FILTER, _GET_NOTIF_SIZES = 1, 3
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_RECEIVE, _SEND = 0xC050_2100, 0xC018_2101
_CONTINUE = 1
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_NUMBER_AT, _ARCHITECTURE_AT, _SECOND_ARGUMENT_AT = 0, 4, 24
"""Where a filter finds what it looks at."""

_ANSWER = struct.Struct("=QqiI")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_available() -> bool:
    """Whether this kernel can stop a call and let another process make it."""
    if platform.machine() not in _CALLS:
        return False
    sizes = (ctypes.c_uint16 * 3)()
    try:
        linux.syscall(linux.SYS_SECCOMP, ctypes.c_uint(_GET_NOTIF_SIZES), ctypes.c_uint(0), ctypes.byref(sizes))
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return tuple(sizes)[:2] == (_NOTIFICATION.size, _ANSWER.size)


def install(channel: socket.socket) -> None:
    """In the command's process, just before exec: stop those calls from now on, and give the listener to init."""
    lines = _filter(platform.machine())
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    program = _Program(len(lines), code)
    try:
        listener = _install(program, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError:
        listener = _install(program, _NEW_LISTENER)
    socket.send_fds(channel, [b"l"], [listener])
    os.close(listener)


def _filter(machine: str) -> list[tuple[int, int, int, int]]:
    """The program: our calls are stopped, of ioctl only those that ask for addresses, all else is let through."""
    load, equal, give = 0x20, 0x15, 0x06
    calls = [number for name, number in _CALLS[machine].items() if name != "ioctl"]
    head = [(load, 0, 0, _ARCHITECTURE_AT), (equal, 1, 0, _ARCHITECTURE[machine]), (give, 0, 0, _ALLOW)]
    ioctl_at = len(head) + 1 + len(calls)
    allow_at = ioctl_at + 2 + len(ADDRESS_REQUESTS)

    def stop_if(value: int, here: int) -> tuple[int, int, int, int]:
        return equal, allow_at + 1 - here - 1, 0, value

    return [
        *head, (load, 0, 0, _NUMBER_AT),
        *(stop_if(number, len(head) + 1 + at) for at, number in enumerate(calls)),
        (equal, 0, allow_at - ioctl_at - 1, _CALLS[machine]["ioctl"]), (load, 0, 0, _SECOND_ARGUMENT_AT),
        *(stop_if(request, ioctl_at + 2 + at) for at, request in enumerate(ADDRESS_REQUESTS)),
        (give, 0, 0, _ALLOW), (give, 0, 0, _NOTIFY),
    ]  # fmt: skip


def _install(program: _Program, flags: int) -> int:
    return linux.syscall(
        linux.SYS_SECCOMP, ctypes.c_uint(_SET_MODE_FILTER), ctypes.c_uint(flags), ctypes.byref(program)
    )


def receive(channel: socket.socket) -> int:
    """In init: the listener; -1 if the command could not install one."""
    channel.setblocking(False)
    try:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    except OSError:
        return -1
    return fds[0] if fds else -1


def serve(listener: int, address: str) -> bool:
    """Answer one stopped call; False once nobody is left to ask."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer, True)
    except OSError as problem:
        return problem.errno in (errno.EINTR, errno.ENOENT)
    number, pid, _, call, _, _, *arguments = _NOTIFICATION.unpack(buffer)
    try:
        error = ANSWERS[_NAMES[call]](Caller(pid, arguments), address)
    except OSError:
        error = None  # it went away, or may not be looked at: let the kernel decide
    answer = _ANSWER.pack(number, 0, 0, _CONTINUE) if error is None else _ANSWER.pack(number, 0, -error, 0)
    try:
        fcntl.ioctl(listener, _SEND, answer)
    except OSError:
        return True  # the caller was killed meanwhile
    return True


_NAMES = {number: name for name, number in _CALLS.get(platform.machine(), {}).items()}
