"""Keep a session with the engine that served it last, for as long as it lasts.

Before every other policy, and only where a ModelServer asks for it: a cache is found by the prompt as well, but some engines keep
more than a cache. An engine that is gone or sits out is not waited for; the session moves.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from hekla.serving.router.endpoints import Endpoint

MOST_SESSIONS = 65_536
"""Beyond, the session that was idle for longest is forgotten."""


class Sessions:
    """Which engine each session is with."""

    def __init__(self, ttl_s: float = 10_800.0) -> None:
        """`ttl_s` is how long a session is remembered after its last request; three hours, as a Service's affinity."""
        self.ttl_s = ttl_s
        self.on_settled: Callable[[str, Endpoint], None] | None = None
        """Told where a session begins or moves to; other routers want to know."""
        self._homes: OrderedDict[str, tuple[Endpoint, float]] = OrderedDict()

    def home(self, session: str, candidates: Sequence[Endpoint], now: float) -> Endpoint | None:
        """Where the session is, if it may be asked."""
        found = self._homes.get(session)
        if found is None or found[1] < now or found[0] not in candidates:
            return None
        return found[0]

    def settle(self, session: str, endpoint: Endpoint, now: float) -> None:
        """The session's request goes there."""
        before = self._homes.get(session)
        if self.on_settled is not None and (before is None or before[0] is not endpoint):
            self.on_settled(session, endpoint)
        self.take_told(session, endpoint, now)

    def take_told(self, session: str, endpoint: Endpoint, now: float) -> None:
        """Remember it, whoever sent it there."""
        self._homes[session] = (endpoint, now + self.ttl_s)
        self._homes.move_to_end(session)
        while len(self._homes) > MOST_SESSIONS or next(iter(self._homes.values()))[1] < now:
            self._homes.popitem(last=False)
