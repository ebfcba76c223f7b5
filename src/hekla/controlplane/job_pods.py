"""Which pods a Job should have next: how many, for which indexes, and which surplus ones go."""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.controlplane.job_count import FAILURE_COUNT, FINALIZER, JobPodCount, failure_count, is_indexed
from hekla.controlplane.job_failures import backoff_left_s
from hekla.controlplane.job_indexes import INDEX, index_of
from hekla.controlplane.owning import delete_surplus
from hekla.controlplane.pod_state import is_active, is_leaving, surplus_order
from hekla.controlplane.templates import pod_document
from hekla.controlplane.views import Job
from hekla.kube.commands import Command, Create, Patch, RequeueAfter, target_of

MAX_BURST = 500


def release(pod: Pod) -> Command:
    """Let a pod go: it has been counted, or is not to be."""
    rest = [finalizer for finalizer in pod.metadata.finalizers if finalizer != FINALIZER]
    return Patch(target_of(pod), {"metadata": {"finalizers": rest or None}}, is_guarded=True)


def remove(job: Job, pods: Sequence[Pod], reason: str) -> Iterator[Command]:
    """Delete pods without counting them: their finalizers go first."""
    for pod in pods:
        if FINALIZER in pod.metadata.finalizers:
            yield release(pod)
    yield from delete_surplus(job, pods, reason)


def scale(job: Job, pods: Sequence[Pod], counted: JobPodCount, now: datetime) -> Iterator[Command]:
    """Make missing pods and remove surplus ones."""
    active = [pod for pod in pods if is_active(pod)]
    wanted = _wanted(job, counted, len(active))
    surplus = _surplus(job, active, counted, wanted)
    if surplus:
        yield from remove(job, surplus, "more pods than the job needs")
        return
    # Those that are still leaving hold their place if only a failed pod is to be replaced.
    leaving = [pod for pod in pods if is_leaving(pod) and pod.status.phase not in ("Succeeded", "Failed")]
    held = len(leaving) if job.spec.pod_replacement_policy == "Failed" else 0
    missing = wanted - len(active) - held
    if missing <= 0:
        return
    wait_s = 0.0 if job.spec.backoff_limit_per_index is not None else backoff_left_s(pods, now)
    if wait_s > 0:
        yield RequeueAfter(wait_s + 0.1)
        return
    yield from _make(job, pods, active + (leaving if held else []), counted, min(missing, MAX_BURST))


def _wanted(job: Job, counted: JobPodCount, active: int) -> int:
    parallelism = 1 if job.spec.parallelism is None else job.spec.parallelism
    if job.spec.completions is None:
        # A work queue: once one pod has succeeded the others finish and no new one starts.
        return active if counted.all_succeeded else parallelism
    return max(0, min(parallelism, job.spec.completions - counted.all_succeeded - len(counted.failed_indexes)))


def _surplus(job: Job, active: Sequence[Pod], counted: JobPodCount, wanted: int) -> list[Pod]:
    if not is_indexed(job):
        return sorted(active, key=surplus_order)[: max(0, len(active) - wanted)]
    keep: dict[int, Pod] = {}
    gone: list[Pod] = []
    for pod in sorted(active, key=surplus_order, reverse=True):
        index = index_of(pod)
        is_needed = index is not None and index < (job.spec.completions or 0) and index not in counted.completed_indexes
        if is_needed and index is not None and index not in keep:
            keep[index] = pod
        else:
            gone.append(pod)
    last = sorted(keep, reverse=True)[: max(0, len(keep) - wanted)]
    return gone + [keep[index] for index in last]


def _make(job: Job, pods: Sequence[Pod], present: Sequence[Pod], counted: JobPodCount, count: int) -> Iterator[Command]:
    if not is_indexed(job):
        for _ in range(count):
            yield Create(Pod, _pod(job), is_announced=True)
        return
    taken = {index_of(pod) for pod in present} | counted.completed_indexes | counted.failed_indexes
    free = (index for index in range(job.spec.completions or 0) if index not in taken)
    for index, _ in zip(free, range(count), strict=False):
        yield Create(Pod, _indexed_pod(job, index, pods), is_announced=True)


def _pod(job: Job, generate_name: str = "") -> Document:
    pod = pod_document(job, job.spec.template, generate_name=generate_name)
    pod["metadata"]["finalizers"] = [*pod["metadata"].get("finalizers", ()), FINALIZER]
    return pod


def _indexed_pod(job: Job, index: int, pods: Sequence[Pod]) -> Document:
    name = job.metadata.name
    pod = _pod(job, generate_name=f"{name}-{index}-")
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["labels"] = {**metadata.get("labels", {}), INDEX: str(index)}
    metadata["annotations"] = {**metadata.get("annotations", {}), INDEX: str(index)}
    if job.spec.backoff_limit_per_index is not None:
        failures = [failure_count(old) + 1 for old in pods if index_of(old) == index and old.status.phase == "Failed"]
        metadata["annotations"][FAILURE_COUNT] = str(max(failures, default=0))
    spec["hostname"] = f"{name}-{index}"
    field = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    for container in (*spec.get("initContainers", ()), *spec.get("containers", ())):
        env = container.get("env") or []
        if not any(variable["name"] == "JOB_COMPLETION_INDEX" for variable in env):
            container["env"] = [*env, {"name": "JOB_COMPLETION_INDEX", "valueFrom": field}]
    return pod
