"""How many sandboxes of a pool should wait, from when sessions started before. Pure; many pools at once, one per column.

A start takes one member away and its successor is ready a lead time later, so a pool is an inventory: the s-th member is worth its
keep while the chance that it is taken in the next second, times what a cold start costs, is above what it costs to keep it for that
second. `Histogram` estimates this chance by what followed gaps and bursts like the present ones; `Adaptive` by rates and peaks alone.

    sizing = Histogram(pools=1, lead_s=1.0, max_cold_share=0.05)
    sizing.see(now_s, starts, cold)         # each time sessions started: how many of each pool, and how many found nobody waiting
    sizing.wanted(now_s)                    # members that should wait or be on their way

Times are seconds from any origin. Sources: agents.md 7.2; the hazard of gaps after Shahrad et al. (ATC'20).
"""

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]

GAP_EDGES_S = np.array([
    1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 45, 60, 75, 90, 105, 120, 150, 180, 210, 240, 300, 360, 480, 600, 780, 900, 1_200,
    1_800, 2_700, 3_600, 5_400, 7_200, 14_400,
], dtype=np.float64)  # fmt: skip
"""Upper edges of the classes of gaps between starts; what is longer is one class. Minutes are resolved up to four: timers."""

BURSTS = np.array([1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100, 128, 160, 200], dtype=np.int64)
"""Sizes of bursts that are told apart; no pool is made larger than the last by itself."""

_LOWER_S = np.concatenate(([0.0], GAP_EDGES_S))
_WIDTH_S = np.append(np.diff(_LOWER_S), 20_000.0)
_MIDDLE_S = _LOWER_S + _WIDTH_S / 2


class Sizing(Protocol):
    """One way to size pools."""

    def see(self, now_s: float, starts: Counts, cold: Counts) -> None:
        """Sessions started: how many of each pool, and how many of them found nobody waiting."""

    def wanted(self, now_s: float) -> Counts:
        """How many members each pool should have, those on their way included."""


class Adaptive:
    """Enough for the usual rate during a lead time, and for the largest recent burst; nobody once a pool has been idle for long."""

    RATE_MEMORY_S = 60.0
    PEAK_HALF_LIFE_S = 3_600.0
    KEEP_S = 900.0
    """How long after its last start a pool keeps anybody."""

    SAFETY = 1.3
    """Standard deviations of Poisson arrivals above the rate."""

    def __init__(self, *, pools: int, lead_s: float) -> None:
        self._lead_s = max(lead_s, 0.1)
        self._rate = np.zeros(pools)
        self._peak = np.zeros(pools)
        self._peak_at_s = np.zeros(pools)
        self._last_s = np.full(pools, -math.inf)
        self._burst = np.zeros(pools, dtype=np.int64)
        self._burst_at_s = np.full(pools, -math.inf)

    def see(self, now_s: float, starts: Counts, cold: Counts) -> None:
        """Rates fade by the gap, peaks by the hour."""
        who = np.nonzero(starts)[0]
        gap_s = np.minimum(now_s - self._last_s[who], 1e9)
        self._rate[who] = self._rate[who] * np.exp(-gap_s / self.RATE_MEMORY_S) + starts[who] / self.RATE_MEMORY_S
        is_new = now_s - self._burst_at_s[who] >= self._lead_s
        self._burst[who] = np.where(is_new, 0, self._burst[who]) + starts[who]
        self._burst_at_s[who[is_new]] = now_s
        self._peak[who] = np.maximum(self._faded_peak(now_s)[who], self._burst[who])
        self._peak_at_s[who] = self._last_s[who] = now_s

    def _faded_peak(self, now_s: float) -> Floats:
        faded: Floats = self._peak * np.exp2(-(now_s - self._peak_at_s) / self.PEAK_HALF_LIFE_S)
        return faded

    def wanted(self, now_s: float) -> Counts:
        """By rate or by peak, whichever asks for more."""
        idle_s = now_s - self._last_s
        expected = self._rate * np.exp(-np.minimum(idle_s, 1e9) / self.RATE_MEMORY_S) * self._lead_s
        by_rate = np.ceil(expected + self.SAFETY * np.sqrt(expected))
        by_peak = np.round(self._faded_peak(now_s))
        size = np.minimum(np.maximum(np.maximum(by_rate, by_peak), 1.0), BURSTS[-1])
        return np.where(idle_s <= self.KEEP_S, size, 0.0).astype(np.int64)


