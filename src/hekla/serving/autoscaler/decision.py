"""What one AutoscalingPolicy comes to: replicas, and why, from what was measured.

    measured by replica  ->  recommended  ->  paced  ->  mixed or kept in proportion  ->  scalings, status, reasons

Zero replicas wake when somebody writes `serving.hekla.dev/wanted-at` on the ModelServing: the router does while it holds
requests. Growth asks the scheduler: new groups wait in its queue as gangs, and while one waits for room no more are asked for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import msgspec

from hekla.api.kthena import AutoscalingPolicy
from hekla.api.kthena.autoscaling import RatioConstraint, ScalingStatus
from hekla.api.meta import Document
from hekla.kube.timestamps import rfc3339
from hekla.lib import quantity
from hekla.serving.autoscaler.algorithms.learning import Learned, advised, after
from hekla.serving.autoscaler.algorithms.mix import Kind, spread
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
    waits_for: str = ""
    """What the scheduler says of groups that do not fit; empty if all have found a place."""
    wanted_at: datetime | None = None
    """When somebody last asked for a model without replicas."""


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


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What is to be done about a policy."""

    outcomes: Sequence[Outcome]
    histories: Mapping[str, History]
    proportion: Proportion | None = None
    missing: str = ""
    """The ModelServing, or role, that is not there."""

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
    gone = [unit.key for unit in units if unit.key not in measured]
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
        why = "it has no replicas, and nobody asks for it" if seen.current == 0 else "no metric could be read"
        return Outcome(unit, seen.current, seen.current, seen.current, "Stable", why, seen.current == 0), history
    told = advised(told, seen.current, history.learned, now.timestamp())
    step = _step(told, seen.current, pace_of(policy), history, now, unit.least, unit.most)
    replicas, reason = _held_for_room(step, told, seen)
    history = _with_lesson(step.history, told, seen, replicas, now)
    return Outcome(unit, seen.current, replicas, replicas, step.mode, reason), history


def _step(
    told: Recommendation, current: int, pace: Pace, history: History, now: datetime, least: int, most: int
) -> Step:
    return corrected(
        told.replicas, current, pace=pace, history=history, now_s=now.timestamp(), least=least, most=most
    )  # fmt: skip


def _with_lesson(history: History, told: Recommendation, seen: Measured, replicas: int, now: datetime) -> History:
    learned = after(
        history.learned, told, seen.current, replicas, now.timestamp(), is_starting=seen.unready > 0
    )  # fmt: skip
    return replace(history, learned=learned)


def _awake(told: Recommendation | None, seen: Measured, most: int, now: datetime) -> Recommendation | None:
    """A model that somebody asks for has a replica, whatever its metrics say."""
    is_wanted = seen.wanted_at is not None and (now - seen.wanted_at).total_seconds() < AWAKE_S
    if not is_wanted or most == 0 or (told is not None and told.replicas > 0):
        return told
    return Recommendation(1, "a request waits for it") if told is not None or seen.current == 0 else None


def _held_for_room(step: Step, told: Recommendation, seen: Measured) -> tuple[int, str]:
    """No more is asked for while what was asked for waits."""
    if step.replicas > seen.current and seen.waits_for:
        return seen.current, f"{step.replicas} are wanted ({told.reason}), but the last ones wait: {seen.waits_for}"
    return step.replicas, f"{told.reason}; {step.why_less}" if step.why_less else told.reason


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
    current, history = sum(one.current for one in seen), histories.get("", History())
    names = {name for one in seen for name in one.whole}
    load = Load(
        current=current,
        ready=[metrics for one in seen for metrics in one.ready],
        unready=sum(one.unready for one in seen),
        whole={name: together(name, [(s.whole[name], s.current) for s in seen if name in s.whole]) for name in names},
    )
    least, most = sum(unit.least for unit in units), sum(unit.most for unit in units)
    told = recommend(load, units[0].targets, least=least, most=most, tolerance=_tolerance(policy))
    together_seen = Measured(
        current=current,
        unready=sum(one.unready for one in seen),
        wanted_at=max((one.wanted_at for one in seen if one.wanted_at is not None), default=None),
        waits_for=next((one.waits_for for one in seen if one.waits_for), "")
        if all(one.waits_for for one in seen)
        else "",
    )
    told = _awake(told, together_seen, most, now)
    if told is None:
        stay = [
            Outcome(unit, s.current, s.current, s.current, "Stable", "no metric could be read", False)
            for unit, s in zip(units, seen, strict=True)
        ]
        return Decision(outcomes=stay, histories=histories)
    told = advised(told, current, history.learned, now.timestamp())
    step = _step(told, current, pace_of(policy), history, now, least, most)
    replicas, reason = _held_for_room(step, told, together_seen)
    history = _with_lesson(step.history, told, together_seen, replicas, now)
    kinds = [Kind(least=unit.least, most=unit.most, cost=unit.cost) for unit in units]
    shares = spread(replicas, kinds, expansion_percent=expansion_percent)
    outcomes = [
        Outcome(unit, one.current, share, share, step.mode, f"{reason}; its part of {replicas} in all")
        for unit, one, share in zip(units, seen, shares, strict=True)
    ]
    return Decision(outcomes=outcomes, histories={"": history})


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
    return float(quantity.parse(str(value)).value)


