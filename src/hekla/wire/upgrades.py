"""Opens tunnels: what a server answers to an upgrade, and what then runs on the connection.

`connection.py` writes the answer and drives the tunnel; `websocket.py` and `tunnels.py` are what can run.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hekla.wire import websocket
from hekla.wire.errors import RefusedError
from hekla.wire.messages import AcceptWebSocket, HeaderList, SwitchProtocol
from hekla.wire.requests import Incoming
from hekla.wire.service import Service
from hekla.wire.tunnels import RawDuplex, Tunnel


@dataclass(slots=True)
class Upgrade:
    """An upgrade that is granted: the headers beside `101`, the tunnel, and the application's side of it."""

    headers: HeaderList
    tunnel: Tunnel
    serve: Callable[[], Awaitable[None]]


def grant(
    service: Service, transport: asyncio.Transport, incoming: Incoming, answer: AcceptWebSocket | SwitchProtocol
) -> Upgrade:
    """Check that the client asked for what the handler answers; raises `RefusedError` where it did not."""
    if isinstance(answer, AcceptWebSocket):
        return _grant_websocket(service, transport, incoming, answer)
    if not incoming.wants_upgrade:
        raise RefusedError(400, f"this needs an upgrade to {answer.protocol}")
    duplex = RawDuplex(transport, service.loop)
    headers = (("connection", "Upgrade"), ("upgrade", answer.protocol), *answer.headers)
    return Upgrade(headers, duplex, lambda: answer.serve(duplex))


def _grant_websocket(
    service: Service, transport: asyncio.Transport, incoming: Incoming, answer: AcceptWebSocket
) -> Upgrade:
    headers = websocket.accept_headers(incoming.request, answer.subprotocol)
    if not incoming.wants_upgrade:
        raise RefusedError(400, "a WebSocket handshake needs HTTP/1.1 and connection: upgrade")
    session = websocket.WebSocketSession(
        transport,
        service.loop,
        is_client=False,
        subprotocol=answer.subprotocol,
        message_bytes=service.limits.message_bytes,
        ping_interval_s=service.limits.ping_interval_s,
    )
    return Upgrade((*headers, *answer.headers), session, lambda: answer.serve(session))
