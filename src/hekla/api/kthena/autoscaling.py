"""AutoscalingPolicy of workload.serving.volcano.sh: how many replicas serve, by what metrics, at what pace.

`binding.py` has the older kind that tied policies to targets; `hekla.serving.autoscaler` keeps the replicas.
"""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Duration, Int32, Limits, Quantity, Rule, Time
from hekla.api.meta import Column, Resource, resource
from hekla.api.scalars import wire_names
from hekla.api.selectors import LabelSelector, ObjectReference
from hekla.api.volcano.scheduling import SELECTOR
from hekla.api.volcano.topology import StrictCondition

REFERENCE = Limits(schema_of="io.k8s.api.core.v1.ObjectReference")
Minimum = Annotated[int, Limits(minimum=0, maximum=1_000_000, format="int32")]
Maximum = Annotated[int, Limits(minimum=1, maximum=1_000_000, format="int32")]


class Metric(Struct, kw_only=True, frozen=True, rename="camel"):
    """A number that is held at a target."""

    name: Annotated[str, Limits(min_length=1), REQUIRED] = ""
    """Key of the metric, as sources name it."""

    target_value: Annotated[Quantity, REQUIRED] = 0
    """What one replica should have."""

    metric_name: str = ""
    """The name as Kthena 0.3 wrote it; `name` is made from it. A policy so written has its target in a binding."""


class StablePolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How much may change in how much time."""

    instances: Annotated[int | None, Limits(minimum=0, format="int32"), DEFAULTED] = 1
    """How many replicas may come or go in a period."""

    percent: Annotated[int | None, Limits(minimum=0, maximum=1000, format="int32"), DEFAULTED] = 100
    """How many percent of the replicas."""

    period: Annotated[Duration | None, DEFAULTED] = "15s"
    """The period."""

    select_policy: Annotated[str, Limits(enum=("Or", "And")), DEFAULTED] = "Or"
    """`Or` takes the larger of the two, `And` the smaller."""

    stabilization_window: Duration | None = None
    """How far back recommendations are looked at."""


class PanicPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How much may change when load jumps."""

    percent: Annotated[int | None, Limits(minimum=0, maximum=1000, format="int32"), DEFAULTED] = 1000
    """How many percent of the replicas may come in a period."""

    period: Annotated[Duration, REQUIRED] = ""
    """The period; 0s: never panic."""

    panic_threshold_percent: Annotated[int | None, Limits(minimum=110, maximum=1000, format="int32"), DEFAULTED] = 200
    """At how many percent of the target panic begins."""

    panic_mode_hold: Annotated[Duration | None, DEFAULTED] = "60s"
    """How long panic lasts."""


