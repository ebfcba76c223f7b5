"""The node's end of the link into a sandbox: orders and their descriptors as in `sandbox/channel.py`, but what a descriptor carries is sent.

A pipe or file that is given away becomes a stream; a connection or terminal that is handed out is a socket here, pumped to where it lives.
"""

import asyncio
import contextlib
import fcntl
import itertools
import json
import os
import secrets
import socket
import stat
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hekla.node.runtimes.sandbox.channel import (
    LONGEST_MESSAGE,
    ORDER_TIMEOUT_S,
    Message,
    OrderRefusedError,
    SandboxGoneError,
    not_answered,
)
from hekla.node.runtimes.sandbox.going_on import LONG_ORDERS, while_it_goes_on
from hekla.node.shim.guest.mux import Mux

WRITES_FILES = frozenset(("pack", "save"))
"""Orders whose files are filled; those of others are read."""
MOST_WAITING = 64


class GuestChannel:
    """Asks the daemon at the other end of a link."""

    def __init__(
        self,
        reading: int,
        writing: int,
        sockets: Path,
        on_event: Callable[[Message], None],
        *,
        patience_s: float = ORDER_TIMEOUT_S,
    ) -> None:
        """`sockets` is a directory of ours, for listeners that stand for those inside; an order is given at least `patience_s`."""
        self._patience_s = patience_s
        self._sockets, self._on_event = sockets, on_event
        self._orders = itertools.count(1)
        self._numbers = itertools.count(2, 2)
        self._asked: dict[int, asyncio.Future[Message]] = {}
        self._streams_of: dict[str, list[int]] = {}
        self._terminals: dict[int, int] = {}
        self._listeners: dict[int, str] = {}
        self._told: dict[str, asyncio.Future[None]] = {}
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._mux = Mux(reading, writing, on_message=self._hear, on_open=self._accepted, on_lost=self._lose)

    async def ask(
        self, op: str, message: Message | None = None, fds: Sequence[int] = (), *, timeout_s: float = ORDER_TIMEOUT_S
    ) -> tuple[Message, list[int]]:
        """One order and its answer, with the descriptors that came; raises OrderRefusedError or SandboxGoneError."""
        if not self._mux.is_open:
            raise SandboxGoneError("the sandbox has ended")
        timeout_s = max(timeout_s, self._patience_s)
        number = next(self._orders)
        order = {"op": op, "n": number, **(message or {})}
        if _length(order) > LONGEST_MESSAGE:
            raise OrderRefusedError(f"{op} is {_length(order)} bytes long; {LONGEST_MESSAGE} is the most")
        streams, filled = self._attach(op, fds)
        if op == "start":
            self._streams_of[order["id"]] = [stream["id"] for stream in streams]
        answered = self._asked[number] = asyncio.get_running_loop().create_future()
        self._mux.tell({**order, "streams": streams} if streams else order)
        try:
            if op in LONG_ORDERS:
                await while_it_goes_on(answered, fds, timeout_s)
            async with asyncio.timeout(timeout_s):
                answer = await answered
                for each in filled:
                    await each
        except TimeoutError:
            raise SandboxGoneError(not_answered(op, timeout_s)) from None
        finally:
            self._asked.pop(number, None)
        if "error" in answer:
            raise OrderRefusedError(answer["error"])
        return answer, [self._take(stream, order) for stream in answer.get("streams", [])]

    def dial_door(self) -> socket.socket:
        """A connection to the socket that the daemon listens on."""
        if not self._mux.is_open:
            raise SandboxGoneError("the sandbox has ended")
        number = next(self._numbers)
        theirs = self._pair(number)
        self._mux.open(number, {"to": "door"})
        return theirs

    def resize(self, terminal: int, columns: int, rows: int) -> bool:
        """Tell the terminal where it lives."""
        number = self._terminals.get(terminal)
        if number is None:
            return False
        self._mux.resize(number, columns, rows)
        return True

    async def quiesce(self) -> None:
        """Let both ends be silent, so that the sandbox can be copied as it stands. Raises SandboxGoneError."""
        quiet = self._expect("quiet")
        self._mux.hold({"op": "quiesce", "n": 0})
        await self._await(quiet, "quiesce")

    async def wake(self, *, is_copy: bool) -> None:
        """Go on after `quiesce`; a copy forgets what streams the first one had. Its clock and dice are set."""
        awake = self._expect("awake")
        self._mux.go_on()
        seed = secrets.token_hex(32)
        self._mux.tell({"op": "wake", "n": 0, "is_copy": is_copy, "seed": seed, "time_ns": time.time_ns()})
        await self._await(awake, "wake")

    def close(self) -> None:
        """Let go."""
        self._mux.close()
        self._lose()

    def _expect(self, event: str) -> "asyncio.Future[None]":
        expected = self._told[event] = asyncio.get_running_loop().create_future()
        return expected

    async def _await(self, expected: "asyncio.Future[None]", what: str) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await asyncio.wait((expected, self._lost), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            raise SandboxGoneError(f"the sandbox did not answer {what} within {self._patience_s:g} s") from None
        if not expected.done():
            raise SandboxGoneError("the sandbox has ended")

    def _attach(self, op: str, fds: Sequence[int]) -> tuple[list[Message], list["asyncio.Future[None]"]]:
        """A stream for each descriptor (they may be closed afterwards), and what is to be awaited: files that are filled."""
        streams: list[Message] = []
        filled: list[asyncio.Future[None]] = []
        for descriptor in fds:
            number, mode = next(self._numbers), os.fstat(descriptor).st_mode
            if stat.S_ISCHR(mode):
                streams.append({"id": number, "kind": "null"})
            elif stat.S_ISREG(mode) and op in WRITES_FILES:
                done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._mux.attach(number, sink=os.dup(descriptor)).on_over.append(partial(_settle, done))
                filled.append(done)
                streams.append({"id": number, "kind": "out"})
            elif stat.S_ISREG(mode) or _is_read(descriptor):
                self._mux.attach(number, source=os.dup(descriptor))
                streams.append({"id": number, "kind": "in"})
            else:
                self._mux.attach(number, sink=os.dup(descriptor))
                streams.append({"id": number, "kind": "out"})
        return streams, filled

    def _take(self, stream: Message, order: Message) -> int:
        """What was handed out, as a descriptor of ours."""
        number = stream["id"]
        if stream["kind"] == "listener":
            return self._listener(number).detach()
        theirs = self._pair(number).detach()
        if order["op"] == "start":
            self._streams_of.setdefault(order["id"], []).append(number)
            self._terminals[theirs] = number
        return theirs

    def _pair(self, number: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        descriptor = ours.detach()
        self._mux.attach(number, source=descriptor, sink=descriptor)
        return theirs

    def _listener(self, number: int) -> socket.socket:
        """Stands for a listener inside: what it accepts is connected to it."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        directory = os.open(self._sockets, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.bind(f"/proc/self/fd/{directory}/{id(self):x}-{number}")  # a path that is short enough for a socket
        finally:
            os.close(directory)
        made.listen(MOST_WAITING)
        made.setblocking(False)
        self._listeners[number] = f"{id(self):x}-{number}"
        return made

    def _accepted(self, number: int, told: dict[str, Any]) -> None:
        """A listener inside has accepted: connect to the one that stands for it here."""
        listener = int(told.get("of", 0))
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        directory = os.open(self._sockets, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            made.connect(f"/proc/self/fd/{directory}/{self._listeners.get(listener, '')}")
        except OSError as problem:  # closed, or too many wait already
            made.close()
            self._mux.attach(number, source=os.open(os.devnull, os.O_RDONLY))  # which ends at once
            if isinstance(problem, ConnectionRefusedError | FileNotFoundError):
                self._forget_listener(listener)
            return
        finally:
            os.close(directory)
        descriptor = made.detach()
        self._mux.attach(number, source=descriptor, sink=descriptor)

    def _forget_listener(self, listener: int) -> None:
        name = self._listeners.pop(listener, None)
        if name is not None:
            (self._sockets / name).unlink(missing_ok=True)
            self._mux.open(0, {"close": listener})

    def _hear(self, message: dict[str, Any]) -> None:
        waiting = self._asked.get(message.get("n", 0))
        if waiting is not None and not waiting.done():
            waiting.set_result(message)
            return
        event = message.get("event", "")
        if (told := self._told.pop(event, None)) is not None:
            _settle(told)
        elif event == "exited":
            self._ended(message)
        elif event:
            self._on_event(message)

    def _ended(self, message: Message) -> None:
        """A command's end is told once its last output can be read."""
        numbers = self._streams_of.pop(message["id"], [])
        for descriptor in [known for known, number in self._terminals.items() if number in numbers]:
            del self._terminals[descriptor]

        def tell(left: int) -> None:
            if left == len(numbers):
                self._on_event(message)
            else:
                self._mux.when_written(numbers[left], lambda: tell(left + 1))

        tell(0)

    def _lose(self) -> None:
        for waiting in self._asked.values():
            if not waiting.done():
                waiting.set_exception(SandboxGoneError("the sandbox has ended"))
                waiting.exception()  # read once, so that asyncio does not complain if nobody waits
        for name in self._listeners.values():
            with contextlib.suppress(OSError):
                (self._sockets / name).unlink(missing_ok=True)
        self._listeners.clear()
        _settle(self._lost)


def _is_read(descriptor: int) -> bool:
    return fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def _length(order: Message) -> int:
    return len(json.dumps(order).encode("utf-8", "surrogatepass"))


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
