"""Calls an API server that lives in this process, without sockets. `https.py` is its twin for one that does not.

The same requests go to the same handler, so authentication, admission and audit see them like any other; the peer is
marked local, and the server trusts it as it trusts its own process.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from inspect import isawaitable

from hekla.kube.answers import error_from_response
from hekla.kube.errors import TransportError
from hekla.wire.messages import Answer, Handler, Peer, Push, Request, Response

LOCAL = Peer(host="127.0.0.1", is_local=True)

MAX_BUFFERED = 64 * 1024 * 1024
"""Bytes a pushed body may run ahead of its reader; a reader that is further behind is cut off and resumes."""


class InProcessTransport:
    """A transport that calls `handle` directly."""

    page_limit = 2000
    """Objects of a page: 40 ms of work. Nothing travels, and finding where a page begins is paid less often."""

    binds_in_bulk = True
    """The server in this process knows a call that binds many pods."""

    def __init__(
        self, handle: Handler, user: str = "", *, groups: Sequence[str] = (), max_buffered: int = MAX_BUFFERED
    ) -> None:
        self._handle = handle
        self._identity = _impersonation(user, groups)
        self._max_buffered = max_buffered
        self._sinks: set[MemorySink] = set()
        self._is_closed = False

    async def send(self, request: Request) -> Response:
        """The whole answer, as bytes."""
        response = await self._answer(request)
        body = response.body
        if isinstance(body, bytes):
            return response
        pieces = [piece async for piece in self._pieces(body)]
        return Response(response.status, b"".join(pieces), response.content_type, response.headers)

    async def stream(self, request: Request) -> AsyncGenerator[bytes, None]:
        """The body as it comes; an error status raises."""
        response = await self._answer(request)
        if response.status >= 400:
            body = response.body
            whole = body if isinstance(body, bytes) else b"".join([piece async for piece in self._pieces(body)])
            raise error_from_response(response.status, whole, response.headers)
        if isinstance(response.body, bytes):
            yield response.body
            return
        pieces = self._pieces(response.body)
        try:
            async for piece in pieces:
                yield piece
        finally:
            await pieces.aclose()

    async def close(self) -> None:
        """Cut all streams; further calls fail."""
        self._is_closed = True
        for sink in list(self._sinks):
            sink.abort()

    async def _answer(self, request: Request) -> Response:
        if self._is_closed:
            raise TransportError("the connection to the API server in this process has been closed")
        request.peer = LOCAL
        request.headers.update(self._identity)
        found = self._handle(request)
        answer: Answer = await found if isawaitable(found) else found
        if not isinstance(answer, Response):
            raise TransportError(f"{request.method} {request.path} wants to upgrade the connection, there is none here")
        return answer

    async def _pieces(self, body: AsyncIterator[bytes] | Push | bytes) -> AsyncGenerator[bytes, None]:
        if isinstance(body, bytes):
            yield body
        elif callable(body):
            sink = MemorySink(self._max_buffered)
            self._sinks.add(sink)
            try:
                body(sink)
                while piece := await sink.read():
                    yield piece
            finally:
                self._sinks.discard(sink)
                sink.leave()
        else:
            async for piece in body:
                yield piece


def _impersonation(user: str, groups: Sequence[str]) -> dict[str, str]:
    if not user:
        return {}
    identity = {"impersonate-user": user}
    if groups:
        identity["impersonate-group"] = ", ".join(groups)
    return identity


class MemorySink:
    """A `Sink` whose reader is a coroutine in the same process."""

    def __init__(self, max_buffered: int) -> None:
        self._pieces: deque[bytes] = deque()
        self._buffered = 0
        self._max_buffered = max_buffered
        self._is_open = True
        self._is_broken = False
        self._reader: asyncio.Future[None] | None = None
        self._callbacks: list[Callable[[], None]] = []

    @property
    def buffered(self) -> int:
        """Bytes that the reader has not taken yet."""
        return self._buffered

    def write(self, data: bytes) -> None:
        """Keep one piece for the reader; cut a reader that is too far behind."""
        if not self._is_open or not data:
            return
        self._pieces.append(data)
        self._buffered += len(data)
        if self._buffered > self._max_buffered:
            self.abort()
        self._wake()

    def close(self) -> None:
        """The body is whole."""
        if self._is_open:
            self._is_open = False
            self._wake()
            self._ended()

    def abort(self) -> None:
        """The body ends in the middle: the reader gets a TransportError."""
        if self._is_open:
            self._is_broken = True
            self._pieces.clear()
            self._buffered = 0
            self.close()

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when either side has ended the stream."""
        if self._is_open:
            self._callbacks.append(callback)
        else:
            callback()

    def leave(self) -> None:
        """The reader goes away."""
        if self._is_open:
            self._is_open = False
            self._ended()

    async def read(self) -> bytes:
        """All that is there, waiting for something; empty at the end."""
        while not self._pieces:
            if self._is_broken:
                raise TransportError("the API server cut the stream")
            if not self._is_open:
                return b""
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        whole = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces.clear()
        self._buffered = 0
        return whole

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _ended(self) -> None:
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
