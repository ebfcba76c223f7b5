"""What one AutoscalingPolicy comes to: replicas, and why, from what was measured.

    measured by replica  ->  recommended  ->  paced  ->  mixed or kept in proportion  ->  scalings, reasons

`policy_status.py` has what is written of it.

Zero replicas wake when somebody writes `serving.hekla.dev/wanted-at` on the ModelServing: the router does while it holds
requests. Growth asks the scheduler: new groups wait in its queue as gangs, and while one waits for room no more are asked for.
A model that found none, and that nobody asks for any more, is taken out of the queue again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from hekla.api.kthena import AutoscalingPolicy
from hekla.api.kthena.autoscaling import RatioConstraint
from hekla.lib import quantity
from hekla.serving.autoscaler.algorithms.learning import Learned, advised, after
from hekla.serving.autoscaler.algorithms.mix import Hardware, spread
from hekla.serving.autoscaler.algorithms.pace import History, Pace, Step, corrected
from hekla.serving.autoscaler.algorithms.ratio import Bounds, Proportion, in_proportion
from hekla.serving.autoscaler.algorithms.recommendation import Load, Metrics, Recommendation, recommend, together
from hekla.serving.autoscaler.algorithms.windows import line_of
from hekla.serving.autoscaler.units import Unit, pace_of, units_of

HISTORY = "serving.hekla.dev/autoscaler-history"
"""On a policy: what was recommended and done, so that a controller that starts anew does not forget its windows."""

AWAKE_S = 300.0
"""How long one wish for a model keeps at least one replica."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What is known of one unit."""

    current: int
    ready: Sequence[Metrics] = ()
    unready: int = 0
    whole: Metrics = field(default_factory=dict)
    unread: str = ""
    """Why a metric could not be read; empty if all were."""
    waits_for: str = ""
    """What the scheduler says of groups that do not fit; empty if all have found a place."""
    waiting: int = 0
    """How many have not fitted for so long that another kind may stand in for them."""
    wanted_at: datetime | None = None
    """When somebody last asked for a model without replicas."""

    @property
    def placed(self) -> int:
        """The replicas that have a place, or will have one in a moment."""
        return max(0, self.current - self.waiting)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """A change of replicas."""

    unit: Unit
    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What one unit comes to."""

    unit: Unit
    current: int
    desired: int
    """By its metrics and its pace, before any ratio."""
    replicas: int
    mode: str
    reason: str
    is_measured: bool = True
    waits: bool = False
    """Whether as many or more are wanted, and the last ones have no room yet."""
    unread: str = ""
    """Why one of its metrics could not be read while others could."""
    refused: str = ""
    """What the API server said to the change; its replicas are as they were."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to be done about a policy."""

    outcomes: Sequence[Outcome]
    histories: Mapping[str, History]
    proportion: Proportion | None = None
    missing: str = ""
    """The ModelServing, or role, that is not there."""
    rival: str = ""
    """Which other policy scales the same, in a sentence; then this one does nothing."""

    @property
    def scalings(self) -> Sequence[Scaling]:
        """The changes."""
        return [
            Scaling(unit=one.unit, before=one.current, after=one.replicas, reason=one.reason)
            for one in self.outcomes
            if one.replicas != one.current
        ]


def decide(policy: AutoscalingPolicy, measured: Mapping[str, Measured], now: datetime) -> Decision:
    """Decide about all units of a policy; `measured` lacks those that are not there."""
    units, histories = units_of(policy), read_histories(policy)
    gone = [
        f"role {unit.role} of {unit.serving}" if unit.role else unit.key for unit in units if unit.key not in measured
    ]
    if gone or not units:
        return Decision(outcomes=[], histories=histories, missing=gone[0] if gone else "a target")
    if policy.spec.heterogeneous_target is not None:
        expansion = policy.spec.heterogeneous_target.cost_expansion_rate_percent
        return _mixed(policy, units, measured, histories, now, expansion)
    found = {unit.key: _paced(policy, unit, measured[unit.key], histories, now) for unit in units}
    outcomes: Sequence[Outcome] = [one for one, _ in found.values()]
    histories = {key: history for key, (_, history) in found.items()}
    target = policy.spec.disaggregated_target
    constraint = target.ratio_constraint if target is not None else None
    if constraint is None:
        return Decision(outcomes=outcomes, histories=histories)
    outcomes, proportion = _proportioned(outcomes, constraint)
    return Decision(outcomes=outcomes, histories=histories, proportion=proportion)


