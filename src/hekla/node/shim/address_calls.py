"""What a container is told where it asks for, or takes, the addresses of the host: its pod's address (`own_address.py`).

| call | answered |
|---|---|
| bind to 0.0.0.0 or :: with a port | bound to the pod's address, or it would take its port on all pods; with port 0 it goes on: mostly a client |
| connect to a pod or Service | comes from the pod's address, by which the other side knows its peer |
| connect to 127.0.0.1 | goes to the pod's address where the pod listens there and nobody on 127.0.0.1: its own localhost |
| getsockname, where it is the host's interface | the pod's address: by this, programs find out where others reach them |
| the interfaces' IPv4 addresses (SIOCGIFCONF, SIOCGIFADDR) | the loopback's, and the pod's in place of the host's |

Each answer is an error number, 0 if the call is done, or None if the kernel should carry it out.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from ipaddress import IPv4Address, IPv4Network

from hekla.node.shim import linux

OUR_NETWORKS = IPv4Network("127.64.0.0/10")
"""Pods and Services: what `node/addresses.py` hands out, and what the API server takes cluster addresses from."""

LOCALHOST = IPv4Address("127.0.0.1")

_LIST_INTERFACES, _INTERFACE_ADDRESS = 0x8912, 0x8915
ADDRESS_REQUESTS = (_LIST_INTERFACES, _INTERFACE_ADDRESS)
"""Of ioctl, the requests that are answered here."""

_REQUEST_BYTES, _ADDRESS_AT, _MAX_LIST_BYTES = 40, 16, 64 * 1024
_IP_BIND_ADDRESS_NO_PORT = 24
_MAPPED = bytes(10) + b"\xff\xff"


class Caller:
    """The stopped process: its arguments, its memory, its sockets."""

    def __init__(self, pid: int, arguments: Sequence[int]) -> None:
        """`arguments` are the call's six, as the registers hold them."""
        self.arguments = arguments
        self._pid = pid

    def read(self, pointer: int, length: int) -> bytes:
        """A piece of its memory."""
        memory = os.open(f"/proc/{self._pid}/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(memory, length, pointer)
        finally:
            os.close(memory)

    def write(self, pointer: int, data: bytes) -> None:
        """Put something into its memory."""
        memory = os.open(f"/proc/{self._pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.pwrite(memory, data, pointer)
        finally:
            os.close(memory)

    def socket(self) -> socket.socket:
        """Our own handle on the socket that the call is about."""
        leader = _process(self._pid)
        wanted = self.arguments[0] & 0xFFFF_FFFF
        try:
            fd = linux.syscall(linux.SYS_PIDFD_GETFD, ctypes.c_int(leader), ctypes.c_int(wanted), ctypes.c_uint(0))
        finally:
            os.close(leader)
        return socket.socket(fileno=fd)


def bind(caller: Caller, address: str) -> int | None:
    """A wildcard with a port becomes the pod's address."""
    _, pointer, length, *_ = caller.arguments
    target = replacement(caller.read(pointer, min(length, 128)), address)
    if target is None:
        return None
    with closing(caller.socket()) as theirs:
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
    if wanted[:8] == bytes(8):
        return address, 0  # AF_UNSPEC: Open MPI binds its clients so, and tells servers by their peers' addresses
    if family == socket.AF_INET and port and wanted[4:8] == bytes(4):
        return address, port
    if family == socket.AF_INET6 and port and len(wanted) >= 24 and wanted[8:24] == bytes(16):
        return f"::ffff:{address}", port
    return None


def connect(caller: Caller, address: str) -> None:
    """Towards our networks the socket is given its source; the kernel then connects it."""
    _, pointer, length, *_ = caller.arguments
    wanted = caller.read(pointer, min(length, 128))
    target = _ipv4_in(wanted)
    if target == LOCALHOST:
        _connect_to_itself(caller, pointer, wanted, address)
    if target is None or target not in OUR_NETWORKS:
        return
    with closing(caller.socket()) as theirs:
        source, port = theirs.getsockname()[:2]
        if port or source not in ("0.0.0.0", "::"):
            return
        # without this, the port of a client would be taken towards everybody
        theirs.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
        theirs.bind((address if theirs.family == socket.AF_INET else f"::ffff:{address}", 0))


def _connect_to_itself(caller: Caller, pointer: int, wanted: bytes, address: str) -> None:
    """What listens on every address of the pod was bound to the pod's: `localhost` leads there, as it would in a pod."""
    with closing(caller.socket()) as theirs:
        is_stream = theirs.type & 0xF == socket.SOCK_STREAM
    port = int.from_bytes(wanted[2:4], "big")
    if is_stream and not _is_taken(str(LOCALHOST), port) and _is_taken(address, port):
        # in the caller's own memory: a blocking connect made here could hold up all of the container
        at = 4 if len(wanted) < 24 else 20
        caller.write(pointer + at, socket.inet_aton(address))


def _is_taken(host: str, port: int) -> bool:
    """Whether somebody listens there, or did a moment ago."""
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError as refusal:
            return refusal.errno == errno.EADDRINUSE
    return False


def getsockname(caller: Caller, address: str) -> int | None:
    """Where the kernel would name a host's interface, the pod's address."""
    _, pointer, length_pointer, *_ = caller.arguments
    with closing(caller.socket()) as theirs:
        if theirs.family not in (socket.AF_INET, socket.AF_INET6):
            return None
        host, port = theirs.getsockname()[:2]
        seen = as_seen_inside(host, address)
        if seen is None:
            return None
        said = _packed(theirs.family, seen, port)
    room = int.from_bytes(caller.read(length_pointer, 4), "little")
    caller.write(pointer, said[:room])
    caller.write(length_pointer, len(said).to_bytes(4, "little"))
    return 0


def as_seen_inside(host: str, address: str) -> str | None:
    """The pod's address in place of one of the host's interfaces; None for what may stay: loopback, and none yet."""
    plain = host.removeprefix("::ffff:")
    if ":" in plain:
        return None
    known = IPv4Address(plain)
    return None if known.is_loopback or known.is_unspecified else address


def ioctl(caller: Caller, address: str) -> int | None:
    """The host's interfaces with the pod's address."""
    _, request, pointer, *_ = caller.arguments
    if request & 0xFFFF_FFFF == _LIST_INTERFACES:
        return _list_interfaces(caller, pointer, address)
    return _interface_address(caller, pointer, address)


def _list_interfaces(caller: Caller, pointer: int, address: str) -> int | None:
    room, there = struct.unpack("=i4xQ", caller.read(pointer, 16))
    if not there or not 0 < room <= _MAX_LIST_BYTES:
        return None  # only asked how much room it takes
    ours = bytearray(room)
    with closing(caller.socket()) as theirs:
        told = _conf(theirs, ours)
    listed = one_address(bytes(ours[:told]), address)
    caller.write(there, listed)
    caller.write(pointer, struct.pack("=i", len(listed)))
    return 0


def _conf(theirs: socket.socket, buffer: bytearray) -> int:
    place = (ctypes.c_char * len(buffer)).from_buffer(buffer)
    answer = fcntl.ioctl(theirs, _LIST_INTERFACES, struct.pack("=i4xQ", len(buffer), ctypes.addressof(place)))
    return int(struct.unpack("=i4xQ", answer)[0])


def one_address(listed: bytes, address: str) -> bytes:
    """The loopback's entries as they are; of all others the first, with the pod's address."""
    entries = [listed[at : at + _REQUEST_BYTES] for at in range(0, len(listed), _REQUEST_BYTES)]
    seen = [_entry_seen(one, address) for one in entries]
    kept = [one for one, inside in zip(entries, seen, strict=True) if one == inside]
    moved = [inside for one, inside in zip(entries, seen, strict=True) if one != inside]
    return b"".join(kept + moved[:1])


def _interface_address(caller: Caller, pointer: int, address: str) -> int | None:
    asked = caller.read(pointer, _REQUEST_BYTES)
    with closing(caller.socket()) as theirs:
        try:
            answer = fcntl.ioctl(theirs, _INTERFACE_ADDRESS, asked)
        except OSError as refusal:
            return refusal.errno or errno.EADDRNOTAVAIL
    caller.write(pointer, _entry_seen(answer, address))
    return 0


def _entry_seen(entry: bytes, address: str) -> bytes:
    """One `struct ifreq` with the address that a container sees."""
    if int.from_bytes(entry[_ADDRESS_AT : _ADDRESS_AT + 2], "little") != socket.AF_INET:
        return entry
    start = _ADDRESS_AT + 4
    seen = as_seen_inside(socket.inet_ntoa(entry[start : start + 4]), address)
    return entry if seen is None else entry[:start] + socket.inet_aton(seen) + entry[start + 4 :]


def _ipv4_in(wanted: bytes) -> IPv4Address | None:
    """The IPv4 address that a socket address names, mapped into IPv6 or not."""
    family = int.from_bytes(wanted[:2], "little")
    if family == socket.AF_INET and len(wanted) >= 8:
        return IPv4Address(wanted[4:8])
    if family == socket.AF_INET6 and len(wanted) >= 24 and wanted[8:20] == _MAPPED:
        return IPv4Address(wanted[20:24])
    return None


def _packed(family: int, host: str, port: int) -> bytes:
    head = family.to_bytes(2, "little") + port.to_bytes(2, "big")
    plain = socket.inet_aton(host)
    return head + plain + bytes(8) if family == socket.AF_INET else head + bytes(4) + _MAPPED + plain + bytes(4)


def _process(thread: int) -> int:
    try:
        return os.pidfd_open(thread)
    except OSError:  # it is not the first thread of its process
        return os.pidfd_open(_thread_group(thread))


def _thread_group(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Tgid:"):
                return int(line.split()[1])
    return pid


def _is_v6_only(theirs: socket.socket) -> bool:
    """Such a socket cannot have our IPv4 address; it gets a port that nobody asks for."""
    return theirs.family == socket.AF_INET6 and bool(theirs.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY))


ANSWERS: dict[str, Callable[[Caller, str], int | None]] = {
    "bind": bind, "connect": connect, "getsockname": getsockname, "ioctl": ioctl,
}  # fmt: skip
"""How each stopped call is answered."""
