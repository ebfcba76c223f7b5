"""Connections of clients: reads requests one after the other, whole with their bodies, within bounds of size and time.

A request goes to the front desk (`reception.py`) as soon as its last byte is here. Requests that were sent ahead wait
in the buffer until the answer under way has ended.
"""

import asyncio
import re
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, cast

from hekla.serving.router.plan import Refusal
from hekla.serving.router.proxy.answers import refusal_bytes
from hekla.serving.router.proxy.bounds import Bounds
from hekla.wire.chunks import BrokenChunksError, Chunks
from hekla.wire.limits import is_flood
from hekla.wire.raw_heads import Memo, RefusedHeadError, RequestHead, read_request

_MAY_END = re.compile(rb"\n\r?\n")
_MEMOS = 4
"""How often a connection whose heads differ is given another chance to repeat itself."""
LANE_CHANCES = 16
"""How often a connection may come back from the fast lane and try again."""
_WEIGHED_FROM = 16 * 1024
"""Smaller bodies are not counted: as many as there may be connections fit."""
_LINGER_S = 2.0
"""A client that is refused while it still sends needs a moment to read why, before the connection is cut."""


class Call(Protocol):
    """A request under way, as its client's connection sees it."""

    def abandon(self) -> None:
        """The client left."""

    def pause(self) -> None:
        """The client lags: read no more from the engine."""

    def resume(self) -> None:
        """The client caught up."""

    def tick(self, now: float) -> None:
        """Time passes; called a few times a second."""


class Front(Protocol):
    """Who answers requests."""

    def receive(self, client: "ClientConnection", head: RequestHead, body: bytes) -> Call | None:
        """Answer a request, now (None) or in time; `client.done` is called when the answer has been written."""

    def refused(self, client: "ClientConnection", refusal: Refusal) -> None:
        """A request was refused before it was one."""


class FastLane(Protocol):
    """Where plain requests are answered in machine code, as connections see it."""

    def consider(self, client: "ClientConnection") -> None:
        """A connection has nothing under way, and asked with the same head twice: take it, if its requests are plain."""

    def welcome(self, client: "ClientConnection", one: socket.socket) -> bool:
        """A connection on which nothing was said yet: take it, if those before it were plain; whether it was taken."""

    def sweep(self, now: float) -> None:
        """End what takes too long."""


class Doorway:
    """What the connections of one router share."""

    def __init__(self, front: Front, bounds: Bounds) -> None:
        self.front = front
        self.bounds = bounds
        self.connections: set[ClientConnection] = set()
        self.bodies_bytes = 0
        """Of all requests under way."""
        self.now = 0.0
        """Coarse: of the last sweep."""
        self.is_draining = False
        self.lane: FastLane | None = None
        """Takes connections whose requests are plain, where there is one (`lane/`)."""