def with_refused(policy: AutoscalingPolicy, decision: Decision, refused: Mapping[str, str]) -> Decision:
    """What a decision has come to where changes were not made, by unit and with why (empty: somebody else made one). Those replicas
    are as they were, and so is what was done and learned of them: a later look took a change that was not made for its pace.
    """
    if not refused:
        return decision
    outcomes = [_not_done(one, refused[one.unit.key]) if one.unit.key in refused else one for one in decision.outcomes]
    before = read_histories(policy)
    histories = {
        key: _undone(one, before.get(key, History())) if key in refused else one
        for key, one in decision.histories.items()
    }
    return replace(decision, outcomes=outcomes, histories=histories)


def _not_done(one: Outcome, why: str) -> Outcome:
    if why:
        return replace(one, replicas=one.current, refused=f"{one.replicas} are wanted, but {why}")
    reason = f"{one.reason}; its replicas were changed meanwhile, so it is looked at again"
    return replace(one, replicas=one.current, reason=reason)


def _undone(history: History, before: History) -> History:
    return replace(history, corrected=before.corrected, learned=before.learned)


def _paced(
    policy: AutoscalingPolicy, unit: Unit, seen: Measured, histories: Mapping[str, History], now: datetime
) -> tuple[Outcome, History]:
    history = histories.get(unit.key, History())
    if unit.is_fixed:
        bound = Bounds(least=unit.least, most=unit.most).clamp(seen.current)
        return Outcome(unit, seen.current, bound, bound, "Stable", "the role is fixed"), history
    load = Load(current=seen.current, ready=seen.ready, unready=seen.unready, whole=seen.whole)
    told = recommend(load, unit.targets, least=unit.least, most=unit.most, tolerance=_tolerance(policy))
    told = _awake(told, seen, unit.most, now)
    if told is None:
        return _left_alone(unit, seen, seen, now), history
    told = advised(told, seen.current, history.learned, now.timestamp())
    step = _step(told, seen, pace_of(policy), history, now, unit.least, unit.most)
    replicas, reason = _held_for_room(step, told, seen)
    history = _with_lesson(step.history, told, seen, replicas, now)
    outcome = Outcome(unit, seen.current, replicas, replicas, step.mode, reason)
    return replace(outcome, waits=_is_short(step, seen), unread=seen.unread), history


def _step(
    told: Recommendation, seen: Measured, pace: Pace, history: History, now: datetime, least: int, most: int
) -> Step:
    """As fast as the pace allows; but the first replica of a model that somebody asks for comes at once, whatever the pace."""
    if seen.current == 0 and _is_wanted(seen, now):
        least = max(least, min(told.replicas, 1))
    return corrected(
        told.replicas, seen.current, pace=pace, history=history, now_s=now.timestamp(), least=least, most=most
    )  # fmt: skip


def _with_lesson(history: History, told: Recommendation, seen: Measured, replicas: int, now: datetime) -> History:
    learned = after(
        history.learned, told, seen.current, replicas, now.timestamp(), is_starting=seen.unready > 0
    )  # fmt: skip
    return replace(history, learned=learned)


def _awake(told: Recommendation | None, seen: Measured, most: int, now: datetime) -> Recommendation | None:
    """A model that somebody asks for has a replica, whatever its metrics say."""
    if not _is_wanted(seen, now) or most == 0 or (told is not None and told.replicas > 0):
        return told
    return (
        Recommendation(1, f"a request waits for it, or did within {AWAKE_S:g} s")
        if told is not None or seen.current == 0
        else None
    )


def _is_wanted(seen: Measured, now: datetime) -> bool:
    return seen.wanted_at is not None and (now - seen.wanted_at).total_seconds() < AWAKE_S


