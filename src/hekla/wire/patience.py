"""How long a connection may stay as it is: one clock for all connections instead of a timer per request.

`server.py` looks at each connection about once a second; whatever shows the same mark for longer than its phase allows
has made no progress and is ended by `connection.py`.
"""

from enum import IntEnum

from hekla.wire.limits import Limits

_LINGER_S = 2.0  # how long a refused sender may go on sending before the connection is cut


class Phase(IntEnum):
    """What a connection waits for; each has its own time limit."""

    IDLE = 0
    READING = 1
    ANSWERING = 2
    SENDING = 3
    LINGERING = 4
    TUNNEL = 5


def allowed_s(phase: Phase, limits: Limits) -> float:
    """How long a connection may show no progress in a phase; a handler may take its time."""
    match phase:
        case Phase.IDLE:
            return limits.idle_timeout_s
        case Phase.READING:
            return limits.request_timeout_s
        case Phase.SENDING:
            return limits.send_timeout_s
        case Phase.LINGERING:
            return _LINGER_S
    return float("inf")


class Patience:
    """Remembers since when a connection has looked the same."""

    __slots__ = ("_mark", "_since")

    def __init__(self) -> None:
        self._mark: tuple[int, ...] = ()
        self._since = 0.0

    def is_over(self, mark: tuple[int, ...], now: float, allowed_s: float) -> bool:
        """Whether nothing has changed for so long."""
        if mark != self._mark:
            self._mark, self._since = mark, now
            return False
        return now - self._since >= allowed_s
