"""The world that decisions are made in: nodes, tasks, jobs, queues, kept right by events and never rebuilt.

`dialects/` feeds it from objects; `session.py` makes decisions in it; both sides change placement only through
`place`, `displace` and `Job.move`, so that amounts, tallies and counts cannot disagree.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import msgspec

from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.bookkeeping.queue_use import QueueUse
from hekla.placement.bookkeeping.tallies import Tallies, asked_by
from hekla.placement.budgets import DisruptionBudget, NamespaceQuota
from hekla.placement.columns import PODS, Nodes, NodeSpec, facts_of
from hekla.placement.constraint import Constraints, NodeTerm
from hekla.placement.devices.claims import DevicePool, Grant
from hekla.placement.eviction.precedence import Precedence
from hekla.placement.framework import Reading
from hekla.placement.model import (
    HOLDS_NODE,
    Job,
    JobSpec,
    Task,
    TaskSpec,
    TaskStatus,
    WaitingJobs,
)
from hekla.placement.queue import Queue
from hekla.placement.shape import Shape
from hekla.placement.topology.topology import DomainSpec, Topology

if TYPE_CHECKING:
    from hekla.placement.reservations.reservation import Reservation

_OURS_TO_DECIDE = frozenset({TaskStatus.PENDING, TaskStatus.PIPELINED, TaskStatus.ALLOCATED, TaskStatus.BINDING})
"""While its pod is pending, a task in one of these stands where we put it."""

_UNAWARE = frozenset({TaskStatus.BOUND, TaskStatus.RUNNING})
"""What a pod says of itself that has not heard yet that it is evicted."""

FIRST_TALLIES = 256
"""Tallies that may be kept before anybody looks which of them are still asked for."""

DEFAULT_QUEUE, ROOT_QUEUE = "default", "root"

Read = Callable[[TaskSpec, JobSpec, Mapping[str, Queue]], Reading | None]
"""`Reader.read` of a plug-in."""


class Cluster:
    """Everything the engine knows. All methods may be repeated: a second call with the same facts changes nothing."""

    def __init__(self, *, seed: int = 0) -> None:
        self.nodes = Nodes(seed=seed)
        self.tallies = Tallies(self.nodes)
        self.topology = Topology(self.nodes)
        self.tasks: dict[str, Task] = {}
        self.jobs: dict[str, Job] = {}
        self.queues: dict[str, Queue] = {}
        self.lines = WaitingJobs()
        self.ledger = self.lines.ledger
        """What queues hold and ask for: the one running total that shares are computed from."""

        self.namespace_quotas: dict[str, dict[str, NamespaceQuota]] = {}
        """By namespace and name; only those that bound all pods alike."""

        self.budgets: dict[str, dict[str, DisruptionBudget]] = {}
        """How much may be disrupted, by namespace and name."""

        self.spent: Counter[tuple[str, str]] = Counter()
        """What was evicted of budgets, by namespace and name, since they last reported."""

        self.leaving: dict[str, Task] = {}
        """Tasks that hold a row which is being freed, by uid."""

        self.precedence = Precedence()
        """Who made way for whom."""

        self.nominated: dict[str, Task] = {}
        """Tasks that came with a nomination which is not a promise of ours yet, by uid; the next cycle makes it one."""

        self.forsaken: dict[str, Task] = {}
        """Tasks whose promised row is gone and who were not told yet, by uid; the next cycle tells them."""

        self.queue_askers: dict[str, Task] = {}
        """Tasks that wait, or waited, for their queue to have room for them, by uid."""

        self._looks_ahead = False
        self.last_due: dict[str, float] = {}
        """When plug-ins that work once in a period last did so, by name."""

        self._readers: tuple[Read, ...] = ()
        self._takes_queues_as_tree = False
        self.reservations: dict[str, Reservation] = {}
        """By job, the room that is kept for it (see `reservations/book.py`)."""

        self.let_in: set[str] = set()
        """Jobs that were let in though they found no room, since room was to be kept for them, and hold nothing yet."""

        self.out_of_reach: dict[str, None] = {}
        """Jobs that will not fit by all that is known, who was planned longest ago first (see `reservations/planning_budget.py`)."""

        self.gains = 0
        """Grows with every event that may let a waiting job fit: capacity freed, a node changed, demands relaxed."""

        # Held by the tasks that have them: a million different pods leave nothing behind.
        self._shapes: WeakValueDictionary[tuple[Constraints, tuple[tuple[str, int], ...]], Shape] = (
            WeakValueDictionary()
        )
        self._most_tallies = FIRST_TALLIES
        self._homeless: dict[str, dict[str, Task]] = {}
        """By name of a node that is not there, the tasks that are on it by all accounts."""

        self._home: dict[str, str] = {}
        """The node that a homeless task waits for, by uid."""

    # Nodes

    def put_node(self, spec: NodeSpec) -> None:
        """Add a node or bring it up to date; tasks that were waiting for it by name move in."""
        known = self.nodes.row_of.get(spec.name)
        before = self.nodes.specs[known] if known is not None else None
        if before == spec:
            return
        row = self.nodes.put(spec)
        if before is None or before.allocatable != spec.allocatable or facts_of(before) != facts_of(spec):
            self.gains += 1
            self.precedence.world_changed()
        if before is None:
            for task in self._homeless.pop(spec.name, {}).values():
                del self._home[task.uid]
                self._occupy(task, row)
        elif before.labels != spec.labels:
            self.tallies.recount(self.placed())

    def remove_node(self, name: str) -> None:
        """Forget a node. Tasks on it keep their status until their own events come, and return with it if it returns."""
        row = self.nodes.row_of.get(name)
        if row is None:
            return
        is_empty = not self.nodes.used[PODS, row] and not self.nodes.pipelined[PODS, row]
        for task in [] if is_empty else [task for task in self.placed() if task.row == row]:
            if task.is_claim:
                self.forsake(task)
                continue
            self._vacate(task)
            self._await_home(task, name)
        self.nodes.remove(name)
        self.put_usage(name, None)

    def put_usage(self, name: str, usage: NodeUsage | None) -> None:
        """Note what a node was measured to use; None forgets it."""
        self.nodes.usages.put(name, usage)

    def put_attachment(self, told_by: str, node: str, driver: str, volume: str) -> None:
        """Note that a volume is attached to a node by all accounts, whether or not a pod there mounts it."""
        self.tallies.attach(told_by, node, driver, volume)

    def remove_attachment(self, told_by: str) -> None:
        """Forget what somebody said of a volume that is attached."""
        self.tallies.detach(told_by)

    def put_devices(self, driver: str, name: str, pool: DevicePool | None) -> None:
        """A driver offers these devices under this name; None: nothing any more."""
        if pool is not None:
            self.tallies.inventory.put_pool((driver, name), pool)
        else:
            self.tallies.inventory.remove_pool((driver, name))
        self._devices_changed()

    def put_allocation(self, claim: str, grants: tuple[Grant, ...], terms: tuple[NodeTerm, ...] | None) -> None:
        """A resource claim's status says which devices it has, and where it may be used."""
        if self.tallies.inventory.put_allocation(claim, grants, terms):
            self._devices_changed()

    def remove_allocation(self, claim: str) -> None:
        """A resource claim has no devices by its status, or is gone."""
        if self.tallies.inventory.remove_allocation(claim):
            self._devices_changed()

    def put_domain(self, spec: DomainSpec) -> None:
        """Add a domain of the network or bring it up to date."""
        if self.topology.put(spec):
            self.gains += 1

    def remove_domain(self, name: str) -> None:
        """Forget a domain of the network; its nodes stay."""
        if self.topology.remove(name):
            self.gains += 1

    # Tasks

    def put_task(self, spec: TaskSpec, job: Job) -> Task:
        """Add a task or bring it up to date with what its pod says; an assumed placement holds until the pod confirms."""
        task = self.tasks.get(spec.uid)
        if task is not None and (task.job is not job or _is_reshaped(task.spec, spec)):
            task = self._replace(task, spec, job)
        if task is None:
            task = self._new_task(spec, job)
        before, task.spec = task.spec, spec
        if (before.is_gated, before.priority) != (spec.is_gated, spec.priority):
            job.in_order = None
        if before.is_gated and not spec.is_gated:
            job.failed_at = -1
        elif spec.is_gated and not before.is_gated:
            job.step_out()
        if before.asks_queue != spec.asks_queue:
            self.queue_askers.pop(spec.uid, None)
            if spec.asks_queue:
                self.queue_askers[spec.uid] = task
        self._follow(task, spec)
        return task

    def put_state(self, task: Task, status: TaskStatus, node: str, **course: Any) -> None:
        """Take over how a pod fares, where nothing else about it has changed: `nominated`, `scheduled_at`, `started`."""
        task.spec = msgspec.structs.replace(task.spec, status=status, node=node, **course)
        self._follow(task, task.spec)

    def remove_task(self, uid: str) -> None:
        """Forget a task and free what it holds."""
        task = self.tasks.pop(uid, None)
        if task is None:
            return
        self._leave(task)
        self.forsaken.pop(uid, None)
        self.nominated.pop(uid, None)
        self.queue_askers.pop(uid, None)
        if task.job is not None:
            task.job.remove(task)

    def placed(self) -> Iterator[Task]:
        """Tasks that hold a row, or are promised one."""
        return (task for task in self.tasks.values() if task.row >= 0)

    def place(self, task: Task, row: int, devices: tuple[int, ...] = ()) -> None:
        """Put a task on a row: amounts, devices (these, if any are named) and tallies; the status is the caller's."""
        assert task.row < 0, f"{task} is placed already"
        shape = task.shape
        self.nodes.take(row, shape.resources, shape.amounts)
        if shape.gpu_milli:
            task.devices = devices or self.nodes.devices.fullest(row, shape.gpu_milli)
            self.nodes.devices.take(row, task.devices, shape.gpu_milli)
        self.settle(task, row)

    def settle(self, task: Task, row: int) -> None:
        """Put a task on a row whose amounts are taken already."""
        task.row = row
        if self._readers or self.nodes.arrivals.window_s:
            self._note(task, 1)
        if task.matched:
            self.tallies.add(task, row)

    def settle_run(self, tasks: Sequence[Task], rows: Sequence[int]) -> None:
        """The same for many tasks."""
        if self._readers or self.nodes.arrivals.window_s:
            for task, row in zip(tasks, rows, strict=True):
                self.settle(task, row)
            return
        for task, row in zip(tasks, rows, strict=True):
            task.row = row
            if task.matched:
                self.tallies.add(task, row)

    def displace(self, task: Task) -> None:
        """Take a task off its row again."""
        assert task.row >= 0, f"{task} is not placed"
        if self._readers or self.nodes.arrivals.window_s:
            self._note(task, -1)
        if task.matched and not (task.is_leaving and self._looks_ahead):
            self.tallies.remove(task, task.row)
        if task.is_claim:
            self.nodes.promise(task.row, task.shape.resources, task.shape.amounts, -1)
            task.is_claim = False
        else:
            self._stop_leaving(task)
            self.nodes.give(task.row, task.shape.resources, task.shape.amounts)
        if task.devices:
            self.nodes.devices.give(task.row, task.devices, task.shape.gpu_milli)
            task.devices = ()
        task.row = -1

    # Room that is being freed

    def claim(self, task: Task, row: int, now: float) -> None:
        """Promise a task a row; the status is the caller's."""
        assert task.row < 0, f"{task} is placed already"
        self.nodes.promise(row, task.shape.resources, task.shape.amounts)
        task.is_claim, task.promised_at = True, now
        self.settle(task, row)

    def forsake(self, task: Task) -> None:
        """Give up a promised row: the task waits again, and is told so by the next cycle."""
        assert task.is_claim
        assert task.job is not None
        self.displace(task)
        task.job.move(task, TaskStatus.PENDING)
        task.job.failed_at = -1
        self.forsaken[task.uid] = task
        self.gains += 1

    def let_go(self, task: Task) -> None:
        """Count what a task holds as being freed; the status is the caller's."""
        assert task.row >= 0, f"{task} is not placed"
        assert not task.is_leaving, f"{task} is leaving already"
        self.nodes.release(task.row, task.shape.resources, task.shape.amounts)
        if task.matched and self._looks_ahead:
            self.tallies.remove(task, task.row)
        elif task.matched:
            self.tallies.stays(task, -1)
        task.is_leaving = True
        self.leaving[task.uid] = task

    def keep(self, task: Task) -> None:
        """Undo `let_go`, to the bit; the status is the caller's."""
        assert task.is_leaving, f"{task} is not leaving"
        self._stop_leaving(task)
        if task.matched and self._looks_ahead:
            self.tallies.add(task, task.row)
        elif task.matched:
            self.tallies.stays(task, 1)

    def give_up_on(self, task: Task) -> None:
        """A task that should have left long ago is not counted on any more: it holds its room until it is gone."""
        self.keep(task)
        if task.matched:
            self.tallies.stays(task, -1)
        task.is_overdue = True

    def spare(self, task: Task) -> None:
        """An eviction that we decided could not be carried out: the task stays, as its pod says."""
        if task.evicted_at is not None and task.job is not None:
            task.evicted_at = None
            if task.status is TaskStatus.RELEASING and task.spec.status is not TaskStatus.RELEASING:
                if task.is_leaving:
                    self.keep(task)
                elif task.is_overdue:
                    self._stop_waiting(task)
                task.job.move(task, task.spec.status)

    @contextmanager
    def looking_ahead(self) -> Iterator[None]:
        """Inside, tallies count the pods as they will be when all who are leaving have left."""
        assert not self._looks_ahead, "looking ahead already"
        changes = self.tallies.changes
        self.tallies.inventory.looks_ahead = True
        self._count_leaving(-1)
        self._looks_ahead = True
        try:
            yield
        finally:
            self._looks_ahead = False
            self._count_leaving(1)
            self.tallies.inventory.looks_ahead = False
            self.tallies.changes = changes

    def _count_leaving(self, sign: int) -> None:
        for task in self.leaving.values():
            if task.matched:
                (self.tallies.add if sign > 0 else self.tallies.remove)(task, task.row)

    def _stop_waiting(self, task: Task) -> None:
        """What was overdue stays after all."""
        task.is_overdue = False
        if task.row >= 0 and task.matched:
            self.tallies.stays(task, 1)

    def _stop_leaving(self, task: Task) -> None:
        if task.is_leaving:
            task.is_leaving, task.leaving_since = False, None
            del self.leaving[task.uid]
            self.nodes.release(task.row, task.shape.resources, task.shape.amounts, -1)

    # Disruption budgets

    def put_budget(self, budget: DisruptionBudget) -> None:
        """Add a budget or bring it up to date; a report that is new counts what was evicted before it."""
        of_namespace = self.budgets.setdefault(budget.namespace, {})
        if of_namespace.get(budget.name) != budget:
            of_namespace[budget.name] = budget
            self.spent.pop((budget.namespace, budget.name), None)
            self.gains += 1

    def remove_budget(self, namespace: str, name: str) -> None:
        """Forget a budget, and its namespace with the last one."""
        of_namespace = self.budgets.get(namespace, {})
        of_namespace.pop(name, None)
        self.spent.pop((namespace, name), None)
        if not of_namespace:
            self.budgets.pop(namespace, None)

    def budgets_of(self, task: Task) -> Iterable[DisruptionBudget]:
        """The budgets that a task's eviction is charged to."""
        spec = task.spec
        budgets = self.budgets.get(spec.namespace)
        return [b for b in budgets.values() if b.selector.matches(spec.namespace, spec.labels)] if budgets else ()

    def spend(self, task: Task, number: int) -> None:
        """Charge an eviction to the budgets of a task, or with -1 take that back."""
        for budget in self.budgets_of(task):
            self.spent[budget.namespace, budget.name] += number

    @property
    def held(self) -> dict[str, Counter[str]]:
        """What queues hold, by name."""
        return {name: account.held for name, account in self.ledger.accounts.items()}

    def take_back(self, task: Task) -> None:
        """Undo a placement that was assumed and did not come true: the task waits again."""
        self._leave(task)
        assert task.job is not None
        task.job.move(task, TaskStatus.PENDING)
        self._reread((task,))
        self.gains += 1

    # Jobs and queues

    def put_job(self, spec: JobSpec) -> Job:
        """Add a job or bring it up to date; its tasks stay. The phase is taken over only from a job that is new."""
        job = self.jobs.get(spec.uid)
        if job is None:
            job = self.jobs[spec.uid] = Job(spec, self.lines)
            precedence = self.precedence
            if precedence.is_in_use and not precedence.knows(job.party):
                precedence.world_changed()
        elif job.spec != spec:
            self._forget_queue_use(job.spec.queue, spec.queue)
            if job.spec.queue != spec.queue:
                for task in job.tasks.values():
                    self.tallies.inventory.note(task.spec.device_claims)
            job.respec(spec)
            self.precedence.world_changed()
            job.failed_at = -1
            self._reread(job.pending())
        return job

    def remove_job(self, uid: str) -> None:
        """Forget a job and its tasks."""
        job = self.jobs.pop(uid, None)
        if job is not None:
            for task in list(job.tasks.values()):
                self.remove_task(task.uid)
            job.leave()
            if not job.spec.lineage:
                self.precedence.world_changed()

    def put_queue(self, queue: Queue) -> None:
        """Add a queue or bring it up to date."""
        if self.queues.get(queue.name) != queue:
            self.queues[queue.name] = queue
            self.gains += 1
            self.precedence.world_changed()
            self._reread_all()
            self._keep_accounts()

    def remove_queue(self, name: str) -> None:
        """Forget a queue; its jobs wait until it returns."""
        if self.queues.pop(name, None) is not None:
            self._keep_accounts()
            self._reread_all()

    def keep_arrivals(self, window_s: float) -> None:
        """Keep who came to a node within so many seconds, from now on; 0 keeps nobody."""
        arrivals = self.nodes.arrivals
        if arrivals.window_s != window_s:
            arrivals.clear()
            arrivals.window_s = window_s
            for task in self.placed() if window_s else ():
                self._note_arrival(task)

    def let_read(self, readers: tuple[Read, ...]) -> None:
        """Add what these readers of plug-ins have to say to the shapes of pods, from now on."""
        if readers != self._readers:
            self._readers = readers
            self.nodes.queue_use = QueueUse()
            for job in list(self.lines.for_nodes.values()):
                self._read_anew(job.pending())

    def take_queues_as_tree(self, yes: bool) -> None:
        """Whether what a queue holds also counts for the queues above it."""
        self._takes_queues_as_tree = yes
        self._keep_accounts()

    def _keep_accounts(self) -> None:
        """Post everything anew if the tree of queues is not the one that was posted to."""
        parents = {name: queue.parent for name, queue in self.queues.items()} if self._takes_queues_as_tree else {}
        if parents != self.ledger.parents:
            self.ledger.open_anew(parents)
            for job in self.jobs.values():
                job.reopen_accounts()

    def put_namespace_quota(self, namespace: str, quota: NamespaceQuota) -> None:
        """Add a quota or bring it up to date."""
        self.namespace_quotas.setdefault(namespace, {})[quota.name] = quota

    def remove_namespace_quota(self, namespace: str, name: str) -> None:
        """Forget a quota, and its namespace with the last one."""
        quotas = self.namespace_quotas.get(namespace, {})
        quotas.pop(name, None)
        if not quotas:
            self.namespace_quotas.pop(namespace, None)

    # How it is kept

    def shape(self, request: Mapping[str, int], constraints: Constraints) -> Shape:
        """The shape of pods that ask for this; the same object for the same demands."""
        key = (constraints, tuple(sorted(request.items())))
        shape = self._shapes.get(key)
        if shape is None:
            whole = {**request, "pods": 1}
            resources, amounts = self.nodes.vector({**whole, **self.nodes.unasked(constraints.unasked)})
            kind = (constraints, tuple(resources.tolist()))
            by_index = dict(zip(resources.tolist(), amounts.tolist(), strict=True))
            shape = self._shapes[key] = Shape(constraints, whole, resources, amounts, by_index, kind)
        return shape

    @property
    def has_readers(self) -> bool:
        """Whether a plug-in adds to the shapes of pods, so that more than a pod's own demands decides them."""
        return bool(self._readers)

    def shape_of(self, spec: TaskSpec, job: Job) -> Shape:
        """The shape of a pod in a job, with what plug-ins read of both."""
        constraints = spec.constraints
        for read in self._readers:
            reading = read(spec, job.spec, self.queues)
            if reading is not None:
                constraints = _with(constraints, reading)
                self._watch_queue(reading.watched_queue)
        return self.shape(spec.request, constraints)

    def _reread_all(self) -> None:
        """A queue has changed: so may what is read of those who wait in it, or below it."""
        for job in list(self.lines.for_nodes.values()) if self._readers else ():
            self._read_anew(job.pending())

    def _reread(self, tasks: Iterable[Task]) -> None:
        if self._readers:
            self._read_anew(tasks)

    def _devices_changed(self) -> None:
        self.gains += 1
        self.tallies.changes += 1
        self.precedence.world_changed()

    def _read_anew(self, tasks: Iterable[Task]) -> None:
        for task in list(tasks):
            assert task.job is not None
            task.shape = self.shape_of(task.spec, task.job)

    def _watch_queue(self, queue: str) -> None:
        use = self.nodes.queue_use
        if queue and not use.watches(queue):
            use.watch(self.nodes, queue, [t for t in self.placed() if t.job is not None and t.job.spec.queue == queue])

    def _forget_queue_use(self, before: str, after: str) -> None:
        """A job moves to another queue: both are counted anew when they are asked about."""
        if before != after:
            self.nodes.queue_use.forget(before)
            self.nodes.queue_use.forget(after)

    def _note(self, task: Task, sign: int) -> None:
        """A task has come to its row, or with sign -1 is about to leave it."""
        nodes = self.nodes
        if nodes.queue_use:
            nodes.queue_use.count(nodes, task, sign)
        if nodes.arrivals.window_s and sign > 0:
            self._note_arrival(task)
        elif nodes.arrivals.window_s:
            nodes.arrivals.left(task, task.row)

    def _note_arrival(self, task: Task) -> None:
        nodes, spec = self.nodes, task.spec
        times = (spec.started, spec.scheduled_at) if spec.node else ()
        at_s = next((at for at in times if at is not None), nodes.wall_s)  # not `or`: 0.0 is a time too
        if at_s + nodes.arrivals.window_s > nodes.wall_s:
            nodes.arrivals.came(task, task.row, at_s)

    def _new_task(self, spec: TaskSpec, job: Job) -> Task:
        task = self.take_in(spec, job, TaskStatus.PENDING)
        job.post(task)
        return task

    def take_in(self, spec: TaskSpec, job: Job, status: TaskStatus | None = None, shape: Shape | None = None) -> Task:
        """A new task in the status that its pod says, or another; its row, and the job's accounts, are the caller's.

        A `shape` is what `shape_of` says of it, from a caller who knows it already.
        """
        task = self.tasks[spec.uid] = Task(spec, shape or self.shape_of(spec, job))
        task.status = spec.status if status is None else status
        if not spec.constraints.is_local:
            for question in asked_by(spec.constraints):
                self.tallies.ask(question, self.placed(), (t for t in self.tasks.values() if t is not task))
        self.tallies.introduce(task)
        job.take_in(task)
        if spec.nominated:
            self.nominated[spec.uid] = task
        if spec.asks_queue:
            self.queue_askers[spec.uid] = task
        if len(self.tallies) > self._most_tallies:
            self._prune_tallies()
        return task

    def _prune_tallies(self) -> None:
        """Forget questions that only pods have asked that are gone; what is left may double before the next time."""
        fresh = Tallies(self.nodes)
        fresh.changes = self.tallies.changes + 1
        fresh.inherit(self.tallies)
        self.tallies = fresh
        for task in self.tasks.values():
            for question in asked_by(task.spec.constraints):
                fresh.ask(question, (), ())
        for task in self.tasks.values():
            fresh.introduce(task)
        fresh.recount(self.placed())
        self._most_tallies = max(FIRST_TALLIES, 2 * len(fresh))

    def _replace(self, task: Task, spec: TaskSpec, job: Job) -> Task:
        """The task with other demands or in another job; where we assumed it to be, it still is."""
        row, status, granted = task.row, task.status, task.granted
        self.remove_task(task.uid)
        fresh = self._new_task(spec, job)
        fresh.granted = granted
        if row >= 0 and status is TaskStatus.BINDING:
            self.place(fresh, row)
            job.move(fresh, status)
        return fresh

    def _follow(self, task: Task, spec: TaskSpec) -> None:
        """Make status and row agree with the pod."""
        job = task.job
        assert job is not None
        if spec.status is TaskStatus.PENDING and task.status in _OURS_TO_DECIDE:
            return  # a new task is pending already; one that we assumed somewhere waits for the bind to be confirmed
        if task.evicted_at is not None and spec.status in _UNAWARE and task.status is TaskStatus.RELEASING:
            return  # we sent it away; its pod has not heard yet
        row = self.nodes.row_of.get(spec.node, -1)
        holds = spec.status in HOLDS_NODE
        if task.row != row or not holds or task.is_claim:
            self._leave(task)
        if holds and task.row < 0:
            if row >= 0:
                self._occupy(task, row)
            elif spec.node:
                self._await_home(task, spec.node)
        if task.status is not spec.status:
            is_news = task.status not in HOLDS_NODE
            job.move(task, spec.status)
            if is_news and self.ledger.clock is not None and spec.started is not None:
                job.credit(task, spec.started)  # it ran before we knew
        if task.row >= 0 and (task.status is TaskStatus.RELEASING) != task.goes:
            if task.is_leaving:
                self.keep(task)
            else:
                self.let_go(task)
                self.gains += 1  # room for those who can wait for it

    def _occupy(self, task: Task, row: int) -> None:
        if task.row < 0:
            self.place(task, row)
            if task.status is TaskStatus.RELEASING and not task.is_overdue:
                self.let_go(task)

    def _vacate(self, task: Task) -> None:
        if task.row >= 0:
            self.displace(task)
            self.gains += 1

    def _await_home(self, task: Task, name: str) -> None:
        self._home[task.uid] = name
        self._homeless.setdefault(name, {})[task.uid] = task

    def _leave(self, task: Task) -> None:
        self._vacate(task)
        name = self._home.pop(task.uid, None)
        if name is not None:
            homeless = self._homeless[name]
            del homeless[task.uid]
            if not homeless:
                del self._homeless[name]


@lru_cache(maxsize=4096)  # pods of a template share their constraints, and those of a job what is read of it
def _with(constraints: Constraints, reading: Reading) -> Constraints:
    is_single = constraints.is_single or reading.is_single
    return replace(constraints, traits=(*constraints.traits, *reading.traits), is_single=is_single)


def _is_reshaped(before: TaskSpec, after: TaskSpec) -> bool:
    if (before.labels, before.role, before.volumes) != (after.labels, after.role, after.volumes):
        return True
    if before.device_claims != after.device_claims:
        return True
    return (before.request, before.constraints) != (after.request, after.constraints)
