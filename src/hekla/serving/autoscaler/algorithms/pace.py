"""How fast replicas follow the recommendation: at once in panic, else no faster than a period allows and a window confirms.

panic       from the threshold on, until `hold_s` after it was last exceeded; only ever upwards
up          no more than the smallest recommendation of the window, and `instances` or `percent` above the period's least
down        no less than the largest recommendation of the window, and `instances` or `percent` below the period's most
"""

from dataclasses import dataclass, field, replace

from hekla.serving.autoscaler.algorithms.learning import Learned
from hekla.serving.autoscaler.algorithms.windows import Line

LONGEST_S = 1800.0
"""Periods and windows are at most 30 minutes."""


@dataclass(frozen=True, kw_only=True)
class Rate:
    """How much may change in a period."""

    instances: int = 1
    percent: int = 100
    period_s: float = 15.0
    takes_both: bool = False
    """Whether both bounds hold (`And`), or the wider one (`Or`)."""
    window_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Panic:
    """When growth may be sudden."""

    percent: int = 0
    period_s: float = 0.0
    threshold_percent: int = 200
    hold_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast replicas may follow."""

    up: Rate = field(default_factory=Rate)
    down: Rate = field(default_factory=lambda: Rate(instances=0, period_s=60.0, window_s=300.0))
    panic: Panic = field(default_factory=Panic)


@dataclass(frozen=True, kw_only=True)
class History:
    """What a unit was recommended, what was done, and until when it panics."""

    recommended: Line = field(default_factory=Line)
    corrected: Line = field(default_factory=Line)
    panics_until_s: float = 0.0
    learned: Learned = field(default_factory=Learned)


@dataclass(frozen=True)
class Step:
    """A number of replicas to have now, and the history with it."""

    replicas: int
    mode: str
    """Stable or Panic."""
    why_less: str
    """What held the recommendation back, or let it through at once; empty if neither."""
    history: History


def corrected(
    recommended: int, current: int, *, pace: Pace, history: History, now_s: float, least: int, most: int
) -> Step:
    """The number of replicas to have now."""
    history = _with_panic(recommended, current, pace.panic, history, now_s)
    in_panic = now_s < history.panics_until_s
    if in_panic:
        wanted = _in_panic(recommended, current, pace.panic, history, now_s)
    elif recommended < current:
        wanted = _down(recommended, current, pace.down, history, now_s)
    elif recommended > current:
        wanted = _up(recommended, current, pace.up, history, now_s)
    else:
        wanted = current
    wanted = min(max(wanted, least), most)
    done = replace(
        history,
        recommended=history.recommended.with_value(now_s, recommended, keep_s=LONGEST_S),
        corrected=history.corrected.with_value(now_s, wanted, keep_s=LONGEST_S),
    )
    why = "in panic, so at once" if in_panic and wanted > current else ""
    if wanted != recommended:
        why = f"{recommended} are recommended; {_held_by(recommended, wanted, in_panic, pace, history, now_s)}"
    return Step(wanted, "Panic" if in_panic else "Stable", why, done)


def _held_by(recommended: int, wanted: int, in_panic: bool, pace: Pace, history: History, now_s: float) -> str:
    if in_panic:
        return "panic bounds the growth" if wanted < recommended else "nothing shrinks in panic"
    up, down = pace.up.window_s, pace.down.window_s
    if wanted < recommended:
        is_window = history.recommended.best(min, now_s, up, recommended) <= wanted
        return f"the least of the last {up:g} s counts" if is_window else "the pace of growing bounds it"
    is_window = history.recommended.best(max, now_s, down, recommended) >= wanted
    return f"the most of the last {down:g} s counts" if is_window else "the pace of shrinking bounds it"


def _with_panic(recommended: int, current: int, panic: Panic, history: History, now_s: float) -> History:
    is_exceeded = recommended * 100 >= current * panic.threshold_percent and recommended > current
    if panic.hold_s <= 0 or not is_exceeded:
        return history
    return replace(history, panics_until_s=now_s + panic.hold_s)


def _in_panic(recommended: int, current: int, panic: Panic, history: History, now_s: float) -> int:
    past = history.corrected.best(min, now_s, panic.period_s, current)
    wanted = min(recommended, past + past * panic.percent // 100) if past > 0 else recommended
    return max(wanted, current)


def _up(recommended: int, current: int, rate: Rate, history: History, now_s: float) -> int:
    confirmed = min(recommended, history.recommended.best(min, now_s, rate.window_s, recommended))
    past = history.corrected.best(min, now_s, rate.period_s, current)
    bounds = past + rate.instances, past + past * rate.percent // 100
    return max(current, min(confirmed, min(bounds) if rate.takes_both else max(bounds)))


def _down(recommended: int, current: int, rate: Rate, history: History, now_s: float) -> int:
    confirmed = max(recommended, history.recommended.best(max, now_s, rate.window_s, recommended))
    past = history.corrected.best(max, now_s, rate.period_s, current)
    bounds = past - rate.instances, past - past * rate.percent // 100
    return min(current, max(confirmed, max(bounds) if rate.takes_both else min(bounds)))
