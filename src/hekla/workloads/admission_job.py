"""What Volcano refuses in a Job, check by check and word for word.

Checks of one value alone (ranges, patterns, enums) are the schema's. `admission_job_defaults.py` runs before.
"""

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import JobSpec, NetworkTopology, TaskSpec
from hekla.apiserver.admission import AdmissionRequest, Operation, Reader
from hekla.apiserver.fielderrors import shown
from hekla.apiserver.validation.names import dns_subdomain, qualified_name
from hekla.apiserver.webhook_rule import go_list
from hekla.workloads.admission_job_policies import policy_errors
from hekla.workloads.admission_job_template import template_errors
from hekla.workloads.graph import has_cycle
from hekla.workloads.job_plugins.mpi import Mpi
from hekla.workloads.job_plugins.plugin import ArgumentError, with_arguments
from hekla.workloads.job_plugins.registry import PLUGINS

ITERATIONS = ("", "any", "all")
"""How many of the tasks that a task depends on must be ready; empty is `all`."""

QUEUES = "queues.scheduling.volcano.sh"
_BOTH_TIERS = "must not specify 'highestTierAllowed' and 'highestTierName' in networkTopology simultaneously"


def refuse_job(request: AdmissionRequest, reader: Reader) -> str:
    """Why a Job may not be created, or not be changed like this; empty if it may."""
    if request.object is None:
        return ""
    job = _typed(request.object)
    if request.operation is Operation.CREATE:
        return job_errors(job, reader)
    return _wrong_on_update(job, _typed(request.old or {}))


def job_errors(job: Job, reader: Reader) -> str:
    """Everything that is wrong with a new job, its defaults filled in."""
    return "".join(_wrong_on_create(job, reader))


def _typed(document: Document) -> Job:
    return msgspec.convert(document, Job)


def _wrong_on_create(job: Job, reader: Reader) -> Iterator[str]:
    spec = job.spec
    if not spec.tasks:
        yield "No task specified in job spec"
        return
    if "mpi" in spec.plugins and not _has_mpi_master(spec):
        yield "The specified mpi master task was not found"
        return
    yield _wrong_topology(spec.network_topology)
    yield from _wrong_tasks(job)
    if sentences := qualified_name(job.metadata.name):
        yield f"create job with name {job.metadata.name} validate failed {go_list(sentences)}"
    if sum(task.replicas for task in _until_duplicate(spec.tasks)) < spec.min_available:
        yield " job 'minAvailable' should not be greater than total replicas in tasks;"
    yield policy_errors(spec.policies, "spec.policies")
    for name in spec.plugins:
        if name not in PLUGINS:
            yield f" unable to find job plugin: {name};"
    yield _wrong_volumes(spec)
    yield from _wrong_queue(spec.queue, reader)
    yield from _wrong_iterations(spec.tasks)
    depends = {task.name: task.depends_on.name for task in spec.tasks if task.depends_on is not None}
    if has_cycle(depends) or not set().union(*depends.values()) <= {task.name for task in spec.tasks}:
        yield " job has dependencies between tasks, but doesn't form a directed acyclic graph(DAG);"


def _until_duplicate(tasks: list[TaskSpec]) -> list[TaskSpec]:
    """The tasks that Volcano looks at: it stops at the first name that comes twice."""
    names = [task.name for task in tasks]
    repeated = next((index for index, name in enumerate(names) if name in names[:index]), len(names))
    return tasks[: repeated + 1]


def _wrong_tasks(job: Job) -> Iterator[str]:
    seen: set[str] = set()
    for position, task in enumerate(job.spec.tasks):
        if task.min_available is not None and task.min_available > task.replicas:
            yield f" 'minAvailable' is greater than 'replicas' in task: {task.name}, job: {job.metadata.name};"
        if task.name in seen:
            yield f" duplicated task name {task.name};"
            return
        seen.add(task.name)
        yield policy_errors(task.policies, "spec.tasks.policies")
        yield _wrong_pod_name(job, task, position)
        yield template_errors(task, position)
        yield _wrong_partitions(task, job.metadata.name)


def _wrong_iterations(tasks: list[TaskSpec]) -> Iterator[str]:
    for position, task in enumerate(tasks):
        # Volcano takes every word but "any" as "all".
        if task.depends_on is not None and task.depends_on.iteration not in ITERATIONS:
            where, given = f"spec.tasks[{position}].dependsOn.iteration", shown(task.depends_on.iteration)
            yield f' {where}: Unsupported value: {given}: supported values: "any", "all";'


