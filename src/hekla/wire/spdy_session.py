"""Runs a SPDY connection over a carrier and gives its streams to tasks: port-forward and older exec stand on it.

    session = SpdySession(duplex)                      # or SpdySession(WebSocketBytes(ws)) for a tunnel
    async with session:
        while (stream := await session.accept()) is not None: ...

What one stream leaves unread stops the reading of the carrier, and so all streams: SPDY as Kubernetes speaks it has no
other brake (see `spdy.py`). Read every stream, or reset it.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Protocol

from hekla.wire.errors import ConnectionLostError, ProtocolViolationError, WireError
from hekla.wire.messages import WebSocket
from hekla.wire.spdy import (
    DataReceived,
    GoneAway,
    Headers,
    SpdyConnection,
    SpdyEvent,
    SpdyLimits,
    StreamOpened,
    StreamReplied,
    StreamReset,
)

_UNREAD_BYTES = 256 * 1024
_UNACCEPTED = 100


class Carrier(Protocol):
    """What carries the frames: a `Duplex`, or a WebSocket through `WebSocketBytes`."""

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""

    async def send(self, data: bytes) -> None:
        """Send, waiting while the peer is slow."""

    async def close(self) -> None:
        """Close in good order."""


class WebSocketBytes:
    """A WebSocket as a stream of bytes: how kubectl tunnels SPDY."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        while (message := await self._socket.receive()) is not None:
            if isinstance(message, str):
                raise ProtocolViolationError("SPDY was sent as text; send it as binary messages")
            if message:
                return message
        return b""

    async def send(self, data: bytes) -> None:
        """Send, waiting while the peer is slow."""
        await self._socket.send(data)

    async def close(self) -> None:
        """Close in good order."""
        await self._socket.close()


class SpdyStream:
    """One stream of a session."""

    def __init__(self, session: "SpdySession", stream_id: int, headers: Headers) -> None:
        self.stream_id = stream_id
        self.headers = headers
        """What it was opened with; names in lower case."""
        self._session = session
        self._unread: list[bytes] = []
        self._size = 0
        self._is_ended = False
        self._was_reset = False
        self._changed = asyncio.Condition()

    async def receive(self) -> bytes:
        """The next bytes; empty once the peer sends no more. Raises `ConnectionLostError` after a reset."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._unread or self._is_ended)
            data, self._unread, self._size = b"".join(self._unread), [], 0
            self._changed.notify_all()
        if not data and self._was_reset:
            raise ConnectionLostError(f"stream {self.stream_id} was reset")
        return data

    async def send(self, data: bytes) -> None:
        """Send, waiting while the peer is slow."""
        if self._was_reset:
            raise ConnectionLostError(f"stream {self.stream_id} was reset")
        self._session.connection.send(self.stream_id, data)
        await self._session.flush()

    async def close(self) -> None:
        """Send no more; what the peer sends can still be read."""
        self._session.connection.send(self.stream_id, b"", is_last=True)
        await self._session.flush()

    async def reset(self) -> None:
        """End the stream at once, both ways."""
        self._session.connection.reset(self.stream_id)
        await self.ended(was_reset=True)
        await self._session.flush()

    async def put(self, data: bytes) -> None:
        """Called by the session: keep data for the reader, waiting while too much lies unread."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._size < _UNREAD_BYTES or self._is_ended)
            if not self._is_ended:
                self._unread.append(data)
                self._size += len(data)
            self._changed.notify_all()

    async def ended(self, *, was_reset: bool = False) -> None:
        """Called by the session: nothing more will come."""
        async with self._changed:
            self._is_ended = True
            self._was_reset |= was_reset
            self._changed.notify_all()


class SpdySession:
    """A SPDY connection with a task that reads it."""

    def __init__(self, carrier: Carrier, *, is_client: bool = False, limits: SpdyLimits | None = None) -> None:
        self.connection = SpdyConnection(is_client=is_client, limits=limits)
        self._carrier = carrier
        self._streams: dict[int, SpdyStream] = {}
        self._opened: asyncio.Queue[SpdyStream | None] = asyncio.Queue(_UNACCEPTED)
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "SpdySession":
        self._reader = asyncio.create_task(self._read())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._reader is not None
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        with contextlib.suppress(WireError):
            self.connection.go_away()
            await self.flush()
        await self._carrier.close()

    async def accept(self) -> SpdyStream | None:
        """The next stream that the peer opens, already replied to; None when the connection has ended."""
        stream = await self._opened.get()
        if stream is None:
            self._opened.put_nowait(None)
        return stream

    async def open(self, headers: Headers, *, is_last: bool = False) -> SpdyStream:
        """Open a stream."""
        stream = SpdyStream(self, self.connection.open_stream(headers, is_last=is_last), headers)
        self._streams[stream.stream_id] = stream
        await self.flush()
        return stream

    async def flush(self) -> None:
        """Send what the connection has to say, in order."""
        async with self._sending:
            if output := self.connection.take_output():
                await self._carrier.send(output)

    async def _read(self) -> None:
        try:
            while data := await self._carrier.receive():
                for event in self.connection.receive(data):
                    await self._handle(event)
                await self.flush()
        except WireError:
            pass  # the carrier is gone, or the peer broke the protocol: either way all streams end here
        finally:
            await self._end()

    async def _handle(self, event: SpdyEvent) -> None:
        if isinstance(event, StreamOpened):
            await self._accepted(event)
        elif isinstance(event, DataReceived | StreamReplied):
            await self._received(event)
        elif isinstance(event, StreamReset):
            stream = self._streams.pop(event.stream_id, None)
            if stream is not None:
                await stream.ended(was_reset=True)
        elif isinstance(event, GoneAway):
            self._no_more_streams()

    async def _accepted(self, event: StreamOpened) -> None:
        if self._opened.full():
            self.connection.reset(event.stream_id)
            return
        stream = self._streams[event.stream_id] = SpdyStream(self, event.stream_id, event.headers)
        self.connection.reply(event.stream_id)
        await self.flush()
        if event.is_last:
            await stream.ended()
        self._opened.put_nowait(stream)

    async def _received(self, event: DataReceived | StreamReplied) -> None:
        stream = self._streams.get(event.stream_id)
        if stream is None:
            return
        if isinstance(event, DataReceived) and event.data:
            await stream.put(event.data)
        if event.is_last:
            self._streams.pop(event.stream_id, None)
            await stream.ended()

    def _no_more_streams(self) -> None:
        if not self._opened.full():
            self._opened.put_nowait(None)

    async def _end(self) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            await stream.ended(was_reset=True)
        while self._opened.full():
            self._opened.get_nowait()
        self._opened.put_nowait(None)
