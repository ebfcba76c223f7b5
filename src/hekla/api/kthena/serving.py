"""ModelServing of workload.serving.volcano.sh: groups of pods that serve a model together, by roles.

A group is a gang; an instance of a role is an entry pod and its workers. `hekla.serving.model_serving` keeps them.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import DEFAULTED, REQUIRED, Int32, Limits, Rule
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.scalars import IntOrString
from hekla.api.volcano.batch import NetworkTopology
from hekla.api.volcano.topology import StrictCondition

POD_SPEC = Limits(schema_of="io.k8s.api.core.v1.PodSpec")
INT_OR_PERCENT = Limits(is_int_or_string=True)


class RecoveryPolicy(StrEnum):
    """What is made anew when a pod fails."""

    GROUP = "ServingGroupRecreate"
    ROLE = "RoleRecreate"
    NONE = "None"


class RolloutType(StrEnum):
    """What is replaced at a time."""

    GROUP = "ServingGroupRollingUpdate"
    ROLE = "RoleRollingUpdate"


class PluginScope(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which pods a plug-in sees."""

    roles: list[str] = []
    """Names of roles; absent: all."""

    target: str = ""
    """All, Entry or Worker; absent: All."""


class Plugin(Struct, kw_only=True, frozen=True, rename="camel"):
    """Something that changes pods before they are made."""

    name: Annotated[str, REQUIRED] = ""
    """Its name: `demo` or `lws-standard-labels`."""

    type: Annotated[str, Limits(enum=("BuiltIn",)), DEFAULTED, REQUIRED] = "BuiltIn"
    """Where it comes from."""

    config: Document | None = None
    """What it is told."""

    scope: PluginScope | None = None
    """Which pods it sees; absent: all."""


class TemplateMetadata(Struct, kw_only=True, frozen=True, rename="camel"):
    """Labels and annotations of pods."""

    labels: dict[str, str] = {}
    """Labels."""

    annotations: dict[str, str] = {}
    """Annotations."""


class PodTemplate(Struct, kw_only=True, frozen=True, rename="camel"):
    """A pod to be made."""

    metadata: TemplateMetadata | None = None
    """Its labels and annotations."""

    spec: Annotated[Document, POD_SPEC] = {}
    """The pod. A document, because it is copied whole: a typed view would lose fields."""


class Role(Struct, kw_only=True, frozen=True, rename="camel"):
    """One job within a group, such as prefill: so many instances, each an entry pod and its workers."""

    name: Annotated[str, Limits(max_length=12, pattern="^[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"), REQUIRED] = ""
    """Its name, one word of pods' names."""

    replicas: Annotated[Int32 | None, DEFAULTED] = 1
    """How many instances a group has."""

    entry_template: Annotated[PodTemplate, REQUIRED] = field(default_factory=PodTemplate)
    """The pod that answers requests."""

    worker_replicas: Annotated[Int32, REQUIRED] = 0
    """How many workers an instance has besides its entry pod."""

    worker_template: PodTemplate | None = None
    """The workers' pod."""

    max_unavailable: Annotated[IntOrString | None, INT_OR_PERCENT, DEFAULTED] = 1
    """With RoleRollingUpdate: how many instances may be down during an update; a percentage is rounded down."""

    max_surge: Annotated[IntOrString | None, INT_OR_PERCENT, DEFAULTED] = 0
    """With RoleRollingUpdate: how many instances there may be above `replicas`; a percentage is rounded up."""

    partition: Annotated[IntOrString | None, INT_OR_PERCENT] = None
    """With RoleRollingUpdate: how many of the first instances keep the old revision; a percentage is rounded up."""


IMMUTABLE_MINIMUM = Limits(rules=(Rule(rule="self == oldSelf", message="minRoleReplicas is immutable"),))


class GangPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How much of a group must start together."""

    min_role_replicas: Annotated[dict[str, Int32] | None, IMMUTABLE_MINIMUM] = None
    """Instances by role; a role that is not named must start whole."""


class ServingTopology(Struct, kw_only=True, frozen=True, rename="camel"):
    """How close in the network pods must be."""

    group_policy: NetworkTopology | None = None
    """Those of a group."""

    role_policy: NetworkTopology | None = None
    """Those of one instance of a role."""


UNIQUE_ROLES = Limits(
    min_items=1,
    max_items=4,
    rules=(Rule(rule="self.all(x, self.exists_one(y, y.name == x.name))", message="roles name must be unique"),),
)
KEPT_GANG = Limits(
    rules=(Rule(rule="!has(oldSelf.gangPolicy) || has(self.gangPolicy)", message="gangPolicy is required once set"),)
)


class ServingGroup(Struct, kw_only=True, frozen=True, rename="camel"):
    """The smallest thing that serves: all roles of one group."""

    restart_grace_period_seconds: Annotated[int | None, Limits(format="int64"), DEFAULTED] = 0
    """How long to wait after a pod failed before anything is made anew."""

    gang_policy: GangPolicy | None = None
    """How much of a group must start together; absent: all of it."""

    network_topology: ServingTopology | None = None
    """How close the pods must be."""

    roles: Annotated[list[Role], UNIQUE_ROLES, REQUIRED] = []
    """What the group consists of."""


class RollingUpdate(Struct, kw_only=True, frozen=True, rename="camel"):
    """How fast an update goes."""

    max_unavailable: Annotated[IntOrString | None, INT_OR_PERCENT, DEFAULTED] = 1
    """How many groups may be down; a percentage is rounded down."""

    max_surge: Annotated[IntOrString | None, INT_OR_PERCENT, DEFAULTED] = 0
    """How many groups there may be above `replicas`; a percentage is rounded up."""

    partition: Annotated[IntOrString | None, INT_OR_PERCENT] = None
    """How many of the first groups keep the old revision; a percentage is rounded up."""


class RolloutStrategy(Struct, kw_only=True, frozen=True, rename="camel"):
    """How pods are brought to a new revision."""

    type: Annotated[str, Limits(enum=tuple(RolloutType)), DEFAULTED, REQUIRED] = "ServingGroupRollingUpdate"
    """What is replaced at a time: a group, or an instance of a role."""

    rolling_update_configuration: RollingUpdate | None = None
    """How fast; only for groups, roles have their own."""


class ModelServingSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """How many groups, and what each is."""

    replicas: Annotated[Int32 | None, DEFAULTED] = 1
    """How many groups there are."""

    scheduler_name: Annotated[str, DEFAULTED] = "volcano"
    """Who places the pods; groups are gangs where it is `volcano`."""

    plugins: list[Plugin] = []
    """What changes pods before they are made, in order."""

    template: Annotated[ServingGroup, KEPT_GANG, REQUIRED] = field(default_factory=ServingGroup)
    """One group."""

    rollout_strategy: RolloutStrategy | None = None
    """How groups are brought to a new revision."""

    recovery_policy: Annotated[str, Limits(enum=tuple(RecoveryPolicy)), DEFAULTED] = "RoleRecreate"
    """What is made anew when a pod fails."""


class ModelServingStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How the groups fare."""

    observed_generation: Annotated[int, Limits(format="int64")] = 0
    """The generation that was looked at."""

    replicas: Int32 = 0
    """Groups that there are."""

    current_replicas: Int32 = 0
    """Those of the old revision."""

    updated_replicas: Int32 = 0
    """Those of the new revision."""

    available_replicas: Int32 = 0
    """Those that serve."""

    current_revision: str = ""
    """The revision of groups that have not been updated."""

    update_revision: str = ""
    """The revision that the spec asks for."""

    conditions: list[StrictCondition] = []
    """Observations: Available, Progressing, UpdateInProgress."""

    label_selector: str = ""
    """Pods to be counted as replicas: one entry pod of each group."""


@resource(
    "workload.serving.volcano.sh/v1alpha1",
    plural="modelservings",
    has_status=True,
    label_selector_path=".status.labelSelector",
    columns=(
        Column(
            name="Replicas", json_path=".status.replicas", type="integer", description="Total number of serving groups"
        ),
        Column(
            name="Available",
            json_path=".status.availableReplicas",
            type="integer",
            description="Number of serving groups that are ready",
        ),
        Column(
            name="Updated",
            json_path=".status.updatedReplicas",
            type="integer",
            description="Number of serving groups updated to the latest revision",
        ),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class ModelServing(Resource, kw_only=True, frozen=True, rename="camel"):
    """Groups of pods that serve a model."""

    spec: ModelServingSpec = field(default_factory=ModelServingSpec)
    """How many groups, and what each is."""

    status: ModelServingStatus = field(default_factory=ModelServingStatus)
    """How they fare."""
