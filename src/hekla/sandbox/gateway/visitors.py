"""Connections of clients: reads the head of a request, asks the front who takes it, and hands it the body as it comes.

One request at a time; what was sent ahead waits. Where the taker or the client lags, the other is not read: no body is kept.
"""

import asyncio
import contextlib
import re
import socket
import struct
from enum import Enum, auto
from typing import Protocol, cast

from hekla.sandbox.gateway.answers import whole
from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.shares import Answer, Entry, Shares, origin_of
from hekla.wire.chunks import BrokenChunksError, Chunks
from hekla.wire.raw_heads import RefusedHeadError, RequestHead, read_request

_MAY_END = re.compile(rb"\n\r?\n")
_AGAIN = b"retry-after: 1\r\n"
_LINGER_S = 2.0
"""A client that is refused while it still sends needs a moment to read why, before the connection is cut."""


class Taker(Protocol):
    """Who takes one request: gets its body, and writes the answer on the visitor's connection."""

    wants_payload: bool
    """Whether `feed` needs the body out of its chunks."""

    def feed(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """A part of the body as it came; `is_last` comes once, perhaps with no bytes at all."""

    def raw(self, data: bytes) -> None:
        """Bytes behind an upgrade."""

    def abandon(self) -> None:
        """The client left."""

    def pause(self) -> None:
        """The client lags."""

    def resume(self) -> None:
        """The client caught up."""

    def tick(self, now: float) -> None:
        """Time passes; called a few times a second."""


class Front(Protocol):
    """Who answers requests."""

    def receive(self, visitor: "Visitor", head: RequestHead) -> Taker:
        """Take a request; the visitor's `done` is called when its answer was written."""

    def refused(self, visitor: "Visitor", status: int, sentence: str) -> bytes:
        """A request was refused before it was one: the answer's body."""

    def turned_away(self, answer: Answer) -> None:
        """A connection was not let in."""


class Doorway:
    """What the connections of one gateway share."""

    def __init__(self, front: Front, bounds: Bounds) -> None:
        self.front = front
        self.bounds = bounds
        self.visitors: set[Visitor] = set()
        self.shares = Shares(bounds.connections)
        self.now = 0.0
        """Coarse: of the last sweep."""
        self.is_draining = False

    def enter(self, peername: object) -> Entry:
        """A connection comes from there; whoever has its entry gives it back to `shares`."""
        entry = self.shares.enter(origin_of(_address(peername)))
        if entry.answer is not Answer.COME_IN:
            self.front.turned_away(entry.answer)
        return entry


class Phase(Enum):
    """What a connection is waiting for."""

    IDLE = auto()
    HEAD = auto()
    BODY = auto()
    ANSWER = auto()
    TUNNEL = auto()
    CLOSING = auto()
    LINGER = auto()


class Visitor(asyncio.Protocol):
    """One connection of one client."""

    __slots__ = (
        "_buffer", "_chunks", "_doorway", "_entry", "_is_answered", "_is_held", "_is_paused", "_keeps", "_lags_since", "_left", "_taker",
        "has_come", "phase", "since", "transport",
    )  # fmt: skip

    def __init__(self, doorway: Doorway, entry: Entry | None = None) -> None:
        """`entry` is of one who has been at the door already, to agree on TLS."""
        self._doorway = doorway
        self._entry = entry
        self._buffer = b""
        self._taker: Taker | None = None
        self._chunks: Chunks | None = None
        self._left = 0
        """Of the body, where its length is known."""
        self._is_paused = False
        self._is_held = False
        """Whether the taker wants no more for now."""
        self._is_answered = False
        """Whether the answer was written before the body ended."""
        self._keeps = True
        self._lags_since = 0.0
        self.has_come = False
        self.phase = Phase.IDLE
        self.since = doorway.now
        """When the phase began, coarsely; in a body, when something of it came last."""
        self.transport: asyncio.Transport

    @property
    def peer(self) -> str:
        """The client's address."""
        return _address(self.transport.get_extra_info("peername"))

    @property
    def is_tls(self) -> bool:
        """Whether it came by TLS."""
        return self.transport.get_extra_info("ssl_object") is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Let it in, unless there are too many, or too many of its address."""
        self.transport = cast(asyncio.Transport, transport)
        doorway = self._doorway
        self.transport.set_write_buffer_limits(high=doorway.bounds.write_ahead_bytes)
        doorway.visitors.add(self)
        self.has_come = True
        entry = self._entry = self._entry or doorway.enter(transport.get_extra_info("peername"))
        if entry.answer is Answer.COME_IN:
            return
        if not entry.is_told:
            self.cut()
        elif entry.answer is Answer.SHARE:
            self.refuse(429, _share_sentence(entry.origin, doorway.shares), _AGAIN)
        else:
            self.refuse(503, f"{doorway.bounds.connections} connections are open; try again later", _AGAIN)

    def connection_lost(self, error: Exception | None) -> None:
        """The client left: whatever runs for it ends."""
        self._doorway.visitors.discard(self)
        self.stay_out()
        self.phase = Phase.CLOSING
        taker, self._taker = self._taker, None
        if taker is not None:
            taker.abandon()

    def stay_out(self) -> None:
        """Give its place at the door back."""
        if self._entry is not None:
            self._doorway.shares.leave(self._entry)

    def eof_received(self) -> bool:
        """The client sends no more; behind an upgrade that is its business, otherwise it has left."""
        return False

    def data_received(self, data: bytes) -> None:
        """Bytes came; the common case is one whole request."""
        phase = self.phase
        if phase is Phase.IDLE:
            self._take_head(data)
        elif phase is Phase.HEAD:
            self._add_to_head(data)
        elif phase is Phase.BODY:
            self._take_body(data)
        elif phase is Phase.TUNNEL:
            if self._taker is not None:
                self._taker.raw(data)
        elif phase is Phase.ANSWER:
            self._keep(self._buffer + data)

    def _add_to_head(self, data: bytes) -> None:
        """Look again only where a head may end, so that a client who sends byte by byte costs little."""
        before = max(len(self._buffer) - 3, 0)
        self._buffer += data
        if _MAY_END.search(self._buffer, before) or len(self._buffer) > self._doorway.bounds.head_bytes:
            data, self._buffer = self._buffer, b""
            self._take_head(data)

    def _keep(self, data: bytes) -> None:
        """Requests sent ahead."""
        self._buffer = data
        if len(data) > self._doorway.bounds.pipelined_bytes:
            self._is_paused = True
            self._flow()

    def _take_head(self, data: bytes) -> None:
        doorway = self._doorway
        if data[:1] == b"\r":
            data = data.lstrip(b"\r\n")  # some clients end a body with one line too many
            if not data:
                return
        try:
            head = read_request(data, doorway.bounds)
        except RefusedHeadError as error:
            self.refuse(error.status, error.sentence)
            return
        if head is None:
            if self.phase is Phase.IDLE:
                self.phase, self.since = Phase.HEAD, doorway.now
            self._buffer = data
            return
        self._begin(head, data[head.end :])

    def _begin(self, head: RequestHead, rest: bytes) -> None:
        doorway = self._doorway
        self._keeps = head.keeps_alive = head.keeps_alive and not doorway.is_draining
        self._is_answered = False
        has_body = head.is_chunked or head.body_length > 0
        self._chunks, self._left = Chunks() if head.is_chunked else None, head.body_length
        self.phase, self.since = Phase.BODY if has_body else Phase.ANSWER, doorway.now
        taker = doorway.front.receive(self, head)
        if self.phase is Phase.BODY:
            self._taker = taker
            if head.expects_continue and not rest:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            if rest:
                self._take_body(rest)
        elif self.phase is Phase.ANSWER:
            self._taker = taker
            if rest:
                self._keep(rest)
            taker.feed(b"", [] if taker.wants_payload else None, True)
        elif rest and self.phase is Phase.IDLE:
            self._keep(self._buffer + rest)

    def _take_body(self, data: bytes) -> None:
        self.since = self._doorway.now
        taker = self._taker
        assert taker is not None
        payload: list[bytes] | None = [] if taker.wants_payload else None
        if self._chunks is None:
            piece = data[: self._left] if len(data) > self._left else data
            self._left -= len(piece)
            end = len(piece) if not self._left else -1
            if payload is not None:
                payload.append(piece)
        else:
            try:
                end = self._chunks.feed(data, payload)
            except BrokenChunksError as error:
                self._break_off(taker, str(error))
                return
        if end < 0:
            taker.feed(data, payload, False)
            return
        self.phase, self.since = Phase.ANSWER, self._doorway.now
        if end < len(data):
            self._keep(self._buffer + data[end:])
        taker.feed(data[:end], payload, True)
        if self._is_answered:
            self._next_request()

    def _break_off(self, taker: Taker, sentence: str) -> None:
        self._taker = None
        taker.abandon()
        if self._is_answered:
            self.close()
        else:
            self.refuse(400, sentence)

    # What takers call.

    def hold(self) -> None:
        """Read no more of the body for now."""
        self._is_held = True
        self._flow()

    def release(self) -> None:
        """Read on."""
        self._is_held = False
        self._flow()

    def _flow(self) -> None:
        if self.transport.is_closing():
            return
        if self._is_held or self._is_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def tunnel(self) -> None:
        """From now on, bytes: an upgrade was granted."""
        self.phase = Phase.TUNNEL
        self._is_held = self._is_paused = False
        self._flow()
        data, self._buffer = self._buffer, b""
        if data and self._taker is not None:
            self._taker.raw(data)

    def done(self, *, keeps_alive: bool) -> None:
        """The answer was written: on to the next request, or good-bye. One that came before the body's end ends the connection."""
        self._keeps = self._keeps and keeps_alive and not self._doorway.is_draining
        if self.phase is Phase.BODY:
            self._taker = None
            self._part(Phase.LINGER)
        elif self.phase is Phase.ANSWER:
            self._next_request()
        else:
            self.close()

    def _next_request(self) -> None:
        self._taker = None
        if not self._keeps:
            self.close()
            return
        self.phase, self.since = Phase.IDLE, self._doorway.now
        if self._buffer or self._is_paused or self._is_held:
            self._is_paused = self._is_held = False
            self._flow()
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if self.phase is Phase.IDLE and not self.transport.is_closing():
            data, self._buffer = self._buffer, b""
            if data:
                self._take_head(data)

    def refuse(self, status: int, sentence: str, lines: bytes = b"") -> None:
        """Turn a request away that cannot be read, read nothing more, and leave the client time to see why."""
        body = self._doorway.front.refused(self, status, sentence)
        self.transport.write(whole(status, body, lines=lines, keeps_alive=False))
        self._part(Phase.LINGER)

    def _part(self, phase: Phase) -> None:
        self.phase, self.since, self._buffer = phase, self._doorway.now, b""
        if not self.transport.is_closing():
            self.transport.pause_reading()
            if self.transport.can_write_eof():
                self.transport.write_eof()

    def cut(self) -> None:
        """Drop the connection at once: the answer under way cannot be finished."""
        self._taker, self.phase = None, Phase.CLOSING
        opened = self.transport.get_extra_info("socket")
        if opened is not None:  # a reset, not an end: clients tell a sandbox that died from one that has said all by it
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def close(self) -> None:
        """What was written still goes out."""
        self._taker, self._buffer = None, b""
        self.phase, self.since = Phase.CLOSING, self._doorway.now
        if not self.transport.is_closing():  # asyncio's TLS, closed twice, can be asked nothing any more
            self.transport.close()

    def pause_writing(self) -> None:
        """The client reads slower than it is answered."""
        self._lags_since = self._doorway.now or 1.0
        if self._taker is not None:
            self._taker.pause()

    def resume_writing(self) -> None:
        """It caught up."""
        self._lags_since = 0.0
        if self._taker is not None:
            self._taker.resume()

    def tick(self, now: float) -> None:
        """Cut off who takes too long."""
        bounds, waited_s, phase = self._doorway.bounds, now - self.since, self.phase
        if self._lags_since and now - self._lags_since > bounds.send_timeout_s:
            self.transport.abort()
        elif phase in (Phase.ANSWER, Phase.TUNNEL):
            if self._taker is not None:
                self._taker.tick(now)
        elif phase is Phase.IDLE:
            if waited_s > bounds.idle_timeout_s:
                self.close()
        elif phase is Phase.HEAD:
            if waited_s > bounds.head_timeout_s:
                self.refuse(408, f"no whole head came within {bounds.head_timeout_s:g} s")
        elif phase is Phase.BODY:
            if self._taker is not None:
                self._taker.tick(now)
            if not self._is_held and waited_s > bounds.body_silence_s:
                self.transport.abort()
        elif waited_s > (_LINGER_S if phase is Phase.LINGER else bounds.send_timeout_s):
            self.transport.abort()


def _address(peername: object) -> str:
    return str(peername[0]) if isinstance(peername, tuple) else ""


def _share_sentence(origin: str, shares: Shares) -> str:
    return (
        f"{shares.of(origin)} connections from {origin or 'one address'} are open, and one address may have at most three times"
        f" as many as are still free ({shares.most - shares.taken}); close some, or try again later"
    )