def _left_alone(unit: Unit, seen: Measured, together_seen: Measured, now: datetime) -> Outcome:
    """What a unit comes to where no metric says anything, of it or of all that are scaled with it."""
    replicas, waits, is_measured = seen.current, bool(together_seen.waits_for), True
    if together_seen.current == 0:
        why = "it has no replicas, and nobody asks for it"
    elif waits and unit.least == 0 and not together_seen.ready and not _is_wanted(together_seen, now):
        # no pace: nothing serves that could be missed
        replicas, waits = 0, False
        why = f"nobody asks for it any more, and it waits: {together_seen.waits_for}"
    elif waits:
        why = f"it waits for room: {together_seen.waits_for}"
    else:
        why, is_measured = f"no metric could be read: {together_seen.unread}".removesuffix(": "), False
    return Outcome(unit, seen.current, replicas, replicas, "Stable", why, is_measured, waits)


def _is_held(step: Step, seen: Measured) -> bool:
    return step.replicas > seen.current and bool(seen.waits_for)


def _held_for_room(step: Step, told: Recommendation, seen: Measured) -> tuple[int, str]:
    """No more is asked for while what was asked for waits."""
    if _is_held(step, seen):
        return seen.current, f"{step.replicas} are wanted ({told.reason}), but the last ones wait: {seen.waits_for}"
    reason = f"{told.reason}; {step.why_less}" if step.why_less else told.reason
    if _is_short(step, seen):
        reason = f"{reason}; but the last ones wait: {seen.waits_for}"
    return step.replicas, reason


def _is_short(step: Step, seen: Measured) -> bool:
    """Whether replicas that are still wanted have no room: there are as many as asked for, and not as many as serve."""
    return step.replicas >= seen.current and bool(seen.waits_for)


def _mixed(
    policy: AutoscalingPolicy,
    units: Sequence[Unit],
    measured: Mapping[str, Measured],
    histories: Mapping[str, History],
    now: datetime,
    expansion_percent: int,
) -> Decision:
    """One number for all, then the cheapest mix of it."""
    seen = [measured[unit.key] for unit in units]
    history = histories.get("", History())
    names = {name for one in seen for name in one.whole}
    # what has no place is not counted: it is asked for beside what stands in for it
    placed = Measured(
        current=sum(one.placed for one in seen),
        ready=[metrics for one in seen for metrics in one.ready],
        unready=sum(max(0, one.unready - (one.current - one.placed)) for one in seen),
        whole={name: together(name, [(s.whole[name], s.current) for s in seen if name in s.whole]) for name in names},
        wanted_at=max((one.wanted_at for one in seen if one.wanted_at is not None), default=None),
    )
    load = Load(current=placed.current, ready=placed.ready, unready=placed.unready, whole=placed.whole)
    least, most = sum(unit.least for unit in units), sum(unit.most for unit in units)
    told = recommend(load, units[0].targets, least=least, most=most, tolerance=_tolerance(policy))
    told = _awake(told, placed, most, now)
    if told is None:
        # for a model that serves nowhere one kind that waits is why
        stuck = replace(
            placed,
            current=sum(one.current for one in seen),
            unread=next((one.unread for one in seen if one.unread), ""),
            waits_for=next((one.waits_for for one in seen if one.waits_for), ""),
        )
        stay = [_left_alone(unit, one, stuck, now) for unit, one in zip(units, seen, strict=True)]
        return Decision(outcomes=stay, histories=histories)
    told = advised(told, placed.current, history.learned, now.timestamp())
    step = _step(told, placed, pace_of(policy), history, now, least, most)
    history = _with_lesson(step.history, told, placed, step.replicas, now)
    reason = f"{told.reason}; {step.why_less}" if step.why_less else told.reason
    shares = _shares(units, seen, step.replicas, expansion_percent)
    outcomes = [
        _of_kind(unit, one, share, step, f"{reason}; its part of {step.replicas} in all")
        for unit, one, share in zip(units, seen, shares, strict=True)
    ]
    return Decision(outcomes=outcomes, histories={"": history})


