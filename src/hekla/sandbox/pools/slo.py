"""A promise about starts, `p99 under X ms`, as the share of them that may be cold: what a pool needs to keep it with the fewest idle.

A start is slow when it is cold and that cold start takes longer than X, so P(slow) = P(cold) x P(slow | cold). With 1 % of starts slow the
99th percentile is X: the share that may be cold is 1 % over the share of cold starts that are slow. Where no cold start is, nobody has to wait.
"""

from collections import deque

SLOW_SHARE = 0.01
"""What may lie above a 99th percentile."""

ENOUGH, MEMORY = 20, 200
"""Cold starts that must be known before they are believed, and that are remembered."""

ANY = 0.999
"""A share of cold starts that binds nobody."""


class ColdStarts:
    """How long the last cold starts of a pool's template took."""

    def __init__(self) -> None:
        self._ms: deque[float] = deque(maxlen=MEMORY)

    def see(self, took_ms: float) -> None:
        """One more."""
        self._ms.append(took_ms)

    def share_for(self, p99_ms: float) -> float:
        """The share of starts that may be cold. Until enough are known, each counts as slow."""
        if len(self._ms) < ENOUGH:
            return SLOW_SHARE
        slow = sum(one > p99_ms for one in self._ms) / len(self._ms)
        return ANY if slow <= SLOW_SHARE else min(ANY, SLOW_SHARE / slow)
