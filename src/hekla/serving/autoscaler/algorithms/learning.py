"""What a time that is short says of fewer replicas: that one fewer may be tried, and what came of it is remembered.

A latency says when there are too few replicas. Far below its target it does not say how many would do, because queues are not
linear: three engines answer in a third of the target and two never catch up. Scaled by the quotient alone, replicas fall until
the target breaks, overshoot, and fall again, for ever, under a load that never changes. So

trial     one replica fewer at a time, watched before the next; a target that breaks while it is watched ends it: the number
          that held comes back first, and nothing larger is asked for while it starts and what has queued up drains
lesson    that number is not tried again before `HOLD_S`, each time twice as long, unless the time has since fallen clearly
          below what it was before the trial: then there is less to do

Under a constant load each trial that fails either doubles the hold or lowers the mark by `MARGIN`, so trials get ever rarer.
`recommendation.py` comes before, `pace.py` after.
"""

from dataclasses import dataclass, replace
from typing import Final

from hekla.serving.autoscaler.algorithms.recommendation import Recommendation

JUDGED_S: Final = 600.0
"""A target that breaks so long after a replica was given up breaks because of that; queues grow slowly at the edge."""
WATCHED_S: Final = 120.0
"""Between two trials at least, and for the number that held to show that it does again: so long after the time last fell."""
HOLD_S: Final = 1800.0
"""How long the first lesson holds."""
LONGEST_HOLD_S: Final = 86_400.0
STARTS_S: Final = 300.0
"""How long a replica that comes back is waited for at most; one that starts for longer may not be what is missing."""
MARGIN: Final = 0.1
"""How much lower, as a part, the time must be than before the trial that failed."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """So many replicas were too few."""

    replicas: int
    ratio: float
    """The time, in parts of its target, when there was one more: while it is that high there is as much to do."""
    until_s: float
    times: int = 1


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The last trial, and what earlier ones taught."""

    trial_s: float = 0.0
    trial: int = 0
    """The number that is tried; 0: none is."""
    before: int = 0
    """The number that held."""
    ratio: float = 0.0
    lesson: Lesson | None = None
    back_s: float = 0.0
    """Since when the number that held is back."""
    back_until_s: float = 0.0
    """Until when it is given time to hold again."""
    back_ratio: float = 0.0
    """The least time since, in parts of its target: while it falls, what has queued up drains."""


def advised(told: Recommendation, current: int, learned: Learned, now_s: float) -> Recommendation:
    """The recommendation in the light of what was tried."""
    if told.ratio is None:
        return told
    if told.replicas > current and told.is_time:
        return _back_first(told, current, learned, now_s)
    if told.replicas < current:
        return _not_again(told, current, learned, now_s)
    return told


def _back_first(told: Recommendation, current: int, learned: Learned, now_s: float) -> Recommendation:
    if _has_failed(learned, current, now_s):
        held = min(told.replicas, learned.before)
        return replace(told, replicas=held, reason=f"{told.reason}; {current} are too few, {learned.before} held it")
    if now_s < learned.back_until_s and current == learned.before:
        return replace(told, replicas=current, reason=f"{told.reason}; {current} held it, and are given time to")
    return told


def _not_again(told: Recommendation, current: int, learned: Learned, now_s: float) -> Recommendation:
    assert told.ratio is not None, "who calls has looked"
    fewest, why = told.replicas, ""
    if told.only_times:
        is_watched = learned.trial == current and now_s - learned.trial_s < WATCHED_S
        fewest = current if is_watched else current - 1
        why = "what is tried is watched" if is_watched else "a time does not say how many fewer would do; one is tried"
    lesson = learned.lesson
    if lesson is not None and fewest <= lesson.replicas and _holds(lesson, told.ratio, now_s):
        fewest = min(current, lesson.replicas + 1)
        why = f"{lesson.replicas} were too few at this load"
    return told if fewest == told.replicas else replace(told, replicas=fewest, reason=f"{told.reason}; {why}")


def _holds(lesson: Lesson, ratio: float, now_s: float) -> bool:
    return now_s < lesson.until_s and ratio > lesson.ratio * (1 - MARGIN)


def _has_failed(learned: Learned, current: int, now_s: float) -> bool:
    return learned.trial == current and 0 < now_s - learned.trial_s < JUDGED_S


def after(
    learned: Learned, told: Recommendation, current: int, replicas: int, now_s: float, *, is_starting: bool = False
) -> Learned:
    """What is known once the replicas are what they are to be."""
    if told.ratio is None:
        return learned
    if replicas == current:
        return _given_time(learned, told.ratio, now_s, is_starting=is_starting)
    if replicas < current:
        # trials that follow one another before the first was judged are one: the number before all of them held
        goes_on = _has_failed(learned, current, now_s) and not told.only_times
        before, ratio = (learned.before, learned.ratio) if goes_on else (current, told.ratio)
        return replace(learned, trial=replicas, trial_s=now_s, before=before, ratio=ratio)
    if not told.is_time or not _has_failed(learned, current, now_s):
        return replace(learned, trial=0)
    old = learned.lesson
    times = old.times + 1 if old is not None and old.replicas == current else 1
    lesson = Lesson(
        replicas=current,
        ratio=learned.ratio,
        until_s=now_s + min(LONGEST_HOLD_S, HOLD_S * 2 ** (times - 1)),
        times=times,
    )
    return replace(learned, trial=0, lesson=lesson, back_s=now_s, back_until_s=now_s + WATCHED_S, back_ratio=told.ratio)


def _given_time(learned: Learned, ratio: float, now_s: float, *, is_starting: bool) -> Learned:
    """Whoever is starting, or answers faster than at the last look, is given longer."""
    if now_s >= learned.back_until_s:
        return learned
    waits = is_starting and now_s < learned.back_s + STARTS_S
    falls = ratio < learned.back_ratio and now_s < learned.back_s + JUDGED_S
    # a time that rises while nobody has started yet is no measure of what is to fall
    least = max(learned.back_ratio, ratio) if waits else min(learned.back_ratio, ratio)
    until_s = max(learned.back_until_s, now_s + WATCHED_S) if waits or falls else learned.back_until_s
    return replace(learned, back_until_s=until_s, back_ratio=least)
