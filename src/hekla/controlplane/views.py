"""Workload kinds as their controllers see them: typed, but with the pod template kept as a document.

A template is copied into pods and compared with what others made of it, so not one field of it may be lost; the typed
classes of `hekla.api` know only the fields they declare. Each view is the same kind under the same name.
"""

from typing import Any, ClassVar

from msgspec import Struct, field

from hekla.api import apps, batch
from hekla.api.meta import Document, Kind, Resource
from hekla.api.selectors import LabelSelector


class ReplicaSetSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a replica set keeps running."""

    min_ready_seconds: int = 0
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: Document = {}


class ReplicaSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """A replica set with its template as a document."""

    kind_info: ClassVar[Kind] = apps.ReplicaSet.kind_info
    spec: ReplicaSetSpec = field(default_factory=ReplicaSetSpec)
    status: apps.ReplicaSetStatus = field(default_factory=apps.ReplicaSetStatus)


class DeploymentSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a deployment keeps running."""

    min_ready_seconds: int = 0
    paused: bool = False
    progress_deadline_seconds: int | None = None
    replicas: int | None = None
    revision_history_limit: int | None = None
    selector: LabelSelector | None = None
    strategy: apps.DeploymentStrategy = field(default_factory=apps.DeploymentStrategy)
    template: Document = {}


class Deployment(Resource, kw_only=True, frozen=True, rename="camel"):
    """A deployment with its template as a document."""

    kind_info: ClassVar[Kind] = apps.Deployment.kind_info
    spec: DeploymentSpec = field(default_factory=DeploymentSpec)
    status: apps.DeploymentStatus = field(default_factory=apps.DeploymentStatus)


class StatefulSetSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a stateful set keeps running."""

    min_ready_seconds: int = 0
    ordinals: apps.StatefulSetOrdinals | None = None
    persistent_volume_claim_retention_policy: apps.StatefulSetPersistentVolumeClaimRetentionPolicy | None = None
    pod_management_policy: str = ""
    replicas: int | None = None
    revision_history_limit: int | None = None
    selector: LabelSelector | None = None
    service_name: str = ""
    template: Document = {}
    update_strategy: apps.StatefulSetUpdateStrategy = field(default_factory=apps.StatefulSetUpdateStrategy)
    volume_claim_templates: list[Document] = []


class StatefulSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """A stateful set with its templates as documents."""

    kind_info: ClassVar[Kind] = apps.StatefulSet.kind_info
    spec: StatefulSetSpec = field(default_factory=StatefulSetSpec)
    status: apps.StatefulSetStatus = field(default_factory=apps.StatefulSetStatus)


class DaemonSetSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a daemon set keeps running."""

    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    selector: LabelSelector | None = None
    template: Document = {}
    update_strategy: apps.DaemonSetUpdateStrategy = field(default_factory=apps.DaemonSetUpdateStrategy)


class DaemonSet(Resource, kw_only=True, frozen=True, rename="camel"):
    """A daemon set with its template as a document."""

    kind_info: ClassVar[Kind] = apps.DaemonSet.kind_info
    spec: DaemonSetSpec = field(default_factory=DaemonSetSpec)
    status: apps.DaemonSetStatus = field(default_factory=apps.DaemonSetStatus)


class ControllerRevision(Resource, kw_only=True, frozen=True, rename="camel"):
    """A remembered template."""

    kind_info: ClassVar[Kind] = apps.ControllerRevision.kind_info
    data: Any = None
    revision: int = 0


class JobSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What runs to the end, how often and how parallel."""

    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    completion_mode: str = ""
    completions: int | None = None
    managed_by: str = ""
    max_failed_indexes: int | None = None
    parallelism: int | None = None
    pod_failure_policy: batch.PodFailurePolicy | None = None
    pod_replacement_policy: str = ""
    selector: LabelSelector | None = None
    success_policy: batch.SuccessPolicy | None = None
    suspend: bool = False
    template: Document = {}
    ttl_seconds_after_finished: int | None = None


class Job(Resource, kw_only=True, frozen=True, rename="camel"):
    """A job with its template as a document."""

    kind_info: ClassVar[Kind] = batch.Job.kind_info
    spec: JobSpec = field(default_factory=JobSpec)
    status: batch.JobStatus = field(default_factory=batch.JobStatus)


class CronJobSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """When to make which job."""

    concurrency_policy: str = ""
    failed_jobs_history_limit: int | None = None
    job_template: Document = {}
    schedule: str = ""
    starting_deadline_seconds: int | None = None
    successful_jobs_history_limit: int | None = None
    suspend: bool = False
    time_zone: str = ""


class CronJob(Resource, kw_only=True, frozen=True, rename="camel"):
    """A cron job with its template as a document."""

    kind_info: ClassVar[Kind] = batch.CronJob.kind_info
    spec: CronJobSpec = field(default_factory=CronJobSpec)
    status: batch.CronJobStatus = field(default_factory=batch.CronJobStatus)
