"""Leave out engines with a queue, and prefer those with few requests of ours in flight; one that runs fewer than it was sent has a queue.

base = in flight + 100 * max(in flight - running, 0)        score = (max - base) / max * 100
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint


@dataclass(frozen=True, kw_only=True)
class LeastRequest:
    """Kthena's `least-request`: a filter and a score."""

    max_waiting: int = 10
    """`maxWaitingRequests`: an engine in which as many wait is left out."""

    name = "least-request"
    wants_prefix = False

    def keep(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[Endpoint]:
        """Those with a short queue, and those that do not tell."""
        return [one for one in candidates if one.waiting is None or one.waiting < self.max_waiting]

    def reason(self, look: Look, endpoint: Endpoint) -> str:
        """Its queue."""
        return f"{endpoint.waiting} requests wait in it; fewer than {self.max_waiting} are allowed"

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """100 for the idle, 0 for the busiest; a whole number, as Kthena's."""
        bases = [_base(one) for one in candidates]
        most = max(bases, default=0)
        return [int((most - base) / most * 100) if most else 100 for base in bases]


def _base(one: Endpoint) -> int:
    sent = one.in_flight + one.elsewhere_in_flight
    return sent + (100 * max(sent - one.running, 0) if one.running is not None else 0)
