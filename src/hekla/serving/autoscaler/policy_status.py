"""What a policy's status says of a decision (`decision.py`): counts by unit, and conditions that say why.

TargetFound               the ModelServing, or role, is there
Ready                     true: Scaling, Steady, WaitsForRoom where more are wanted than have a place, SomeMetricsUnavailable;
                          false: TargetNotFound, TargetTaken by an older policy, MetricsUnavailable, ScalingFailed
RatioConstraintViolated   where roles are kept in proportion
"""

import re
from collections.abc import Sequence
from datetime import datetime

import msgspec

from hekla.api.kthena import AutoscalingPolicy
from hekla.api.kthena.autoscaling import ScalingStatus
from hekla.api.meta import Document
from hekla.kube.timestamps import rfc3339
from hekla.serving.autoscaler.decision import Decision, Outcome

WAITS = "WaitsForRoom"
_WAITS_FOR = re.compile(r"waits?(?: for room)?: (.*)", re.DOTALL)
"""Where `decision.py` says what is waited for."""


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
    if decision.rival:
        return "Ready", False, "TargetTaken", decision.rival
    if unread:
        return "Ready", False, "MetricsUnavailable", f"{unread[0].unit.key}: {unread[0].reason}"
    if refused := [f"{one.unit.key} stays at {one.current}: {one.refused}" for one in decision.outcomes if one.refused]:
        return "Ready", False, "ScalingFailed", "; ".join(refused)
    reasons = [f"{one.unit.key}: {one.replicas}, {one.reason}" for one in decision.outcomes]
    dumb = [f"{one.unit.key} goes without a metric: {one.unread}" for one in decision.outcomes if one.unread]
    reason = "SomeMetricsUnavailable" if dumb else "Steady"
    if any(one.waits for one in decision.outcomes):
        reason = WAITS
    return "Ready", True, "Scaling" if decision.scalings else reason, "; ".join([*reasons, *dumb])


def is_worth_writing(policy: AutoscalingPolicy, status: Document) -> bool:
    """Whether a status says more than other numbers in its sentences: those change at every look. What is wrong has none, nor
    has what is waited for.
    """
    return _essence(msgspec.to_builtins(policy.status)) != _essence(status)


def _essence(status: Document) -> Document:
    conditions = [
        (one["type"], one["status"], one.get("reason", ""), _lasting(one)) for one in status.get("conditions") or ()
    ]
    parts = {
        key: status.get(key) or None for key in ("homogeneousStatus", "heterogeneousStatus", "disaggregatedStatus")
    }
    return {"generation": status.get("observedGeneration"), "conditions": sorted(conditions), **_pruned_document(parts)}


def _lasting(condition: Document) -> str:
    """What a condition says for as long as nothing has happened."""
    message: str = condition.get("message", "")
    if condition["status"] == "False":
        return message
    waits = _WAITS_FOR.search(message) if condition.get("reason") == WAITS else None
    return waits[1] if waits is not None else ""


def _pruned_document(value: Document) -> Document:
    return {key: _pruned(item) for key, item in value.items() if item not in (None, "", [], {})}


def _pruned(value: object) -> object:
    if isinstance(value, dict):
        return _pruned_document(value)
    return [_pruned(item) for item in value] if isinstance(value, list) else value
