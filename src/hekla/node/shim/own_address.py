"""Gives a container that listens on every address its pod's address instead, so that pods do not take each other's ports.

Pods share the host's network and have a loopback address each. A server that binds 0.0.0.0 (or ::) would take its port
on all of them, and on the host's real interfaces. So the kernel stops every bind(2) of the container (a seccomp filter
with a listener); the container's init looks at the address, and for a wildcard with a port binds the very same socket
to the pod's address itself. Every other bind goes on untouched. Needs Linux 5.6 (pidfd_getfd); no privilege.

A wildcard with port 0 is left alone: that is mostly a client choosing a source port.
"""

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct

from hekla.node.shim import linux

_BIND = {"x86_64": 49, "aarch64": 200}
_ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_ALLOW, _NOTIFY = 0x7FFF_0000, 0x7FC0_0000
_SET_MODE_FILTER, _GET_NOTIF_SIZES = 1, 3
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5
_RECEIVE, _SEND = 0xC050_2100, 0xC018_2101
_CONTINUE = 1
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def is_available() -> bool:
    """Whether this kernel can stop a call and let another process make it."""
    if platform.machine() not in _BIND:
        return False
    sizes = (ctypes.c_uint16 * 3)()
    try:
        linux.syscall(linux.SYS_SECCOMP, ctypes.c_uint(_GET_NOTIF_SIZES), ctypes.c_uint(0), ctypes.byref(sizes))
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return tuple(sizes)[:2] == (_NOTIFICATION.size, _ANSWER.size)


def install(channel: socket.socket) -> None:
    """In the command's process, just before exec: stop binds from now on, and give the listener to init."""
    machine = platform.machine()
    lines = (
        (0x20, 0, 0, 4), (0x15, 0, 3, _ARCHITECTURE[machine]), (0x20, 0, 0, 0), (0x15, 0, 1, _BIND[machine]),
        (0x06, 0, 0, _NOTIFY), (0x06, 0, 0, _ALLOW),
    )  # fmt: skip
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    program = _Program(len(lines), code)
    try:
        listener = _install(program, _NEW_LISTENER | _WAIT_KILLABLE)
    except OSError:
        listener = _install(program, _NEW_LISTENER)
    socket.send_fds(channel, [b"l"], [listener])
    os.close(listener)


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
    """Answer one stopped bind; False once nobody is left to ask."""
    buffer = bytearray(_NOTIFICATION.size)
    try:
        fcntl.ioctl(listener, _RECEIVE, buffer, True)
    except OSError as problem:
        return problem.errno in (errno.EINTR, errno.ENOENT)
    number, pid, _, _, _, _, descriptor, pointer, length, *_ = _NOTIFICATION.unpack(buffer)
    try:
        error = _bind(pid, descriptor & 0xFFFF_FFFF, _memory(pid, pointer, min(length, 128)), address)
    except OSError:
        error = None  # it went away, or may not be looked at: let the kernel decide
    answer = _ANSWER.pack(number, 0, 0, _CONTINUE) if error is None else _ANSWER.pack(number, 0, -error, 0)
    try:
        fcntl.ioctl(listener, _SEND, answer)
    except OSError:
        return True  # the caller was killed meanwhile
    return True


def _memory(pid: int, pointer: int, length: int) -> bytes:
    memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(memory, length, pointer)
    finally:
        os.close(memory)


def _bind(pid: int, descriptor: int, wanted: bytes, address: str) -> int | None:
    """Bind in the caller's stead: 0 or an error number; None if the call is none of ours."""
    target = replacement(wanted, address)
    if target is None:
        return None
    with _socket_of(pid, descriptor) as theirs:
        try:
            theirs.bind(target if not _is_v6_only(theirs) else ("::1", 0))
        except OSError as refusal:
            return refusal.errno or errno.EADDRINUSE
    return 0


def replacement(wanted: bytes, address: str) -> tuple[str, int] | None:
    """Where a wildcard socket address with a port should go instead; None for every other."""
    if len(wanted) < 8:
        return None
    family = int.from_bytes(wanted[:2], "little")
    port = int.from_bytes(wanted[2:4], "big")
    if family == socket.AF_INET and port and wanted[4:8] == bytes(4):
        return address, port
    if family == socket.AF_INET6 and port and len(wanted) >= 24 and wanted[8:24] == bytes(16):
        return f"::ffff:{address}", port
    return None


def _socket_of(pid: int, descriptor: int) -> socket.socket:
    leader = os.pidfd_open(_thread_group(pid))
    try:
        fd = linux.syscall(linux.SYS_PIDFD_GETFD, ctypes.c_int(leader), ctypes.c_int(descriptor), ctypes.c_uint(0))
    finally:
        os.close(leader)
    return socket.socket(fileno=fd)


def _thread_group(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return pid


def _is_v6_only(theirs: socket.socket) -> bool:
    """Such a socket cannot have our IPv4 address; it gets a port that nobody asks for."""
    return theirs.family == socket.AF_INET6 and bool(theirs.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))
