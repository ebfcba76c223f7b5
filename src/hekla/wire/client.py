"""The HTTP client: a pool of kept connections per server, whole answers, streamed answers, and upgrades.

    client = HttpClient(ssl_context=tls.client_context(ca_file=...))
    response = await client.request("GET", "https://127.0.0.1:6443/version")
    async with client.stream("GET", url) as streamed:
        async for piece in streamed: ...
    await client.close()

A request on a kept connection costs one future and one timer; `client_connection.py` parses its answer. An idempotent
request that met a kept connection just as the server closed it, before any byte of an answer, is sent once more.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Final
from urllib.parse import urlsplit

from hekla.wire import heads, tls, websocket
from hekla.wire.client_connection import Call, ClientConnection, MakeTunnel, refusal_of
from hekla.wire.errors import (
    ClientClosedError,
    ConnectFailedError,
    ConnectionLostError,
    TimedOutError,
)
from hekla.wire.limits import ClientLimits
from hekla.wire.messages import HeaderList, Response
from hekla.wire.tunnels import Inbox, RawDuplex, Tunnel

_IDEMPOTENT: Final = frozenset({"GET", "HEAD", "PUT", "DELETE", "OPTIONS"})
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_TICK_S = 5.0
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEMES = {"ws": "http", "wss": "https"}


class StreamedResponse:
    """An answer whose body is read as it comes: iterate it for the pieces."""

    def __init__(self, response: Response, inbox: Inbox[bytes]) -> None:
        self.status = response.status
        self.content_type = response.content_type
        self.headers = response.headers
        self._inbox = inbox

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (piece := await self._inbox.get()) is not None:
            yield piece

    async def read(self, limit: int = 1024 * 1024) -> bytes:
        """The rest of the body, up to a limit: for an error's text."""
        body = b""
        while len(body) < limit and (piece := await self._inbox.get()) is not None:
            body += piece
        return body[:limit]


