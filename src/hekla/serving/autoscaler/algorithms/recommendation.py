"""From metrics to the number of replicas that holds them at their targets; the largest of all metrics wins.

    of the whole (Prometheus)    value / target, but the present number while that is off by no more than the tolerance
    of each replica              mean / target * replicas, likewise; replicas that say nothing count as idle where more are
                                 wanted and as on target where fewer are, so that silence never makes a decision larger

Kthena hands the second rule one sum over all pods as if it were one replica: a load within a tenth of one target then leaves
five replicas as they are, and at any other load the tolerance never applies. Here each replica is one value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypedDict

MOST = 1_000_000_000
NOISE = 1e-12
"""The part of a quotient that may be floats' own error: 1.1 over 0.1 is a little more than 11, and asks for 11 replicas."""
Metrics = Mapping[str, float]
RATIO_SUFFIXES = ("_utilization", "_usage", "_ratio", "_percent", "_saturation", "_perc", "_seconds")
"""How metrics end that are no amounts: they are averaged, never added. Kthena's, and engines' names for the same."""

TIME_SUFFIXES = ("_seconds", "_milliseconds", "_ms")
"""How metrics end that are times: `learning.py` has what they say of fewer replicas."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """What was measured of something that is scaled."""

    current: int
    """Replicas that there should be now."""
    ready: Sequence[Metrics] = ()
    """Of each replica that is ready, its metrics."""
    unready: int = 0
    """Replicas that are not ready yet."""
    whole: Metrics = field(default_factory=dict)
    """Metrics of all replicas together, from elsewhere."""


@dataclass(frozen=True)
class Recommendation:
    """A number of replicas, and what asked for it."""

    replicas: int
    reason: str
    ratio: float | None = None
    """The worst of the times that were measured, in parts of its target; None if none is a time."""
    is_time: bool = False
    """Whether a time asked for it."""
    only_times: bool = False
    """Whether nothing else was measured."""


def recommend(load: Load, targets: Metrics, *, least: int, most: int, tolerance: float) -> Recommendation | None:
    """The number that all metrics are content with, within bounds; None if nothing was measured."""
    if load.current < least:
        return Recommendation(least, f"{load.current} is below the minimum")
    if load.current > most:
        return Recommendation(most, f"{load.current} is above the maximum")
    asked = [found for name, target in targets.items() if (found := _for_metric(load, name, target, tolerance))]
    if not asked:
        return None
    wanted = max(asked, key=lambda one: one.replicas)
    ratios = [one.ratio for one in asked if one.ratio is not None]
    capped = f"; that asks for more than the {most} that there may be" if wanted.replicas > most else ""
    return replace(
        wanted,
        replicas=min(max(wanted.replicas, least), most),
        reason=wanted.reason + capped,
        ratio=max(ratios, default=None),
        only_times=len(ratios) == len(asked),
    )


def _for_metric(load: Load, name: str, target: float, tolerance: float) -> Recommendation | None:
    if name in load.whole:
        return _of_whole(load, name, target, tolerance)
    values = [one[name] for one in load.ready if name in one]
    if not values:
        return None
    return Recommendation(
        _of_each(load, values, target, tolerance),
        f"{name} is {_shown(sum(values) / len(values))} a replica, target {target:g}",
        **_of_time(name, sum(values) / len(values), target),
    )


def _of_whole(load: Load, name: str, target: float, tolerance: float) -> Recommendation:
    value = load.whole[name]
    wanted = _over(value, target) * (load.current if is_ratio(name) else 1)
    is_close = load.current > 0 and abs(wanted / load.current - 1) <= tolerance
    replicas = load.current if is_close else _ceil(wanted)
    reason = f"{name} is {_shown(value)} in all, target {target:g} a replica"
    return Recommendation(replicas, reason, **_of_time(name, value, target))


def _of_each(load: Load, values: Sequence[float], target: float, tolerance: float) -> int:
    total, count, current = sum(values), len(values), load.current
    missing = len(load.ready) - count
    ratio = _over(total / count, target)
    counts_unready = load.unready > 0 and ratio >= 1
    if not counts_unready and missing == 0:
        return current if abs(ratio - 1) <= tolerance else _ceil(ratio * count)
    if ratio < 1:
        total += missing * target
    count += missing + (load.unready if counts_unready else 0)
    estimated = _over(total / count, target)
    if abs(estimated - 1) <= tolerance or (estimated >= 1) != (ratio >= 1):
        return current
    wanted = _ceil(estimated * count)
    is_contrary = wanted > current if estimated < 1 else wanted < current
    return current if is_contrary else wanted


class _OfTime(TypedDict, total=False):
    ratio: float
    is_time: bool


def _of_time(name: str, value: float, target: float) -> _OfTime:
    return {"ratio": _over(value, target), "is_time": True} if name.lower().endswith(TIME_SUFFIXES) else {}


def is_ratio(name: str) -> bool:
    """Whether a metric is no amount, so that two replicas do not have twice as much of it."""
    return name.lower().endswith(RATIO_SUFFIXES)


def together(name: str, samples: Sequence[tuple[float, int]]) -> float:
    """One value of several (value, replicas): amounts are added, ratios averaged by replicas."""
    if not is_ratio(name):
        return sum(value for value, _ in samples)
    replicas = sum(count for _, count in samples)
    if replicas == 0:
        return sum(value for value, _ in samples) / len(samples)
    return sum(value * count for value, count in samples) / replicas


def _over(value: float, target: float) -> float:
    if target == 0:
        return math.inf if value > 0 else math.nan
    return value / target


def _ceil(value: float) -> int:
    if not value > 0:  # NaN, and less than nothing without end, too
        return 0
    return max(0, math.ceil(value * (1 - NOISE))) if value < MOST else MOST


def _shown(value: float) -> str:
    return f"{value:.4g}"
