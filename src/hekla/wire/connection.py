"""One connection of the server: takes requests in order, answers each, and leaves HTTP when an upgrade asks for it.

The hot path has no task and no future: bytes come in, `requests.py` delivers a request, a plain handler returns a
`Response` with bytes, and head and body go to the transport in one write. Everything else (coroutines, streams,
pushes, upgrades) branches off `_take`. `server.py` accepts connections and calls `tick` on each once in a while, which
is how time limits are kept without a timer per request.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import cast

from hekla.wire import heads
from hekla.wire.errors import RefusedError, WireError
from hekla.wire.limits import is_flood
from hekla.wire.messages import AcceptWebSocket, Answer, Request, Response, SwitchProtocol
from hekla.wire.parted import GONE
from hekla.wire.patience import Patience, Phase, allowed_s
from hekla.wire.requests import Incoming, Part, RequestReader
from hekla.wire.service import Service, close_iterator, gzip_bytes, peer_of
from hekla.wire.sinks import PushSink
from hekla.wire.together import send_together
from hekla.wire.tunnels import Tunnel
from hekla.wire.upgrades import Upgrade, grant

_COPY_BOUND = 64 * 1024  # bodies up to this size are joined with their head: one write, at the price of a copy
_GZIP_IN_THREAD = 1024 * 1024  # 4 ms of compression: more than other requests should wait
_FAREWELL_S = 5.0
_GOODBYE_S = 0.1  # what an idle peer is given to answer our TLS good-bye when the server stops
_UPGRADE_REQUIRED = 426
_CLIENT_LEFT = 499  # what the observer is told of a request whose client left before its answer began


class Connection(asyncio.Protocol):
    """The server's side of one connection."""

    __slots__ = (
        "_gate",
        "_incoming",
        "_is_serving_queue",
        "_last_word",
        "_owes_continue",
        "_patience",
        "_phase",
        "_queue",
        "_reader",
        "_service",
        "_sink",
        "_started",
        "_status",
        "_task",
        "_transport",
        "_tunnel",
        "_writable",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._incoming: Incoming | None = None  # the request being answered
        self._queue: deque[Incoming] = deque()
        self._is_serving_queue = False
        self._last_word: RefusedError | None = None  # said when the requests before it are answered
        self._owes_continue = False
        self._phase = Phase.IDLE
        self._patience = Patience()
        self._sink: PushSink | None = None
        self._started = 0.0
        self._status = 0  # of a streamed answer whose head is out
        self._task: asyncio.Task[None] | None = None
        self._tunnel: Tunnel | None = None
        self._writable = True
        self._gate: asyncio.Future[None] | None = None

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; one connection too many is told so and closed."""
        self._transport = cast(asyncio.Transport, transport)
        service = self._service
        self._reader = RequestReader(service.limits, peer_of(self._transport), self._deliver, self._expect_continue)
        service.connections.add(self)
        if is_flood(len(service.connections), service.limits.connections):
            self._transport.abort()
        elif len(service.connections) > service.limits.connections:
            self._refuse(
                RefusedError(503, f"the server has {service.limits.connections} connections open; try again later")
            )

    def data_received(self, data: bytes) -> None:
        """Bytes from the peer."""
        if self._tunnel is not None:
            self._tunnel.feed(data)
            return
        if self._phase is Phase.LINGERING or self._last_word is not None:
            return
        try:
            self._reader.feed(data)
        except RefusedError as refusal:
            self._refuse(refusal)
        if self._queue or self._reader.halted:
            self._read_ahead()

    def _read_ahead(self) -> None:
        """More came than the request being answered: read no further until that is served, unless it is a tunnel's."""
        if self._tunnel is not None:
            self._feed_tail(self._tunnel)
            return
        self._serve_queue()
        if self._tunnel is None and (self._queue or self._reader.tail):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """The peer stopped sending: taken as having left, so that nobody computes an answer for nobody."""
        if self._tunnel is not None:
            # TLS closes both ways at once, and its transports complain of who asks for less
            return self._tunnel.feed_eof() and self._transport.get_extra_info("sslcontext") is None
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is gone: stop working for it."""
        self._service.connections.discard(self)
        self._queue.clear()
        if self._sink is not None:
            self._sink.ended()
        incoming, self._incoming = self._incoming, None
        if self._tunnel is not None:
            self._tunnel.lost()
            if self._task is not None:  # it sees the end of its tunnel; whoever does not look is cancelled
                self._service.loop.call_later(_FAREWELL_S, self._task.cancel)
        elif self._task is not None:
            self._task.cancel()
        self._open_gate()
        if incoming is not None:
            self._observe(incoming, self._status or _CLIENT_LEFT, 0)
        self._let_go()

    def _let_go(self) -> None:
        """Break the rings with reader, sink and transport, so that all go at once: see `parted.py`."""
        self._reader.close()
        self._sink = None
        self._transport = cast(asyncio.Transport, GONE)

    def pause_writing(self) -> None:
        """The peer reads slower than we write."""
        self._writable = False
        if self._tunnel is not None:
            self._tunnel.pause_writing()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._writable = True
        if self._tunnel is not None:
            self._tunnel.resume_writing()
        self._open_gate()
        self._serve_queue()

    # Requests, one at a time.

    def _deliver(self, incoming: Incoming) -> None:
        if self._incoming is None and self._writable and not self._queue:
            self._answer(incoming)
        elif len(self._queue) >= self._service.limits.pipelined:
            raise RefusedError(429, f"more than {len(self._queue)} requests were sent ahead; wait for their answers")
        else:
            self._queue.append(incoming)

    def _answer(self, incoming: Incoming) -> None:
        if self._phase is Phase.LINGERING:
            return
        self._incoming = incoming
        self._phase = Phase.ANSWERING
        service = self._service
        if service.observer is not None:
            self._started = time.perf_counter()
        try:
            answer = service.handler(incoming.request)
        except Exception as error:  # noqa: BLE001  the border to the application: reported, and answered 500
            answer = self._failure(incoming.request, error)
        self._take_safely(answer)

    def _take(self, answer: Answer | Awaitable[Answer]) -> None:
        """Do what an answer asks for."""
        if isinstance(answer, Response):
            self._respond(answer)
        elif isinstance(answer, AcceptWebSocket | SwitchProtocol):
            self._upgrade(answer)
        elif asyncio.isfuture(answer) and not isinstance(answer, asyncio.Task):
            answer.add_done_callback(self._future_done)
        else:
            self._task = self._service.loop.create_task(self._await(answer))

    def _future_done(self, future: "asyncio.Future[Answer]") -> None:
        """Take the answer of a handler that returned a future: no task was made for it."""
        if self._incoming is None:
            if not future.cancelled():
                future.exception()  # seen: nobody is left to be told
            return
        error = asyncio.CancelledError("the future was cancelled") if future.cancelled() else future.exception()
        self._take_safely(self._failure(self._incoming.request, error) if error else future.result())

    async def _await(self, answer: Awaitable[Answer]) -> None:
        incoming = self._incoming
        assert incoming is not None
        try:
            result = await answer
        except asyncio.CancelledError as error:
            if self._incoming is not incoming or self._transport.is_closing():
                self._task = None  # whose error's frames know this connection
                raise  # the client left: that is what cancelled it
            result = self._failure(incoming.request, error)  # something it waited for was cancelled
        except Exception as error:  # noqa: BLE001  the border to the application: reported, and answered 500
            result = self._failure(incoming.request, error)
        self._task = None
        if self._incoming is incoming:
            self._take_safely(result)

    def _take_safely(self, answer: Answer | Awaitable[Answer]) -> None:
        try:
            self._take(answer)
        except ValueError as error:  # a header that cannot be written: see heads.header_line
            assert self._incoming is not None
            self._take(self._failure(self._incoming.request, error))

    def _failure(self, request: Request, error: BaseException) -> Response:
        self._service.on_error(request, error)
        return self._service.refuse(500, "the server failed to answer this request; its log says why")

    # Responses.

    def _respond(self, response: Response) -> None:
        body = response.body
        if isinstance(body, bytes):
            self._send_whole(response, body)
        elif self._is_bodiless(response.status):
            self._write_head(response, b"")
            self._finish(response.status, 0)
        elif isinstance(body, AsyncIterator):
            self._task = self._service.loop.create_task(self._pump(response, body))
        else:
            self._push(response, body)

    def _send_whole(self, response: Response, body: bytes) -> None:
        limit = self._service.limits.gzip_over_bytes
        if limit and len(body) > limit and self._wants_gzip(response):
            self._task = self._service.loop.create_task(self._send_compressed(response, body))
            return
        self._write_whole(response, body)

    def _write_whole(self, response: Response, body: bytes) -> None:
        status, size = response.status, len(body)
        length = b"" if status < 200 or status in heads.BODILESS else b"content-length: %d\r\n" % size
        head = self._head(response, length)
        if self._is_bodiless(status):
            size = 0
            self._transport.write(head)
        elif size <= _COPY_BOUND:
            self._transport.write(head + body)
        else:
            send_together(self._transport, head, body)
        self._finish(status, size)

    def _head(self, response: Response, framing: bytes) -> bytes:
        incoming = self._incoming
        assert incoming is not None
        head = heads.opening(response.status, response.content_type) + self._service.date_line + framing
        if response.headers:
            head += heads.header_lines(response.headers)
        if not incoming.keep_alive or self._service.is_stopping:
            return head + b"connection: close\r\n\r\n"
        return head + (b"connection: keep-alive\r\n\r\n" if incoming.is_http10 else b"\r\n")

    def _is_bodiless(self, status: int) -> bool:
        assert self._incoming is not None
        return status in heads.BODILESS or status < 200 or self._incoming.request.method == "HEAD"

    def _wants_gzip(self, response: Response) -> bool:
        assert self._incoming is not None
        accepted = self._incoming.request.headers.get("accept-encoding", "")
        is_encoded = any(name.lower() == "content-encoding" for name, _ in response.headers)
        return not is_encoded and heads.accepts_gzip(accepted)

    async def _send_compressed(self, response: Response, body: bytes) -> None:
        if len(body) > _GZIP_IN_THREAD:
            packed = await self._service.loop.run_in_executor(None, gzip_bytes, body)
        else:
            packed = gzip_bytes(body)
        self._task = None
        added = (("content-encoding", "gzip"), ("vary", "Accept-Encoding"))
        headers = (*response.headers, *added)
        self._write_whole(Response(response.status, packed, response.content_type, headers), packed)

    def _write_head(self, response: Response, framing: bytes) -> None:
        self._transport.write(self._head(response, framing))
        self._status = response.status

    def _stream_framing(self) -> tuple[bytes, bool]:
        """How a body of unknown length is framed; HTTP/1.0 knows only the end of the connection."""
        incoming = self._incoming
        assert incoming is not None
        if incoming.is_http10:
            incoming.keep_alive = False
            return b"", False
        return heads.CHUNKED, True

    async def _pump(self, response: Response, body: AsyncIterator[bytes]) -> None:
        """Send an iterator's pieces as they come, waiting while the peer is slow."""
        framing, is_chunked = self._stream_framing()
        incoming, sent = self._incoming, 0
        assert incoming is not None
        try:
            self._write_head(response, framing)
            async for piece in body:
                if piece:
                    self._transport.write(heads.chunk(piece) if is_chunked else piece)
                    sent += len(piece)
                    await self._drained()
            if is_chunked:
                self._transport.write(heads.LAST_CHUNK)
        except Exception as error:  # noqa: BLE001  the border to the application: the body cannot be whole, so cut it
            self._service.on_error(incoming.request, error)
            self._transport.abort()
            return
        finally:
            self._task = None
            await close_iterator(body)
        self._finish(response.status, sent)

    async def _drained(self) -> None:
        while not self._writable:
            self._phase = Phase.SENDING
            self._gate = self._service.loop.create_future()
            await self._gate
        self._phase = Phase.ANSWERING

    def _open_gate(self) -> None:
        if self._gate is not None and not self._gate.done():
            self._gate.set_result(None)
        self._gate = None

    def _push(self, response: Response, push: Callable[[PushSink], None]) -> None:
        framing, is_chunked = self._stream_framing()
        self._write_head(response, framing)
        bound = self._service.limits.push_buffer_bytes
        incoming = self._incoming
        assert incoming is not None
        sink = PushSink(
            self._transport,
            chunked=is_chunked,
            bound=bound,
            on_end=lambda in_order: self._push_ended(response.status, sink, in_order),
        )
        self._sink = sink
        if self._service.is_stopping and self._service.ends_streams:
            sink.close()
            return
        try:
            push(sink)
        except Exception as error:  # noqa: BLE001  the border to the application: the body cannot be whole, so cut it
            self._service.on_error(incoming.request, error)
            sink.abort()

    def _push_ended(self, status: int, sink: PushSink, in_order: bool) -> None:
        self._sink = None
        if in_order and self._incoming is not None:
            self._finish(status, sink.sent)

    def _finish(self, status: int, size: int) -> None:
        """One answer is out: report it, and go on with the next request or close."""
        incoming, self._incoming = self._incoming, None
        assert incoming is not None
        service = self._service
        self._phase = Phase.IDLE
        self._observe(incoming, status, size)
        if not incoming.keep_alive or service.is_stopping:
            self._close()
        elif self._queue or self._last_word or self._owes_continue or self._reader.halted:
            self._serve_queue()

    def _observe(self, incoming: Incoming, status: int, size: int) -> None:
        self._status = 0
        if self._service.observer is not None:
            self._service.observer(incoming.request, status, time.perf_counter() - self._started, size)

    def _serve_queue(self) -> None:
        """Answer what was read ahead; a loop, because an answer at once calls back here."""
        if self._is_serving_queue or self._tunnel is not None or self._phase is Phase.LINGERING:
            return
        self._is_serving_queue = True
        try:
            self._serve_ready()
        finally:
            self._is_serving_queue = False

    def _serve_ready(self) -> None:
        while self._incoming is None and self._writable and not self._transport.is_closing():
            if self._queue:
                self._answer(self._queue.popleft())
            elif self._reader.halted:
                self._restart_reader()
            else:
                self._caught_up()
                return

    def _restart_reader(self) -> None:
        try:
            self._reader.restart()
        except RefusedError as refusal:
            self._refuse(refusal)

    def _caught_up(self) -> None:
        if self._last_word is not None:
            refusal, self._last_word = self._last_word, None
            self._refuse(refusal)
        elif self._owes_continue:
            self._expect_continue()
        self._transport.resume_reading()

    def _expect_continue(self) -> None:
        """Tell a client that waits to send its body; after the answers before it."""
        self._owes_continue = self._incoming is not None or bool(self._queue)
        if not self._owes_continue:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    # Refusals and the end.

    def _refuse(self, refusal: RefusedError) -> None:
        """Answer for the wire itself, then close, leaving the sender time to read it."""
        if self._incoming is not None or self._queue:
            self._last_word = refusal
            return
        if self._transport.is_closing():
            return
        response = self._service.refuse(refusal.status, refusal.sentence)
        body = response.body if isinstance(response.body, bytes) else b""
        framing = b"content-length: %d\r\nconnection: close\r\n" % len(body) + heads.header_lines(response.headers)
        opening = heads.opening(response.status, response.content_type) + self._service.date_line
        self._transport.write(opening + framing + b"\r\n" + body)
        self._phase = Phase.LINGERING
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def _close(self) -> None:
        self._queue.clear()
        self._phase = Phase.SENDING
        self._transport.close()
        if self._service.is_stopping:
            # over TLS, closing waits for the peer's own good-bye, which an idle client never says
            self._service.loop.call_later(_GOODBYE_S, self._leave)

    def _leave(self) -> None:
        if not self._transport.get_write_buffer_size():
            self._transport.abort()

    def stop(self) -> None:
        """Close when idle, after the answer in flight otherwise; tunnels end now, and streams if the server ends them."""
        if self._tunnel is not None:
            self._tunnel.stop()
        elif self._sink is not None:
            if self._service.ends_streams:
                self._sink.close()
        elif self._incoming is None:
            self._close()

    def abort(self) -> None:
        """Drop the connection."""
        self._transport.abort()

    def tick(self, now: float) -> None:
        """Keep the time limits: whatever makes no progress for too long is ended."""
        if self._tunnel is not None:
            self._tunnel.tick(now)
            return
        phase = self._waits_for()
        mark = (phase, self._reader.delivered, self._transport.get_write_buffer_size())
        if self._patience.is_over(mark, now, allowed_s(phase, self._service.limits)):
            self._out_of_time(phase)

    def _waits_for(self) -> Phase:
        if self._phase is Phase.LINGERING:
            return Phase.LINGERING
        if self._sink is None and (not self._writable or self._transport.is_closing()):
            return Phase.SENDING
        if self._phase is Phase.IDLE and self._reader.part is not Part.BETWEEN:
            return Phase.READING
        return self._phase

    def _out_of_time(self, phase: Phase) -> None:
        if phase is Phase.READING:
            self._refuse(
                RefusedError(408, f"the request was not whole after {self._service.limits.request_timeout_s:g} s")
            )
        elif phase is Phase.IDLE:
            self._transport.close()
        else:
            self._transport.abort()

    # Leaving HTTP.

    def _upgrade(self, answer: AcceptWebSocket | SwitchProtocol) -> None:
        incoming = self._incoming
        assert incoming is not None
        try:
            upgrade = grant(self._service, self._transport, incoming, answer)
        except RefusedError as refusal:
            response = self._service.refuse(refusal.status, refusal.sentence)
            if refusal.status == _UPGRADE_REQUIRED:
                response.headers = (*response.headers, ("sec-websocket-version", "13"))
            self._respond(response)
            return
        lines = heads.header_lines(upgrade.headers)
        self._transport.write(heads.opening(101, "") + lines + b"\r\n")
        self._status = 101
        self._tunnel = upgrade.tunnel
        self._phase = Phase.TUNNEL
        self._task = self._service.loop.create_task(self._serve_tunnel(upgrade))
        self._transport.resume_reading()
        self._feed_tail(upgrade.tunnel)

    def _feed_tail(self, tunnel: Tunnel) -> None:
        """Give a tunnel what came behind the request that opened it."""
        tail, self._reader.tail = self._reader.tail, b""
        if tail:
            tunnel.feed(tail)

    async def _serve_tunnel(self, upgrade: Upgrade) -> None:
        incoming = self._incoming
        assert incoming is not None
        try:
            await upgrade.serve()
        except WireError:
            pass  # the peer left or broke the protocol: no fault of the application
        except Exception as error:  # noqa: BLE001  the border to the application: reported, and the tunnel closed
            self._service.on_error(incoming.request, error)
        finally:
            with contextlib.suppress(WireError):
                await upgrade.tunnel.close()
            self._transport.close()
            self._task = None  # whose frame knows this connection
