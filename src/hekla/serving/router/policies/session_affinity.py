"""Keep a session with the engine that served it last, for as long as it lasts.

Before every other policy, and only where a ModelServer asks for it: a cache is found by the prompt as well, but some engines keep
more than a cache. An engine that is gone or sits out is not waited for; the session moves.
"""

from collections import OrderedDict
from collections.abc import Sequence

from hekla.serving.router.endpoints import Endpoint

MOST_SESSIONS = 65_536
"""Beyond, the session that was idle for longest is forgotten."""


class Sessions:
    """Which engine each session is with."""

    def __init__(self, ttl_s: float = 10_800.0) -> None:
        """`ttl_s` is how long a session is remembered after its last request; three hours, as a Service's affinity."""
        self.ttl_s = ttl_s
        self._homes: OrderedDict[str, tuple[Endpoint, float]] = OrderedDict()

    def home(self, session: str, candidates: Sequence[Endpoint], now: float) -> Endpoint | None:
        """Where the session is, if it may be asked."""
        found = self._homes.get(session)
        if found is None or found[1] < now or found[0] not in candidates:
            return None
        return found[0]

    def settle(self, session: str, endpoint: Endpoint, now: float) -> None:
        """The session's request goes there."""
        self._homes[session] = (endpoint, now + self.ttl_s)
        self._homes.move_to_end(session)
        while len(self._homes) > MOST_SESSIONS or next(iter(self._homes.values()))[1] < now:
            self._homes.popitem(last=False)
