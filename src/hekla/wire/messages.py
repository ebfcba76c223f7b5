"""What passes between the wire and those who answer: requests, responses, and connections that were taken over.

The server parses bytes into a `Request` and hands it to one `Handler`; the handler returns a `Response`, or an
awaitable of one. `server.py` writes it. A hot handler is a plain function, so that no coroutine is made for a read.
"""

from asyncio import Future
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import parse_qsl, unquote

HeaderList = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end of a connection."""

    host: str = ""
    port: int = 0
    certificate: bytes | None = None
    """DER of the client certificate that TLS verified, if one was shown."""

    is_local: bool = False
    """True for a caller in this process: the in-process transport."""


@dataclass(slots=True)
class Request:
    """One HTTP request, its body read whole (the server bounds its size before the handler sees it)."""

    method: str
    target: str
    """Path and query as they came, still percent-encoded."""

    headers: dict[str, str] = field(default_factory=dict)
    """Names in lower case; repeated headers joined with ", "."""

    body: bytes = b""
    peer: Peer = field(default_factory=Peer)
    undurable: "list[Future[None]] | None" = None
    """Of a caller in this process that goes on with what was decided before it is on disk: each write of the request puts here
    what is done once it is, instead of waiting for it."""

    @property
    def path(self) -> str:
        """The decoded path, without the query."""
        return unquote(self.target.partition("?")[0])

    @property
    def raw_query(self) -> str:
        """What stands behind the question mark."""
        return self.target.partition("?")[2]

    def query(self) -> dict[str, list[str]]:
        """The query's values by name, in order; an empty value is kept."""
        values: dict[str, list[str]] = {}
        for name, value in parse_qsl(self.raw_query, keep_blank_values=True):
            values.setdefault(name, []).append(value)
        return values


class Sink(Protocol):
    """Where a pushed response goes. Writing never blocks and never raises; what a slow reader leaves is counted."""

    def write(self, data: bytes) -> None:
        """Send one piece; frames that belong together should be joined by the caller. After `close` it does nothing."""

    def close(self) -> None:
        """End the response in good order."""

    def abort(self) -> None:
        """Cut the connection, so that the reader sees that the response is not whole."""

    @property
    def buffered(self) -> int:
        """Bytes accepted and not yet handed to the kernel: the producer's measure of a slow reader."""

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call back once when the connection has ended, whoever ended it."""


Push = Callable[[Sink], None]
"""A body that is pushed: called once with the sink when the head has been written (watches, followed logs)."""


class WebSocket(Protocol):
    """An accepted WebSocket."""

    @property
    def subprotocol(self) -> str:
        """What was agreed on; empty if nothing."""

    async def receive(self) -> bytes | str | None:
        """The next whole message; None when the peer has closed."""

    async def send(self, message: bytes | str) -> None:
        """Send one message, waiting while the peer is slow."""

    async def close(self, code: int = 1000, reason: str = "") -> None:
        """Close in good order; a second call does nothing."""


class Duplex(Protocol):
    """A connection after `101 Switching Protocols`: raw bytes both ways (SPDY, a tunnel)."""

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""

    async def send(self, data: bytes) -> None:
        """Send, waiting while the peer is slow."""

    async def close(self) -> None:
        """Close in good order."""


@dataclass(slots=True)
class Response:
    """One answer. `body` decides how it is sent: bytes with their length; an iterator or a push, chunked."""

    status: int = 200
    body: bytes | AsyncIterator[bytes] | Push = b""
    content_type: str = "application/json"
    headers: HeaderList = ()
    """Further headers, beside content-type, length and connection, which the wire writes.

    In a response that the client read, all headers as they came, names in lower case."""

    def header(self, name: str) -> str:
        """The value of the first header of that name, given in lower case; empty if there is none."""
        return next((value for key, value in self.headers if key.lower() == name), "")


@dataclass(slots=True)
class AcceptWebSocket:
    """Answer an upgrade request by becoming a WebSocket; the connection lives as long as `serve` runs."""

    serve: Callable[[WebSocket], Awaitable[None]]
    subprotocol: str = ""
    headers: HeaderList = ()


@dataclass(slots=True)
class SwitchProtocol:
    """Answer an upgrade request with 101 and hand the raw connection to `serve`."""

    protocol: str
    serve: Callable[[Duplex], Awaitable[None]]
    headers: HeaderList = ()


Answer = Response | AcceptWebSocket | SwitchProtocol
Handler = Callable[[Request], Answer | Awaitable[Answer]]