class ScaleUp(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pace of growing."""

    stable_policy: StablePolicy | None = None
    """In quiet times."""

    panic_policy: PanicPolicy | None = None
    """When load jumps."""


class Behavior(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pace of growing and shrinking."""

    scale_up: ScaleUp | None = None
    """Of growing."""

    scale_down: StablePolicy | None = None
    """Of shrinking."""


class PodSource(Struct, kw_only=True, frozen=True, rename="camel"):
    """A metric of every pod."""

    name: str = ""
    """Its name at the pod; the metric's key if absent."""

    uri: Annotated[str, Limits(pattern="^/"), DEFAULTED] = "/metrics"
    """The path that it is read from."""

    port: Annotated[int, Limits(minimum=1, maximum=65535, format="int32"), DEFAULTED] = 8100
    """The port that it is read from."""

    label_selector: Annotated[LabelSelector | None, SELECTOR] = None
    """Which of the target's pods have it; absent: all."""


class PrometheusAuth(Struct, kw_only=True, frozen=True, rename="camel"):
    """Kept free."""


class PrometheusSource(Struct, kw_only=True, frozen=True, rename=wire_names(server_url="serverURL")):
    """A metric of a Prometheus server."""

    server_url: Annotated[str, Limits(min_length=1, format="uri"), REQUIRED] = ""
    """Where it is, such as http://prometheus.monitoring.svc:9090."""

    query: Annotated[str, Limits(min_length=1), REQUIRED] = ""
    """An instant query that gives one number."""

    auth: PrometheusAuth | None = None
    """How it is asked; nothing so far."""


ONE_SOURCE = Limits(
    rules=(
        Rule(rule="has(self.pod) || has(self.prometheus)", message="one metric source backend config is required"),
        Rule(
            rule="!(has(self.pod) && has(self.prometheus))",
            message="pod and prometheus configs are mutually exclusive",
        ),
    )
)


class MetricSource(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a metric is read."""

    pod: PodSource | None = None
    """At every pod."""

    prometheus: PrometheusSource | None = None
    """At a Prometheus server."""


Sources = dict[str, Annotated[MetricSource, ONE_SOURCE]]


class SubTarget(Struct, kw_only=True, frozen=True, rename="camel"):
    """A part of a target, as Kthena 0.3 wrote it."""

    kind: str = ""
    """Role."""

    name: str = ""
    """Its name."""


class MetricEndpoint(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where pods show metrics, as Kthena 0.3 wrote it."""

    uri: Annotated[str, DEFAULTED] = "/metrics"
    """The path."""

    port: Annotated[Int32, DEFAULTED] = 8100
    """The port."""

    label_selector: Annotated[LabelSelector | None, SELECTOR] = None
    """Which of the target's pods show them; absent: all."""


class Target(Struct, kw_only=True, frozen=True, rename="camel"):
    """What is scaled."""

    target_ref: Annotated[ObjectReference, REFERENCE, REQUIRED] = field(default_factory=ObjectReference)
    """A ModelServing of the same namespace."""

    metric_sources: Sources = {}
    """Where its metrics are read, by their keys."""


class HomogeneousTarget(Struct, kw_only=True, frozen=True, rename="camel"):
    """One ModelServing."""

    target: Target = field(default_factory=Target)
    """Which."""

    min_replicas: Annotated[Minimum, REQUIRED] = 0
    """The fewest replicas."""

    max_replicas: Annotated[Maximum, REQUIRED] = 1
    """The most replicas."""


class HeterogeneousParam(Struct, kw_only=True, frozen=True, rename="camel"):
    """One of several ModelServings that serve the same model on different hardware."""

    target: Target = field(default_factory=Target)
    """Which."""

    cost: Annotated[int, Limits(minimum=0, format="int32")] = 0
    """What a replica costs, in relation to the others."""

    min_replicas: Annotated[Minimum, REQUIRED] = 0
    """The fewest replicas."""

    max_replicas: Annotated[Maximum, REQUIRED] = 1
    """The most replicas."""


class HeterogeneousTarget(Struct, kw_only=True, frozen=True, rename="camel"):
    """Several ModelServings; the cheapest mix is sought."""

    params: Annotated[list[HeterogeneousParam], Limits(min_items=1)] = []
    """The ModelServings."""

    cost_expansion_rate_percent: Annotated[int, Limits(minimum=0, format="int32"), DEFAULTED] = 200
    """How large the next block of a kind is, in percent of the last; blocks are taken by what they cost, so 100 fills the cheapest kind first."""


class RoleScaling(Struct, kw_only=True, frozen=True, rename="camel"):
    """One role's bounds and metrics."""

    min_replicas: Annotated[Minimum, REQUIRED] = 0
    """The fewest instances."""

    max_replicas: Annotated[Maximum, REQUIRED] = 1
    """The most instances; as many as the fewest: the role is fixed."""

    metrics: Annotated[list[Metric], Limits(min_items=1)] = []
    """Its metrics; absent: the policy's."""

    metric_sources: Sources = {}
    """Where they are read, by their keys."""


class RatioConstraint(Struct, kw_only=True, frozen=True, rename="camel"):
    """Bounds of the ratio of two roles."""

    numerator_role: Annotated[str, REQUIRED] = ""
    """The role above the line."""

    denominator_role: Annotated[str, REQUIRED] = ""
    """The role below it."""

    min_ratio: Annotated[Quantity, REQUIRED] = 0
    """The least ratio."""

    max_ratio: Annotated[Quantity, REQUIRED] = 0
    """The greatest ratio."""


TWO_FOR_A_RATIO = Limits(
    rules=(
        Rule(
            rule="!has(self.ratioConstraint) || size(self.roles) >= 2",
            message="roles must contain at least two entries when ratioConstraint is configured",
        ),
    )
)
TWO_DIFFERENT = Limits(
    rules=(
        Rule(
            rule="self.numeratorRole != self.denominatorRole", message="numeratorRole and denominatorRole must differ"
        ),
    )
)


class DisaggregatedTarget(Struct, kw_only=True, frozen=True, rename="camel"):
    """Roles of one ModelServing, each scaled by itself."""

    target_ref: Annotated[ObjectReference, REFERENCE, REQUIRED] = field(default_factory=ObjectReference)
    """The ModelServing."""

    roles: Annotated[dict[str, RoleScaling], Limits(min_properties=1, max_properties=2), REQUIRED] = {}
    """The roles by name."""

    ratio_constraint: Annotated[RatioConstraint | None, TWO_DIFFERENT] = None
    """How many of one there may be for the other."""


class AutoscalingPolicySpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What is scaled, by what, how fast."""

    tolerance_percent: Annotated[int, Limits(minimum=0, maximum=100, format="int32"), DEFAULTED] = 10
    """How far off the target a metric may be before anything is done."""

    metrics: list[Metric] = []
    """What is held at which target."""

    behavior: Behavior | None = None
    """How fast."""

    homogeneous_target: HomogeneousTarget | None = None
    """One ModelServing."""

    heterogeneous_target: HeterogeneousTarget | None = None
    """Several for the same model."""

    disaggregated_target: Annotated[DisaggregatedTarget | None, TWO_FOR_A_RATIO] = None
    """Roles of one."""


class ScalingStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How one thing is scaled."""

    name: str = ""
    """Which, where there are several."""

    current_replicas: Annotated[Int32, REQUIRED] = 0
    """How many there are."""

    desired_replicas: Annotated[Int32, REQUIRED] = 0
    """How many the metrics ask for, before any ratio."""

    mode: str = ""
    """Stable or Panic."""

    last_scale_time: Time = None
    """When it was last changed."""


class RatioStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """The ratio that there is."""

    numerator_role: Annotated[str, REQUIRED] = ""
    """The role above the line."""

    denominator_role: Annotated[str, REQUIRED] = ""
    """The role below it."""

    current_ratio: Quantity | None = None
    """The ratio."""


class DisaggregatedStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How roles are scaled."""

    roles: Annotated[list[ScalingStatus], REQUIRED] = []
    """Each."""

    ratio_status: RatioStatus | None = None
    """Their ratio."""

    ratio_adjusted: bool = False
    """Whether the ratio overruled the metrics."""


class AutoscalingPolicyStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How things are scaled."""

    observed_generation: Annotated[int, Limits(format="int64")] = 0
    """The generation that was looked at."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Ready, TargetFound, RatioConstraintViolated."""

    homogeneous_status: ScalingStatus | None = None
    """Of one ModelServing."""

    disaggregated_status: DisaggregatedStatus | None = None
    """Of roles."""

    heterogeneous_status: list[ScalingStatus] = []
    """Of several ModelServings."""


@resource(
    "workload.serving.volcano.sh/v1alpha1",
    plural="autoscalingpolicies",
    has_status=True,
    columns=(
        Column(
            name="Target",
            json_path=".spec..targetRef.name",
            description="The ModelServing that is scaled; of several, the first",
        ),
        Column(name="Min", json_path=".spec.homogeneousTarget.minReplicas", type="integer", description="At least"),
        Column(name="Max", json_path=".spec.homogeneousTarget.maxReplicas", type="integer", description="At most"),
        Column(
            name="Ready",
            json_path=".status.conditions[?(@.type=='Ready')].status",
            description="Whether anything is scaled by it",
        ),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class AutoscalingPolicy(Resource, kw_only=True, frozen=True, rename="camel"):
    """How many replicas serve."""

    spec: AutoscalingPolicySpec = field(default_factory=AutoscalingPolicySpec)
    """What is scaled, by what, how fast."""

    status: AutoscalingPolicyStatus = field(default_factory=AutoscalingPolicyStatus)
    """How it is scaled."""
