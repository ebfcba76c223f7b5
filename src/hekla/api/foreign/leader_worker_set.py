"""LeaderWorkerSet of SIG Apps: groups of one leader and its workers; `hekla.serving` runs them as a ModelServing with one role.

On a cluster its definition is the project's own; the embedded server serves this one.
"""

from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import CONDITIONS, DEFAULTED, REQUIRED, Int32, Limits, Rule
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.scalars import IntOrString
from hekla.api.volcano.topology import StrictCondition

POD_TEMPLATE = Limits(schema_of="io.k8s.api.core.v1.PodTemplateSpec")
INT_OR_PERCENT = Limits(is_int_or_string=True)


class SubGroupPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How a group's pods are split further."""

    sub_group_policy_type: Annotated[str, Limits(enum=("LeaderWorker", "LeaderExcluded")), DEFAULTED] = "LeaderWorker"
    """Whether the leader is in the first subgroup, or in none."""

    sub_group_size: Annotated[Int32 | None, Limits(minimum=1)] = None
    """How many pods a subgroup has. `size`, or `size` less the leader, must be a multiple of it."""


_HAS_SUBGROUPS = (
    "has(self.subGroupPolicy) && has(self.subGroupPolicy.subGroupSize) && self.subGroupPolicy.subGroupSize > 0"
)
SUBGROUPS_FIT = Limits(
    rules=(
        Rule(
            rule=f"!({_HAS_SUBGROUPS}) || self.size % self.subGroupPolicy.subGroupSize == 0 || "
            "(self.size - 1) % self.subGroupPolicy.subGroupSize == 0",
            message="size or size - 1 must be divisible by subGroupSize",
        ),
        Rule(
            rule=f"!({_HAS_SUBGROUPS}) || self.subGroupPolicy.subGroupSize <= self.size",
            message="subGroupSize cannot be larger than size",
        ),
        Rule(
            rule=f"!({_HAS_SUBGROUPS}) || self.subGroupPolicy.subGroupPolicyType != 'LeaderExcluded' || "
            "(self.size - 1) % self.subGroupPolicy.subGroupSize == 0",
            message="size-1 must be divisible by subGroupSize when using LeaderExcluded",
        ),
        Rule(
            rule="has(self.subGroupPolicy) == has(oldSelf.subGroupPolicy)",
            message="subGroupPolicy can be set when the LeaderWorkerSet is made, and neither added nor removed later",
        ),
        Rule(
            rule="!has(self.subGroupPolicy) || !has(oldSelf.subGroupPolicy) || "
            "(has(self.subGroupPolicy.subGroupSize) == has(oldSelf.subGroupPolicy.subGroupSize) && "
            "(!has(self.subGroupPolicy.subGroupSize) || "
            "self.subGroupPolicy.subGroupSize == oldSelf.subGroupPolicy.subGroupSize))",
            message="subGroupSize is immutable",
        ),
    )
)


class LeaderWorkerTemplate(Struct, kw_only=True, frozen=True, rename="camel"):
    """One group."""

    leader_template: Annotated[Document | None, POD_TEMPLATE] = None
    """The leader's pod; the workers' if absent."""

    worker_template: Annotated[Document, POD_TEMPLATE, REQUIRED] = {}
    """The workers' pod."""

    size: Annotated[Int32 | None, Limits(minimum=1), DEFAULTED] = 1
    """How many pods a group has, with its leader."""

    restart_policy: Annotated[str, Limits(enum=("Default", "RecreateGroupOnPodRestart", "None")), DEFAULTED] = (
        "RecreateGroupOnPodRestart"
    )
    """What is made anew when a pod fails."""

    sub_group_policy: SubGroupPolicy | None = None
    """How pods are split further: labels tell each which subgroup it is in."""


class NetworkConfig(Struct, kw_only=True, frozen=True, rename="camel"):
    """How pods are named in DNS."""

    subdomain_policy: Annotated[str, Limits(enum=("Shared", "UniquePerReplica")), DEFAULTED] = "Shared"
    """One headless service for all groups (`ring-0.ring`, `ring-0-1.ring`), or one for each (`ring-0.ring-0`, `ring-0-1.ring-0`)."""


class LwsRollingUpdate(Struct, kw_only=True, frozen=True, rename="camel"):
    """How fast an update goes."""

    partition: Int32 | None = None
    """How many of the first groups keep the old revision."""

    max_unavailable: Annotated[IntOrString | None, INT_OR_PERCENT, DEFAULTED] = 1
    """How many groups may be down."""

    max_surge: Annotated[IntOrString | None, INT_OR_PERCENT, DEFAULTED] = 0
    """How many groups there may be above `replicas`."""


class LwsRolloutStrategy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How groups are brought to a new revision."""

    type: Annotated[str, Limits(enum=("RollingUpdate",)), DEFAULTED, REQUIRED] = "RollingUpdate"
    """What is done."""

    rolling_update_configuration: LwsRollingUpdate | None = None
    """How fast."""


class LeaderWorkerSetSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """How many groups, and what each is."""

    replicas: Annotated[Int32 | None, Limits(minimum=0, maximum=1_000_000), DEFAULTED] = 1
    """How many groups there are."""

    leader_worker_template: Annotated[LeaderWorkerTemplate, SUBGROUPS_FIT, REQUIRED] = field(
        default_factory=LeaderWorkerTemplate
    )
    """One group."""

    rollout_strategy: LwsRolloutStrategy | None = None
    """How groups are brought to a new revision."""

    startup_policy: Annotated[str, Limits(enum=("LeaderCreated", "LeaderReady")), DEFAULTED] = "LeaderCreated"
    """When workers are made: with their leader, or when it is ready."""

    network_config: NetworkConfig | None = None
    """How pods are named in DNS; absent: one headless service for all groups."""


COUNTABLE = Limits(
    rules=(
        Rule(
            rule="self.replicas * self.leaderWorkerTemplate.size <= 2147483647",
            message="the product of replicas and worker replicas must not exceed 2147483647",
        ),
    )
)


class LeaderWorkerSetStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How the groups fare."""

    conditions: Annotated[list[StrictCondition], CONDITIONS] = []
    """Observations: Available, Progressing, UpdateInProgress."""

    ready_replicas: Int32 = 0
    """Groups that serve."""

    updated_replicas: Int32 = 0
    """Groups of the new revision."""

    replicas: Int32 = 0
    """Groups that there are."""

    hpa_pod_selector: str = ""
    """Pods to be counted as replicas: leaders."""


@resource(
    "leaderworkerset.x-k8s.io/v1",
    plural="leaderworkersets",
    short=("lws",),
    has_status=True,
    label_selector_path=".status.hpaPodSelector",
    columns=(
        Column(name="Ready", json_path=".status.readyReplicas", type="integer"),
        Column(name="Desired", json_path=".spec.replicas", type="integer"),
        Column(name="Up-to-date", json_path=".status.updatedReplicas", type="integer"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class LeaderWorkerSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """Groups of one leader and its workers."""

    spec: Annotated[LeaderWorkerSetSpec, COUNTABLE] = field(default_factory=LeaderWorkerSetSpec)
    """How many groups, and what each is."""

    status: LeaderWorkerSetStatus = field(default_factory=LeaderWorkerSetStatus)
    """How they fare."""
