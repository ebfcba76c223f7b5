"""Workloads that keep pods running: Deployment, ReplicaSet, StatefulSet, DaemonSet, and the revisions they keep."""

from typing import Any

from msgspec import Struct, field

from hekla.api.meta import Document, Resource, resource
from hekla.api.scalars import IntOrString
from hekla.api.selectors import LabelSelector


class RollingUpdateDeployment(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many pods may be missing or too many during an update."""

    max_surge: IntOrString | None = None
    max_unavailable: IntOrString | None = None


class DeploymentStrategy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Replace pods one by one or all at once."""

    rolling_update: RollingUpdateDeployment | None = None
    type: str = ""


class DeploymentSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What a deployment keeps running."""

    min_ready_seconds: int = 0
    paused: bool = False
    progress_deadline_seconds: int | None = None
    replicas: int | None = None
    revision_history_limit: int | None = None
    selector: LabelSelector | None = None
    strategy: DeploymentStrategy = field(default_factory=DeploymentStrategy)
    template: Document = {}
    """The pods' template, as it is on the wire: what makes pods of it must not lose a field."""


class DeploymentCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a deployment."""

    last_transition_time: str | None = None
    last_update_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class DeploymentStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How far it is."""

    available_replicas: int = 0
    collision_count: int = 0
    conditions: list[DeploymentCondition] = []
    observed_generation: int = 0
    ready_replicas: int = 0
    replicas: int = 0
    terminating_replicas: int = 0
    unavailable_replicas: int = 0
    updated_replicas: int = 0


@resource("apps/v1", plural="deployments", short=("deploy",), categories=("all",), has_status=True)
class Deployment(Resource, kw_only=True, frozen=True, rename="camel"):
    """Replicas of a pod, updated without a gap."""

    spec: DeploymentSpec = field(default_factory=DeploymentSpec)
    status: DeploymentStatus = field(default_factory=DeploymentStatus)


class ReplicaSetSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many pods of which template."""

    min_ready_seconds: int = 0
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: Document = {}
    """The pods' template, as it is on the wire: what makes pods of it must not lose a field."""


class ReplicaSetCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a replica set."""

    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class ReplicaSetStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many there are."""

    available_replicas: int = 0
    conditions: list[ReplicaSetCondition] = []
    fully_labeled_replicas: int = 0
    observed_generation: int = 0
    ready_replicas: int = 0
    replicas: int = 0
    terminating_replicas: int = 0


@resource("apps/v1", plural="replicasets", short=("rs",), categories=("all",), has_status=True)
class ReplicaSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """A number of equal pods."""

    spec: ReplicaSetSpec = field(default_factory=ReplicaSetSpec)
    status: ReplicaSetStatus = field(default_factory=ReplicaSetStatus)


class RollingUpdateStatefulSetStrategy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """From which ordinal on pods are updated."""

    max_unavailable: IntOrString | None = None
    partition: int | None = None


class StatefulSetUpdateStrategy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether pods are replaced by themselves or when deleted."""

    rolling_update: RollingUpdateStatefulSetStrategy | None = None
    type: str = ""


class StatefulSetPersistentVolumeClaimRetentionPolicy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What becomes of claims."""

    when_deleted: str = ""
    when_scaled: str = ""


class StatefulSetOrdinals(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The number of the first pod."""

    start: int = 0


class StatefulSetSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which pods, under which names, with which claims."""

    min_ready_seconds: int = 0
    ordinals: StatefulSetOrdinals | None = None
    persistent_volume_claim_retention_policy: StatefulSetPersistentVolumeClaimRetentionPolicy | None = None
    pod_management_policy: str = ""
    replicas: int | None = None
    revision_history_limit: int | None = None
    selector: LabelSelector | None = None
    service_name: str = ""
    template: Document = {}
    """The pods' template, as it is on the wire: what makes pods of it must not lose a field."""

    update_strategy: StatefulSetUpdateStrategy = field(default_factory=StatefulSetUpdateStrategy)
    volume_claim_templates: list[Document] = []


class StatefulSetCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a stateful set."""

    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class StatefulSetStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How far it is."""

    available_replicas: int = 0
    collision_count: int = 0
    conditions: list[StatefulSetCondition] = []
    current_replicas: int = 0
    current_revision: str = ""
    observed_generation: int = 0
    ready_replicas: int = 0
    replicas: int = 0
    update_revision: str = ""
    updated_replicas: int = 0


@resource("apps/v1", plural="statefulsets", short=("sts",), categories=("all",), has_status=True)
class StatefulSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """Pods with names and storage that stay."""

    spec: StatefulSetSpec = field(default_factory=StatefulSetSpec)
    status: StatefulSetStatus = field(default_factory=StatefulSetStatus)


class RollingUpdateDaemonSet(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How many nodes may be without their pod during an update."""

    max_surge: IntOrString | None = None
    max_unavailable: IntOrString | None = None


class DaemonSetUpdateStrategy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether pods are replaced by themselves or when deleted."""

    rolling_update: RollingUpdateDaemonSet | None = None
    type: str = ""


class DaemonSetSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which pod on each node."""

    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    selector: LabelSelector | None = None
    template: Document = {}
    """The pods' template, as it is on the wire: what makes pods of it must not lose a field."""

    update_strategy: DaemonSetUpdateStrategy = field(default_factory=DaemonSetUpdateStrategy)


class DaemonSetCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a daemon set."""

    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class DaemonSetStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """On how many nodes it runs."""

    collision_count: int = 0
    conditions: list[DaemonSetCondition] = []
    current_number_scheduled: int = 0
    desired_number_scheduled: int = 0
    number_available: int = 0
    number_misscheduled: int = 0
    number_ready: int = 0
    number_unavailable: int = 0
    observed_generation: int = 0
    updated_number_scheduled: int = 0


@resource("apps/v1", plural="daemonsets", short=("ds",), categories=("all",), has_status=True)
class DaemonSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """One pod on each node."""

    spec: DaemonSetSpec = field(default_factory=DaemonSetSpec)
    status: DaemonSetStatus = field(default_factory=DaemonSetStatus)


@resource("apps/v1", plural="controllerrevisions")
class ControllerRevision(Resource, kw_only=True, frozen=True, rename="camel"):
    """A past state of a workload, to go back to."""

    data: Any = None
    revision: int = 0