class _Origin:
    """One server, and the connections to it."""

    def __init__(self, client: HttpClient, origin: str) -> None:
        parts = urlsplit(origin)
        scheme = _SCHEMES.get(parts.scheme, parts.scheme)
        if scheme not in _DEFAULT_PORTS or not parts.hostname:
            raise ValueError(f"url {origin[:200]!r} does not begin with http://host or https://host")
        if not parts.netloc.isascii():
            raise ConnectFailedError(f"{parts.hostname} is no name of a host here; write it in its form of `xn--`")
        self.client = client
        self.name = origin
        self.host = parts.hostname
        self.port = parts.port or _DEFAULT_PORTS[scheme]
        self.is_tls = scheme == "https"
        self.netloc = parts.netloc.rpartition("@")[2]
        self.idle: list[ClientConnection] = []
        self.open = 0
        self.all: set[ClientConnection] = set()
        self.waiters: deque[asyncio.Future[ClientConnection | None]] = deque()

    def take(self) -> ClientConnection | None:
        """A kept connection, the one used last; the others may thus grow old and be closed."""
        while self.idle:
            connection = self.idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def acquire(self) -> ClientConnection:
        """A connection, new if the bound allows, else the next that becomes free."""
        while True:
            if (kept := self.take()) is not None:
                return kept
            if self.open < self.client.limits.connections_per_origin:
                return await self.connect(pooled=True)
            waiter: asyncio.Future[ClientConnection | None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            try:
                handed = await waiter
            except asyncio.CancelledError:
                self._pass_on(waiter)
                raise
            if handed is not None and handed.is_usable:
                return handed

    def _pass_on(self, waiter: asyncio.Future[ClientConnection | None]) -> None:
        """Give what a cancelled waiter was handed to the next."""
        if waiter.done() and not waiter.cancelled():
            handed = waiter.result()
            if handed is not None and handed.is_usable:
                self.ended(handed, False)
            else:
                self._wake()
        elif waiter in self.waiters:
            self.waiters.remove(waiter)

    async def connect(self, *, pooled: bool) -> ClientConnection:
        """Open a connection; a pooled one counts towards the bound and comes back by `ended`."""
        client = self.client
        loop = asyncio.get_running_loop()
        context = client.tls_for(self.is_tls)
        self.open += pooled
        is_made = False
        try:
            async with asyncio.timeout(client.limits.connect_timeout_s):
                make = partial(ClientConnection, loop, client.limits, self.ended if pooled else client.tunnel_ended)
                name = (client.server_hostname or self.host) if context else None
                if client.dial is not None:
                    made = await client.dial(self.host, self.port)
                    _, connection = await loop.create_connection(make, sock=made, ssl=context, server_hostname=name)
                else:
                    _, connection = await loop.create_connection(
                        make, self.host, self.port, ssl=context, server_hostname=name
                    )
            is_made = True
        except TimeoutError:
            raise ConnectFailedError(
                f"no connection to {self.name} within {client.limits.connect_timeout_s:g} s"
            ) from None
        except ssl.SSLError as error:
            raise ConnectFailedError(f"TLS with {self.name} failed: {error}") from error
        except OSError as error:
            raise ConnectFailedError(f"no connection to {self.name}: {error}") from error
        finally:
            if not is_made and pooled:
                self.open -= 1
                self._wake()
        if client.is_closed:
            connection.close()
            raise ClientClosedError("the client was closed while it connected")
        if pooled:
            self.all.add(connection)
        client.keep_time()
        return connection

    def ended(self, connection: ClientConnection, is_gone: bool) -> None:
        """An answer is whole, or the connection is gone."""
        if is_gone:
            self.open -= 1
            self.all.discard(connection)
            if connection in self.idle:
                self.idle.remove(connection)
            if self.client.dial is not None and not self.open and not self.waiters:
                self.client.forget(self.name)
            self._wake()
        elif self.client.is_closed:
            connection.close()
        elif not self._wake(connection):
            connection.idle_since = asyncio.get_running_loop().time()
            self.idle.append(connection)

    def _wake(self, connection: ClientConnection | None = None) -> bool:
        """Hand a connection, or the right to open one, to whoever has waited longest."""
        while self.waiters:
            waiter = self.waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return True
        return False

    def drop_idle(self, older_than: float = float("inf")) -> None:
        """Close kept connections that were last used before a time."""
        expired = [connection for connection in self.idle if connection.idle_since < older_than]
        self.idle = [connection for connection in self.idle if connection.idle_since >= older_than]
        for connection in expired:
            connection.close()


class HttpClient:
    """Requests to any number of servers over kept connections; bound to the event loop that first uses it."""

    def __init__(
        self,
        *,
        ssl_context: ssl.SSLContext | None = None,
        server_hostname: str = "",
        limits: ClientLimits | None = None,
        headers: HeaderList = (),
        dial: Callable[[str, int], Awaitable[socket.socket]] | None = None,
    ) -> None:
        """`headers` are sent with every request; `server_hostname` is what a certificate must name, if not the host.

        `dial` finds connected sockets for hosts and ports that no network knows; its hosts are forgotten with their connections.
        """
        self.dial = dial
        self.limits = limits or ClientLimits()
        self.is_closed = False
        self._ssl_context = ssl_context
        self.server_hostname = server_hostname
        self._common = heads.header_lines(headers)
        self._origins: dict[str, _Origin] = {}
        self._tunnels: set[ClientConnection] = set()
        self._ticker: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> HttpClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def request(
        self, method: str, url: str, headers: HeaderList = (), body: bytes = b"", timeout_s: float = 60.0
    ) -> Response:
        """The whole answer; raises `WireError`. Cancelling it drops the connection."""
        origin, data = self._prepare(method, url, headers, body)
        _, _, response = await self._exchange(origin, method, data, timeout_s, is_stream=False)
        return response

    @asynccontextmanager
    async def stream(
        self, method: str, url: str, headers: HeaderList = (), body: bytes = b"", timeout_s: float = 60.0
    ) -> AsyncIterator[StreamedResponse]:
        """The answer as it comes; `timeout_s` is until its head. Leaving before the end drops the connection."""
        origin, data = self._prepare(method, url, headers, body)
        connection, call, response = await self._exchange(origin, method, data, timeout_s, is_stream=True)
        assert call.inbox is not None
        try:
            yield StreamedResponse(response, call.inbox)
        finally:
            if connection.serves(call):
                connection.abort()

    async def websocket(
        self, url: str, headers: HeaderList = (), subprotocols: tuple[str, ...] = (), timeout_s: float = 30.0
    ) -> websocket.WebSocketSession:
        """Open a WebSocket (ws, wss, http or https); raises `UpgradeRefusedError` with the server's answer."""
        key, loop = websocket.new_key(), asyncio.get_running_loop()

        def make(transport: asyncio.Transport, answered: dict[str, str]) -> websocket.WebSocketSession:
            return websocket.WebSocketSession(
                transport,
                loop,
                is_client=True,
                subprotocol=websocket.check_acceptance(answered, key, subprotocols),
                message_bytes=self.limits.message_bytes,
                ping_interval_s=self.limits.ping_interval_s,
            )

        offer = (*websocket.offer_headers(key, subprotocols), *headers)
        tunnel = await self._switch("GET", url, offer, make, "WebSocket", timeout_s)
        assert isinstance(tunnel, websocket.WebSocketSession)
        return tunnel

    async def upgrade(
        self, method: str, url: str, protocol: str, headers: HeaderList = (), timeout_s: float = 30.0
    ) -> RawDuplex:
        """Switch to another protocol and talk raw bytes; raises `UpgradeRefusedError` with the server's answer."""
        loop = asyncio.get_running_loop()
        asked = (("connection", "Upgrade"), ("upgrade", protocol), *headers)
        tunnel = await self._switch(method, url, asked, lambda t, _: RawDuplex(t, loop), protocol, timeout_s)
        assert isinstance(tunnel, RawDuplex)
        return tunnel

    def forget(self, origin: str) -> None:
        """Nothing is connected there any more."""
        self._origins.pop(origin, None)

    async def close(self) -> None:
        """Drop every connection; calls under way fail with `ConnectionLostError`."""
        self.is_closed = True
        if self._ticker is not None:
            self._ticker.cancel()
        connections = [*self._tunnels]
        for origin in self._origins.values():
            connections += origin.all
        for connection in connections:
            connection.abort(ClientClosedError("the client was closed"))
        while self._tunnels or any(origin.all for origin in self._origins.values()):
            await asyncio.sleep(0)

    def _prepare(self, method: str, url: str, headers: HeaderList, body: bytes) -> tuple[_Origin, bytes]:
        """Where a request goes, and its bytes."""
        end = url.find("/", url.find("://") + 3)
        name, target = (url, "/") if end < 0 else (url[:end], url[end:].partition("#")[0])
        origin = self._origins.get(name) or self._add_origin(name)
        before, behind = heads.request_line(method, origin.netloc)
        lines = heads.header_lines(headers) if headers else b""
        length = b"content-length: %d\r\n" % len(body) if body or method in _WITH_BODY else b""
        return origin, b"".join(
            (before, heads.target_bytes(target), behind, self._common, lines, length, b"\r\n", body)
        )

    def _add_origin(self, name: str) -> _Origin:
        if self.is_closed:
            raise ClientClosedError("the client was closed; make another one")
        if "?" in name:
            raise ValueError(f"url {name[:200]!r} needs a path before its query")
        self._origins[name] = origin = _Origin(self, name)
        return origin

    async def _exchange(
        self, origin: _Origin, method: str, data: bytes, timeout_s: float, *, is_stream: bool
    ) -> tuple[ClientConnection, Call, Response]:
        """Send a request and wait for its answer or the head of it; once more where that is safe."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        may_retry = method in _IDEMPOTENT
        while True:
            connection = origin.take()
            may_retry = may_retry and connection is not None
            if connection is None:
                connection = await self._acquire(origin, deadline, timeout_s)
            call = Call(loop, method, origin.name, is_stream, None)
            try:
                return connection, call, await self._answer_of(connection, call, data, deadline, timeout_s)
            except ConnectionLostError:
                if not may_retry or call.is_touched:
                    raise
                may_retry = False
                origin.drop_idle()  # the server has probably restarted: the other kept connections are dead too

    async def _answer_of(
        self, connection: ClientConnection, call: Call, data: bytes, deadline: float, timeout_s: float
    ) -> Response:
        timer = asyncio.get_running_loop().call_at(deadline, _expire, connection, call, timeout_s)
        try:
            connection.begin(call, data)
            return await call.future
        except asyncio.CancelledError:
            if connection.serves(call):
                connection.abort()
            raise
        finally:
            timer.cancel()

    async def _acquire(self, origin: _Origin, deadline: float, timeout_s: float) -> ClientConnection:
        if self.is_closed:
            raise ClientClosedError("the client was closed; make another one")
        try:
            async with asyncio.timeout_at(deadline):
                return await origin.acquire()
        except TimeoutError:
            raise TimedOutError(f"no connection to {origin.name} became free within {timeout_s:g} s") from None

    async def _switch(
        self, method: str, url: str, headers: HeaderList, make: MakeTunnel, wanted: str, timeout_s: float
    ) -> Tunnel:
        origin, data = self._prepare(method, url, headers, b"")
        loop = asyncio.get_running_loop()
        connection = await origin.connect(pooled=False)
        self._tunnels.add(connection)
        call = Call(loop, method, origin.name, False, make)
        try:
            response = await self._answer_of(connection, call, data, loop.time() + timeout_s, timeout_s)
        finally:
            if call.tunnel is None:
                self._tunnels.discard(connection)
        if call.tunnel is None:
            raise refusal_of(call, response, wanted)
        return call.tunnel

    # What origins ask of the client.

    def tls_for(self, is_tls: bool) -> ssl.SSLContext | None:
        """The TLS context for a connection; the system's certificate authorities where none was given."""
        if not is_tls:
            return None
        if self._ssl_context is None:
            self._ssl_context = tls.client_context()
        return self._ssl_context

    def tunnel_ended(self, connection: ClientConnection, is_gone: bool) -> None:
        """An upgraded connection is gone."""
        if is_gone:
            self._tunnels.discard(connection)

    def keep_time(self) -> None:
        """Begin to expire idle connections and to ping tunnels; ends by itself when there are none."""
        if self._ticker is None and not self.is_closed:
            interval_s = min(_TICK_S, self.limits.idle_s / 4, self.limits.ping_interval_s / 4)
            self._ticker = asyncio.get_running_loop().call_later(interval_s, self._tick)

    def _tick(self) -> None:
        self._ticker = None
        now = asyncio.get_running_loop().time()
        for connection in tuple(self._tunnels):
            connection.tick(now)
        for name, origin in tuple(self._origins.items()):
            origin.drop_idle(now - self.limits.idle_s)
            if not origin.open and not origin.waiters:
                del self._origins[name]
        if self._origins or self._tunnels:
            self.keep_time()


def _expire(connection: ClientConnection, call: Call, timeout_s: float) -> None:
    if connection.serves(call):
        connection.abort(TimedOutError(f"{call.peer} did not answer within {timeout_s:g} s"))