def _wrong_pod_name(job: Job, task: TaskSpec, position: int) -> str:
    # Volcano looks at the task's number; the last pod's name may be longer, and would fail only when it is created.
    for number in (position, max(0, task.replicas - 1)):
        name = f"{job.metadata.name}-{task.name}-{number}"
        if sentences := qualified_name(name):
            return f"create pod with name {name} validate failed {go_list(sentences)};"
    return ""


def _wrong_partitions(task: TaskSpec, job: str) -> str:
    policy = task.partition_policy
    if policy is None:
        return ""
    where = f"in task: {task.name}, job: {job}"
    said = ""
    if policy.total_partitions <= 0:
        said = f"'TotalPartitions' must be greater than 0 {where}"
    elif policy.partition_size <= 0:
        said = f"'PartitionSize' must be greater than 0 {where}"
    elif task.replicas != policy.total_partitions * policy.partition_size:
        said = f"'Replicas' are not equal to TotalPartitions*PartitionSize {where}"
    elif (
        task.min_available is not None
        and policy.min_partitions > 0
        and policy.min_partitions * policy.partition_size != task.min_available
    ):
        said = f"'MinAvailable' is not equal to MinPartitions*PartitionSize {where}"
    return said + _wrong_topology(policy.network_topology)


def _wrong_topology(wish: NetworkTopology | None) -> str:
    both = wish is not None and wish.highest_tier_allowed is not None and wish.highest_tier_name
    return _BOTH_TIERS if both else ""


def _has_mpi_master(spec: JobSpec) -> bool:
    try:
        master = with_arguments(Mpi, spec.plugins["mpi"]).master
    except ArgumentError:
        return True  # the job runs without the plug-in, and an event says why
    return any(task.name == master for task in spec.tasks)


def _wrong_volumes(spec: JobSpec) -> str:
    seen: set[str] = set()
    for volume in spec.volumes:
        if not volume.mount_path:
            return " mountPath is required;"
        if volume.mount_path in seen:
            return f" duplicated mountPath: {volume.mount_path};"
        if volume.volume_claim is None and not volume.volume_claim_name:
            return " either VolumeClaim or VolumeClaimName must be specified;"
        if volume.volume_claim_name and volume.volume_claim is not None:
            return (
                "conflict: If you want to use an existing PVC, just specify VolumeClaimName."
                "If you want to create a new PVC, you do not need to specify VolumeClaimName"
            )
        if volume.volume_claim_name and (sentences := dns_subdomain(volume.volume_claim_name)):
            return f"invalid VolumeClaimName {volume.volume_claim_name} : {go_list(sentences)}"
        seen.add(volume.mount_path)
    return ""


def _wrong_queue(name: str, reader: Reader) -> Iterator[str]:
    queue = reader.get(QUEUES, "", name)
    if queue is None:
        yield f' unable to find job queue: queue.scheduling.volcano.sh "{name}" not found;'
        return
    # A queue that its controller has not seen yet says nothing, and is as good as open; Volcano refuses it.
    state = queue.get("status", {}).get("state", "")
    if state not in ("", "Open"):
        yield f" can only submit job to queue with state `Open`, queue `{name}` status is `{state}`;"
    if name == "root":
        yield " can not submit job to root queue;"
        return
    children = sum(1 for one in reader.list(QUEUES) if one.get("spec", {}).get("parent") == name)
    if children:
        yield f" can only submit job to leaf queue, queue `{name}` has {children} child queues;"


def _wrong_on_update(new: Job, old: Job) -> str:
    for task in new.spec.tasks:
        if task.min_available is not None and task.min_available > task.replicas:
            return f"'minAvailable' must be <= 'replicas' in task: {task.name}"
        if said := _wrong_partitions(task, new.metadata.name):
            return said
    if new.spec.min_available > sum(task.replicas for task in new.spec.tasks):
        return "job 'minAvailable' must not be greater than total replicas"
    if said := _wrong_topology(new.spec.network_topology):
        return said
    if len(new.spec.tasks) != len(old.spec.tasks):
        return "job updates may not add or remove tasks"
    if _fixed(new.spec) != _fixed(old.spec):
        return (
            "job updates may not change fields other than `minAvailable`, `tasks[*].replicas under spec` "
            "and `PriorityClassName`"
        )
    return ""


def _fixed(spec: JobSpec) -> JobSpec:
    """The part of a job that never changes once it exists."""
    return replace(
        spec,
        min_available=0,
        priority_class_name="",
        tasks=[replace(task, replicas=0, min_available=None) for task in spec.tasks],
        # The controller writes the names of the claims that it made.
        volumes=[replace(one, volume_claim_name="") if one.volume_claim is not None else one for one in spec.volumes],
    )
