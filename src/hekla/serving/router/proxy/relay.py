"""Writes an engine's answer to the client as it comes, and keeps what must be known of it: when it began, how many
events, its last bytes.

Most answers go through byte by byte. Re-framed are those whose framing the client cannot read (chunks for HTTP/1.0, an
answer that ends with its connection) and streams that hold an event the client had not asked for.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from hekla.serving.router.plan import Refusal, Usage
from hekla.serving.router.proxy.answers import error_event
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.engines import EngineConnection
from hekla.serving.router.proxy.usage import TAIL_BYTES, UsageRemover, usage_of
from hekla.wire.chunks import LAST_CHUNK, chunk
from hekla.wire.raw_heads import AnswerHead, RequestHead, read_answer, without_length

_TAIL_PIECES = 3
"""The usage, `[DONE]` and the last chunk may come in pieces of their own."""
_SMALL = 1024
"""Pieces under this are one."""


_USAGE = b'"usage"'
"""Looked for with `rfind`: `in` takes bytes for a number first, and makes and drops an error each time (0.1 us of 0.2)."""
_STREAM_HEAD = b"HTTP/1.1 %d \r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_NOTHING = (b"", LAST_CHUNK)
_EVENT_ENDS = (b"\n\n", b"\n\n\r\n", b"\r\n\r\n")


@dataclass(frozen=True, slots=True)
class Begun:
    """A stream of which whole chunks of whole events were written already."""

    status: int
    first_byte_at: float
    events: int
    seen: bytes
    """The end of what was written, or what is to be known of it: the usage."""
    leaves_usage_out: bool
    unwritten: bytes
    """What its client did not take."""


class Relay:
    """One answer on its way to one client."""

    # What most answers never change stands on the class: making an exchange sets a third of it.
    engine: EngineConnection | None = None
    has_begun = False
    """Whether a byte of the answer was written: from then on there is no other attempt."""
    is_open_ended = False
    """Whether the answer ends with the client's connection."""
    is_stream = False
    is_moving = False
    """Whether anything came since this was last set to False; cheaper than a clock for each chunk."""
    events = 0
    upstream_status = 0
    wants_payload = False
    _adds_chunks = False
    _head_bytes = b""
    _remover: UsageRemover | None = None
    _is_aligned = True
    _last_piece = b""
    request_id = b""
    """Told to the client, where the engine does not tell it itself."""
    _tail: deque[bytes] | None = None

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def prepare(self, request: RequestHead, head: AnswerHead, data: bytes, *, event_bytes: int) -> None:
        """Ready to write this answer; nothing is written before its body begins, so that another engine may be tried.

        `event_bytes` is the largest event that is held back to see whether it only tells the usage; 0: none is.
        """
        self.upstream_status = head.status
        if (
            head.is_plain
            and (head.body_length >= 0 or (head.is_chunked and not head.is_event_stream))
            and request.keeps_alive
            and not request.is_http_1_0
        ):
            self._head_bytes = self._named(head, data[: head.end])
            self.is_stream = self.wants_payload = False
        else:
            self._prepare_other(request, head, data, event_bytes=event_bytes)

    def _prepare_other(self, request: RequestHead, head: AnswerHead, data: bytes, *, event_bytes: int) -> None:
        self.is_stream = head.is_event_stream
        self._remover = None
        if event_bytes and head.is_event_stream and not head.is_encoded:
            self._remover = UsageRemover(event_bytes)
        has_end = head.is_chunked or head.body_length >= 0
        self.wants_payload = self._remover is not None or not has_end or (head.is_chunked and request.is_http_1_0)
        self._adds_chunks = self.wants_payload and not request.is_http_1_0
        self.is_open_ended = self.wants_payload and request.is_http_1_0
        self._is_aligned = True
        keeps_alive = request.keeps_alive and not self.is_open_ended
        if self.wants_payload or not head.is_plain or not keeps_alive or request.is_http_1_0:
            is_chunked = self._adds_chunks or (head.is_chunked and not self.wants_payload)
            self._head_bytes = self._rewritten(request, head, is_chunked=is_chunked, keeps_alive=keeps_alive)
        else:
            self._head_bytes = self._named(head, data[: head.end])

    def whole_bytes(self, request: RequestHead, head: AnswerHead, data: bytes) -> bytes:
        """A whole answer with a length, as this client has to read it."""
        self.upstream_status, self.is_stream, self.wants_payload = head.status, False, False
        if head.is_plain and request.keeps_alive and not request.is_http_1_0:
            return self._named(head, data)
        return self._rewritten(request, head, is_chunked=False, keeps_alive=request.keeps_alive) + data[head.end :]

    def _named(self, head: AnswerHead, data: bytes) -> bytes:
        """An answer, or its head, as it came, which says to which request it belongs."""
        if head.has_request_id:
            return data
        before = head.end - 2
        return b"%bx-request-id: %b\r\n%b" % (data[:before], self.request_id, data[before:])

    def _rewritten(self, request: RequestHead, head: AnswerHead, *, is_chunked: bool, keeps_alive: bool) -> bytes:
        """The head as this client has to read it."""
        lines = without_length(head.lines) if self.wants_payload else head.lines
        if not head.has_request_id:
            lines += b"x-request-id: %b\r\n" % self.request_id
        if is_chunked:
            lines += b"transfer-encoding: chunked\r\n"
        if not keeps_alive:
            lines += b"connection: close\r\n"
        elif request.is_http_1_0:
            lines += b"connection: keep-alive\r\n"
        return b"%b%b\r\n" % (head.opening, lines)

    def take_up(self, request: RequestHead, begun: Begun, bounds: Bounds) -> AnswerHead:
        """Go on with a stream that has begun; its head, as far as it matters from here on."""
        head = read_answer(_STREAM_HEAD % begun.status, bounds)
        assert head is not None, "it is whole"
        self.prepare(request, head, b"", event_bytes=bounds.event_bytes if begun.leaves_usage_out else 0)
        self._head_bytes, self.has_begun = b"", True
        self.events, self._last_piece = begun.events, begun.seen
        return head

    def began(self) -> None:
        """The first byte of the body is here."""
        raise NotImplementedError

    def said_nothing(self) -> None:
        """The answer is over and had no body."""
        raise NotImplementedError

    def piece(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """Write a part of the body, and the head before the first."""
        if is_last and not self.has_begun and self.upstream_status == 200 and data in _NOTHING:
            self.said_nothing()
            return
        seen = data
        if payload is not None:
            data, seen = self._reframed(data, payload, is_last)
        if not self.has_begun:
            self.has_begun = True
            self.began()
            data, self._head_bytes = self._head_bytes + data, b""
        self.is_moving = True
        if data:
            self.transport.write(data)
        self.events += seen.count(b"\n\n")
        if seen[:1] == b"\n" and self._last_piece[-2:] != b"\n\n" and self._last_piece[-1:] == b"\n":
            self.events += 1  # it ends half in one piece and half in the next
        if self._last_piece:
            self._remember(self._last_piece)
        self._last_piece = seen

    def steady(self) -> Callable[[bytes], bool] | None:
        """The short way, while events come whole: 1 us for one, where looking at its framing takes 3."""
        remover = self._remover
        if not self.is_stream or not self.has_begun or self._tail_may_matter():
            return None
        if remover is None:
            return None if self.wants_payload else self._pass_chunk
        return self._pass_chunk if self._adds_chunks and self._is_aligned and remover.is_clear else None

    def _pass_chunk(self, data: bytes) -> bool:
        """A chunk that is whole events, as nearly all are; not the usage, which may have to be left out and is remembered."""
        if data[-4:] != b"\n\n\r\n" or data.rfind(_USAGE) >= 0:
            return False
        self.transport.write(data)
        self.events += data.count(b"\n\n")
        self._last_piece = data
        self.is_moving = True
        return True

    def _tail_may_matter(self) -> bool:
        """Whether the usage was begun: what comes behind it stays on the long way, which remembers."""
        return self._last_piece.rfind(_USAGE) >= 0

    def _remember(self, seen: bytes) -> None:
        if self._tail is None:
            self._tail = deque(maxlen=_TAIL_PIECES)
        if self._tail and len(self._tail[-1]) + len(seen) <= _SMALL:
            self._tail[-1] += seen  # an engine, or a network, that delivers byte by byte
        else:
            self._tail.append(seen if len(seen) <= TAIL_BYTES else seen[-TAIL_BYTES:])

    def _reframed(self, data: bytes, payload: list[bytes], is_last: bool) -> tuple[bytes, bytes]:
        """What is written, and what is looked at."""
        engine, remover = self.engine, self._remover
        was_aligned = self._is_aligned
        if remover is not None and engine is not None and self._adds_chunks:
            self._is_aligned = engine.is_between_chunks
            if (
                was_aligned
                and self._is_aligned
                and remover.is_clear
                and data.endswith(b"\n\n\r\n")
                and data.rfind(_USAGE) < 0
            ):
                return data, data  # whole chunks with whole events: as they came
        seen = b"".join(payload)
        if remover is not None:
            out = remover.feed(seen)
            if is_last:
                out += remover.rest()
        else:
            out = seen
        return self._framed(out, is_last), seen

    def _framed(self, payload: bytes, is_last: bool) -> bytes:
        if not self._adds_chunks:
            return payload
        out = chunk(payload) if payload else b""
        return out + LAST_CHUNK if is_last else out

    def usage(self) -> Usage | None:
        """What the engine counted, from the end of what was seen."""
        if self._tail is None:
            return usage_of(self._last_piece[-TAIL_BYTES:])
        return usage_of(b"".join((*self._tail, self._last_piece[-TAIL_BYTES:])))

    def break_off(self, refusal: Refusal, engine: EngineConnection | None, path: str) -> None:
        """The answer cannot be finished: say so inside the stream where that is possible; the connection is to be closed.

        No last chunk is written, so that a client that ignores events sees a broken answer, too.
        """
        if not self.is_stream or not self._last_piece.endswith(_EVENT_ENDS):
            return
        event = error_event(refusal, path)
        if self._adds_chunks:
            self.transport.write(chunk(event))
        elif self.wants_payload:
            self.transport.write(event)
        elif engine is not None and engine.is_between_chunks:
            self.transport.write(chunk(event))

    def forget(self) -> None:
        """Let go of what was seen."""
        self._tail, self._last_piece, self._remover = None, b"", None
