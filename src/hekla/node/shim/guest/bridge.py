"""Stands between the node and the daemon where no descriptor can pass: streams of the link become pipes and sockets that the daemon is given.

The daemon speaks as it does to a node beside it (`daemon/parked.py`): messages over a socket with descriptors beside them. The bridge hands each
on unread, but for `streams`, what the descriptors were: `in` the daemon reads, `out` it writes, `null`, and in answers `both` and `listener`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import random
import socket
import struct
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from hekla.node.shim.guest.mux import Mux

if TYPE_CHECKING:
    from collections.abc import Callable

LONGEST_MESSAGE = 1024 * 1024
MOST_DESCRIPTORS = 16
MOST_WAITING = 64
"""Connections that wait for the node to take them up; more are refused."""
MEASURED_EVERY_S = 2.0
NO_ROOM_S = 0.1
"""Between two looks at who waits while no more descriptors may be opened."""
_RNDADDENTROPY, _RNDRESEEDCRNG = 0x4008_5203, 0x5207


class Bridge:
    """One link, one daemon."""

    def __init__(
        self,
        link: tuple[int, int],
        control: socket.socket,
        door: str,
        measured: int = -1,
        again: socket.socket | None = None,
    ) -> None:
        """`control` leads to the daemon, `door` is the path of the socket that it listens on; the node is told what the file system of
        `measured` holds. Where a link does not outlive a copy, the copy's comes to the listener `again`.
        """
        self._measured, self._used = measured, -1
        self._control, self._door = control, door
        self._over = asyncio.Event()
        self._numbers = iter(range(1, 1 << 31, 2))
        self._streams_of: dict[str, list[int]] = {}
        self._starting: dict[int, str] = {}
        self._listeners: dict[int, socket.socket] = {}
        control.setblocking(False)
        self._again = again
        self._mux = Mux(*link, on_message=self._order, on_open=self._open, on_lost=self._lost)
        if again is not None:
            again.setblocking(False)
            asyncio.get_running_loop().add_reader(again.fileno(), self._linked_again)

    async def run(self) -> None:
        """Until the node or the daemon goes away."""
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._hear)
        if self._measured >= 0:
            self._measure()
        await self._over.wait()
        self._mux.close()

    def _lost(self) -> None:
        """The link has ended: so does the sandbox, unless another is to come."""
        if self._again is None:
            self._over.set()

    def _linked_again(self) -> None:
        assert self._again is not None, "it has called"
        try:
            made, _ = self._again.accept()
        except OSError as problem:
            _look_later(self._again, self._linked_again, problem)
            return
        self._mux.close()
        self._forget()
        link = made.detach()
        self._mux = Mux(link, os.dup(link), on_message=self._order, on_open=self._open, on_lost=self._lost)

    def _measure(self) -> None:
        found = os.fstatvfs(self._measured)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        if used != self._used:
            self._used = used
            self._mux.tell({"event": "storage", "bytes": used})
        asyncio.get_running_loop().call_later(MEASURED_EVERY_S, self._measure)

    def _order(self, message: dict[str, Any]) -> None:
        """From the node, for the daemon or for us."""
        if message["op"] == "quiesce":
            self._mux.hold({"event": "quiet"})
            return
        if message["op"] == "wake":
            self._wake(message)
            return
        given: list[int] = []
        numbers: list[int] = []
        for stream in message.pop("streams", []):
            given.append(self._end_of(stream))
            numbers.append(stream["id"])
        if message["op"] == "start":
            self._streams_of[message["id"]] = numbers
            self._starting[message["n"]] = message["id"]
        try:
            socket.send_fds(self._control, [json.dumps(message).encode("utf-8", "surrogatepass")], given)
        except OSError as problem:
            self._mux.tell({"n": message["n"], "error": f"the daemon does not listen: {problem.strerror}"})
        for descriptor in given:
            os.close(descriptor)

    def _end_of(self, stream: dict[str, Any]) -> int:
        """The daemon's end of a stream; ours is attached."""
        if stream["kind"] == "null":
            return os.open(os.devnull, os.O_RDWR)
        reader, writer = os.pipe()
        if stream["kind"] == "in":
            self._mux.attach(stream["id"], sink=writer)
            return reader
        self._mux.attach(stream["id"], source=reader)
        return writer

    def _hear(self) -> None:
        """From the daemon."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, LONGEST_MESSAGE, MOST_DESCRIPTORS)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._over.set()
            return
        message = json.loads(data)
        if descriptors:
            message["streams"] = [self._offer(descriptor, message) for descriptor in descriptors]
        self._starting.pop(message.get("n", 0), None)
        if message.get("event") == "exited":
            for number in self._streams_of.pop(message["id"], []):
                self._mux.drain(number)
        self._mux.tell(message)

    def _offer(self, descriptor: int, message: dict[str, Any]) -> dict[str, Any]:
        """What the daemon gives away: a connection or a terminal, or a socket that others connect to."""
        number = next(self._numbers)
        if _listens(descriptor):
            listener = self._listeners[number] = socket.socket(fileno=descriptor)
            listener.setblocking(False)
            asyncio.get_running_loop().add_reader(descriptor, self._accept, number)
            return {"id": number, "kind": "listener"}
        self._mux.attach(number, source=descriptor, sink=descriptor)
        if (name := self._starting.get(message.get("n", 0))) is not None:
            self._streams_of[name].append(number)
        return {"id": number, "kind": "both"}

    def _accept(self, listener: int) -> None:
        try:
            made, _ = self._listeners[listener].accept()
        except OSError as problem:
            _look_later(self._listeners[listener], partial(self._accept, listener), problem)
            return
        number = next(self._numbers)
        descriptor = made.detach()
        self._mux.attach(number, source=descriptor, sink=descriptor)
        self._mux.open(number, {"of": listener})

    def _open(self, number: int, told: dict[str, Any]) -> None:
        """The node wants to speak to the daemon's door, or wants no more connections."""
        if told.get("to") == "door":
            self._dial_door(number)
        elif (listener := self._listeners.pop(told.get("close", 0), None)) is not None:
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()

    def _dial_door(self, number: int) -> None:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.connect(self._door)  # a unix socket connects at once; a full backlog waits for the daemon
        except OSError:
            made.close()
            reader, writer = os.pipe()
            os.close(writer)
            self._mux.attach(number, source=reader)  # it ends at once
            return
        descriptor = made.detach()
        self._mux.attach(number, source=descriptor, sink=descriptor)

    def _wake(self, message: dict[str, Any]) -> None:
        """Go on after standing still; in a copy nothing that the first one held leads anywhere any more, and its dice are made anew."""
        if message.get("is_copy"):
            self._mux.forget_all()
            self._forget()
        reseed(bytes.fromhex(message.get("seed", "")))
        if message.get("time_ns") and abs(message["time_ns"] - time.time_ns()) > 1_000_000:
            with contextlib.suppress(OSError):  # a container has its host's clock
                time.clock_settime_ns(time.CLOCK_REALTIME, message["time_ns"])
        self._used = -1  # told again: a copy's node does not know it
        self._mux.go_on()
        self._mux.tell({"event": "awake"})

    def _forget(self) -> None:
        """Nothing that the first one held leads anywhere any more."""
        for listener in self._listeners.values():
            asyncio.get_running_loop().remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()
        self._streams_of.clear()
        self._starting.clear()


