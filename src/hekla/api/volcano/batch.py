"""Group batch.volcano.sh: the Job, a set of task roles that start together, and the CronJob that makes Jobs on time.

How a Job lives is told in `hekla.workloads.job_lifecycle`; what may be written, in `hekla.workloads.admission`.
"""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import (
    DEFAULTED,
    REQUIRED,
    Count,
    DnsLabel,
    DnsSubdomain,
    Duration,
    Int32,
    Limits,
    Time,
)  # fmt: skip
from hekla.api.meta import Column, Document, Resource, resource
from hekla.api.selectors import ObjectReference
from hekla.api.volcano.bus import Event

POD_TEMPLATE = Limits(schema_of="io.k8s.api.core.v1.PodTemplateSpec")
CLAIM = Limits(schema_of="io.k8s.api.core.v1.PersistentVolumeClaimSpec")


class JobPhase(StrEnum):
    """Where a Job is in its life; `hekla.workloads.job_lifecycle` has the transitions."""

    PENDING = "Pending"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"


EventName = Annotated[str, Limits(enum=tuple(Event))]
PhaseName = Annotated[str, Limits(enum=tuple(JobPhase))]


class NetworkTopology(Struct, kw_only=True, frozen=True, rename="camel"):
    """How close in the network pods must be; name the highest tier by number or by name, not both."""

    mode: Annotated[str, Limits(enum=("hard", "soft")), DEFAULTED] = "hard"
    """`hard` waits for a place within the tier, `soft` prefers one."""

    highest_tier_allowed: Annotated[int | None, Limits(minimum=0)] = None
    """The highest tier that the pods may span."""

    highest_tier_name: Annotated[str, Limits(max_length=253)] = ""
    """The same by the tier's name."""


class LifecyclePolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """What to do when something happens to a pod or a task. Names either events or an exit code."""

    action: str = ""
    """What to do: AbortJob, RestartJob, RestartTask, RestartPod, RestartPartition, TerminateJob or CompleteJob."""

    event: EventName = ""
    """The event that calls for the action."""

    events: list[EventName] = []
    """Several events that call for the action."""

    exit_code: Int32 | None = None
    """The container exit code that calls for the action; 0 is not allowed."""

    timeout: Duration | None = None
    """How long to wait before acting; at once if absent."""


class DependsOn(Struct, kw_only=True, frozen=True, rename="camel"):
    """The tasks that must be up before a task's pods are created."""

    name: list[str] = []
    """Names of the tasks waited for."""

    iteration: str = ""
    """`any` waits for one of them, `all` (the default) for every one."""


class PartitionPolicy(Struct, kw_only=True, frozen=True, rename="camel"):
    """Splits a task's pods into equal groups that are placed close together."""

    total_partitions: Annotated[int, Limits(minimum=1, format="int32"), REQUIRED] = 1
    """How many groups there are; times `partitionSize` it must equal the task's replicas."""

    partition_size: Annotated[int, Limits(minimum=1, format="int32"), REQUIRED] = 1
    """How many pods each group has."""

    network_topology: NetworkTopology | None = None
    """How close the pods of one group must be."""

    min_partitions: Annotated[Count, DEFAULTED] = 0
    """How many groups must be placed before the job starts."""


class TaskSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """One role of a Job: so many pods of one template."""

    name: DnsLabel = ""
    """Name of the role; pods are called `<job>-<task>-<index>`. `default<i>` if absent."""

    replicas: Count = 0
    """How many pods the role has."""

    min_available: Count | None = None
    """How many of them must be able to run for the job to start; all of them if absent."""

    template: Annotated[Document, POD_TEMPLATE] = {}
    """The pod to create. A document, because it is copied whole into pods: a typed view would lose fields."""

    policies: list[LifecyclePolicy] = []
    """What to do on events of this role's pods; goes before the job's policies."""

    topology_policy: Annotated[str, Limits(enum=("none", "best-effort", "restricted", "single-numa-node"))] = ""
    """How the pods' CPUs must lie on NUMA nodes."""

    max_retry: Count = 0
    """After how many container restarts the role counts as failed; 3 if absent."""

    depends_on: DependsOn | None = None
    """Roles that must be up first."""

    partition_policy: PartitionPolicy | None = None
    """Groups within the role that are placed close together."""


class VolumeSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """A volume that every container of the job mounts: an existing claim, or one that is made for the job."""

    mount_path: Annotated[str, Limits(min_length=1, pattern="^[^:]+$"), REQUIRED] = ""
    """Where containers see it."""

    volume_claim_name: Annotated[str, Limits(max_length=253)] = ""
    """Name of an existing PersistentVolumeClaim."""

    volume_claim: Annotated[Document | None, CLAIM] = None
    """The claim to create for the job."""


class JobSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a Job runs, how many pods must start together, and what happens when they fail."""

    scheduler_name: Annotated[str, Limits(max_length=63)] = ""
    """Scheduler of pods that name none."""

    min_available: Count = 0
    """How many pods must be able to run for the job to start: its gang. All tasks' minimum together if absent."""

    volumes: list[VolumeSpec] = []
    """Volumes that every container mounts."""

    tasks: Annotated[list[TaskSpec], Limits(min_items=1)] = []
    """The roles of the job."""

    policies: list[LifecyclePolicy] = []
    """What to do on events, for all roles."""

    plugins: dict[str, list[str]] = {}
    """Job plug-ins (env, svc, ssh, pytorch, tensorflow, mpi, ray, hcclrank) with their arguments."""

    running_estimate: Duration | None = None
    """How long the user expects the job to run."""

    queue: Annotated[DnsSubdomain, DEFAULTED] = "default"
    """The queue that the job waits in."""

    max_retry: Annotated[Count, DEFAULTED] = 3
    """How often the job may restart before it counts as failed."""

    ttl_seconds_after_finished: Count | None = None
    """How long a finished job is kept; for ever if absent."""

    priority_class_name: DnsSubdomain = ""
    """Priority of the job and of pods that name none."""

    min_success: Annotated[int | None, Limits(minimum=1, format="int32")] = None
    """With how many succeeded pods the job is complete; if absent, all pods must finish."""

    network_topology: NetworkTopology | None = None
    """How close the job's pods must be."""


