"""The node's end of one sandbox's control socket: orders out, answers and events in, descriptors beside them."""

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from hekla.node.runtimes import NodeError
from hekla.node.runtimes.sandbox.encoding import encoded
from hekla.node.runtimes.sandbox.going_on import LONG_ORDERS, while_it_goes_on

Message = dict[str, Any]

LONGEST_MESSAGE = 1024 * 1024
MOST_DESCRIPTORS = 4
ORDER_TIMEOUT_S = 30.0
"""An order takes a millisecond; a sandbox that does not answer for so long, or goes no further with its files, is stuck."""


class SandboxGoneError(NodeError):
    """The sandbox has ended, or does not answer."""


class OrderRefusedError(NodeError):
    """The sandbox's daemon says why it did not do it."""


class Orders(Protocol):
    """The way to one sandbox's daemon, wherever the sandbox runs."""

    async def ask(
        self, op: str, message: Message | None = None, fds: Sequence[int] = (), *, timeout_s: float = ORDER_TIMEOUT_S
    ) -> tuple[Message, list[int]]:
        """One order and its answer, with the descriptors that came; raises OrderRefusedError or SandboxGoneError."""

    def resize(self, terminal: int, columns: int, rows: int) -> bool:
        """Give a terminal that came with an answer its size; False if it is one that we hold ourselves."""

    def close(self) -> None:
        """Let go of it: nothing is asked or heard any more. Who wants the sandbox to end says so to its keeper."""


class Channel:
    """Asks the daemon inside; one reader, any number of askers. Its own end outlives the node, in the supervisor's hands."""

    def __init__(self, on_event: Callable[[Message], None], own: socket.socket | None = None) -> None:
        """`own` is the node's end of one that an earlier life made."""
        self.childs: socket.socket | None = None
        if own is None:
            own, self.childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            for end in (own, self.childs):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * LONGEST_MESSAGE)
        self._own = own
        self._own.setblocking(False)
        self._on_event = on_event
        self._asked: dict[int, asyncio.Future[tuple[Message, list[int]]]] = {}
        # answers to questions of an earlier life may still come: they must not be taken for those to ours
        self._count = secrets.randbits(48)
        self._is_open = True
        asyncio.get_running_loop().add_reader(self._own.fileno(), self._hear)

    async def ask(
        self, op: str, message: Message | None = None, fds: Sequence[int] = (), *, timeout_s: float = ORDER_TIMEOUT_S
    ) -> tuple[Message, list[int]]:
        """One order and its answer, with the descriptors that came; raises OrderRefusedError or SandboxGoneError."""
        if not self._is_open:
            raise SandboxGoneError("the sandbox has ended")
        self._count += 1
        number = self._count
        data = encoded({"op": op, "n": number, **(message or {})})
        if len(data) > LONGEST_MESSAGE:
            raise OrderRefusedError(f"{op} is {len(data)} bytes long; {LONGEST_MESSAGE} is the most")
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(data, fds)
            if op in LONG_ORDERS:
                await while_it_goes_on(answered, fds, timeout_s)
            async with asyncio.timeout(timeout_s):
                answer, given = await answered
        except TimeoutError:
            raise SandboxGoneError(not_answered(op, timeout_s)) from None
        finally:
            self._asked.pop(number, None)
        if "error" in answer:
            for descriptor in given:
                os.close(descriptor)
            raise OrderRefusedError(answer["error"])
        return answer, given

    def resize(self, terminal: int, columns: int, rows: int) -> bool:
        """Terminals that come this way are ours to resize."""
        return False

    def ends(self) -> tuple[int, int]:
        """The sandbox's end and ours, as they are handed on."""
        assert self.childs is not None, "the other end is handed on once"
        return self.childs.fileno(), self._own.fileno()

    def let_go(self) -> None:
        """The other end is the sandbox's alone now, so that its death is seen."""
        if self.childs is not None:
            self.childs.close()
            self.childs = None

    def catch_up(self) -> None:
        """Hear what was said already."""
        self._hear()

    def close(self) -> None:
        """Let go of our copy; the supervisor has one, so the sandbox ends by being killed, not by this."""
        if not self._is_open:
            return
        self._is_open = False
        asyncio.get_running_loop().remove_reader(self._own.fileno())
        self._own.close()
        self.let_go()
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(SandboxGoneError("the sandbox has ended"))
                waiting.exception()  # read once, so that asyncio does not complain if nobody waits

    async def _send(self, data: bytes, fds: Sequence[int]) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                socket.send_fds(self._own, [data], list(fds))
                return
            except BlockingIOError:
                ready: asyncio.Future[None] = loop.create_future()
                loop.add_writer(self._own.fileno(), _settle, ready)
                try:
                    async with asyncio.timeout(ORDER_TIMEOUT_S):
                        await ready
                finally:
                    if self._is_open:
                        loop.remove_writer(self._own.fileno())
            except OSError as problem:
                raise SandboxGoneError(f"the sandbox has ended ({problem.strerror})") from None

    def _hear(self) -> None:
        while self._is_open:
            try:
                room = min(_next_bytes(self._own), LONGEST_MESSAGE)
                data, fds, _, _ = socket.recv_fds(self._own, room, MOST_DESCRIPTORS) if room else (b"", [], 0, None)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            if not data:
                self.close()
                return
            self._take(data, fds)

    def _take(self, data: bytes, fds: list[int]) -> None:
        with contextlib.suppress(ValueError):
            message = json.loads(data)
            waiting = self._asked.get(message.get("n", 0))
            if waiting is not None and not waiting.done():
                waiting.set_result((message, fds))
                return
            if "event" in message:
                self._on_event(message)
        for descriptor in fds:
            os.close(descriptor)


def not_answered(op: str, timeout_s: float) -> str:
    """What is said of an order that was waited for in vain."""
    if op in LONG_ORDERS:
        return f"the sandbox did not go on with {op}: nothing was written or read for {timeout_s:g} s"
    return f"the sandbox did not answer {op} within {timeout_s:g} s"


def _next_bytes(own: socket.socket) -> int:
    """Bytes to ask for, of the next message at least; 0: the other end is closed. Raises BlockingIOError where nothing waits.

    A megabyte of room would be mapped and given back for each answer. A message that comes between the two calls must not meet room for
    one byte: the kernel throws the rest of it away.
    """
    while not (queued := int(struct.unpack("i", fcntl.ioctl(own, termios.FIONREAD, bytes(4)))[0])):
        if not own.recv(1, socket.MSG_PEEK):
            return 0
    return queued


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
