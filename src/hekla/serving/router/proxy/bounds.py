"""How much a client and an engine may take of the router: sizes, counts and times, each with what happens at it."""

from dataclasses import dataclass, field

from hekla.wire.limits import connections_within


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds of the data plane."""

    connections: int = field(default_factory=lambda: connections_within(share=2))
    """Open connections of clients; one more is answered 503 and closed. Half of the files, as each may want an engine's connection."""

    head_bytes: int = 64 * 1024
    """The head of a request or of an answer; beyond it 431, or 502."""

    head_lines: int = 128
    """Header lines of a request; beyond it 431."""

    target_bytes: int = 8 * 1024
    """Length of a request's target; beyond it 414."""

    body_bytes: int = 64 * 1024 * 1024
    """Body of a request; beyond it 413, and no more of it is read."""

    bodies_bytes: int = 1024 * 1024 * 1024
    """Bodies of all requests under way; beyond it 503 until some of them end."""

    head_timeout_s: float = 30.0
    """From the first byte of a request to the end of its head; beyond it 408."""

    body_timeout_s: float = 120.0
    """From the end of a head to the end of the body; beyond it 408."""

    idle_timeout_s: float = 180.0
    """A kept connection without a request; beyond it closed."""

    send_timeout_s: float = 60.0
    """A client who takes nothing of an answer for so long is cut off."""

    pipelined_bytes: int = 256 * 1024
    """Requests read ahead of the one being answered; beyond it the client is not read until that one ends."""

    write_ahead_bytes: int = 64 * 1024
    """What a client may leave unread before the engine is no longer read."""

    connect_timeout_s: float = 5.0
    """To a connection with an engine, TLS agreed; beyond it the next engine is tried."""

    silence_timeout_s: float = 300.0
    """An answer that has begun and then says nothing for so long is ended; 0: never."""

    total_timeout_s: float = 3600.0
    """A request from its head to the end of its answer; beyond it 504, or an error event; 0: never."""

    engine_idle_s: float = 4.0
    """How long a connection to an engine is kept; vLLM closes its own after 5 s."""

    engine_idle_connections: int = 256
    """Kept connections to one engine; the next is closed instead of kept."""

    engine_connections: int = 8192
    """Open connections to one engine; one more fails like one that is refused."""

    attempts: int = 6
    """How often one request is tried; then it is refused as the last attempt was."""

    event_bytes: int = 1024 * 1024
    """One event of a stream that is held back to see whether it is the usage; a larger one goes on unseen."""

    leg_bytes: int = 16 * 1024 * 1024
    """The answer of a leg that is read whole (a prefill); a larger one has failed."""