def _shares(units: Sequence[Unit], seen: Sequence[Measured], replicas: int, expansion_percent: int) -> Sequence[int]:
    """The cheapest mix. Of a kind that waits for room no more are asked for; what it lacks stands in the queue, and the other
    kinds stand in for it until it has found a place.
    """
    kinds = [Hardware(least=unit.least, most=unit.most, cost=unit.cost) for unit in units]
    shares = spread(replicas, kinds, expansion_percent=expansion_percent)
    waiting = [number for number, one in enumerate(seen) if one.waits_for]
    others = [number for number, one in enumerate(seen) if not one.waits_for]
    lacking = sum(min(seen[number].waiting, max(0, shares[number] - seen[number].placed)) for number in waiting)
    stood_in = spread(
        sum(shares[number] for number in others) + lacking,
        [kinds[number] for number in others], expansion_percent=expansion_percent,
    )  # fmt: skip
    for number in waiting:
        shares[number] = max(units[number].least, min(shares[number], seen[number].current))
    for number, share in zip(others, stood_in, strict=True):
        shares[number] = share
    return shares


def _of_kind(unit: Unit, seen: Measured, share: int, step: Step, reason: str) -> Outcome:
    waits = bool(seen.waits_for) and share >= seen.current
    if waits:
        reason = f"{reason}; but the last ones wait: {seen.waits_for}"
    unread = "" if waits and not seen.ready else seen.unread
    return Outcome(unit, seen.current, share, share, step.mode, reason, waits=waits, unread=unread)


def _proportioned(
    outcomes: Sequence[Outcome], constraint: RatioConstraint
) -> tuple[Sequence[Outcome], Proportion | None]:
    by_role = {one.unit.role: one for one in outcomes}
    above, below = by_role.get(constraint.numerator_role), by_role.get(constraint.denominator_role)
    if above is None or below is None:
        return outcomes, None
    found = in_proportion(
        above.replicas, below.replicas,
        above=Bounds(least=above.unit.least, most=above.unit.most),
        below=Bounds(least=below.unit.least, most=below.unit.most),
        least=_number(constraint.min_ratio), most=_number(constraint.max_ratio),
    )  # fmt: skip
    wanted = {above.unit.role: found.numerator, below.unit.role: found.denominator}
    return [_with_ratio(one, wanted.get(one.unit.role, one.replicas), constraint) for one in outcomes], found


def _with_ratio(one: Outcome, replicas: int, constraint: RatioConstraint) -> Outcome:
    if replicas == one.replicas:
        return one
    bounds = f"{constraint.numerator_role}:{constraint.denominator_role} must be {constraint.min_ratio} to {constraint.max_ratio}"
    return replace(one, replicas=replicas, reason=f"{one.reason}; {one.replicas} by metrics, but {bounds}")


def _tolerance(policy: AutoscalingPolicy) -> float:
    return policy.spec.tolerance_percent / 100


def _number(value: object) -> float:
    return quantity.to_float(str(value))


def read_histories(policy: AutoscalingPolicy) -> Mapping[str, History]:
    """The windows as they were written down; none if they cannot be read."""
    try:
        written = msgspec.json.decode(policy.metadata.annotations.get(HISTORY, "{}"), type=dict[str, dict[str, object]])
        return {key: _read(one) for key, one in written.items()}
    except (msgspec.DecodeError, TypeError, ValueError, KeyError):
        return {}


def _read(one: Mapping[str, object]) -> History:
    recommended, done, panics, learned = one["r"], one["c"], one["p"], one.get("l", {})
    assert isinstance(recommended, list)
    assert isinstance(done, list)
    return History(
        recommended=line_of(recommended), corrected=line_of(done), panics_until_s=float(str(panics)),
        learned=msgspec.convert(learned, Learned),
    )  # fmt: skip


def write_histories(histories: Mapping[str, History]) -> str:
    """The windows in few words."""
    written = {
        key: {"r": one.recommended.changes, "c": one.corrected.changes, "p": one.panics_until_s}
        | ({"l": one.learned} if one.learned != Learned() else {})
        for key, one in histories.items()
    }
    return msgspec.json.encode(written, order="deterministic").decode()
