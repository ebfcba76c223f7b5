"""Two policies that scale the same ModelServing, or the same role of it: the older one goes on, the younger does nothing and says so.

Both would undo each other's replicas at every look. Kthena lets them. Who does nothing is in nobody's way.
"""

from collections.abc import Iterable, Mapping

from hekla.api.kthena import AutoscalingPolicy
from hekla.serving.autoscaler.units import Unit, readable_units_of

Key = tuple[str, str]
"""A policy's namespace and name."""

_Target = tuple[str, str, str]


def rivals(policies: Iterable[AutoscalingPolicy]) -> Mapping[Key, str]:
    """Why policies must not do anything: for each such one a sentence that names the older policy."""
    scaled, told = dict[_Target, AutoscalingPolicy](), dict[Key, str]()
    for policy in sorted(policies, key=_age):
        units = readable_units_of(policy)
        taken = next((unit for unit in units if _target(unit) in scaled), None)
        if taken is None:
            scaled.update(dict.fromkeys(map(_target, units), policy))
        else:
            told[key_of(policy)] = _told(policy, taken, scaled[_target(taken)])
    return told


def key_of(policy: AutoscalingPolicy) -> Key:
    """How a policy is told apart from others."""
    return policy.metadata.namespace, policy.metadata.name


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
