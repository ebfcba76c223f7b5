"""Work that ends: Job, and CronJob which makes jobs."""

from msgspec import Struct, field

from hekla.api.meta import Document, Resource, resource
from hekla.api.selectors import LabelSelector, ObjectReference


class PodFailurePolicyOnExitCodesRequirement(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Exit codes that a rule is about."""

    container_name: str = ""
    operator: str = ""
    values: list[int] = []


class PodFailurePolicyOnPodConditionsPattern(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A pod condition that a rule is about."""

    status: str = ""
    type: str = ""


class PodFailurePolicyRule(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What to do about a failed pod."""

    action: str = ""
    on_exit_codes: PodFailurePolicyOnExitCodesRequirement | None = None
    on_pod_conditions: list[PodFailurePolicyOnPodConditionsPattern] = []


class PodFailurePolicy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Rules for failed pods; the first that fits decides."""

    rules: list[PodFailurePolicyRule] = []


class SuccessPolicyRule(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Which indexes must succeed."""

    succeeded_count: int = 0
    succeeded_indexes: str = ""


class SuccessPolicy(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """When a job counts as succeeded before all of its pods are."""

    rules: list[SuccessPolicyRule] = []


class JobSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What runs to the end, how often and how parallel."""

    active_deadline_seconds: int | None = None
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    completion_mode: str = ""
    completions: int | None = None
    managed_by: str = ""
    manual_selector: bool = False
    max_failed_indexes: int | None = None
    parallelism: int | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    pod_replacement_policy: str = ""
    selector: LabelSelector | None = None
    success_policy: SuccessPolicy | None = None
    suspend: bool = False
    template: Document = {}
    """The pods' template, as it is on the wire: what makes pods of it must not lose a field."""

    ttl_seconds_after_finished: int | None = None


class JobCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a job."""

    last_probe_time: str | None = None
    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class UncountedTerminatedPods(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Pods that ended and are not counted yet."""

    failed: list[str] = []
    succeeded: list[str] = []


class JobStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How far it is."""

    active: int = 0
    completed_indexes: str = ""
    completion_time: str | None = None
    conditions: list[JobCondition] = []
    failed: int = 0
    failed_indexes: str = ""
    ready: int = 0
    start_time: str | None = None
    succeeded: int = 0
    terminating: int = 0
    uncounted_terminated_pods: UncountedTerminatedPods | None = None


@resource("batch/v1", plural="jobs", categories=("all",), has_status=True)
class Job(Resource, kw_only=True, frozen=True, rename="camel"):
    """Pods that run to the end."""

    spec: JobSpec = field(default_factory=JobSpec)
    status: JobStatus = field(default_factory=JobStatus)


class CronJobSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """When to make which job."""

    concurrency_policy: str = ""
    failed_jobs_history_limit: int | None = None
    job_template: Document = {}
    """The job that is made, as it is on the wire."""

    schedule: str = ""
    starting_deadline_seconds: int | None = None
    successful_jobs_history_limit: int | None = None
    suspend: bool = False
    time_zone: str = ""


class CronJobStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What is running and when it last did."""

    active: list[ObjectReference] = []
    last_schedule_time: str | None = None
    last_successful_time: str | None = None


@resource("batch/v1", plural="cronjobs", short=("cj",), categories=("all",), has_status=True)
class CronJob(Resource, kw_only=True, frozen=True, rename="camel"):
    """Jobs by the clock."""

    spec: CronJobSpec = field(default_factory=CronJobSpec)
    status: CronJobStatus = field(default_factory=CronJobStatus)
