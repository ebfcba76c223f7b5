"""One connection of the client: one request at a time, its answer parsed by callbacks.

No coroutine runs here. A `Call` carries what its caller waits on: a future for a whole answer, an inbox beside it for
a streamed one, a tunnel where the server switches protocols. `client.py` has the pool and the public calls.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from hekla.wire.errors import BadReplyError, ConnectionLostError, ReplyTooLargeError, UpgradeRefusedError, WireError
from hekla.wire.header_names import KNOWN, header_name
from hekla.wire.limits import ClientLimits
from hekla.wire.messages import Response
from hekla.wire.parted import GONE, close_once
from hekla.wire.tunnels import Inbox, Tunnel

_REFUSAL_BYTES = 64 * 1024  # of the body with which a server refuses an upgrade

MakeTunnel = Callable[[asyncio.Transport, dict[str, str]], Tunnel]


class Call:
    """One request under way."""

    __slots__ = ("future", "inbox", "is_head", "is_stream", "is_touched", "make_tunnel", "method", "peer", "tunnel")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, method: str, peer: str, is_stream: bool, make_tunnel: MakeTunnel | None
    ) -> None:
        self.future: asyncio.Future[Response] = loop.create_future()
        self.method = method
        self.peer = peer
        self.is_head = method == "HEAD"
        self.is_stream = is_stream
        self.is_touched = False
        """Whether any byte of an answer came: until then the request may be tried again."""
        self.inbox: Inbox[bytes] | None = None
        self.make_tunnel = make_tunnel
        self.tunnel: Tunnel | None = None

    def fail(self, error: WireError) -> None:
        """Tell whoever waits."""
        if not self.future.done():
            self.future.set_exception(error)
        elif self.inbox is not None:
            self.inbox.end(error)


class ClientConnection(asyncio.Protocol):
    """The client's side of one connection."""

    __slots__ = (
        "_call",
        "_content_type",
        "_fed",
        "_has_head",
        "_header_bytes",
        "_headers",
        "_is_dirty",
        "_is_done",
        "_is_informational",
        "_keep_alive",
        "_limits",
        "_loop",
        "_on_end",
        "_parser",
        "_pieces",
        "_size",
        "_status",
        "_transport",
        "_tunnel",
        "_until_close",
        "idle_since",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: ClientLimits,
        on_end: "Callable[[ClientConnection, bool], None]",
    ) -> None:
        self._loop = loop
        self._limits = limits
        self._on_end = on_end  # called with False when the connection may serve the next request, True when it is gone
        self._call: Call | None = None
        self._tunnel: Tunnel | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._is_dirty = False
        self.idle_since = 0.0
        self._reset()

    def _reset(self) -> None:
        self._headers: list[tuple[str, str]] = []
        self._pieces: list[bytes] = []
        self._content_type = ""
        self._size = self._header_bytes = self._fed = self._status = 0
        self._has_head = self._is_done = self._is_informational = self._until_close = False
        self._keep_alive = True

    @property
    def is_usable(self) -> bool:
        """Whether another request can be sent."""
        return self._call is None and not self._is_dirty and not self._transport.is_closing()

    def serves(self, call: Call) -> bool:
        """Whether a call is still under way here."""
        return self._call is call

    def begin(self, call: Call, data: bytes) -> None:
        """Send a request; its answer goes to the call."""
        if self._transport.is_closing():
            call.fail(ConnectionLostError(f"{call.peer} closed the connection before the request was sent"))
            return
        self._call = call
        self._reset()
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        self._transport.write(data)

    def abort(self, error: WireError | None = None) -> None:
        """Drop the connection, because nobody wants the rest of the answer or it cannot be understood."""
        call, self._call = self._call, None
        self._is_dirty = True
        self._transport.abort()
        if call is not None and error is not None:
            call.fail(error)

    def close(self) -> None:
        """Close an idle connection."""
        close_once(self._transport)

    def tick(self, now: float) -> None:
        """Let a tunnel keep its time limits."""
        if self._tunnel is not None:
            self._tunnel.tick(now)

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes from the server."""
        if self._tunnel is not None:
            self._tunnel.feed(data)
            return
        call = self._call
        if call is None or self._parser is None:
            self._is_dirty = True  # an answer that nobody asked for: nothing after it could be trusted
            self._transport.abort()
            return
        call.is_touched = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._switched(call, data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            # data behind a complete answer concerns nobody but the next request, which gets another connection
            if not self._is_done:
                self.abort(self._parse_failure(call, error))
                return
            self._is_dirty = True
        if not self._has_head:
            self._bound_head(call, len(data))
        elif call.inbox is not None and self._pieces:
            pieces, self._pieces = self._pieces, []
            call.inbox.put(pieces[0] if len(pieces) == 1 else b"".join(pieces), sum(map(len, pieces)))
        if self._is_done:
            self._finish()

    def eof_received(self) -> bool:
        """The server sends no more: the end of a body without a length, and else a loss."""
        if self._tunnel is not None:
            return self._tunnel.feed_eof()
        if self._call is not None and self._has_head and self._until_close:
            self._keep_alive = False
            self._finish()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone."""
        if self._tunnel is not None:
            self._tunnel.lost()
        call, self._call = self._call, None
        self._is_dirty = True
        if call is not None:
            reason = f": {error}" if error else ""
            call.fail(ConnectionLostError(f"{call.peer} closed the connection before its answer was whole{reason}"))
        self._on_end(self, True)
        self._parser = None  # it tells this connection, and would keep it
        self._transport = cast(asyncio.Transport, GONE)

    def pause_writing(self) -> None:
        """The server is slow."""
        if self._tunnel is not None:
            self._tunnel.pause_writing()

    def resume_writing(self) -> None:
        """The server has caught up."""
        if self._tunnel is not None:
            self._tunnel.resume_writing()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """An answer begins; a second one is nobody's."""
        if self._is_done:
            self._is_dirty = True

    def on_header(self, raw_name: bytes, raw_value: bytes) -> None:
        """One header, or a trailer, which is dropped."""
        self._header_bytes += len(raw_name) + len(raw_value)
        if self._header_bytes > self._limits.header_bytes:
            raise ReplyTooLargeError(f"the headers are larger than {self._limits.header_bytes} bytes")
        if self._has_head:
            return
        name = KNOWN.get(raw_name) or header_name(raw_name)
        value = raw_value.decode("latin-1")
        if name == "content-type":
            self._content_type = value
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is whole."""
        if self._is_done:
            return
        call, parser = self._call, self._parser
        assert call is not None
        assert parser is not None
        status = self._status = parser.get_status_code()
        if status < 200 and status != 101:
            self._is_informational = True
            self._headers.clear()
            return
        self._has_head = True
        self._keep_alive = parser.should_keep_alive()
        self._until_close = not self._keep_alive and not any(
            name in ("content-length", "transfer-encoding") for name, _ in self._headers
        )
        if call.is_head:
            self._is_done = True
        if call.is_stream and not call.future.done():
            call.inbox = Inbox(self._transport, self._loop, self._limits.read_ahead_bytes)
            call.future.set_result(Response(status, b"", self._content_type, self._headers))

    def on_body(self, piece: bytes) -> None:
        """A part of the body."""
        if self._is_done:
            self._is_dirty = True
            return
        self._size += len(piece)
        call = self._call
        if call is not None and call.inbox is None and self._size > self._limits.body_bytes:
            raise ReplyTooLargeError(f"the body is larger than {self._limits.body_bytes} bytes")
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._is_informational:
            self._is_informational = False
        elif self._status != 101:
            self._is_done = True

    # The end of an answer.

    def _finish(self) -> None:
        call, self._call = self._call, None
        assert call is not None
        if call.is_head:
            self._parser = None  # llhttp waits for a body that will not come
        if call.inbox is not None:
            call.inbox.end()
        elif not call.future.done():
            pieces = self._pieces
            body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            call.future.set_result(Response(self._status, body, self._content_type, self._headers))
        if self._keep_alive and not self._is_dirty and call.make_tunnel is None:
            self._on_end(self, False)
        else:
            self._is_dirty = True
            close_once(self._transport)

    def _switched(self, call: Call, tail: bytes) -> None:
        """The server said 101."""
        if call.make_tunnel is None or self._status != 101:
            self.abort(BadReplyError(f"{call.peer} switched protocols without being asked"))
            return
        try:
            self._tunnel = call.tunnel = call.make_tunnel(self._transport, dict(self._headers))
        except WireError as error:
            self.abort(error)
            return
        self._call = None
        call.future.set_result(Response(101, b"", "", self._headers))
        if tail:
            self._tunnel.feed(tail)

    def _bound_head(self, call: Call, size: int) -> None:
        """Bound an unfinished head: llhttp collects an unfinished header without a callback."""
        self._fed += size
        if self._fed > 2 * self._limits.header_bytes:
            self.abort(ReplyTooLargeError(f"the headers from {call.peer} are larger than the limit"))

    def _parse_failure(self, call: Call, error: httptools.HttpParserError) -> WireError:
        cause = error.__context__
        if isinstance(cause, ReplyTooLargeError):
            return ReplyTooLargeError(f"the answer from {call.peer} is too large: {cause}")
        return BadReplyError(f"{call.peer} answered with something that is not HTTP/1.1: {error}")


def refusal_of(call: Call, response: Response, wanted: str) -> UpgradeRefusedError:
    """The error for an upgrade that was answered with something else than 101."""
    body = response.body if isinstance(response.body, bytes) else b""
    words = body[:300].decode("utf-8", "replace").strip()
    sentence = f"{call.peer} answered {response.status} instead of switching to {wanted}: {words}"
    return UpgradeRefusedError(sentence, response.status, body[:_REFUSAL_BYTES])