def reseed(seed: bytes) -> None:
    """Stir the node's bytes into this machine's randomness, and let it be used from now on."""
    random.seed(seed + os.urandom(16))
    if not seed:
        return
    with contextlib.suppress(OSError), open("/dev/urandom", "wb", buffering=0) as device:  # root of a machine may
        packed = struct.pack("ii", len(seed) * 8, len(seed)) + seed
        fcntl.ioctl(device, _RNDADDENTROPY, packed)
        fcntl.ioctl(device, _RNDRESEEDCRNG)


def serve(
    link: tuple[int, int],
    directory: str,
    become_daemon: Callable[[socket.socket, socket.socket], None],
    measured: int = -1,
    again: socket.socket | None = None,
) -> int:
    """Fork the daemon and stand before it; `directory` is root's alone. Returns once one of both has ended."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, its):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST_MESSAGE)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    door = f"{directory}/door"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(door)
    listener.listen(256)
    if os.fork() == 0:
        try:
            ours.close()
            for descriptor in set(link):
                os.close(descriptor)
            become_daemon(its, listener)
        except BaseException as problem:  # noqa: BLE001 - it must not go on as the bridge
            sys.stderr.write(f"the daemon cannot be: {type(problem).__name__}: {problem}\n")
        finally:
            os._exit(1)
    its.close()
    listener.close()
    asyncio.run(_live(link, ours, door, measured, again))
    return 0


async def _live(
    link: tuple[int, int], control: socket.socket, door: str, measured: int, again: socket.socket | None
) -> None:
    await Bridge(link, control, door, measured, again).run()


def _look_later(listening: socket.socket, look: Callable[[], None], problem: OSError) -> None:
    """Where no descriptor is left, a socket at which somebody waits would be ready all the time."""
    if problem.errno not in (errno.EMFILE, errno.ENFILE):
        return
    loop = asyncio.get_running_loop()
    loop.remove_reader(listening.fileno())

    def look_again() -> None:
        if listening.fileno() >= 0:
            loop.add_reader(listening.fileno(), look)

    loop.call_later(NO_ROOM_S, look_again)


def _listens(descriptor: int) -> bool:
    copy = os.dup(descriptor)
    try:
        found = socket.socket(fileno=copy)
    except OSError:
        os.close(copy)
        return False
    with found:
        return bool(found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
