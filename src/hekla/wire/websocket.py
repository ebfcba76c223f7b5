"""WebSockets (RFC 6455): the handshake of both sides, and one session object that serves both.

wsproto does the framing, without I/O; this module joins frames into messages, bounds them, answers pings and sends its
own, so that a peer that vanished is noticed. `connection.py` and `client_connection.py` drive a session as a `Tunnel`.
"""

import asyncio
import base64
import hashlib
import os
from typing import cast

from wsproto.connection import Connection as Framing
from wsproto.connection import ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from hekla.wire.errors import BadReplyError, ConnectionLostError, RefusedError
from hekla.wire.messages import Request
from hekla.wire.parted import GONE, close_once
from hekla.wire.tunnels import Inbox, Turnstile

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3
_CLOSE_WAIT_S = 2.0  # for the peer's half of the closing handshake
_MESSAGE_OVERHEAD = 256  # what an empty message weighs while it waits to be read
_MIN_PIECES, _PIECE_BYTES = (
    1000,
    64,
)  # pieces that any message may come in, and how large more must be if the message is a large one

_NORMAL, _GOING_AWAY, _TOO_BIG, _NO_STATUS = 1000, 1001, 1009, 1005


def is_upgrade(request: Request) -> bool:
    """Whether a request asks to become a WebSocket."""
    return "websocket" in request.headers.get("upgrade", "").lower()


def offered_subprotocols(request: Request) -> list[str]:
    """The subprotocols a client offers, in its order of preference."""
    names = request.headers.get("sec-websocket-protocol", "").split(",")
    return [name.strip() for name in names if name.strip()]


def accept_token(key: str) -> str:
    """What a server answers to a client's key, to show that it understood."""
    return base64.b64encode(hashlib.sha1(key.encode("latin-1") + _GUID, usedforsecurity=False).digest()).decode()


def accept_headers(request: Request, subprotocol: str) -> tuple[tuple[str, str], ...]:
    """Check a client's handshake and word the server's; raises `RefusedError` with what is wrong."""
    key = request.headers.get("sec-websocket-key", "")
    if not is_upgrade(request) or request.method != "GET" or not key:
        raise RefusedError(400, "this needs a WebSocket handshake: GET with upgrade: websocket and sec-websocket-key")
    if request.headers.get("sec-websocket-version") != "13":
        raise RefusedError(426, "only version 13 of WebSocket is served here")
    agreed = (("sec-websocket-protocol", subprotocol),) if subprotocol else ()
    accept = ("sec-websocket-accept", accept_token(key))
    return (("connection", "Upgrade"), ("upgrade", "websocket"), accept, *agreed)


def new_key() -> str:
    """A client's key, new for each handshake."""
    return base64.b64encode(os.urandom(16)).decode()


