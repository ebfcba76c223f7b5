"""Turns away a request that came by a connection for another listener: 421, so that the client opens a connection of its own.

Certificates and rules are a listener's. A client that connected for one host and asks for another one of the same port must not get by
the first listener's certificate what the second listener's asks for; browsers and pools that share connections try it. The Gateway API
wants it so where the other host has a listener; where it has none, nothing is found, as on any connection.
"""

import ssl
from typing import Final

from hekla.serving.router.certificates import Certificates
from hekla.serving.router.plan import Refusal
from hekla.serving.router.proxy.answers import refusal_bytes
from hekla.serving.router.proxy.clients import Call, ClientConnection, Front
from hekla.serving.router.proxy.request_headers import RequestHeaders
from hekla.wire.raw_heads import RequestHead

SHOWN_HOST: Final = 253
"""Characters of a host that a client made up which it is told again; a name has no more."""


class OneListener:
    """Before the reception of a port that speaks HTTPS; a `Front`."""

    def __init__(self, front: Front, certificates: Certificates) -> None:
        self._front = front
        self._certificates = certificates

    def receive(self, client: ClientConnection, head: RequestHead, body: bytes) -> Call | None:
        """On to the reception, if the host is the connection's listener's."""
        connection: ssl.SSLObject | None = client.transport.get_extra_info("ssl_object")
        asked = self._certificates.asked_by(connection) if connection is not None else ""
        refusal = misdirected(self._certificates, asked, host_of(head))
        if refusal is None:
            return self._front.receive(client, head, body)
        self._front.refused(client, refusal)
        is_head = head.method == b"HEAD"
        client.transport.write(
            refusal_bytes(refusal, head.target.decode("ascii"), keeps_alive=head.keeps_alive, is_head=is_head)
        )
        client.done(keeps_alive=head.keeps_alive)
        return None

    def refused(self, client: ClientConnection, refusal: Refusal) -> None:
        """The reception's business."""
        self._front.refused(client, refusal)


def misdirected(certificates: Certificates, asked: str, host: str) -> Refusal | None:
    """Why a request for this host may not come by a connection for the name that was asked; None: it may."""
    if host == asked:
        return None
    there = certificates.listener_of(host)
    if there is None or there == certificates.listener_of(asked):
        return None
    connected = f'"{asked}"' if asked else "no name"
    said = f'"{host[:SHOWN_HOST]}" has a listener of its own and this connection was made for {connected}; make another one'
    return Refusal(421, "misdirected", said)


def host_of(head: RequestHead) -> str:
    """The host that a request is for, without its port."""
    host = RequestHeaders(head.lines).get("host", "").lower()
    return host if host.startswith("[") else host.partition(":")[0]
