"""The core model of work: tasks (pods) and jobs (gangs); queues are in `queue.py`. Every dialect compiles into these.

Objects, not arrays: there are hundreds to thousands, people read them, and orders are sort keys over them. Nodes,
which are many and hot, are columns (`columns.py`). Statuses change only through `Job.move`, which keeps the counts.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

import msgspec

from hekla.placement.bookkeeping.ledger import Ledger
from hekla.placement.constraint import NO_CONSTRAINTS, Constraints, PodSelector
from hekla.placement.devices.claims import Grant
from hekla.placement.topology.wish import Closeness

if TYPE_CHECKING:
    from hekla.placement.shape import Shape


class TaskStatus(IntEnum):
    """Where a task stands between waiting and done."""

    PENDING = 0
    PIPELINED = 1
    """Placed on resources that are being freed."""

    ALLOCATED = 2
    """Placed in this session, not yet handed to the binder."""

    BINDING = 3
    BOUND = 4
    RUNNING = 5
    RELEASING = 6
    SUCCEEDED = 7
    FAILED = 8
    UNKNOWN = 9

    @property
    def is_evictable(self) -> bool:
        """Whether a task that stands here can be told to go: it has its node, and its node knows."""
        return self is TaskStatus.RUNNING or self is TaskStatus.BOUND


HOLDS_NODE = frozenset(
    {TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.RELEASING}
)
"""Statuses in which a task occupies resources of its node."""

ALLOCATED_STATUSES = (TaskStatus.ALLOCATED, TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING)
READY_STATUSES = (*ALLOCATED_STATUSES, TaskStatus.SUCCEEDED)
VALID_STATUSES = (*READY_STATUSES, TaskStatus.PIPELINED, TaskStatus.PENDING)
_READY = frozenset(READY_STATUSES)
_STATUSES = len(TaskStatus)
_PENDING, _BINDING = int(TaskStatus.PENDING), int(TaskStatus.BINDING)
"""As plain numbers, which are quicker to count by where every pod passes."""

_HOLDS = tuple(int(s in {TaskStatus.PIPELINED, *ALLOCATED_STATUSES}) for s in TaskStatus)
"""By status, whether a task counts towards what its queue holds: one that is ending does not any more, as in Volcano."""

_ASKS = tuple(int(held or status is TaskStatus.PENDING) for status, held in zip(TaskStatus, _HOLDS, strict=True))
"""By status, whether a task counts towards what its queue asks for."""

SCHEDULED_STATUSES = (TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED, TaskStatus.FAILED)


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a dialect knows of one pod. A struct, not a dataclass: there is one per pod, made in 0.4 us instead of 5."""

    uid: str
    name: str
    namespace: str = ""
    request: Mapping[str, int] = {}
    """Amounts by resource, in base units (cpu in milli, memory in bytes); `pods` is added by the engine."""

    limits: Mapping[str, int] = {}
    """The most it may use of cpu and memory, where it says so; read by the plug-in `usage`."""

    constraints: Constraints = NO_CONSTRAINTS
    volumes: tuple[tuple[str, str], ...] = ()
    """What is attached to its node, as driver and volume: counted once per node, whoever mounts it."""

    device_claims: tuple[str, ...] = ()
    """The resource claims that it uses, `namespace/name`, in the order of what they ask for in its constraints."""

    labels: Mapping[str, str] = {}
    role: str = ""
    """The task of its job that the pod belongs to (`volcano.sh/task-spec`)."""

    priority: int = 0
    created: float = 0.0
    is_gated: bool = False
    """Has scheduling gates: waits and is not offered to any node."""

    asks_queue: bool = False
    """Its only gate, if it has one, opens when its queue has room for it (`queueing/scheduling_gates.py`)."""

    node: str = ""
    status: TaskStatus = TaskStatus.PENDING
    nominated: str = ""
    """The node on which room is being made for it, as its pod remembers (`status.nominatedNodeName`)."""

    preemption_never: bool = False
    """Nobody is evicted for its sake (`preemptionPolicy: Never`)."""

    is_preemptable: bool = True
    """Whether it may be evicted for another (`volcano.sh/preemptable`)."""

    scheduled_at: float | None = None
    """When it was given its node (condition PodScheduled). This and the next two are times of the wall clock."""

    started: float | None = None
    """When it began to work."""

    checkpointed: float | None = None
    """When it last saved its work: what it did since would be lost."""

    cooldown_s: float | None = None
    """For so long after `scheduled_at` plug-in cdp lets nobody evict it; None leaves it to the plug-in."""

    min_run_s: float = 0.0
    """For so long after `started` nobody evicts it."""

    grace_s: float = 30.0
    """How long it may take to go once it is told to."""

    def lost_work_s(self, wall_s: float) -> float:
        """How many seconds of work would be lost if it was evicted now."""
        since = max((at for at in (self.started, self.checkpointed) if at is not None), default=wall_s)
        return max(wall_s - since, 0.0)


