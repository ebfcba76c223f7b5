"""AutoscalingPolicyBinding of Kthena 0.3: what ties a policy to its target; since 1.0 the policy names the target itself.

Bindings are accepted and converted (`hekla.serving.binding_conversion`); `autoscaling.py` has the kind of today.
"""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Limits, Rule
from hekla.api.kthena.autoscaling import REFERENCE, Maximum, MetricEndpoint, Minimum, SubTarget
from hekla.api.meta import Resource, resource
from hekla.api.selectors import LocalObjectReference, ObjectReference
from hekla.api.volcano.topology import StrictCondition

LOCAL_REFERENCE = Limits(schema_of="io.k8s.api.core.v1.LocalObjectReference", map_type="atomic")


class BoundTarget(Struct, kw_only=True, frozen=True, rename="camel"):
    """What is scaled."""

    target_ref: Annotated[ObjectReference, REFERENCE, REQUIRED] = field(default_factory=ObjectReference)
    """A ModelServing of the same namespace."""

    sub_targets: SubTarget | None = None
    """One role of it; absent: whole groups."""

    metric_endpoint: MetricEndpoint = field(default_factory=MetricEndpoint)
    """Where its pods show metrics."""


class BoundHomogeneous(Struct, kw_only=True, frozen=True, rename="camel"):
    """One ModelServing."""

    target: BoundTarget = field(default_factory=BoundTarget)
    """Which."""

    min_replicas: Annotated[Minimum, REQUIRED] = 0
    """The fewest replicas."""

    max_replicas: Annotated[Maximum, REQUIRED] = 1
    """The most replicas."""


class BoundParam(Struct, kw_only=True, frozen=True, rename="camel"):
    """One of several ModelServings."""

    target: BoundTarget = field(default_factory=BoundTarget)
    """Which."""

    cost: Annotated[int, Limits(minimum=0, format="int32")] = 0
    """What a replica costs, in relation to the others."""

    min_replicas: Annotated[Minimum, REQUIRED] = 0
    """The fewest replicas."""

    max_replicas: Annotated[Maximum, REQUIRED] = 1
    """The most replicas."""


class BoundHeterogeneous(Struct, kw_only=True, frozen=True, rename="camel"):
    """Several ModelServings for the same model."""

    params: Annotated[list[BoundParam], Limits(min_items=1)] = []
    """The ModelServings."""

    cost_expansion_rate_percent: Annotated[int, Limits(minimum=0, format="int32"), DEFAULTED] = 200
    """How many percent of the least cost may be spent."""


ONE_TARGET = Limits(
    rules=(
        Rule(
            rule="has(self.heterogeneousTarget) != has(self.homogeneousTarget)",
            message="Either heterogeneousTarget or homogeneousTarget must be set, but not both.",
        ),
    )
)


class AutoscalingPolicyBindingSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A policy and what it scales."""

    policy_ref: Annotated[LocalObjectReference, LOCAL_REFERENCE, REQUIRED] = field(default_factory=LocalObjectReference)
    """The AutoscalingPolicy."""

    heterogeneous_target: BoundHeterogeneous | None = None
    """Several ModelServings for the same model."""

    homogeneous_target: BoundHomogeneous | None = None
    """One ModelServing."""


class AutoscalingPolicyBindingStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What became of a binding."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Converted."""


@resource("workload.serving.volcano.sh/v1alpha1", plural="autoscalingpolicybindings", has_status=True)
class AutoscalingPolicyBinding(Resource, kw_only=True, frozen=True, rename="camel"):
    """What ties a policy to its target, as Kthena 0.3 wrote it."""

    spec: Annotated[AutoscalingPolicyBindingSpec, ONE_TARGET] = field(default_factory=AutoscalingPolicyBindingSpec)
    """The policy and its target."""

    status: AutoscalingPolicyBindingStatus = field(default_factory=AutoscalingPolicyBindingStatus)
    """What became of it."""
