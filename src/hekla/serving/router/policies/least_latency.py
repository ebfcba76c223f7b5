"""Prefer the engines that answered fastest since the last scrape.

score = weight * norm(TTFT) + (1 - weight) * norm(TPOT)        norm(x) = (max - x) / (max - min) * 100
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hekla.serving.router.choosing import Look
from hekla.serving.router.endpoints import Endpoint

UNKNOWN = 50.0
"""The score of an engine that has not told; neither good nor bad."""


@dataclass(frozen=True, kw_only=True)
class LeastLatency:
    """Kthena's `least-latency`."""

    ttft_weight: float = 0.5
    """`TTFTTPOTWeightFactor`: 1 looks at the first token only, 0 at the others only."""

    name = "least-latency"
    wants_prefix = False

    def scores(self, look: Look, candidates: Sequence[Endpoint]) -> Sequence[float]:
        """A whole number, as Kthena's."""
        firsts = _normed([one.ttft_s for one in candidates])
        others = _normed([one.tpot_s for one in candidates])
        weight = self.ttft_weight
        return [int(weight * first + (1 - weight) * other) for first, other in zip(firsts, others, strict=True)]


def _normed(values: Sequence[float | None]) -> list[float]:
    known = [one for one in values if one is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    if high == low:
        return [UNKNOWN if one is None else 100.0 for one in values]
    return [UNKNOWN if one is None else (high - one) / (high - low) * 100 for one in values]