# ---- what is written down


def status_of(policy: AutoscalingPolicy, decision: Decision, now: datetime) -> Document:
    """The status of the policy."""
    status: Document = {
        "observedGeneration": policy.metadata.generation,
        "conditions": _conditions(policy, decision, now),
    }
    before = {one.name: one for one in _told_before(policy)}
    units = [
        {
            "name": one.unit.key,
            "currentReplicas": one.current,
            "desiredReplicas": one.desired,
            "mode": one.mode,
            **_last_scale(one, before.get(one.unit.key), now),
        }
        for one in decision.outcomes
    ]
    if not units:
        return status
    if policy.spec.homogeneous_target is not None:
        status["homogeneousStatus"] = units[0]
    elif policy.spec.heterogeneous_target is not None:
        status["heterogeneousStatus"] = units
    else:
        status["disaggregatedStatus"] = {"roles": units, **_ratio_status(policy, decision)}
    return status


def _told_before(policy: AutoscalingPolicy) -> Sequence[ScalingStatus]:
    status = policy.status
    roles = status.disaggregated_status.roles if status.disaggregated_status is not None else []
    single = [status.homogeneous_status] if status.homogeneous_status is not None else []
    return [*single, *status.heterogeneous_status, *roles]


def _last_scale(one: Outcome, before: ScalingStatus | None, now: datetime) -> Document:
    last = rfc3339(now) if one.replicas != one.current else (before.last_scale_time if before is not None else None)
    return {"lastScaleTime": last} if last else {}


def _ratio_status(policy: AutoscalingPolicy, decision: Decision) -> Document:
    target = policy.spec.disaggregated_target
    constraint = target.ratio_constraint if target is not None else None
    if constraint is None or decision.proportion is None:
        return {"ratioAdjusted": False}
    status: Document = {"numeratorRole": constraint.numerator_role, "denominatorRole": constraint.denominator_role}
    if decision.proportion.ratio is not None:
        status["currentRatio"] = f"{decision.proportion.ratio:g}"
    return {"ratioStatus": status, "ratioAdjusted": decision.proportion.is_adjusted}


def _conditions(policy: AutoscalingPolicy, decision: Decision, now: datetime) -> list[Document]:
    found = [_target_found(decision), _ready(decision)]
    if decision.proportion is not None:
        violated = decision.proportion.is_violated
        why = "the bounds of the roles make the ratio impossible" if violated else "the ratio holds"
        found.append(("RatioConstraintViolated", violated, "RatioUnreachable" if violated else "RatioHolds", why))
    before = {one.type: one for one in policy.status.conditions}
    told = []
    for kind, holds, reason, message in found:
        status, old = "True" if holds else "False", before.get(kind)
        since = old.last_transition_time if old is not None and old.status == status else rfc3339(now)
        told.append({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
    return told


def _target_found(decision: Decision) -> tuple[str, bool, str, str]:
    if decision.missing:
        return "TargetFound", False, "TargetNotFound", f"{decision.missing} does not exist; create it or name another"
    return "TargetFound", True, "TargetFound", "what is scaled exists"


def _ready(decision: Decision) -> tuple[str, bool, str, str]:
    unread = [one for one in decision.outcomes if not one.is_measured]
    if decision.missing:
        return "Ready", False, "TargetNotFound", "there is nothing to scale"
    if unread:
        return "Ready", False, "MetricsUnavailable", f"{unread[0].unit.key}: {unread[0].reason}"
    reasons = "; ".join(f"{one.unit.key}: {one.replicas}, {one.reason}" for one in decision.outcomes)
    return "Ready", True, "Scaling" if decision.scalings else "Steady", reasons


def is_worth_writing(policy: AutoscalingPolicy, status: Document) -> bool:
    """Whether a status says more than other numbers in its sentences: those change at every look."""
    return _essence(msgspec.to_builtins(policy.status)) != _essence(status)


def _essence(status: Document) -> Document:
    conditions = [(one["type"], one["status"], one.get("reason", "")) for one in status.get("conditions") or ()]
    parts = {
        key: status.get(key) or None for key in ("homogeneousStatus", "heterogeneousStatus", "disaggregatedStatus")
    }
    return {"generation": status.get("observedGeneration"), "conditions": sorted(conditions), **_pruned_document(parts)}


def _pruned_document(value: Document) -> Document:
    return {key: _pruned(item) for key, item in value.items() if item not in (None, "", [], {})}


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        return _pruned_document(value)
    return [_pruned(item) for item in value] if isinstance(value, list) else value


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
