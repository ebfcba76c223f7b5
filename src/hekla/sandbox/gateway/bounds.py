"""How much a client and a sandbox may take of the gateway: sizes, counts and times, each with what happens at it."""

from dataclasses import dataclass, field

from hekla.wire.limits import connections_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the data plane."""

    connections: int = field(default_factory=connections_within)
    """Open connections of clients; one more is answered 503 and closed. One address may have three times as many as are still free, so
    at most three quarters; one more of it is answered 429 and closed."""

    requests: int = 1000
    """Requests under way, together; one more is answered 429 in its door's words."""

    head_bytes: int = 64 * 1024
    """The head of a request or of an answer; beyond it 431, or 502."""

    head_lines: int = 128
    """Header lines of a request; beyond it 431."""

    target_bytes: int = 16 * 1024
    """Length of a request's target; beyond it 414."""

    document_bytes: int = 4 * 1024 * 1024
    """Body of a request that the gateway reads itself; beyond it 413. What passes through has no such bound."""

    handshake_timeout_s: float = 10.0
    """From a connection to the agreement on TLS; beyond it closed."""

    head_timeout_s: float = 30.0
    """From the first byte of a request to the end of its head; beyond it 408."""

    body_silence_s: float = 60.0
    """A client who owes a body and sends nothing of it for so long is cut off."""

    idle_timeout_s: float = 180.0
    """A kept connection without a request; beyond it closed."""

    send_timeout_s: float = 60.0
    """A client who takes nothing of an answer for so long is cut off."""

    pipelined_bytes: int = 64 * 1024
    """Requests read ahead of the one being answered; beyond it the client is not read until that one ends."""

    write_ahead_bytes: int = 64 * 1024
    """What either side may leave unread before the other is no longer read."""

    connect_timeout_s: float = 10.0
    """To a connection with a server inside; beyond it 504."""

    node_patience_s: float = 20.0
    """How long a request waits for a node that is starting again; beyond it 503."""

    server_patience_s: float = 15.0
    """How long a session with servers of its own is waited for until they listen; beyond it it is given all the same."""

    inside_idle_s: float = 20.0
    """How long a connection to a sandbox's daemon is kept."""

    inside_idle_connections: int = 8
    """Kept connections to one port of one sandbox; the next is closed instead of kept."""
