"""One after the other: fair in requests, blind to their length and to what is cached."""

from collections.abc import Sequence

from hekla.serving.router.choosing import Look, Weighed
from hekla.serving.router.endpoints import Endpoint


class RoundRobin:
    """Each endpoint in turn, by slot, so that the turn survives those who come and go."""

    wants_prefix = False

    def __init__(self) -> None:
        self._last = -1

    def choose(self, look: Look, candidates: Sequence[Endpoint]) -> Endpoint | None:
        """The next after the last one."""
        if not candidates:
            return None
        chosen = self._next(candidates)
        self._last = chosen.slot
        return chosen

    def weigh(self, look: Look, candidates: Sequence[Endpoint]) -> Weighed:
        """How many turns each has to wait."""
        start = self._next(candidates).slot if candidates else 0
        order = sorted(candidates, key=lambda one: (one.slot < start, one.slot))
        return Weighed(totals={one.name: float(turn) for turn, one in enumerate(order)}, is_cost=True)

    def _next(self, candidates: Sequence[Endpoint]) -> Endpoint:
        return min(candidates, key=lambda one: (one.slot <= self._last, one.slot))