class Histogram:
    """The s-th member is kept while hazard(gap) x P(burst >= s) is above the price of an idle second over that of a cold start.

    With `max_cold_share` the price of each pool follows what happens: it falls with each cold start and rises with each warm one, and
    rests where that share is cold. A share of 1 % means that the 99th percentile of starts is a warm one.
    """

    IDLE_PRICE = 1e-3
    """Cold starts that one idle second is worth, to begin with: a member may wait 17 minutes for each cold start it spares."""

    LEAST_PRICE, MOST_PRICE = 2e-4, 0.05
    STEP = 0.1
    """How far one start moves the price, as a share of it."""

    FORGETTING = 0.97
    """What a memory is worth after the next one: about 33 gaps count."""

    PRIOR = 0.5
    """What is thought of a gap of which nothing is known: after g seconds the chance of a start is PRIOR / g in each second."""

    def __init__(self, *, pools: int, lead_s: float, max_cold_share: float | None = None) -> None:
        self._lead_s = max(lead_s, 0.1)
        self._share = max_cold_share
        self._price = np.full(pools, self.IDLE_PRICE)
        classes = len(_LOWER_S)
        self._last_s = np.full(pools, -math.inf)
        self._starts = np.zeros((pools, classes))
        self._seconds = np.zeros((pools, classes))
        self._hazard = np.zeros((pools, classes))
        self._at_least = np.zeros((pools, len(BURSTS)))
        self._at_least[:, 0] = 0.5
        self._bursts = np.full(pools, 0.5)
        self._burst = np.zeros(pools, dtype=np.int64)
        self._burst_at_s = np.full(pools, -math.inf)

    def aim(self, max_cold_share: float) -> None:
        """Another share of cold starts from now on."""
        self._share = max_cold_share

    def see(self, now_s: float, starts: Counts, cold: Counts) -> None:
        """Gaps that ended here, bursts that grew, and whether the price was right."""
        who = np.nonzero(starts)[0]
        if not len(who):
            return
        known = who[np.isfinite(self._last_s[who])]
        gap_s = now_s - self._last_s[known]
        self._starts[known] *= self.FORGETTING
        self._seconds[known] *= self.FORGETTING
        self._starts[known, np.searchsorted(GAP_EDGES_S, gap_s)] += 1
        self._seconds[known] += np.clip(gap_s[:, None] - _LOWER_S, 0.0, _WIDTH_S)
        self._hazard[who] = (self._starts[who] + self.PRIOR / _MIDDLE_S) / (self._seconds[who] + 1)
        self._last_s[who] = now_s
        self._see_bursts(now_s, who, starts)
        if self._share is not None:
            warm = starts[who] - cold[who]
            step = self.STEP * (self._share * warm - (1 - self._share) * cold[who])
            self._price[who] = np.clip(self._price[who] * np.exp(step), self.LEAST_PRICE, self.MOST_PRICE)

    def _see_bursts(self, now_s: float, who: Counts, starts: Counts) -> None:
        fresh = who[now_s - self._burst_at_s[who] >= self._lead_s]
        over = fresh[self._burst[fresh] > 0]
        self._at_least[over] = self._at_least[over] * self.FORGETTING + (self._burst[over][:, None] >= BURSTS)
        self._bursts[over] = self._bursts[over] * self.FORGETTING + 1
        self._burst_at_s[fresh], self._burst[fresh] = now_s, 0
        self._burst[who] += starts[who]

    def wanted(self, now_s: float) -> Counts:
        """As many as are worth their keep in the next second."""
        is_known = np.isfinite(self._last_s)
        gap_s = np.where(is_known, now_s - self._last_s, 0.0) + 1.0
        hazard = self._hazard[np.arange(len(gap_s)), np.searchsorted(GAP_EDGES_S, gap_s)] * is_known
        worth = hazard[:, None] * self._at_least / self._bursts[:, None] > self._price[:, None]
        sizes = np.concatenate(([0], BURSTS))
        size: Counts = sizes[worth.sum(axis=1)]
        return size
