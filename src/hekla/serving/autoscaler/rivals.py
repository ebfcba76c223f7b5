"""Two policies that scale the same ModelServing, or the same role of it: the older one goes on, the younger does nothing and says so.

Both would undo each other's replicas at every look. Kthena lets them.
"""

from collections.abc import Iterable

from hekla.api.kthena import AutoscalingPolicy
from hekla.serving.autoscaler.units import Unit, units_of

_Target = tuple[str, str, str]


def rival_of(policy: AutoscalingPolicy, policies: Iterable[AutoscalingPolicy]) -> str:
    """Why a policy must not do anything: a sentence that names the older policy; empty if there is none."""
    targets = {_target(unit): unit.key for unit in units_of(policy)}
    for other in sorted(policies, key=_age):
        if _age(other) >= _age(policy):
            break
        taken = next((targets[one] for one in map(_target, units_of(other)) if one in targets), "")
        if taken:
            name = other.metadata.name
            place = (
                f" of namespace {other.metadata.namespace}"
                if other.metadata.namespace != policy.metadata.namespace
                else ""
            )
            return (
                f'{taken} is scaled by the older policy "{name}"{place} already, so this one does nothing; '
                "delete one of the two, and put the metrics of both into the other: the largest number of all metrics wins"
            )
    return ""


def _age(policy: AutoscalingPolicy) -> tuple[str, str, str]:
    meta = policy.metadata
    return meta.creation_timestamp or "", meta.namespace, meta.name


def _target(unit: Unit) -> _Target:
    return unit.namespace, unit.serving, unit.role
