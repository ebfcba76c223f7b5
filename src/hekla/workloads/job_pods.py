"""The pods of a job: which are missing, which are too many, and what a new one looks like, to the letter as Volcano's.

`job_plugins/` adds what the kind of training needs.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import msgspec

from hekla.api.core import Pod
from hekla.api.meta import Document
from hekla.api.volcano import Job
from hekla.api.volcano.batch import TaskSpec
from hekla.kube.commands import Create
from hekla.lib.digits import whole_number
from hekla.workloads import keys
from hekla.workloads.job_events import partition_of
from hekla.workloads.job_plugins.plugin import JobPlugin
from hekla.workloads.job_view import JobView, pod_group_name, pod_name

_FROM_ANNOTATIONS = (keys.PREEMPTABLE, keys.COOLDOWN_TIME, keys.REVOCABLE_ZONE)
_FROM_LABELS = (keys.PREEMPTABLE, keys.COOLDOWN_TIME)
ANY = "any"

MOST_PODS = 10_000
"""Pods that one look makes; the next goes on. Two billion replicas may be written, and whoever looks after others must not stand still."""


def missing_pods(view: JobView, plugins: Sequence[JobPlugin]) -> Iterator[Create]:
    """The pods that should be there and are not, except of tasks that wait for others."""
    left = MOST_PODS
    for task in view.job.spec.tasks:
        missing = (index for index in range(task.replicas) if pod_name(view.job, task, index) not in view.by_name)
        indices = list(islice(missing, left))
        if indices and has_what_it_depends_on(view, task):
            left -= len(indices)
            template = msgspec.json.encode(task.template)
            for index in indices:
                yield Create(Pod, new_pod(view, task, index, plugins, template), is_told_of_when_refused=True)


def surplus_pods(view: JobView) -> list[Pod]:
    """Pods beyond what the tasks ask for: the job was scaled down."""
    counts = {pod_name(view.job, task, 0).removesuffix("0"): task.replicas for task in view.job.spec.tasks}
    return [pod for pod in view.pods if not _is_wanted(pod.metadata.name, counts) and not view.is_leaving(pod)]


def _is_wanted(name: str, counts: Mapping[str, int]) -> bool:
    """Whether a pod's name is one of so many of a task; `counts` by what names begin with."""
    stem, dash, text = name.rpartition("-")
    number = whole_number(text)
    return number is not None and text == str(number) and number < counts.get(stem + dash, 0)


def has_what_it_depends_on(view: JobView, task: TaskSpec) -> bool:
    """Whether the tasks that this one waits for are up: all of them, or any."""
    wish = task.depends_on
    if wish is None or not wish.name:
        return True
    up = [_is_up(view, name) for name in wish.name]
    return any(up) if wish.iteration == ANY else all(up)


def what_tasks_wait_for(view: JobView) -> str:
    """A sentence about the tasks that wait for others, and how far these are; empty if none waits."""
    told = []
    for task in view.job.spec.tasks:
        if task.replicas and task.depends_on is not None and not has_what_it_depends_on(view, task):
            missing = [_how_far(view, name) for name in task.depends_on.name if not _is_up(view, name)]
            one = "one of " if task.depends_on.iteration == ANY and len(missing) > 1 else ""
            told.append(f"task {task.name!r} waits for {one}{', '.join(missing)}")
    return "; ".join(told)


def _how_far(view: JobView, name: str) -> str:
    up, needed = _ups(view, name)
    return f"{name!r} ({up} of {needed} pods are ready)"


def _is_up(view: JobView, name: str) -> bool:
    up, needed = _ups(view, name)
    return up >= needed


def _ups(view: JobView, name: str) -> tuple[int, int]:
    """How many pods of a task run and are ready, or have succeeded, and how many must."""
    task = next((one for one in view.job.spec.tasks if one.name == name), None)
    if task is None:
        return 0, 0
    up = sum(1 for pod in view.by_task[name] if not view.is_leaving(pod) and _is_ready(pod))
    return up, task.replicas if task.min_available is None else task.min_available


def _is_ready(pod: Pod) -> bool:
    if pod.status.phase == "Running":
        return all(one.ready for one in pod.status.container_statuses)
    return pod.status.phase == "Succeeded"


