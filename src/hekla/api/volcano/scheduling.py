"""Group scheduling.volcano.sh: the PodGroup, a gang as the scheduler sees it, and the Queue that it waits in.

The scheduler writes a PodGroup's status; `hekla.workloads.queue` keeps a Queue's state.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import DEFAULTED, Count, DnsSubdomain, Int32, Limits, ResourceList, Time
from hekla.api.meta import Column, Resource, Scope, resource
from hekla.api.selectors import LabelSelector
from hekla.api.volcano.batch import NetworkTopology

SELECTOR = Limits(schema_of="io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector", map_type="atomic")


class PodGroupPhase(StrEnum):
    """Where a gang is: waiting, admitted to be placed, running, partly lost, done."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


class SubGroupPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """Pods within a gang that must be placed together."""

    name: Annotated[str, Limits(max_length=253)] = ""
    """Name of the policy."""

    network_topology: NetworkTopology | None = None
    """How close the pods of one sub-group must be."""

    sub_group_size: Annotated[int | None, Limits(minimum=1, format="int32"), DEFAULTED] = 1
    """How many pods a sub-group needs."""

    label_selector: Annotated[LabelSelector | None, SELECTOR] = None
    """The pods that the policy is about."""

    match_label_keys: Annotated[list[str], Limits(list_type="atomic")] = []
    """Labels whose values tell the sub-groups apart; a policy without them matches no pod."""

    min_sub_groups: Annotated[Count | None, DEFAULTED] = 0
    """How many sub-groups must be placed before the gang starts."""


class PodGroupSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """How many pods must start together, where they queue, and how close they must be."""

    min_member: Count = 0
    """How many pods must be able to run for any to start."""

    min_task_member: dict[str, Int32] = {}
    """The same by role; a pod's role is its annotation volcano.sh/task-spec."""

    queue: Annotated[DnsSubdomain, DEFAULTED] = "default"
    """The queue that the gang waits in."""

    priority_class_name: Annotated[str, Limits(max_length=253)] = ""
    """Priority of the gang."""

    min_resources: ResourceList | None = None
    """What the queue must have left before the gang is admitted; nothing if absent."""

    network_topology: NetworkTopology | None = None
    """How close the pods must be."""

    sub_group_policy: list[SubGroupPolicy] = []
    """Groups within the gang that are placed close together."""


class PodGroupCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    """What the scheduler last found about a gang."""

    type: str = ""
    """Unschedulable or Scheduled."""

    status: str = ""
    """True, False or Unknown."""

    transition_id: Annotated[str, Limits()] = field(name="transitionID", default="")
    """The scheduling session that found it."""

    last_transition_time: Time = None
    """When it was found."""

    reason: str = ""
    """One word in CamelCase that says why."""

    message: str = ""
    """A sentence that says why."""


class PodGroupStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How a gang fares."""

    phase: Annotated[str, Limits(enum=("Pending", "Running", "Unknown", "Inqueue", "Completed"))] = ""
    """Where the gang is in its life."""

    conditions: list[PodGroupCondition] = []
    """What the scheduler last found."""

    running: Count = 0
    """Pods that run."""

    succeeded: Count = 0
    """Pods that succeeded."""

    failed: Count = 0
    """Pods that failed."""


@resource(
    "scheduling.volcano.sh/v1beta1",
    plural="podgroups",
    short=("pg", "podgroup-v1beta1"),
    columns=(
        Column(name="STATUS", json_path=".status.phase"),
        Column(name="minMember", json_path=".spec.minMember", type="integer"),
        Column(name="RUNNINGS", json_path=".status.running", type="integer"),
        Column(name="AGE", json_path=".metadata.creationTimestamp", type="date"),
        Column(name="QUEUE", json_path=".spec.queue", priority=1),
    ),
)
class PodGroup(Resource, kw_only=True, frozen=True, rename="camel"):
    """Pods that are placed together or not at all. Its status is part of the object, not a subresource."""

    spec: PodGroupSpec = field(default_factory=PodGroupSpec)
    """What the gang needs."""

    status: PodGroupStatus = field(default_factory=PodGroupStatus)
    """How it fares."""


class QueueState(StrEnum):
    """Whether a queue takes work."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