def offer_headers(key: str, subprotocols: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """A client's handshake."""
    offered = (("sec-websocket-protocol", ", ".join(subprotocols)),) if subprotocols else ()
    version = ("sec-websocket-version", "13")
    return (("connection", "Upgrade"), ("upgrade", "websocket"), version, ("sec-websocket-key", key), *offered)


def check_acceptance(headers: dict[str, str], key: str, offered: tuple[str, ...]) -> str:
    """Check a server's handshake; returns the subprotocol agreed on."""
    if headers.get("sec-websocket-accept") != accept_token(key):
        raise BadReplyError("the server's sec-websocket-accept does not match the key it was sent")
    agreed = headers.get("sec-websocket-protocol", "")
    if agreed and agreed not in offered:
        raise BadReplyError(f"the server chose the subprotocol {agreed!r}, which was not offered")
    return agreed


class WebSocketSession:
    """An open WebSocket, either side: the `WebSocket` of the contract, driven as a tunnel."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        *,
        is_client: bool,
        subprotocol: str,
        message_bytes: int,
        ping_interval_s: float,
    ) -> None:
        self.subprotocol = subprotocol
        self.close_code: int | None = None
        """The code the peer closed with, once it has."""
        self.close_reason = ""
        self._transport = transport
        self._loop = loop
        self._framing = Framing(ConnectionType.CLIENT if is_client else ConnectionType.SERVER)
        self._inbox: Inbox[bytes | str] = Inbox(transport, loop)
        self._turnstile = Turnstile(loop)
        self._message_bytes = message_bytes
        self._ping_interval_s = ping_interval_s
        self._pieces: list[bytes | bytearray | str] = []
        self._size = 0
        self._heard_at = loop.time()
        self._pinged = 0
        self._over: asyncio.Future[None] = loop.create_future()

    async def receive(self) -> bytes | str | None:
        """The next whole message; None when the peer has closed."""
        return await self._inbox.get()

    async def send(self, message: bytes | str) -> None:
        """Send one message, waiting while the peer is slow; raises `ConnectionLostError` once it is closed."""
        await self._turnstile.passage()
        event: Event = TextMessage(message) if isinstance(message, str) else BytesMessage(message)
        try:
            self._transport.write(self._framing.send(event))
        except LocalProtocolError:
            raise ConnectionLostError("the WebSocket is closed; no message can be sent") from None
        await self._turnstile.passage()

    async def close(self, code: int = _NORMAL, reason: str = "") -> None:
        """Close in good order, giving the peer a moment to answer; a second call does nothing."""
        self._say_goodbye(code, reason)
        if not self._over.done():
            await asyncio.wait([self._over], timeout=_CLOSE_WAIT_S)
        close_once(self._transport)

    def _say_goodbye(self, code: int, reason: str) -> None:
        if self._framing.state is ConnectionState.OPEN and not self._transport.is_closing():
            self._transport.write(self._framing.send(CloseConnection(code, reason[:100])))
        if self._framing.state is ConnectionState.CLOSED:
            self._end()

    def _end(self) -> None:
        self._inbox.end()
        if not self._over.done():
            self._over.set_result(None)

    # What the connection calls.

    def feed(self, data: bytes) -> None:
        """Bytes from the peer."""
        self._heard_at = self._loop.time()
        self._pinged = 0
        if self._over.done():
            return
        try:
            self._framing.receive_data(data)
            for event in self._framing.events():
                self._handle(event)
        except RemoteProtocolError as error:
            self._fail(getattr(error, "code", None) or 1002, str(error))

    def _handle(self, event: Event) -> None:
        if isinstance(event, TextMessage | BytesMessage):
            self._collect(event)
        elif isinstance(event, Ping):
            if self._turnstile.is_open:  # who takes no answers gets none: they would pile up
                self._transport.write(self._framing.send(event.response()))
        elif isinstance(event, CloseConnection):
            self._peer_closed(event)
        else:
            assert isinstance(event, Pong), event  # any byte counts as a sign of life: nothing more to note

    def _collect(self, event: TextMessage | BytesMessage) -> None:
        self._size += len(event.data)
        if self._size > self._message_bytes:
            raise _MessageTooBigError(f"a message is larger than {self._message_bytes} bytes")
        if len(self._pieces) > _MIN_PIECES + self._message_bytes // _PIECE_BYTES:
            raise _MessageTooBigError("a message comes in too many pieces")
        self._pieces.append(event.data)
        if event.message_finished:
            pieces, self._pieces, size, self._size = self._pieces, [], self._size, 0
            self._inbox.put(_joined(pieces), size + _MESSAGE_OVERHEAD)

    def _peer_closed(self, event: CloseConnection) -> None:
        if self._framing.state is ConnectionState.OPEN:  # wsproto's way to say that the peer broke the framing
            self._fail(int(event.code), event.reason or "")
            return
        if self.close_code is None:
            self.close_code = int(event.code) if event.code is not None else _NO_STATUS
            self.close_reason = event.reason or ""
        if self._framing.state is ConnectionState.REMOTE_CLOSING:
            self._transport.write(self._framing.send(event.response()))
        self._end()

    def _fail(self, code: int, reason: str) -> None:
        self._say_goodbye(code, reason)
        self._end()
        self._turnstile.lose()
        close_once(self._transport)

    def feed_eof(self) -> bool:
        """The peer is gone without a goodbye."""
        return False

    def lost(self) -> None:
        """The connection is gone."""
        self._end()
        self._turnstile.lose()
        self._transport = cast(asyncio.Transport, GONE)

    def pause_writing(self) -> None:
        """The peer is slow."""
        self._turnstile.shut()

    def resume_writing(self) -> None:
        """The peer has caught up."""
        self._turnstile.open()

    def tick(self, now: float) -> None:
        """Ping a silent peer; cut one that answers no ping."""
        if now - self._heard_at < self._ping_interval_s * (self._pinged + 1):
            return
        if self._pinged >= 2:
            self._transport.abort()
        elif self._framing.state is ConnectionState.OPEN:
            self._pinged += 1
            self._transport.write(self._framing.send(Ping()))

    def stop(self) -> None:
        """Our side is going away."""
        self._say_goodbye(_GOING_AWAY, "the server is stopping")
        self._inbox.end()


class _MessageTooBigError(RemoteProtocolError):
    """A message over the limit; carries the close code that says so."""

    code = _TOO_BIG


def _joined(pieces: list[bytes | bytearray | str]) -> bytes | str:
    if len(pieces) == 1:
        return bytes(pieces[0]) if not isinstance(pieces[0], str) else pieces[0]
    texts = [piece for piece in pieces if isinstance(piece, str)]
    if texts:
        return "".join(texts)
    return b"".join(piece for piece in pieces if not isinstance(piece, str))
