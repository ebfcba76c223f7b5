"""Two policies that scale the same ModelServing, or the same role of it: the older one goes on, the younger does nothing and says so.

Both would undo each other's replicas at every look. Kthena lets them. Who does nothing is in nobody's way.
"""

from collections.abc import Iterable

from hekla.api.kthena import AutoscalingPolicy
from hekla.serving.autoscaler.units import Unit, units_of

_Target = tuple[str, str, str]


def rival_of(policy: AutoscalingPolicy, policies: Iterable[AutoscalingPolicy]) -> str:
    """Why a policy must not do anything: a sentence that names the older policy; empty if there is none."""
    scaled = dict[_Target, AutoscalingPolicy]()
    for other in sorted(policies, key=_age):
        if _age(other) >= _age(policy):
            break
        targets = [_target(unit) for unit in units_of(other)]
        if scaled.keys().isdisjoint(targets):
            scaled.update(dict.fromkeys(targets, other))
    taken = next((unit for unit in units_of(policy) if _target(unit) in scaled), None)
    return _told(policy, taken, scaled[_target(taken)]) if taken is not None else ""


def _told(policy: AutoscalingPolicy, taken: Unit, other: AutoscalingPolicy) -> str:
    name, namespace = other.metadata.name, other.metadata.namespace
    place = f" of namespace {namespace}" if namespace != policy.metadata.namespace else ""
    return (
        f'{taken.key} is scaled by the older policy "{name}"{place} already, so this one does nothing; '
        "delete one of the two, and put the metrics of both into the other: the largest number of all metrics wins"
    )


def _age(policy: AutoscalingPolicy) -> tuple[str, str, str]:
    meta = policy.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name


def _target(unit: Unit) -> _Target:
    return unit.namespace, unit.serving, unit.role