class NodeGroupRule(Struct, kw_only=True, frozen=True, rename="camel"):
    """Node groups (label volcano.sh/nodegroup-name) that a queue must or should use, or keep off."""

    required_during_scheduling_ignored_during_execution: list[str] = []
    """Groups that bind."""

    preferred_during_scheduling_ignored_during_execution: list[str] = []
    """Groups that are a wish."""


class QueueAffinity(Struct, kw_only=True, frozen=True, rename="camel"):
    """Which node groups a queue uses."""

    node_group_affinity: NodeGroupRule | None = None
    """Groups to use."""

    node_group_anti_affinity: NodeGroupRule | None = None
    """Groups to keep off."""


class Guarantee(Struct, kw_only=True, frozen=True, rename="camel"):
    """What is kept for a queue even while it is idle."""

    resource: ResourceList = {}
    """The amounts kept."""


class ExtendCluster(Struct, kw_only=True, frozen=True, rename="camel"):
    """Another cluster that a queue may forward jobs to."""

    name: str = ""
    """Name of the cluster."""

    weight: Int32 = 0
    """Its share of forwarded jobs."""

    capacity: ResourceList = {}
    """What it can take."""


class QueueSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A queue's share of the cluster, its limits and its place in the tree."""

    weight: Annotated[int, Limits(minimum=1, maximum=65535, format="int32"), DEFAULTED] = 1
    """Share relative to other queues."""

    capability: ResourceList = {}
    """The most the queue may use."""

    reclaimable: bool | None = None
    """Whether other queues may take back what this one borrowed; true if absent."""

    extend_clusters: list[ExtendCluster] = []
    """Other clusters that jobs may be forwarded to."""

    guarantee: Guarantee = field(default_factory=Guarantee)
    """What is kept for the queue and never lent."""

    affinity: QueueAffinity | None = None
    """Node groups that the queue uses."""

    type: Annotated[str, Limits(max_length=253)] = ""
    """Free text."""

    parent: DnsSubdomain = ""
    """The queue above; `root` if absent."""

    deserved: ResourceList = {}
    """The queue's own share: others may borrow it and must give it back."""

    priority: Count = 0
    """Higher goes first, and loses last."""

    dequeue_strategy: Annotated[str, Limits(enum=("fifo", "traverse")), DEFAULTED] = "traverse"
    """`fifo` waits for the first job, `traverse` lets later jobs pass one that does not fit."""


class Reservation(Struct, kw_only=True, frozen=True, rename="camel"):
    """Nodes that were locked for a queue; kept for old objects."""

    nodes: list[str] = []
    """Names of the nodes."""

    resource: ResourceList = {}
    """What they have."""


class QueueStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """Whether a queue is open, and what is in it."""

    state: Annotated[str, Limits(enum=tuple(QueueState))] = ""
    """Whether the queue takes work."""

    unknown: Count = 0
    """Pod groups in phase Unknown."""

    pending: Count = 0
    """Pod groups in phase Pending."""

    running: Count = 0
    """Pod groups in phase Running."""

    inqueue: Count = 0
    """Pod groups in phase Inqueue."""

    completed: Count = 0
    """Pod groups in phase Completed."""

    reservation: Reservation = field(default_factory=Reservation)
    """Nodes locked for the queue."""

    allocated: ResourceList = {}
    """What the queue's pods hold; the scheduler writes it."""


@resource(
    "scheduling.volcano.sh/v1beta1",
    plural="queues",
    scope=Scope.CLUSTER,
    short=("q", "queue-v1beta1"),
    has_status=True,
    columns=(Column(name="PARENT", json_path=".spec.parent"),),
)
class Queue(Resource, kw_only=True, frozen=True, rename="camel"):
    """A line that gangs wait in, with a share of the cluster; queues form a tree below `root`."""

    spec: QueueSpec = field(default_factory=QueueSpec)
    """The queue's share and limits."""

    status: QueueStatus = field(default_factory=QueueStatus)
    """Whether it is open, and what is in it."""
