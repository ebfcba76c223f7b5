"""What an AutoscalingPolicy scales, in one form: units with bounds, targets and sources; and how fast.

homogeneousTarget      one unit: the groups of a ModelServing
heterogeneousTarget    several ModelServings that share one number (`algorithms/mix.py`)
disaggregatedTarget    a unit for each role (`algorithms/ratio.py`)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from hekla.api.kthena import AutoscalingPolicy
from hekla.api.kthena.autoscaling import Metric, MetricSource, PanicPolicy, StablePolicy
from hekla.api.selectors import ObjectReference
from hekla.lib import quantity
from hekla.lib.go_duration import DurationError, parse_duration
from hekla.serving.autoscaler.algorithms.pace import Pace, Panic, Rate
from hekla.serving.autoscaler.algorithms.recommendation import Metrics


class _Place(TypedDict):
    namespace: str
    serving: str


@dataclass(frozen=True, kw_only=True)
class Unit:
    """Something that has replicas."""

    namespace: str
    serving: str
    role: str = ""
    """Empty: whole groups."""
    least: int
    most: int
    cost: int = 0
    targets: Metrics
    sources: Mapping[str, MetricSource]

    @property
    def key(self) -> str:
        """What it is called in statuses and histories."""
        return self.role or self.serving

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to decide."""
        return self.least == self.most and not self.targets


def units_of(policy: AutoscalingPolicy) -> Sequence[Unit]:
    """The units of a policy, in its order; none if it has no target."""
    spec, shared = policy.spec, targets_of(policy.spec.metrics)
    if (one := spec.homogeneous_target) is not None:
        refs = [(one.target, one.min_replicas, one.max_replicas, 0)]
    elif spec.heterogeneous_target is not None:
        refs = [
            (param.target, param.min_replicas, param.max_replicas, param.cost)
            for param in spec.heterogeneous_target.params
        ]
    else:
        return _roles(policy, shared)
    return [
        Unit(
            **_where(policy, target.target_ref), least=least, most=most, cost=cost, targets=shared,
            sources=target.metric_sources,
        )
        for target, least, most, cost in refs
    ]  # fmt: skip


def readable_units_of(policy: AutoscalingPolicy) -> Sequence[Unit]:
    """The same for who looks at many policies; none of one with a number that is none, which is told where that policy is followed."""
    try:
        return units_of(policy)
    except quantity.QuantityError:
        return []


def _roles(policy: AutoscalingPolicy, shared: Metrics) -> Sequence[Unit]:
    target = policy.spec.disaggregated_target
    if target is None:
        return []
    found = []
    for name, role in target.roles.items():
        # a role that is fixed and names no metrics stays as it is, whatever the policy's own metrics say
        targets = targets_of(role.metrics) or ({} if role.min_replicas == role.max_replicas else shared)
        found.append(
            Unit(
                **_where(policy, target.target_ref),
                role=name,
                least=role.min_replicas,
                most=role.max_replicas,
                targets=targets,
                sources=role.metric_sources,
            )
        )
    return found


def _where(policy: AutoscalingPolicy, reference: ObjectReference) -> _Place:
    return {"namespace": reference.namespace or policy.metadata.namespace, "serving": reference.name}


def targets_of(metrics: Sequence[Metric]) -> Metrics:
    """Targets by metric."""
    return {one.name or one.metric_name: quantity.to_float(_text(one.target_value)) for one in metrics}


def _text(value: object) -> str:
    return str(value)


def pace_of(policy: AutoscalingPolicy) -> Pace:
    """How fast replicas may follow; where nothing is said, as Kthena's webhook has it."""
    behavior = policy.spec.behavior
    up = behavior.scale_up if behavior is not None else None
    return Pace(
        up=_rate(up.stable_policy if up is not None else None, instances=4, window_s=0.0),
        down=_rate(behavior.scale_down if behavior is not None else None, instances=0, window_s=300.0),
        panic=_panic(up.panic_policy if up is not None else None),
    )


def _rate(told: StablePolicy | None, *, instances: int, window_s: float) -> Rate:
    if told is None:
        return Rate(instances=instances, percent=100, period_s=60.0, window_s=window_s)
    return Rate(
        instances=instances if told.instances is None else told.instances,
        percent=100 if told.percent is None else told.percent,
        period_s=_seconds(told.period, 15.0),
        takes_both=told.select_policy == "And",
        window_s=_seconds(told.stabilization_window, window_s),
    )


def _panic(told: PanicPolicy | None) -> Panic:
    if told is None:
        return Panic()
    return Panic(
        percent=1000 if told.percent is None else told.percent,
        period_s=_seconds(told.period, 0.0),
        threshold_percent=200 if told.panic_threshold_percent is None else told.panic_threshold_percent,
        hold_s=_seconds(told.panic_mode_hold, 60.0),
    )


def _seconds(text: str | None, default: float) -> float:
    if text is None or text == "":
        return default
    try:
        return max(0.0, parse_duration(text).total_seconds())
    except DurationError:
        return default
