"""Group flow.volcano.sh: the JobFlow, jobs that wait for one another, made from JobTemplates."""

from enum import StrEnum
from typing import Annotated

from msgspec import Struct, field

from hekla.api.fields import REQUIRED, Count, Duration, Limits, Port, Time
from hekla.api.meta import Column, Resource, resource
from hekla.api.volcano.batch import JobSpec, TaskState


class FlowPhase(StrEnum):
    """Where a JobFlow is in its life."""

    SUCCEED = "Succeed"
    TERMINATING = "Terminating"
    FAILED = "Failed"
    RUNNING = "Running"
    PENDING = "Pending"


TaskName = Annotated[str, Limits(max_length=253)]


class HttpHeader(Struct, kw_only=True, frozen=True, rename="camel"):
    """One header."""

    name: Annotated[str, REQUIRED] = ""
    """Its name."""

    value: Annotated[str, REQUIRED] = ""
    """Its value."""


class HttpGet(Struct, kw_only=True, frozen=True, rename="camel"):
    """A request that must succeed."""

    task_name: TaskName = ""
    """The task to ask."""

    path: str = ""
    """Path of the request."""

    port: Port = 0
    """Port of the request."""

    http_header: HttpHeader | None = None
    """A header to send."""


class TcpSocket(Struct, kw_only=True, frozen=True, rename="camel"):
    """A connection that must open."""

    task_name: TaskName = ""
    """The task to connect to."""

    port: Annotated[Port, REQUIRED] = 0
    """The port to connect to."""


class TaskStatusProbe(Struct, kw_only=True, frozen=True, rename="camel"):
    """A phase that a task must reach."""

    task_name: TaskName = ""
    """The task."""

    phase: Annotated[str, Limits(max_length=63)] = ""
    """The phase."""


class Probe(Struct, kw_only=True, frozen=True, rename="camel"):
    """What must hold of a job before the next may start."""

    http_get_list: list[HttpGet] = []
    """Requests that must succeed."""

    tcp_socket_list: list[TcpSocket] = []
    """Connections that must open."""

    task_status_list: list[TaskStatusProbe] = []
    """Phases that must be reached."""


class FlowDependsOn(Struct, kw_only=True, frozen=True, rename="camel"):
    """What a job of the flow waits for."""

    targets: list[str] = []
    """Names of the flow's jobs that must be completed first."""

    probe: Probe | None = None
    """What must hold beyond that."""


class FlowPatch(Struct, kw_only=True, frozen=True, rename="camel"):
    """Changes to the template."""

    job_spec: JobSpec | None = None
    """Fields that replace the template's."""


class Flow(Struct, kw_only=True, frozen=True, rename="camel"):
    """One job of a flow."""

    name: Annotated[str, Limits(min_length=1), REQUIRED] = ""
    """Name of the JobTemplate that the job is made from."""

    depends_on: FlowDependsOn | None = None
    """What the job waits for."""

    patch: FlowPatch | None = None
    """Changes to the template."""


class JobFlowSpec(Struct, kw_only=True, frozen=True, rename="camel"):
    """The jobs of a flow, and whether they are kept."""

    flows: list[Flow] = []
    """The jobs."""

    job_retain_policy: Annotated[str, Limits(enum=("retain", "delete"))] = ""
    """Whether the jobs of a flow that succeeded are kept or deleted."""


class RunningHistory(Struct, kw_only=True, frozen=True, rename="camel"):
    """One stretch of a job's life."""

    start_timestamp: Time = None
    """When it began."""

    end_timestamp: Time = None
    """When it ended."""

    state: str = ""
    """The job's phase during it."""


class FlowJobStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How one job of the flow fares."""

    name: str = ""
    """The job's name."""

    state: str = ""
    """The job's phase."""

    start_timestamp: Time = None
    """When it began."""

    end_timestamp: Time = None
    """When it ended."""

    restart_count: Count = 0
    """How often it restarted."""

    running_histories: list[RunningHistory] = []
    """The phases it went through."""


class FlowCondition(Struct, kw_only=True, frozen=True, rename="camel"):
    """A short account of one job of the flow."""

    phase: str = ""
    """The job's phase."""

    create_time: Time = None
    """When the job was created."""

    running_duration: Duration | None = None
    """How long it has run."""

    task_status_count: dict[str, TaskState] = {}
    """Its pods by role and phase."""


class FlowState(Struct, kw_only=True, frozen=True, rename="camel"):
    """The phase of a flow."""

    phase: Annotated[str, Limits(enum=tuple(FlowPhase))] = ""
    """Where the flow is in its life."""


class JobFlowStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """How a flow fares."""

    pending_jobs: list[str] = []
    """Jobs that are pending."""

    running_jobs: list[str] = []
    """Jobs that run."""

    failed_jobs: list[str] = []
    """Jobs that failed."""

    completed_jobs: list[str] = []
    """Jobs that completed."""

    terminated_jobs: list[str] = []
    """Jobs that were terminated."""

    un_know_jobs: list[str] = []
    """Jobs in another phase."""

    job_status_list: list[FlowJobStatus] = []
    """How each job fares."""

    conditions: dict[str, FlowCondition] = {}
    """A short account of each job."""

    state: FlowState = field(default_factory=FlowState)
    """The flow's phase."""


@resource(
    "flow.volcano.sh/v1alpha1",
    plural="jobflows",
    short=("jf",),
    has_status=True,
    columns=(
        Column(name="Status", json_path=".status.state.phase"),
        Column(name="Age", json_path=".metadata.creationTimestamp", type="date"),
    ),
)
class JobFlow(Resource, kw_only=True, frozen=True, rename="camel"):
    """Jobs that wait for one another."""

    spec: JobFlowSpec = field(default_factory=JobFlowSpec)
    """The jobs."""

    status: JobFlowStatus = field(default_factory=JobFlowStatus)
    """How they fare."""


class JobTemplateStatus(Struct, kw_only=True, frozen=True, rename="camel"):
    """Where a template is used."""

    job_depends_on_list: list[str] = []
    """Jobs that were made from it."""


@resource("flow.volcano.sh/v1alpha1", plural="jobtemplates", short=("jt",), has_status=True)
class JobTemplate(Resource, kw_only=True, frozen=True, rename="camel"):
    """A Job to be made by flows."""

    spec: JobSpec = field(default_factory=JobSpec)
    """What the jobs run."""

    status: JobTemplateStatus = field(default_factory=JobTemplateStatus)
    """Where it is used."""
