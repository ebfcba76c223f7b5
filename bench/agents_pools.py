"""Warm pools on a day of 912 functions of Azure's: cold starts and idle sandboxes, fixed sizes beside those that size themselves.

Each call is a session that uses a sandbox up; its successor takes one second (`--all`: three and ten, too). Virtual time, one step a
second, with the code that sizes pools of a platform. Times inside a minute are not in the data: calls of every other function come
within five seconds, those of the rest anywhere in the minute (seeded). Source: vhive-serverless/invitro, see data/README.md.
"""

import csv
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.report import Report
from hekla.sandbox.pools.sizing import Adaptive, Counts, Histogram, Sizing

TRACE = Path(__file__).parent / "data" / "serverless" / "azure2019-1000-inv.csv.gz"
MOST_CALLS = 20_000
"""Functions with more calls a day are left out: they are servers."""

TARGET_SHARE, TARGET_HOURS = 5.0, 18_000.0
"""Cold starts in percent, at idle sandbox-hours in the day, with a lead time of one second."""

Starts = NDArray[np.int64]


def run(report: Report) -> None:
    """Warm pools: cold share and idle sandbox-hours of a day."""
    functions = load()[:: 10 if report.is_quick else 1]
    share = len(functions) / 912
    seconds = spread(functions)
    report.add("sessions", int(functions.sum()), "")
    for lead_s in (1, 3, 10) if report.is_full else (1,):
        for name, make in policies(len(functions), lead_s).items():
            result = play(seconds, make(), lead_s)
            is_target = lead_s == 1 and not name.startswith("fixed")
            report.add(
                f"{name}, lead {lead_s} s: cold", result.cold_percent, "%", baseline=TARGET_SHARE if is_target else None
            )
            hours = TARGET_HOURS * share if is_target else None
            report.add("  idle sandbox-hours", result.idle_hours, "h", baseline=hours)
            report.add("  cold share of the median function", result.median_percent, "%")


def policies(pools: int, lead_s: int) -> dict[str, Callable[[], Sizing]]:
    """What is compared."""
    return {
        **{f"fixed {size}": partial(Fixed, pools=pools, members=size) for size in (1, 2, 5, 10)},
        "adaptive": lambda: Adaptive(pools=pools, lead_s=lead_s),
        "histogram": lambda: Histogram(pools=pools, lead_s=lead_s),
        "histogram, 5 % promised": lambda: Histogram(pools=pools, lead_s=lead_s, max_cold_share=0.05),
    }


def load() -> Starts:
    """Calls per minute, [functions, 1,440]."""
    with gzip.open(TRACE, "rt", newline="") as file:
        rows = list(csv.reader(file))[1:]
    calls = np.array([[int(cell or 0) for cell in row[-1440:]] for row in rows], dtype=np.int64)
    kept: Starts = calls[calls.sum(axis=1) <= MOST_CALLS]
    return kept


def spread(functions: Starts, seed: int = 1) -> list[tuple[Starts, Starts]]:
    """For each second of the day: which functions are called, and how often."""
    dice = np.random.default_rng(seed)
    day = np.zeros((1440 * 60, len(functions)), dtype=np.int32)
    for number, minutes in enumerate(functions):
        for minute in np.nonzero(minutes)[0]:
            count = int(minutes[minute])
            within = dice.integers(0, 56) + dice.integers(0, 5, count) if number % 2 else dice.integers(0, 60, count)
            np.add.at(day[:, number], minute * 60 + within, 1)
    called = [np.nonzero(second)[0] for second in day]
    return [(who, day[second][who].astype(np.int64)) for second, who in enumerate(called)]


class Fixed:
    """Always the same number: what every other system does."""

    def __init__(self, *, pools: int, members: int) -> None:
        self._wanted = np.full(pools, members, dtype=np.int64)

    def see(self, now_s: float, starts: Counts, cold: Counts) -> None:
        """Nothing is learned."""

    def wanted(self, now_s: float) -> Counts:
        """The number."""
        return self._wanted


@dataclass(frozen=True)
class Result:
    """What a day cost."""

    cold_percent: float
    idle_hours: float
    median_percent: float


def play(seconds: list[tuple[Starts, Starts]], sizing: Sizing, lead_s: int) -> Result:
    """A day: who is there serves, the rest start cold, and successors come after the lead time."""
    pools = len(sizing.wanted(0.0))
    ready, coming = np.zeros(pools, dtype=np.int64), np.zeros(pools, dtype=np.int64)
    ring = np.zeros((lead_s + 1, pools), dtype=np.int64)
    cold, total = np.zeros(pools, dtype=np.int64), np.zeros(pools, dtype=np.int64)
    starts, missed = np.zeros(pools, dtype=np.int64), np.zeros(pools, dtype=np.int64)
    idle = 0
    for second, (who, count) in enumerate(seconds):
        slot = ring[second % (lead_s + 1)]
        ready += slot
        coming -= slot
        slot[:] = 0
        if len(who):
            served = np.minimum(ready[who], count)
            ready[who] -= served
            starts[:], missed[:] = 0, 0
            starts[who], missed[who] = count, count - served
            cold += missed
            total += starts
            sizing.see(float(second), starts, missed)
        need = sizing.wanted(float(second)) - ready - coming
        ordered = np.maximum(need, 0)
        ring[(second + lead_s) % (lead_s + 1)] += ordered
        coming += ordered
        ready -= np.minimum(np.maximum(-need, 0), ready)
        idle += int(ready.sum())
    shares = cold[total > 0] / total[total > 0]
    return Result(100 * cold.sum() / total.sum(), idle / 3600, 100 * float(np.median(shares)))
