"""What has happened to a job's pods, read from how things are instead of from a stream of changes.

Nothing is missed while the controller is away: a failed pod is still there, a deleted one is missing from the number
that the status says were there. `job_policies.py` says what each event calls for.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hekla.api.core import Pod
from hekla.api.volcano.batch import TaskSpec
from hekla.api.volcano.bus import Event
from hekla.api.volcano.scheduling import PodGroupPhase
from hekla.lib.digits import whole_number
from hekla.workloads import keys
from hekla.workloads.job_view import JobView, pod_name, task_of


@dataclass(frozen=True, kw_only=True)
class Happening:
    """One event: what, to which pod of which task, and how its containers ended."""

    event: Event
    task: str = ""
    pod: str = ""
    partition: str = ""
    exit_codes: tuple[int, ...] = ()
    since: str = ""
    """Since when, where the pod says so (RFC 3339)."""

    @property
    def told(self) -> str:
        """The event in words: `PodFailed of pod train-worker-0`."""
        where = f" of pod {self.pod}" if self.pod else f" of task {self.task}" if self.task else ""
        return f"{self.event}{where}"


def happenings(view: JobView) -> Iterator[Happening]:
    """Everything that a policy may have something to say about, in a fixed order."""
    for task in view.job.spec.tasks:
        pods = [pod for pod in view.by_task[task.name] if view.is_current(pod) and not view.is_killed(pod)]
        yield from (
            _of_pod(Event.POD_FAILED, pod) for pod in pods if pod.status.phase == "Failed" and not _deleted(pod)
        )
        yield from (_of_pod(Event.POD_EVICTED, pod) for pod in pods if _deleted(pod))
        yield from _vanished(view, task)
        yield from _of_task(task, pods)
        yield from (_of_pod(Event.POD_PENDING, pod) for pod in pods if _is_pending(pod))
    if view.group is not None and view.group.status.phase == PodGroupPhase.UNKNOWN:
        yield Happening(event=Event.UNKNOWN)


def _of_task(task: TaskSpec, pods: list[Pod]) -> Iterator[Happening]:
    """Whether a task is completed, or its containers restarted too often."""
    succeeded = [pod for pod in pods if pod.status.phase == "Succeeded"]
    if task.replicas and len(succeeded) == task.replicas:
        yield _of_pod(Event.TASK_COMPLETED, succeeded[-1])
    restarts = {pod.metadata.name: _restarts(pod) for pod in pods if pod.status.phase in ("Running", "Pending")}
    # -1 means unlimited; 0 is a job that no webhook has seen, which gets the webhook's default.
    allowed = task.max_retry or 3
    if allowed > 0 and sum(restarts.values()) >= allowed:
        worst = max(restarts, key=lambda name: restarts[name])
        yield _of_pod(Event.TASK_FAILED, next(pod for pod in pods if pod.metadata.name == worst))


def _vanished(view: JobView, task: TaskSpec) -> Iterator[Happening]:
    """Pods that the status counted and that are gone without having been killed by us."""
    recorded = view.job.status.task_status_count.get(task.name)
    if recorded is None:
        return
    staying = sum(1 for pod in view.by_task[task.name] if not view.is_killed(pod))
    missing = (name for index in range(task.replicas) if (name := pod_name(view.job, task, index)) not in view.by_name)
    gone = sum(recorded.phase.values()) - staying
    for name in islice(missing, max(0, gone)):
        yield Happening(event=Event.POD_EVICTED, task=task.name, pod=name, partition=partition_of(task, name))


def partition_of(task: TaskSpec, pod: str) -> str:
    """The partition of a task that a pod, by its name, belongs to."""
    policy = task.partition_policy
    if policy is None:
        return ""
    return str((whole_number(pod.rpartition("-")[2]) or 0) // max(1, policy.partition_size))


def _of_pod(event: Event, pod: Pod) -> Happening:
    meta = pod.metadata
    since = {
        Event.POD_PENDING: meta.creation_timestamp,
        Event.POD_EVICTED: meta.deletion_timestamp,
        Event.POD_FAILED: max((end for end in _ends(pod)), default=""),
    }
    return Happening(
        event=event,
        task=task_of(pod),
        pod=meta.name,
        partition=meta.labels.get(keys.PARTITION_ID, ""),
        exit_codes=_exit_codes(pod) if event is Event.POD_FAILED else (),
        since=since.get(event) or "",
    )


def _exit_codes(pod: Pod) -> tuple[int, ...]:
    """How the pod's containers ended. Volcano looks at the first container only, which hides a side-car's failure."""
    states = [one.state.terminated for one in pod.status.container_statuses if one.state]
    return tuple(one.exit_code for one in states if one is not None and one.exit_code)


def _ends(pod: Pod) -> Iterator[str]:
    for one in pod.status.container_statuses:
        if one.state and one.state.terminated and one.state.terminated.finished_at:
            yield one.state.terminated.finished_at


def _restarts(pod: Pod) -> int:
    return sum(one.restart_count for one in pod.status.container_statuses + pod.status.init_container_statuses)


def _is_pending(pod: Pod) -> bool:
    # A pod without a phase was created this instant.
    return pod.status.phase in ("", "Pending") and not _deleted(pod)


def _deleted(pod: Pod) -> bool:
    return pod.metadata.deletion_timestamp is not None
