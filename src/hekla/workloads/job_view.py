"""One job and everything that belongs to it, as the caches show it: what the rest of the job reconciler decides on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from hekla.api.core import Pod
from hekla.api.meta import Resource
from hekla.api.volcano import Job, PodGroup, Queue
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.api.volcano.batch import TaskSpec
from hekla.api.volcano.bus import Command as Order
from hekla.api.volcano.scheduling import PodGroupPhase
from hekla.kube.reconcile import World
from hekla.lib.digits import whole_number
from hekla.workloads import keys

Moment = tuple[int, int]
"""A job's version and retry count: it grows with every kill, so a pod's death can be told to belong to one."""


def pod_name(job: Job, task: TaskSpec, index: int) -> str:
    """The name of a task's pod."""
    return f"{job.metadata.name}-{task.name}-{index}"


def pod_group_name(job: Job) -> str:
    """The name of the job's PodGroup; the uid keeps apart jobs that had the same name one after the other."""
    return f"{job.metadata.name}-{job.metadata.uid}"


@dataclass(frozen=True)
class JobView:
    """A job, its pods, its gang, its orders, at one moment."""

    job: Job
    pods: Sequence[Pod]
    group: PodGroup | None
    queue: Queue | None
    orders: Sequence[Order]
    world: World
    now: datetime

    @property
    def phase(self) -> Phase:
        """Where the job is in its life; a new job is Pending."""
        return Phase(self.job.status.state.phase or Phase.PENDING)

    @property
    def moment(self) -> Moment:
        """Which of its lives the job is in."""
        return self.job.status.version, self.job.status.retry_count

    @property
    def replicas(self) -> int:
        """Pods that the job is to have."""
        return sum(task.replicas for task in self.job.spec.tasks)

    @property
    def may_create_pods(self) -> bool:
        """Whether the scheduler has let the gang into its queue; before that, pods would only be in the way."""
        phase = self.group.status.phase if self.group is not None and self.has_current_group else ""
        return phase not in ("", PodGroupPhase.PENDING)

    @property
    def has_current_group(self) -> bool:
        """Whether the gang is that of the job's present version, and not one that a kill has still to take away."""
        if self.group is None or self.group.metadata.deletion_timestamp is not None:
            return False
        present = str(self.job.status.version)
        return self.group.metadata.annotations.get(keys.JOB_VERSION, present) == present

    @cached_property
    def by_task(self) -> dict[str, list[Pod]]:
        """Pods of each task, in order of name."""
        found: dict[str, list[Pod]] = {task.name: [] for task in self.job.spec.tasks}
        for pod in self.pods:
            found.setdefault(task_of(pod), []).append(pod)
        return found

    @cached_property
    def by_name(self) -> dict[str, Pod]:
        """Every pod of the job by its name."""
        return {pod.metadata.name: pod for pod in self.pods}

    def owns(self, obj: Resource) -> bool:
        """Whether an object is controlled by this job."""
        return any(owner.controller and owner.uid == self.job.metadata.uid for owner in obj.metadata.owner_references)

    def is_killed(self, pod: Pod) -> bool:
        """Whether the pod's death is decided: it was marked, and the decision it was marked for is written down."""
        marked = killed_at(pod)
        return marked is not None and marked <= self.moment

    def is_leaving(self, pod: Pod) -> bool:
        """Whether the pod is on its way out, whoever asked for it."""
        return pod.metadata.deletion_timestamp is not None or self.is_killed(pod)

    def is_current(self, pod: Pod) -> bool:
        """Whether the pod was made for the job's present version; what becomes of older ones calls for nothing."""
        return pod.metadata.annotations.get(keys.JOB_VERSION, "") == str(self.job.status.version)


def view_of(job: Job, world: World, now: datetime) -> JobView:
    """Gather what belongs to a job."""
    meta = job.metadata
    name = pod_group_name(job)
    # Volcano before 1.5 named the group like the job.
    group = world.get(PodGroup, meta.namespace, name) or _own(world.get(PodGroup, meta.namespace, meta.name), meta.uid)
    orders = [order for order in world.list(Order, meta.namespace) if is_for(order, job)]
    return JobView(
        job=job,
        pods=world.owned(Pod, meta.uid),
        group=group,
        queue=world.get(Queue, "", job.spec.queue),
        orders=sorted(orders, key=lambda order: (order.metadata.creation_timestamp or "", order.metadata.name)),
        world=world,
        now=now,
    )


def heeded_of_pod(pod: Pod) -> object:
    """What of a pod a job's decisions depend on: where it runs, and its addresses, are not among them."""
    meta, status = pod.metadata, pod.status
    return (
        meta.uid, meta.deletion_timestamp, meta.labels, meta.annotations, meta.owner_references, status.phase,
        status.container_statuses, status.init_container_statuses,
    )  # fmt: skip


def heeded_of_group(group: PodGroup) -> object:
    """The same of a gang: whether it is in, in trouble, or waits and why; not its counts."""
    meta, phase = group.metadata, group.status.phase
    waits = phase in ("", PodGroupPhase.PENDING, PodGroupPhase.UNKNOWN)
    why = [(one.type, one.reason, one.message) for one in group.status.conditions if one.status == "True"]
    is_told = waits or any(kind == "Unschedulable" for kind, _, _ in why)
    return (
        meta.uid, meta.deletion_timestamp, meta.annotations, meta.owner_references, group.spec, waits and phase,
        is_told and why,
    )  # fmt: skip


def is_for(order: Order, job: Job) -> bool:
    """Whether a Command is meant for this very job."""
    target = order.target
    if target is None or (target.kind, target.name) != ("Job", job.metadata.name):
        return False
    return target.api_version == job.kind_info.api_version and target.uid in ("", job.metadata.uid)


def task_of(pod: Pod) -> str:
    """The task that a pod was made for."""
    return pod.metadata.annotations.get(keys.TASK_SPEC) or pod.metadata.labels.get(keys.TASK_SPEC, "")


def killed_at(pod: Pod) -> Moment | None:
    """The moment that a pod is marked for, if it is; Volcano's own mark alone counts as the first moment."""
    text = pod.metadata.annotations.get(keys.KILLED_AT)
    if text is None:
        return (0, 0) if keys.OUT_OF_SYNC in pod.metadata.annotations else None
    first, _, second = text.partition(".")
    version, retry = whole_number(first), whole_number(second)
    return None if version is None or retry is None else (version, retry)


def _own(group: PodGroup | None, uid: str) -> PodGroup | None:
    owners = group.metadata.owner_references if group else []
    return group if any(owner.uid == uid for owner in owners) else None
