"""How much a peer may take: sizes, counts and times, for the server and for the client.

Every buffer, queue and wait of the wire is bounded by one of these; each field says what happens at its bound.
"""

import resource
from dataclasses import dataclass, field
from typing import Final

MOST_CONNECTIONS: Final = 20_000
FOR_OTHERS: Final = 8_192
"""Files that a full door leaves to all else, where there are more than that."""


def connections_within(share: int = 4) -> int:
    """So many connections of clients may be open at one door: of the files that this process may have open one in `share`, or all but
    8,192 where that is more; at most 20,000.

    Many shells allow 1,024 files: a thousand idle connections of a stranger at one door, far from its bound of 20,000, took API server,
    router and gateway of a platform away from everybody.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, max(soft // share, soft - FOR_OTHERS)))


def is_flood(connections: int, most: int) -> bool:
    """Whether so many are over the bound that the next are not even told: who is told may take its time to leave, and is open meanwhile."""
    return connections > most + most // 8 + 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a server."""

    connections: int = field(default_factory=connections_within)
    """Open connections; one more is answered 503 and closed."""

    url_bytes: int = 128 * 1024
    """Length of a request target; beyond it 414."""

    header_bytes: int = 64 * 1024
    """All names and values of one request together; beyond it 431."""

    header_count: int = 200
    """Header lines of one request; beyond it 431."""

    body_bytes: int = 16 * 1024 * 1024
    """Body of one request; beyond it 413, before more of it is read."""

    request_timeout_s: float = 60.0
    """From the first byte of a request to its last; beyond it 408."""

    idle_timeout_s: float = 180.0
    """A kept connection without a request; beyond it closed."""

    send_timeout_s: float = 60.0
    """A reader of a response who takes nothing at all for so long is cut off."""

    pipelined: int = 256
    """Requests read ahead of the one being answered; beyond it those are answered and the connection closed."""

    push_buffer_bytes: int = 16 * 1024 * 1024
    """What a pushed response may leave unread before it is cut; producers should act long before."""

    message_bytes: int = 16 * 1024 * 1024
    """One WebSocket message; beyond it, or in pieces of less than 64 bytes on the whole, the WebSocket is closed with 1009."""

    ping_interval_s: float = 30.0
    """A silent WebSocket is pinged this often, and cut after two pings without a sign of life."""

    gzip_over_bytes: int = 128 * 1024
    """Responses larger than this are compressed for those who accept it; 0 never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Bounds of a client."""

    connections_per_origin: int = 64
    """Open connections to one server; a further request waits for one, within its own timeout."""

    idle_s: float = 60.0
    """How long a connection is kept for the next request."""

    connect_timeout_s: float = 10.0
    """To a connection with TLS agreed; beyond it `ConnectFailedError`."""

    header_bytes: int = 256 * 1024
    """All names and values of one response; beyond it `ReplyTooLargeError`."""

    body_bytes: int = 1024 * 1024 * 1024
    """One body read whole; beyond it `ReplyTooLargeError`. Streams are bounded by flow control instead."""

    read_ahead_bytes: int = 256 * 1024
    """What a stream holds for a reader who is slower than the server, before it stops reading the socket."""

    message_bytes: int = 16 * 1024 * 1024
    """One WebSocket message."""

    ping_interval_s: float = 30.0
    """A silent WebSocket is pinged this often, and cut after two pings without a sign of life."""
