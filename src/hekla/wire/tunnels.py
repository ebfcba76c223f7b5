"""A connection after `101 Switching Protocols`, seen from both sides: flow control around raw bytes.

`RawDuplex` is the `Duplex` of the contract, for SPDY and other tunnels; `websocket.py` builds on the same parts. Server
and client connections drive a tunnel through the `Tunnel` protocol and know nothing of what is inside.
"""

import asyncio
from collections import deque
from typing import Generic, Protocol, TypeVar, cast

from hekla.wire.errors import ConnectionLostError
from hekla.wire.parted import GONE, close_once

READ_AHEAD = 256 * 1024  # what a tunnel holds for a slow reader before it stops reading the socket


Item = TypeVar("Item")


class Tunnel(Protocol):
    """What a connection calls while something else than HTTP runs on it."""

    def feed(self, data: bytes) -> None:
        """Bytes from the peer."""

    def feed_eof(self) -> bool:
        """The peer will send no more; True keeps our sending side open."""

    def lost(self) -> None:
        """The connection is gone."""

    def pause_writing(self) -> None:
        """The peer is slow."""

    def resume_writing(self) -> None:
        """The peer has caught up."""

    def tick(self, now: float) -> None:
        """Called now and then with the loop's time."""

    def stop(self) -> None:
        """Our side is going away: end in good order."""

    async def close(self) -> None:
        """Close in good order."""


class Turnstile:
    """Lets writers through while the transport takes bytes, and fails them once the connection is lost."""

    __slots__ = ("_is_lost", "_is_open", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_open = True
        self._is_lost = False
        self._waiters: list[asyncio.Future[None]] = []

    async def passage(self) -> None:
        """Wait until the transport takes bytes; raises `ConnectionLostError` once it never will again."""
        while not self._is_open and not self._is_lost:
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            await waiter
        if self._is_lost:
            raise ConnectionLostError("the peer has closed the connection")

    @property
    def is_open(self) -> bool:
        """Whether the transport takes bytes."""
        return self._is_open

    def shut(self) -> None:
        """The transport's buffer is full."""
        self._is_open = False

    def open(self) -> None:
        """The transport's buffer has drained."""
        self._is_open = True
        self._wake()

    def lose(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class Inbox(Generic[Item]):
    """What has come in and was not read yet; the socket is not read while more than the bound lies here."""

    __slots__ = ("_bound", "_ended", "_error", "_items", "_loop", "_paused", "_size", "_transport", "_waiter")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, bound: int = READ_AHEAD) -> None:
        self._transport = transport
        self._loop = loop
        self._bound = bound
        self._items: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._paused = False
        self._ended = False
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Item, size: int) -> None:
        """Add one item."""
        self._items.append((item, size))
        self._size += size
        if self._size > self._bound and not self._paused and not self._ended:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def end(self, error: Exception | None = None) -> None:
        """Nothing more will come; with an error, the reader meets it behind what lies here. Lets go of the socket."""
        if not self._ended:
            self._ended = True
            self._error = error
            self._resume()
            self._transport = cast(asyncio.Transport, GONE)
            self._wake()

    async def get(self) -> Item | None:
        """The next item, waiting for it; None at the end. One reader at a time."""
        while not self._items:
            if self._ended:
                if self._error is not None:
                    raise self._error
                return None
            if self._waiter is not None:
                raise RuntimeError("two tasks read one connection; give it to one of them")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._take()

    def _take(self) -> Item:
        item, size = self._items.popleft()
        self._size -= size
        if self._size <= self._bound // 2:
            self._resume()
        return item

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class RawDuplex:
    """Raw bytes both ways: the `Duplex` of the contract."""

    __slots__ = ("_inbox", "_transport", "_turnstile")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._inbox: Inbox[bytes] = Inbox(transport, loop)
        self._turnstile = Turnstile(loop)

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        return await self._inbox.get() or b""

    async def send(self, data: bytes) -> None:
        """Send, waiting while the peer is slow."""
        await self._turnstile.passage()
        self._transport.write(data)
        await self._turnstile.passage()

    async def close(self) -> None:
        """Close once what was sent is with the kernel."""
        close_once(self._transport)

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        """Bytes from the peer."""
        self._inbox.put(data, len(data))

    def feed_eof(self) -> bool:
        """The peer will send no more; what we have for it may still be sent."""
        self._inbox.end()
        return True

    def lost(self) -> None:
        """The connection is gone."""
        self._inbox.end()
        self._turnstile.lose()
        self._transport = cast(asyncio.Transport, GONE)

    def pause_writing(self) -> None:
        """The peer is slow."""
        self._turnstile.shut()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._turnstile.open()

    def tick(self, now: float) -> None:
        """Nothing to do with time: what runs inside has its own."""

    def stop(self) -> None:
        """Our side is going away: whoever reads sees the end."""
        self._inbox.end()