class Task:
    """One pod, as the engine sees it."""

    __slots__ = (
        "_order", "carriers", "devices", "evicted_at", "granted", "is_claim", "is_leaving", "is_overdue", "job", "leaving_since",
        "matched", "promised_at", "role_counts", "row", "shape", "spec", "status", "taken", "uid",
    )  # fmt: skip

    def __init__(self, spec: TaskSpec, shape: "Shape") -> None:
        self.spec = spec
        self.uid = spec.uid
        self.shape = shape
        self.status = TaskStatus.PENDING
        self.row = -1
        """The node's row while the task is placed, promised or assumed there; -1 otherwise."""

        self.is_claim = False
        """Whether the row is only promised: the task waits for the room to be free (status PIPELINED)."""

        self.promised_at = 0.0
        """When the row was promised, by the clock that cycles decide by."""

        self.is_leaving = False
        """Whether what it holds counts as being freed (status RELEASING)."""

        self.leaving_since: float | None = None
        """Since when, by the clock that cycles decide by, as far as a cycle has seen it."""

        self.is_overdue = False
        """Whether it was to leave and did not: what it holds no longer counts as being freed."""

        self.evicted_at: float | None = None
        """When we decided that it goes, by the clock that cycles decide by; its pod may not have heard yet."""

        self.devices: tuple[int, ...] = ()
        """Which GPUs of its node it has, where it asks for thousandths of them."""

        self.taken: tuple[str, ...] = ()
        """The free volumes that its claims are to be bound to, while it is placed (`bookkeeping/free_volumes.py`)."""

        self.granted: Mapping[str, tuple[Grant, ...]] = {}
        """By resource claim, the devices that it has while its task is placed (`devices/inventory.py`)."""

        self.job: Job | None = None
        self.role_counts: list[int] = []
        """The counts of the role in its job, kept at hand."""

        self.matched: tuple[int, ...] = ()
        """Tallies in which the task counts once placed."""

        self.carriers: tuple[int, ...] = ()
        """Tallies of placed pods that mind a pod like this one near them: they want distance from it, or like to be near."""

        self._order: tuple[int, float, str] | None = None

    @property
    def goes(self) -> bool:
        """Whether it is on its way out, in time or overdue."""
        return self.is_leaving or self.is_overdue

    @property
    def key(self) -> str:
        """What people know it by."""
        return f"{self.spec.namespace}/{self.spec.name}"

    @property
    def order(self) -> tuple[int, float, str]:
        """Where it stands among the tasks of its job; most tasks of a start run already, and nobody asks."""
        order = self._order
        if order is None:
            spec = self.spec
            order = self._order = (pod_index(spec.name), spec.created, spec.uid)
        return order

    @property
    def is_best_effort(self) -> bool:
        """Whether it asks for nothing but a place."""
        return self.shape.is_best_effort

    def __repr__(self) -> str:
        return f"Task({self.key}, {self.status.name}, row={self.row})"


def pod_index(name: str) -> int:
    """The number at the end of a pod's name, by which pods of a job are ordered; -1 if there is none."""
    _, _, suffix = name.rpartition("-")
    return int(suffix) if suffix.isascii() and suffix.isdigit() and len(suffix) < 10 else -1