class JobState(Struct, kw_only=True, frozen=True, rename="camel"):
    """The phase of a Job, and why and since when."""

    phase: PhaseName = ""
    """Where the job is in its life."""

    reason: str = ""
    """One word in CamelCase that says why."""

    message: str = ""
    """A sentence that says why."""

    last_transition_time: Time = None
    """Since when."""


class TaskState(Struct, kw_only=True, frozen=True, rename="camel"):
    """The pods of one role, counted."""

    phase: dict[str, Int32] = {}
    """Number of pods by pod phase."""


class JobCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    """A phase that the job has been in."""

    status: Annotated[str, REQUIRED] = ""
    """The phase."""

    last_transition_time: Time = None
    """When the job entered it."""


class JobStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What the controller has seen of a Job."""

    state: JobState = field(default_factory=JobState)
    """The job's phase."""

    min_available: Count = 0
    """The gang's size, as the controller acts on it."""

    task_status_count: dict[str, TaskState] = {}
    """Pods of each role by pod phase."""

    pending: Count = 0
    """Pods that are pending."""

    running: Count = 0
    """Pods that are running."""

    succeeded: Count = 0
    """Pods that succeeded."""

    failed: Count = 0
    """Pods that failed."""

    terminating: Count = 0
    """Pods that are being deleted."""

    unknown: Count = 0
    """Pods in an unknown phase."""

    version: Count = 0
    """Counts how often the whole job was killed; pods carry the version they were made at."""

    retry_count: Count = 0
    """How often the job was restarted."""

    running_duration: Duration | None = None
    """How long the job has run."""

    controlled_resources: dict[str, str] = {}
    """What plug-ins and volumes made for the job."""

    conditions: list[JobCondition] = []
    """The phases the job has been in, each with its last time."""


@resource(
    "batch.volcano.sh/v1alpha1",
    plural="jobs",
    short=("vcjob", "vj"),
    has_status=True,
    columns=(
        Column(name="STATUS", json_path=".status.state.phase"),
        Column(name="minAvailable", json_path=".status.minAvailable", type="integer"),
        Column(name="RUNNINGS", json_path=".status.running", type="integer"),
        Column(name="AGE", json_path=".metadata.creationTimestamp", type="date"),
        Column(name="QUEUE", json_path=".spec.queue", priority=1),
    ),
)
class Job(Resource, kw_only=True, frozen=True, rename="camel"):
    """Pods of one or more roles that start together, live by policies, and end as one job."""

    spec: JobSpec = field(default_factory=JobSpec)
    """What to run."""

    status: JobStatus = field(default_factory=JobStatus)
    """What the controller has seen."""


class EmbeddedMeta(Struct, kw_only=True, frozen=True, rename="camel"):
    """Metadata of an object that will be made from a template."""

    name: str = ""
    """Name; ignored where the controller chooses one."""

    namespace: str = ""
    """Namespace; ignored where the controller chooses one."""

    labels: dict[str, str] = {}
    """Labels of the new object."""

    annotations: dict[str, str] = {}
    """Annotations of the new object."""

    finalizers: list[str] = []
    """Finalizers of the new object."""


class JobTemplateSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """The Job that a CronJob creates."""

    metadata: EmbeddedMeta = field(default_factory=EmbeddedMeta)
    """Labels and annotations of the created jobs."""

    spec: JobSpec = field(default_factory=JobSpec)
    """What the created jobs run."""


class CronJobSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """When to create which Job."""

    schedule: Annotated[str, REQUIRED] = ""
    """Five cron fields, or `@every 1h` and its like."""

    time_zone: str | None = None
    """IANA name of the schedule's time zone; the controller's own if absent."""

    starting_deadline_seconds: Annotated[int | None, Limits(minimum=0, format="int64")] = None
    """How late a missed job may still start."""

    concurrency_policy: Annotated[str, Limits(enum=("Allow", "Forbid", "Replace")), DEFAULTED] = "Allow"
    """What happens when the previous job still runs."""

    suspend: Annotated[bool, DEFAULTED] = False
    """Whether to stop creating jobs."""

    job_template: Annotated[JobTemplateSpec, REQUIRED] = field(default_factory=JobTemplateSpec)
    """The job to create."""

    successful_jobs_history_limit: Annotated[Count, DEFAULTED] = 3
    """How many completed jobs are kept."""

    failed_jobs_history_limit: Annotated[Count, DEFAULTED] = 1
    """How many failed jobs are kept."""


class CronJobStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a CronJob has done."""

    active: Annotated[list[Annotated[ObjectReference, Limits(map_type="atomic")]], Limits(list_type="atomic")] = []
    """Jobs that run now."""

    last_schedule_time: Time = None
    """When a job was last due and created."""

    last_successful_time: Time = None
    """When a job last completed."""


@resource("batch.volcano.sh/v1alpha1", plural="cronjobs", short=("cronvcjob", "cronvj"), has_status=True)
class CronJob(Resource, kw_only=True, frozen=True, rename="camel"):
    """Creates Jobs on a schedule."""

    spec: CronJobSpec = field(default_factory=CronJobSpec)
    """When to create which job."""

    status: CronJobStatus = field(default_factory=CronJobStatus)
    """What has been done."""
