"""A quantile of what happened between two looks at a cumulative histogram, straight within a bucket.

The last bucket has no upper bound; twice the one below stands in for it, as in Kthena.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class HistogramError(ValueError):
    """The two looks do not belong together: the process was restarted, or its buckets were changed."""


@dataclass(frozen=True)
class Histogram:
    """Counts up to each upper bound, in order of the bounds."""

    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def count(self) -> float:
        """All that was counted."""
        return self.buckets[-1][1] if self.buckets else 0.0


def histogram_of(counts: Mapping[float, float]) -> Histogram:
    """A histogram of counts by upper bound."""
    return Histogram(tuple(sorted(counts.items())))


def since(now: Histogram, past: Histogram | None) -> Histogram:
    """What came after `past`; raises HistogramError."""
    if past is None or not past.buckets:
        return now
    if [bound for bound, _ in now.buckets] != [bound for bound, _ in past.buckets]:
        raise HistogramError(f"there were {len(past.buckets)} buckets, now there are {len(now.buckets)}, or others")
    counts = tuple(
        (bound, count - before) for (bound, count), (_, before) in zip(now.buckets, past.buckets, strict=True)
    )
    if any(count < 0 for _, count in counts) or any(a[1] > b[1] for a, b in itertools.pairwise(counts)):
        raise HistogramError("counts have fallen")
    return Histogram(counts)


def merged(parts: Sequence[Histogram]) -> Histogram:
    """Histograms of several processes as one; those with other buckets than the first are left out."""
    first = next((one for one in parts if one.buckets), None)
    if first is None:
        return Histogram()
    bounds = [bound for bound, _ in first.buckets]
    alike = [one for one in parts if [bound for bound, _ in one.buckets] == bounds]
    return Histogram(tuple((bound, sum(one.buckets[at][1] for one in alike)) for at, bound in enumerate(bounds)))


def quantile(found: Histogram, percent: int) -> float:
    """The value that `percent` of all are not above; 0 of nothing."""
    if found.count <= 0:
        return 0.0
    rank = math.ceil(found.count * percent / 100)
    low, below = 0.0, 0.0
    for bound, count in found.buckets:
        high = low * 2 if math.isinf(bound) else bound
        if count > below and rank <= count:
            return high - (count - rank) * (high - low) / (count - below)
        low, below = high, count
    return low