def new_pod(view: JobView, task: TaskSpec, index: int, plugins: Sequence[JobPlugin], template: bytes) -> Document:
    """The document of one pod; `template` is the task's, encoded, so that each pod gets a copy of its own."""
    job = view.job
    copy: Document = msgspec.json.decode(template)
    spec, given = copy.get("spec", {}), copy.get("metadata", {})
    if not spec.get("schedulerName") and job.spec.scheduler_name:
        spec["schedulerName"] = job.spec.scheduler_name
    if not spec.get("priorityClassName") and job.spec.priority_class_name:
        spec["priorityClassName"] = job.spec.priority_class_name
    metadata = {
        "name": pod_name(job, task, index),
        "namespace": job.metadata.namespace,
        "ownerReferences": [owner_reference(job)],
        "labels": {**given.get("labels", {}), **_labels(view, task, index)},
        "annotations": {**given.get("annotations", {}), **_annotations(view, task, index)},
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    _mount_volumes(pod, job)
    for plugin in plugins:
        plugin.decorate(pod, job, task, index)
    return pod


def owner_reference(job: Job) -> Document:
    """How objects of a job name their owner."""
    return {
        "apiVersion": job.kind_info.api_version,
        "kind": job.kind_info.kind,
        "name": job.metadata.name,
        "uid": job.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def claim_name(job: Job, position: int) -> str:
    """The claim of a job's volume: the one it names, or the one that is made for it."""
    volume = job.spec.volumes[position]
    # Volcano draws twelve random characters; ours follow from the job, so that no second claim is made by accident.
    drawn = hashlib.sha256(f"{job.metadata.uid}/{position}".encode()).hexdigest()[:12]
    return volume.volume_claim_name or f"{job.metadata.name}-pvc-{drawn}"


def _labels(view: JobView, task: TaskSpec, index: int) -> dict[str, str]:
    job = view.job
    labels = {
        keys.TASK_INDEX: str(index),
        keys.JOB_NAME: job.metadata.name,
        keys.TASK_SPEC: task.name,
        keys.JOB_NAMESPACE: job.metadata.namespace,
        keys.QUEUE_NAME: job.spec.queue,
    }
    labels |= {key: job.metadata.labels[key] for key in _FROM_LABELS if key in job.metadata.labels}
    if task.partition_policy is not None:
        labels[keys.PARTITION_ID] = partition_of(task, pod_name(job, task, index))
    return labels | _forwarding(view)


def _annotations(view: JobView, task: TaskSpec, index: int) -> dict[str, str]:
    job, own = view.job, view.job.metadata.annotations
    annotations = {
        keys.TASK_INDEX: str(index),
        keys.TASK_SPEC: task.name,
        keys.GROUP_NAME: pod_group_name(job),
        keys.JOB_NAME: job.metadata.name,
        keys.QUEUE_NAME: job.spec.queue,
        keys.JOB_VERSION: str(job.status.version),
        keys.TEMPLATE_UID: f"{job.metadata.name}-{task.name}",
        keys.JOB_RETRY_COUNT: str(job.status.retry_count),
    }
    if task.topology_policy:
        annotations[keys.NUMA_POLICY] = task.topology_policy
    annotations |= {key: own[key] for key in _FROM_ANNOTATIONS if key in own}
    budget = next((key for key in (keys.JDB_MIN_AVAILABLE, keys.JDB_MAX_UNAVAILABLE) if key in own), None)
    if budget is not None:
        annotations[budget] = own[budget]
    return annotations | _forwarding(view)


def _forwarding(view: JobView) -> dict[str, str]:
    return {keys.JOB_FORWARDING: "true"} if view.queue is not None and view.queue.spec.extend_clusters else {}


def _mount_volumes(pod: Document, job: Job) -> None:
    mounted: dict[str, str] = {}
    for position, volume in enumerate(job.spec.volumes):
        claim = claim_name(job, position)
        if claim in mounted:
            continue
        mounted[claim] = f"{job.metadata.name}-volume-{position}"
        source = {"name": mounted[claim], "persistentVolumeClaim": {"claimName": claim}}
        pod["spec"].setdefault("volumes", []).append(source)
        for container in pod["spec"].get("containers", ()):
            mount = {"name": mounted[claim], "mountPath": volume.mount_path}
            container.setdefault("volumeMounts", []).append(mount)