class Phase(Enum):
    """What a connection is waiting for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    CLOSING = auto()
    LINGER = auto()
    LANE = auto()
    """Nothing: the fast lane has the connection."""


_IDLE, _HEAD, _BODY, _ANSWER, _CLOSING, _LINGER, _LANE = Phase
# until Python 3.12 a member looked up on its class costs 0.15 us, and a chat looks at six


class ClientConnection(asyncio.Protocol):
    """One connection of one client."""

    __slots__ = (
        "_body",
        "_body_size",
        "_buffer",
        "_call",
        "_chunks",
        "_doorway",
        "_head",
        "_is_paused",
        "_is_repeated",
        "_lags_since",
        "_memo",
        "_memos_left",
        "_weight",
        "is_plain",
        "lane_chances",
        "phase",
        "since",
        "transport",
    )

    def __init__(self, doorway: Doorway) -> None:
        self._doorway = doorway
        self._buffer = b""
        self._head: RequestHead | None = None
        self._body: list[bytes] = []
        self._body_size = 0
        self._chunks: Chunks | None = None
        self._call: Call | None = None
        self._weight = 0
        """What this request adds to the bytes of all bodies."""
        self._is_paused = False
        self._is_repeated = False
        """Whether the head that came last was the one before it."""
        self._lags_since = 0.0
        self._memo: Memo | None = None
        self._memos_left = _MEMOS
        self.is_plain = False
        """Whether its last request was one for the fast lane."""
        self.lane_chances = LANE_CHANCES
        self.phase = _IDLE
        self.since = doorway.now
        """When the phase began, coarsely."""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, unless there are too many."""
        self.transport = cast(asyncio.Transport, transport)
        doorway = self._doorway
        self.transport.set_write_buffer_limits(high=doorway.bounds.write_ahead_bytes)
        was_let_in = self in doorway.connections  # it comes from the fast lane
        doorway.connections.add(self)
        if is_flood(len(doorway.connections), doorway.bounds.connections) and not was_let_in:
            self.transport.abort()
        elif len(doorway.connections) > doorway.bounds.connections and not was_let_in:
            self.refuse(Refusal(503, "connections", f"{doorway.bounds.connections} connections are open; try later", 1))

    def connection_lost(self, error: Exception | None) -> None:
        """The client left: whatever runs for it ends."""
        self._doorway.connections.discard(self)
        self._release()
        call, self._call = self._call, None
        if call is not None:
            call.abandon()

    def data_received(self, data: bytes) -> None:
        """Bytes came; the common case is one whole request."""
        phase = self.phase
        if phase is _IDLE:
            self._take_head(data)
        elif phase is _HEAD:
            self._add_to_head(data)
        elif phase is _BODY:
            assert self._head is not None
            self._take_body(self._head, data)
        elif phase is _ANSWER:
            self._hold(self._buffer + data)

    def _add_to_head(self, data: bytes) -> None:
        """Look again only where a head may end, so that a client who sends byte by byte costs little."""
        before = max(len(self._buffer) - 3, 0)
        self._buffer += data
        if _MAY_END.search(self._buffer, before) or len(self._buffer) > self._doorway.bounds.head_bytes:
            data, self._buffer = self._buffer, b""
            self._take_head(data)

    def _hold(self, data: bytes) -> None:
        """Requests sent ahead."""
        self._buffer = data
        if len(data) > self._doorway.bounds.pipelined_bytes and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _take_head(self, data: bytes) -> None:
        memo = self._memo
        head = memo.read(data) if memo is not None else None
        self._is_repeated = head is not None
        if head is None:
            head = self._read_head(data)
            if head is None:
                return
            data = data if data[:1] != b"\r" else data.lstrip(b"\r\n")
        length = head.body_length
        end = head.end + length
        if head.is_chunked or len(data) < end or length > self._doorway.bounds.body_bytes:
            self._begin_body(head, data)
            return
        if length > _WEIGHED_FROM:
            self._weigh(length)
        if len(data) == end:
            self._receive(head, data[head.end :])
        else:
            self._hold(data[end:])
            self._receive(head, data[head.end : end])

    def _read_head(self, data: bytes) -> RequestHead | None:
        """A head that is not the last one again; None: there is none yet, or it is refused."""
        doorway = self._doorway
        if data[:1] == b"\r":
            data = data.lstrip(b"\r\n")  # some clients end a body with one line too many
            if not data:
                return None
        try:
            head = read_request(data, doorway.bounds)
        except RefusedHeadError as error:
            self.refuse(Refusal(error.status, "request_parsing", error.sentence))
            return None
        if head is None:
            if self.phase is _IDLE:
                self.phase, self.since = _HEAD, doorway.now
            self._buffer = data
        elif self._memos_left and head.body_length and not head.expects_continue:
            self._memos_left -= 1
            self._memo = Memo(head, data)
        return head

    def _begin_body(self, head: RequestHead, data: bytes) -> None:
        """A body that is not whole yet: first see whether it may come at all."""
        doorway = self._doorway
        self._head, self._body, self._body_size = head, [], 0
        if head.body_length > doorway.bounds.body_bytes:
            self._refuse_size()
            return
        if doorway.bodies_bytes + head.body_length > doorway.bounds.bodies_bytes:
            self.refuse(Refusal(503, "bodies", "the bodies of requests under way fill the memory; try again later", 1))
            return
        self._weigh(head.body_length)
        self._chunks = Chunks() if head.is_chunked else None
        self.phase, self.since = _BODY, doorway.now
        rest = data[head.end :]
        if head.expects_continue and not rest:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if rest:
            self._take_body(head, rest)

    def _take_body(self, head: RequestHead, data: bytes) -> None:
        if self._chunks is not None:
            self._take_chunks(head, self._chunks, data)
            return
        missing = head.body_length - self._body_size
        self._body.append(data[:missing] if len(data) > missing else data)
        self._body_size += len(self._body[-1])
        if len(data) > missing:
            self._hold(data[missing:])
        if self._body_size == head.body_length:
            self._receive(head, b"".join(self._body))

    def _take_chunks(self, head: RequestHead, chunks: Chunks, data: bytes) -> None:
        before = chunks.size
        try:
            end = chunks.feed(data, self._body)
        except BrokenChunksError as error:
            self.refuse(Refusal(400, "request_parsing", f"{error}"))
            return
        self._weigh(self._weight + chunks.size - before)
        if chunks.size > self._doorway.bounds.body_bytes:
            self._refuse_size()
        elif self._doorway.bodies_bytes > self._doorway.bounds.bodies_bytes:
            self.refuse(Refusal(503, "bodies", "the bodies of requests under way fill the memory; try again later", 1))
        elif end >= 0:
            if end < len(data):
                self._hold(data[end:])
            self._receive(head, b"".join(self._body))

    def _refuse_size(self) -> None:
        limit = self._doorway.bounds.body_bytes
        self.refuse(Refusal(413, "request_parsing", f"the body is larger than {limit} bytes; send a smaller one"))

    def _weigh(self, weight: int) -> None:
        self._doorway.bodies_bytes += weight - self._weight
        self._weight = weight

    def _receive(self, head: RequestHead, body: bytes) -> None:
        if self._head is not None:
            self._head, self._body, self._chunks = None, [], None
        self.phase = _ANSWER
        if self._doorway.is_draining:
            head.keeps_alive = False
        call = self._doorway.front.receive(self, head, body)
        if call is not None and self.phase is _ANSWER:
            self._call = call

    def done(self, *, keeps_alive: bool) -> None:
        """The answer was written: on to the next request, or good-bye."""
        self._call = None
        if self._weight:
            self._release()
        if not keeps_alive or self._doorway.is_draining:
            self._close()
            return
        self.phase, self.since = _IDLE, self._doorway.now
        if self._buffer or self._is_paused:
            asyncio.get_running_loop().call_soon(self._next)
        elif self.is_plain and self._is_repeated:
            self.is_plain = False
            if (lane := self._doorway.lane) is not None:
                lane.consider(self)

    def _next(self) -> None:
        if self.phase is not _IDLE or self.transport.is_closing():
            return
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        data, self._buffer = self._buffer, b""
        if data:
            self._take_head(data)

    def refuse(self, refusal: Refusal) -> None:
        """Turn a request away that cannot be read, read nothing more, and leave the client time to see why."""
        self._release()
        path = self._head.target.decode("ascii", "replace") if self._head is not None else ""
        self._head, self._body, self._chunks, self._buffer = None, [], None, b""
        self.phase, self.since = _LINGER, self._doorway.now
        self._doorway.front.refused(self, refusal)
        self.transport.write(refusal_bytes(refusal, path, keeps_alive=False))
        if not self.transport.is_closing():
            self.transport.pause_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def cut(self) -> None:
        """Drop the connection: the answer under way cannot be finished."""
        self._call = None
        self._release()
        self._close()

    def _close(self) -> None:
        """What was written still goes out."""
        self.phase, self.since = _CLOSING, self._doorway.now
        self._buffer = b""
        self.transport.close()

    def body_is_done(self) -> None:
        """The answer began: the body is kept by nobody."""
        if self._weight:
            self._release()

    def _release(self) -> None:
        self._doorway.bodies_bytes -= self._weight
        self._weight = 0

    def pause_writing(self) -> None:
        """The client reads slower than the engine writes."""
        self._lags_since = self._doorway.now
        if self._call is not None:
            self._call.pause()

    def resume_writing(self) -> None:
        """It caught up."""
        self._lags_since = 0.0
        if self._call is not None:
            self._call.resume()

    # ---- to the fast lane and back

    @property
    def memo(self) -> Memo | None:
        """The head that it sends again and again, if nothing is under way on it and all that was written is gone."""
        transport = self.transport
        if self.phase is not _IDLE or self._buffer or self._is_paused or self._doorway.is_draining:
            return None
        if transport.is_closing() or transport.get_write_buffer_size() or transport.get_extra_info("ssl_object"):
            return None
        return self._memo

    def go_into_lane(self, transport: asyncio.Transport) -> None:
        """The fast lane has its socket; the transport stands for that."""
        self.phase, self.transport = _LANE, transport

    def come_from_lane(self, transport: asyncio.BaseTransport, data: bytes, since: float) -> None:
        """Nothing is under way, and so much of a request came, whose head or body is waited for since then."""
        self.phase, self.since = _IDLE, self._doorway.now
        self.connection_made(transport)
        if data and self.phase is _IDLE:
            self.data_received(data)
            if self.phase is _HEAD or self.phase is _BODY:
                self.since = min(self.since, since)

    @property
    def is_paused(self) -> bool:
        """Whether nothing is to be read for now."""
        return self._is_paused or self.phase is _LINGER

    def resume_from_lane(self, transport: asyncio.BaseTransport, begin: Callable[[], Call | None]) -> None:
        """A request is under way: it is made, and told to go on."""
        self.phase, self.since = _ANSWER, self._doorway.now
        self.connection_made(transport)
        if self.phase is _ANSWER and (call := begin()) is not None and self.phase is _ANSWER:
            self._call = call

    def left_lane(self) -> None:
        """The fast lane has closed it."""
        self.phase = _CLOSING
        self._doorway.connections.discard(self)

    def tick(self, now: float) -> None:
        """Cut off who takes too long."""
        if self.phase is _LANE:
            return
        bounds, waited_s = self._doorway.bounds, now - self.since
        if self._lags_since and now - self._lags_since > bounds.send_timeout_s:
            self.transport.abort()
        elif self.phase is _ANSWER:
            if self._call is not None:
                self._call.tick(now)
        elif self.phase is _IDLE:
            if waited_s > bounds.idle_timeout_s:
                self.transport.close()
        elif self.phase is _HEAD:
            if waited_s > bounds.head_timeout_s:
                self.refuse(Refusal(408, "request_parsing", f"no whole head came within {bounds.head_timeout_s:g} s"))
        elif self.phase is _BODY:
            if waited_s > bounds.body_timeout_s:
                self.refuse(Refusal(408, "request_parsing", f"no whole body came within {bounds.body_timeout_s:g} s"))
        elif waited_s > (_LINGER_S if self.phase is _LINGER else bounds.send_timeout_s):
            self.transport.abort()