_UID = re.compile(r"-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class JobPhase(StrEnum):
    """Where a job stands between asking and done (the phases of a PodGroup)."""

    PENDING = "Pending"
    INQUEUE = "Inqueue"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    COMPLETED = "Completed"


@dataclass(frozen=True, kw_only=True)
class SubGroupPolicy:
    """Cuts a job into sub-gangs by the values of labels."""

    name: str
    selector: PodSelector = field(default_factory=lambda: PodSelector(namespaces=None))
    match_label_keys: tuple[str, ...] = ()
    size: int = 1
    min_groups: int = 0
    closeness: Closeness | None = None
    """How close the pods of one sub-gang are to be."""

    def group_of(self, spec: TaskSpec) -> str | None:
        """The sub-gang that a pod belongs to, or None. A policy without label keys matches nothing."""
        values = [spec.labels.get(key) for key in self.match_label_keys]
        if not values or None in values or not self.selector.matches(spec.namespace, spec.labels):
            return None
        return "-".join([self.name, *(str(value) for value in values)])


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a dialect knows of one gang."""

    uid: str
    name: str
    namespace: str = ""
    queue: str = "default"
    priority: int = 0
    created: float = 0.0
    estimate_s: float | None = None
    """How long each of its pods runs, as its owner says; None: not known."""

    patience_s: float | None = None
    """How long it waits at most to be let in, where sla is at work; None leaves it to the plug-in."""

    quota_asked: Mapping[str, int] = {}
    """What its minimum asks of the namespace's quotas, by their names: `requests.cpu`, `count/pods`."""

    min_available: int = 1
    role_minimums: Mapping[str, int] = {}
    subgroups: tuple[SubGroupPolicy, ...] = ()
    min_resources: Mapping[str, int] | None = None
    """What must be free before the job may enter; None means it may enter at once."""

    closeness: Closeness | None = None
    """How close the pods are to be."""

    is_preemptable: bool | None = None
    """Whether its pods may be evicted (`volcano.sh/preemptable` of the PodGroup); None says nothing."""

    lineage: str = ""
    """What a job is known by when it is made anew after an eviction: a lone pod's owner. Empty: its uid."""

    traits: Mapping[str, str] = {}
    """What plug-ins read of the group, by annotation."""

    phase: JobPhase = JobPhase.INQUEUE
    left_to: str = ""
    """The scheduler whose its pods will be by what its PodGroup says, where that is another one."""

    has_group: bool = True
    """False for a pod without a PodGroup, which is a gang of one."""

    @property
    def wants_closeness(self) -> bool:
        """Whether its pods, or those of its sub-gangs, are to be close to one another."""
        return self.closeness is not None or any(policy.closeness is not None for policy in self.subgroups)


class WaitingJobs:
    """Which jobs wait for what, so that a cycle looks at those alone and not at every pod that runs."""

    __slots__ = ("by_phase", "epoch", "for_nodes", "ledger", "loose", "promised")

    def __init__(self) -> None:
        self.ledger = Ledger()
        """What the jobs' queues hold and ask for."""

        self.for_nodes: dict[str, Job] = {}
        """Jobs with a pending task, by uid."""

        self.loose: dict[str, Job] = {}
        """Those of them that stand in no kept line (see `queueing/kept_lines.py`)."""

        self.epoch = 0
        """Grows when somebody else keeps the lines: tickets that were drawn before are void."""

        self.promised: dict[str, Job] = {}
        """Jobs with a pipelined task, by uid."""

        self.by_phase: dict[JobPhase, dict[str, Job]] = {phase: {} for phase in JobPhase}
        """Jobs that have a group, by phase and uid. Lone pods are not in it: they are always in."""


_NOTHING: Mapping[str, int] = {}


class Job:
    """Pods that belong together, and how many of them must start together."""

    __slots__ = (
        "_accounts", "_phase", "barred_at", "failed_at", "held", "holds", "in_order", "lines", "minds_others",
        "minds_queue",
        "pending_best_effort", "ready_count", "roles", "sole", "spec", "statuses", "tasks", "ticket", "uid",
    )  # fmt: skip

    def __init__(self, spec: JobSpec, lines: WaitingJobs | None = None) -> None:
        self.spec = spec
        self.uid = spec.uid
        self.lines = lines if lines is not None else WaitingJobs()
        self._accounts = self.lines.ledger.chain(spec.queue)
        self.held: Mapping[str, int] = _NOTHING
        """What the placed tasks of a group hold, by resource, never changed in place: of one task it is that task's request.
        See `holding` for lone pods too.
        """

        self.tasks: dict[str, Task] = {}
        self.sole: Task | None = None
        """The one task of a job that has one: at hand where a hundred thousand such jobs pass."""

        self.in_order: list[Task] | None = None
        """Tasks that wait, the next one last, where somebody keeps the order (`node_selection/filling.py`); None when one has come."""

        self.statuses = [0] * _STATUSES
        """How many tasks are in each status."""

        self.roles: dict[str, list[int]] = {}
        """The same by role; of a job of one role the same list, so that it is counted once."""

        self.ready_count = 0
        """Tasks that have a node, or have had one and succeeded."""

        self.pending_best_effort = 0
        """Pending tasks that ask for nothing: they count as ready."""

        self.holds = 0
        """For how many reasons it sits out for a while: a bind or an eviction was refused, a cycle stumbled over it."""

        self.ticket = 0
        """With which it stands in a kept line (see `queueing/kept_lines.py`); 0 if it does not."""

        self.failed_at = -1
        """The count of news when the job last did not fit; until it grows, trying again is idle."""

        self.minds_others = False
        """Whether, when it last did not fit, the pods that run where had a say in it."""

        self.minds_queue = False
        """Whether, when it last did not fit, its queue's share had a say in it."""

        self.barred_at: Mapping[str, int] = _NOTHING
        """By action, the count of news when it could evict nobody for the job; until it grows, asking again is idle."""

        self._phase = spec.phase
        if spec.has_group:
            self.phase = spec.phase

    @property
    def key(self) -> str:
        """What people know it by."""
        return f"{self.spec.namespace}/{self.spec.name}"

    @property
    def told(self) -> str:
        """What its user knows it by: `ns/train`, though the gang is called after a Volcano Job's name and uid."""
        return _UID.sub("", self.key)

    @property
    def party(self) -> str:
        """What the job is known by, also after it was made anew."""
        return self.spec.lineage or self.uid

    @property
    def phase(self) -> JobPhase:
        """Where the job stands."""
        return self._phase

    @phase.setter
    def phase(self, phase: JobPhase) -> None:
        if self.spec.has_group:
            self.lines.by_phase[self._phase].pop(self.uid, None)
            self.lines.by_phase[phase][self.uid] = self
        self._phase = phase
        if phase is JobPhase.PENDING:
            self.step_out()

    @property
    def is_held(self) -> bool:
        """Whether it sits out."""
        return self.holds > 0

    def sit_out(self) -> None:
        """Leave it aside, until as many calls of `take_part` have followed."""
        self.holds += 1
        self.step_out()

    def take_part(self) -> None:
        """One of the reasons to sit out is over; after the last it is tried anew."""
        assert self.holds > 0, f"{self.key} does not sit out"
        self.holds -= 1
        if not self.holds:
            self.failed_at = -1

    def leave(self) -> None:
        """Leave all lines: the job is no more."""
        self.lines.by_phase[self._phase].pop(self.uid, None)
        self.lines.for_nodes.pop(self.uid, None)
        self.lines.loose.pop(self.uid, None)
        self.lines.promised.pop(self.uid, None)
        self.ticket = 0

    def step_out(self) -> None:
        """Leave a kept line: something has happened that may change its place."""
        if self.ticket:
            self.ticket = 0
            if self.statuses[_PENDING]:
                self.lines.loose[self.uid] = self

    def add(self, task: Task) -> None:
        """Take a task in."""
        self.take_in(task)
        self.post(task)

    def post(self, task: Task) -> None:
        """Tell the queue's accounts of a task that was taken in."""
        self._post(task, _ASKS[task.status], _HOLDS[task.status])

    def take_in(self, task: Task) -> None:
        """Take a task in; the accounts are the caller's."""
        task.job = self
        task.role_counts = self._counts_of(task.spec.role)
        self.tasks[task.uid] = task
        self.sole = task if len(self.tasks) == 1 else None
        self._count(task, task.status, 1)
        self.failed_at = -1
        self.step_out()

    def remove(self, task: Task) -> None:
        """Let a task go."""
        del self.tasks[task.uid]
        self.sole = next(iter(self.tasks.values())) if len(self.tasks) == 1 else None
        task.job = self.in_order = None
        self._count(task, task.status, -1)
        self._post(task, -_ASKS[task.status], -_HOLDS[task.status])

    def move(self, task: Task, status: TaskStatus) -> None:
        """Change a task's status and the counts with it."""
        before = task.status
        self._count(task, before, -1)
        task.status = status
        self._count(task, status, 1)
        if _HOLDS[before] != _HOLDS[status] or _ASKS[before] != _ASKS[status]:
            self._post(task, _ASKS[status] - _ASKS[before], _HOLDS[status] - _HOLDS[before])

    def move_run(self, tasks: Sequence[Task], status: TaskStatus) -> None:
        """Change the status of tasks of one shape and role that wait or are placed, all in the same status now."""
        first, number = tasks[0], len(tasks)
        before, spread = first.status, first.role_counts
        for task in tasks:
            task.status = status
        self._count(first, before, -number)
        self._count(first, status, number)
        if _HOLDS[before] != _HOLDS[status]:
            self._post(first, 0, number * (_HOLDS[status] - _HOLDS[before]))
        assert spread is tasks[-1].role_counts, "a run is of one role"

    def post_ahead(self, task: Task, number: int) -> None:
        """Tell the queue's accounts that so many tasks like this one are about to be placed (`bind_whole`)."""
        self.lines.ledger.changes += 1
        request = task.shape.request
        for account in self._accounts:
            account.post(request, 0, number)

    def credit(self, task: Task, since_s: float) -> None:
        """Tell the queue's past that a task which holds its node has held it since then, by the wall clock."""
        if _HOLDS[task.status]:
            for account in self._accounts:
                account.credit(task.shape.request, round(since_s * 1e6))

    def count(self, statuses: Iterable[TaskStatus]) -> int:
        """How many tasks are in one of these statuses."""
        return sum(self.statuses[status] for status in statuses)

    def pending(self) -> Iterator[Task]:
        """Tasks that wait for a node and may be offered one."""
        return (t for t in self.tasks.values() if t.status is TaskStatus.PENDING and not t.spec.is_gated)

    def respec(self, spec: JobSpec) -> None:
        """Change what is known of the job; what it holds goes with it into the accounts of its queue."""
        self.step_out()
        self._post_all(-1)
        self.spec = spec
        self.reopen_accounts()

    def reopen_accounts(self) -> None:
        """Post everything to the accounts that the ledger has for the job's queue now."""
        self.held = _NOTHING
        self._accounts = self.lines.ledger.chain(self.spec.queue)
        self._post_all(1)

    @property
    def holding(self) -> Mapping[str, int]:
        """What the placed tasks hold, by resource."""
        if self.spec.has_group:
            return self.held
        # A lone pod is its own total: two hundred thousand of them need no dictionary each.
        return next((task.shape.request for task in self.tasks.values() if _HOLDS[task.status]), {})

    @property
    def asking(self) -> Mapping[str, int]:
        """What the tasks that are placed or wait ask for, by resource; added up on request."""
        total: Counter[str] = Counter()
        for task in self.tasks.values():
            if _ASKS[task.status]:
                total.update(task.shape.request)
        return total

    @property
    def valid_count(self) -> int:
        """Tasks that run, have run well, or may yet run."""
        lost = (
            self.statuses[TaskStatus.RELEASING] + self.statuses[TaskStatus.FAILED] + self.statuses[TaskStatus.UNKNOWN]
        )
        return len(self.tasks) - lost

    @property
    def enforces_roles(self) -> bool:
        """Whether the roles' minimums count: only if the gang is at least as large as their sum."""
        minimums = self.spec.role_minimums
        return bool(minimums) and self.spec.min_available >= sum(minimums.values())

    @property
    def may_lose(self) -> bool:
        """Whether a task has its node, so that it could be evicted."""
        return self.statuses[TaskStatus.BOUND] > 0 or self.statuses[TaskStatus.RUNNING] > 0

    @property
    def wants_more(self) -> bool:
        """Whether a task waits for a node."""
        return self.statuses[TaskStatus.PENDING] > 0

    def _counts_of(self, role: str) -> list[int]:
        """The counts of a role, which are those of the job until a second role comes."""
        roles = self.roles
        counts = roles.get(role)
        if counts is None:
            for known, same in roles.items():
                if same is self.statuses:
                    own = roles[known] = list(same)
                    for task in self.tasks.values():
                        task.role_counts = own
            counts = roles[role] = [0] * _STATUSES if roles else self.statuses
        return counts

    def _post_all(self, sign: int) -> None:
        for task in self.tasks.values():
            self._post(task, sign * _ASKS[task.status], sign * _HOLDS[task.status])

    def _post(self, task: Task, asked: int, held: int) -> None:
        """Tell the queue's accounts that so many more tasks like this one ask and hold."""
        request, ledger = task.shape.request, self.lines.ledger
        for account in self._accounts:
            account.post(request, asked, held)
        if asked < 0:
            ledger.eases += 1
        if held:
            ledger.changes += 1
            if self.spec.has_group:
                self.hold(request, held)

    def hold(self, request: Mapping[str, int], number: int) -> None:
        """So many more tasks with this request hold a node, of a job that has a group."""
        minimum = self.spec.min_resources or _NOTHING
        if not self.held and not minimum:  # the usual case by far
            self.held = request if number == 1 else {name: a * number for name, a in request.items()}
            return
        mine = self.held = dict(self.held)
        for name, amount in request.items():
            before = mine.get(name, 0)
            after = mine[name] = before + amount * number
            if name in minimum:
                change = min(after, minimum[name]) - min(before, minimum[name])
                for account in self._accounts:
                    account.firm[name] += change

    def _count(self, task: Task, status: TaskStatus, change: int) -> None:
        self.statuses[status] += change
        if task.role_counts is not self.statuses:
            task.role_counts[status] += change
        if status is TaskStatus.PENDING:
            if change > 0:
                self.in_order = None
            if task.shape.is_best_effort:
                self.pending_best_effort += change
            if 0 < self.statuses[status] == change:  # the first to come
                self.lines.for_nodes[self.uid] = self
                if not self.ticket:
                    self.lines.loose[self.uid] = self
            elif not self.statuses[status]:
                self.lines.for_nodes.pop(self.uid, None)
                self.lines.loose.pop(self.uid, None)
                self.ticket = 0
        elif status is TaskStatus.PIPELINED:
            if self.statuses[status]:
                self.lines.promised[self.uid] = self
            else:
                self.lines.promised.pop(self.uid, None)
        elif status in _READY:
            self.ready_count += change

    def __repr__(self) -> str:
        counts = {status.name: self.statuses[status] for status in TaskStatus if self.statuses[status]}
        return f"Job({self.key}, {self.phase}, {counts})"


Item = tuple[Job, Sequence[Task]]
"""A job with those of its tasks that are decided together."""


def bind_whole(items: Sequence[Item]) -> None:
    """Jobs with all their tasks, which are equal and wait, are being bound; what queues hold of it is the caller's to post.

    All are of one cluster.
    """
    status, pending, binding = TaskStatus.BINDING, _PENDING, _BINDING
    lines = items[0][0].lines
    for_nodes, loose = lines.for_nodes, lines.loose
    for job, tasks in items:
        number, counts, first = len(tasks), job.statuses, tasks[0]
        spread, uid = first.role_counts, job.uid
        assert counts[pending] == number, "a job of equal tasks is bound whole"
        counts[pending] = 0
        counts[binding] += number
        if spread is not counts:
            spread[pending] -= number
            spread[binding] += number
        job.ready_count += number
        del for_nodes[uid]
        if job.ticket:
            job.ticket = 0
        else:
            loose.pop(uid, None)
        if number == 1:
            first.status = status
        else:
            for task in tasks:
                task.status = status
        spec = job.spec
        if spec.has_group:
            if number > 1 or job.held or spec.min_resources:
                job.hold(first.shape.request, number)
            else:
                job.held = first.shape.request
