"""What all connections of one server share, and the hooks through which an application words and watches answers.

`server.py` makes one `Service`; every `connection.py` refers to it.
"""

import asyncio
import contextlib
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Protocol

from hekla.wire.limits import Limits
from hekla.wire.messages import Handler, Peer, Request, Response

Observer = Callable[[Request, int, float, int], None]
"""Called after each answer with the request, the status, the seconds it took and the body bytes sent."""

OnError = Callable[[Request, BaseException], None]
"""Called when a handler raised something; the client has been answered 500."""

Refuse = Callable[[int, str], Response]
"""Words a refusal of the wire itself (400, 408, 413, 414, 431, 500, 503) in the dialect of the application."""


class Open(Protocol):
    """A connection, as the server sees it."""

    def stop(self) -> None:
        """Close when idle, after the answer in flight otherwise; streams and tunnels end now."""

    def abort(self) -> None:
        """Drop the connection."""

    def tick(self, now: float) -> None:
        """Keep the time limits."""


@dataclass(slots=True)
class Service:
    """What all connections of one server share."""

    handler: Handler
    limits: Limits
    observer: Observer | None
    on_error: OnError
    refuse: Refuse
    loop: asyncio.AbstractEventLoop
    connections: "set[Open]"
    date_line: bytes = b""
    is_stopping: bool = False
    ends_streams: bool = True
    """Whether stopping ends pushed responses: a watch has no end of its own, an answer that is being written has."""


def gzip_bytes(body: bytes) -> bytes:
    """Compress at level 1, as kube-apiserver does: most of the gain for a fifth of the time."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    return packer.compress(body) + packer.flush()


def plain_refusal(status: int, sentence: str) -> Response:
    """A refusal in words, for servers that have no dialect of their own."""
    return Response(status, f"{sentence}\n".encode(), "text/plain; charset=utf-8")


async def close_iterator(body: AsyncIterator[bytes]) -> None:
    """Let a generator run its `finally` now and not when it is collected."""
    close = getattr(body, "aclose", None)
    if close is not None:
        with contextlib.suppress(RuntimeError):  # it is running still: it was cancelled from within
            await close()


def peer_of(transport: asyncio.Transport) -> Peer:
    """Who is at the other end, and the certificate that TLS verified."""
    address = transport.get_extra_info("peername")
    tls = transport.get_extra_info("ssl_object")
    certificate = tls.getpeercert(binary_form=True) if tls is not None else None
    if isinstance(address, tuple) and len(address) >= 2:
        return Peer(address[0], address[1], certificate)
    return Peer(certificate=certificate)
