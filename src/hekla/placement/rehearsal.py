"""Would it fit? A cluster of its own on which jobs are tried, changed or sent away, while the real one stays as it is.

Columns, tallies and accounts are copied, which is a few arrays; jobs, tasks and facts about nodes are shared and only
read, except for the jobs that are tried or sent away: those are copied when they are first touched. Copying 1,000
nodes takes about a millisecond, so one rehearsal serves many questions; each change is taken back at its block's end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from enum import Enum
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from msgspec import Struct, structs

from hekla.placement.cluster import Cluster
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints
from hekla.placement.model import Job, JobSpec, Task, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.session import Session
from hekla.placement.shape import Shape

T = TypeVar("T")
_SHARED: tuple[type, ...] = (Job, Task, Shape)
_NEVER_CHANGES: set[type] = {bool, int, float, str, type(None)}
"""Types whose values are not copied, as far as they have been met: most of what a job or a task has is of these."""


class Rehearsal:
    """A copy of a policy's cluster, with the policy at work on it."""

    def __init__(self, policy: Policy, *, now: float = 0.0) -> None:
        self._copies = _Copies()
        self.cluster = self._copies.of_cluster(policy.cluster)
        self.policy = Policy(self.cluster, policy.tiers, policy.arguments)
        self.policy.know_as(policy)
        self.policy.actions = policy.actions
        self.now = now
        self._touched: set[str] = set()

    def session(self) -> Session:
        """A cycle that nobody binds anything of."""
        return Session(self.policy, now=self.now, wall_s=self.cluster.nodes.wall_s)

    def job(self, uid: str) -> Job:
        """A job that may be placed or changed here; KeyError if there is none."""
        job = self.cluster.jobs[uid]
        if uid not in self._touched:
            self._touched.add(uid)
            job = self._take_over(job)
        return job

    @contextmanager
    def changed(
        self, uid: str, *, min_available: int | None = None, at_most: Mapping[str, int] | None = None,
        relaxed: Callable[[Constraints], Constraints] | None = None, of_pods: Mapping[str, Any] | None = None, **fields: Any,
    ) -> Iterator[Job]:  # fmt: skip
        """The job as it would be with another minimum, or with waiting tasks that ask for less, or demand something else.

        `fields` are further ones of its spec: another queue, another wish for closeness; `of_pods` those of its waiting tasks.
        """
        job = self.job(uid)
        spec, tasks = job.spec, [task.spec for task in job.tasks.values() if task.status is TaskStatus.PENDING]
        self.cluster.put_job(structs.replace(_changed(job, min_available, at_most or {}), **fields))
        changed = tasks if at_most or relaxed or of_pods else ()
        for before in changed:
            constraints = relaxed(before.constraints) if relaxed else before.constraints
            request = _capped(before.request, at_most or {})
            after = structs.replace(before, request=request, constraints=constraints, **(of_pods or {}))
            self.cluster.put_task(after, job)
        try:
            yield job
        finally:
            self.cluster.put_job(spec)
            for before in changed:
                self.cluster.put_task(before, job)

    @contextmanager
    def without(self, uid: str) -> Iterator[None]:
        """The cluster as it would be if a job had ended: its tasks have succeeded and hold nothing."""
        job = self.job(uid)
        placed = [(task, task.row, task.devices, task.status) for task in job.tasks.values() if task.row >= 0]
        for task, _, _, _ in placed:
            self.cluster.displace(task)
            job.move(task, TaskStatus.SUCCEEDED)
        try:
            yield
        finally:
            for task, row, devices, status in placed:
                job.move(task, status)
                self._put_back(task, row, devices)

    @contextmanager
    def with_queue(self, queue: Queue) -> Iterator[None]:
        """The cluster as it would be if a queue said something else; its place in the tree stays."""
        before = self.cluster.queues[queue.name]
        self.cluster.put_queue(queue)
        try:
            yield
        finally:
            self.cluster.put_queue(before)

    @contextmanager
    def with_nodes(self, specs: Sequence[NodeSpec]) -> Iterator[None]:
        """The cluster as it would be with a few nodes more."""
        for spec in specs:
            self.cluster.put_node(spec)
        try:
            yield
        finally:
            for spec in specs:
                self.cluster.remove_node(spec.name)

    def _put_back(self, task: Task, row: int, devices: tuple[int, ...]) -> None:
        """What a task held, or was promised, by its status."""
        if task.status is TaskStatus.PIPELINED:
            self.cluster.claim(task, row, task.promised_at)
            return
        self.cluster.place(task, row, devices)
        if task.status is TaskStatus.RELEASING and not task.is_overdue:
            self.cluster.let_go(task)

    def _take_over(self, job: Job) -> Job:
        """Put a copy of a job and its tasks in its place."""
        twin = self._copies.of_job(job)
        cluster, lines = self.cluster, self.cluster.lines
        cluster.jobs[job.uid] = twin
        for line in (lines.for_nodes, lines.loose, lines.promised, *lines.by_phase.values()):
            if job.uid in line:
                line[job.uid] = twin
        for task in twin.tasks.values():
            task.shape = cluster.shape_of(task.spec, twin)
            for known in (cluster.tasks, cluster.leaving, cluster.forsaken, cluster.nominated):
                if task.uid in known:
                    known[task.uid] = task
        return twin


def _capped(request: Mapping[str, int], at_most: Mapping[str, int]) -> Mapping[str, int]:
    return {name: min(amount, at_most.get(name, amount)) for name, amount in request.items()}


def _changed(job: Job, min_available: int | None, at_most: Mapping[str, int]) -> JobSpec:
    """The job's spec with another minimum; what must be free before it may enter shrinks alike."""
    spec, wanted = job.spec, dict(job.spec.min_resources or {})
    if min_available is not None and spec.min_available:
        wanted = {name: amount * min_available // spec.min_available for name, amount in wanted.items()}
    first = next((task for task in job.tasks.values() if task.status is TaskStatus.PENDING), None)
    for name, amount in at_most.items():
        before = first.spec.request.get(name, 0) if first is not None else 0
        if before and name in wanted:
            wanted[name] = wanted[name] * amount // before
    return structs.replace(
        spec,
        min_available=spec.min_available if min_available is None else min_available,
        min_resources=None if spec.min_resources is None else wanted,
    )


class _Copies:
    """Copies of what changes, each made once, so that what was one object stays one; the rest is shared."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._shared: tuple[type, ...] = _SHARED

    def of_cluster(self, cluster: Cluster) -> Cluster:
        """A cluster that can change without the other noticing."""
        fresh: WeakValueDictionary[Any, Shape] = WeakValueDictionary()
        self._made[id(vars(cluster)["_shapes"])] = fresh  # shapes count their uses, so the copy has its own
        return self._of(cluster)

    def of_job(self, job: Job) -> Job:
        """A job and its tasks, tied to the accounts and lines of the copied cluster."""
        self._shared = (Shape,)
        try:
            return self._of(job)
        finally:
            self._shared = _SHARED

    def _of(self, value: T) -> T:
        made = self._made.get(id(value))
        if made is None:
            made = self._new(value)
        twin: T = made
        return twin

    def _new(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        if isinstance(value, dict):
            return self._keep(value, copy(value), lambda twin: self._fill(twin, value.items()))
        if isinstance(value, list):
            return self._keep(value, copy(value), lambda twin: self._fill(twin, enumerate(value)))
        if isinstance(value, tuple):
            return value if type(value) is not tuple else tuple(self._of(part) for part in value)
        if isinstance(value, set):
            return copy(value)
        if self._is_ours(value):
            return self._keep(value, copy(value), self._own)
        if not isinstance(value, _SHARED):
            _NEVER_CHANGES.add(type(value))
        return value

    def _keep(self, value: Any, twin: Any, fill: Any) -> Any:
        self._made[id(value)] = twin  # before what is in it is copied: that may point back
        fill(twin)
        return twin

    def _fill(self, twin: Any, items: Any) -> None:
        """Copy what lies in a list or dict. All its values are of a kind, so the first tells whether there is anything to do."""
        for count, (key, part) in enumerate(items):
            if count == 0 and self._is_plain(part):
                return
            twin[key] = self._of(part)

    def _own(self, twin: Any) -> None:
        names = getattr(type(twin), "__slots__", None) or list(vars(twin))
        for name in names:
            if name.startswith("__") or type(value := getattr(twin, name)) in _NEVER_CHANGES:
                continue
            if (part := self._of(value)) is not value:
                setattr(twin, name, part)

    def _is_plain(self, value: Any) -> bool:
        return not isinstance(value, np.ndarray | dict | list | set | tuple) and not self._is_ours(value)

    def _is_ours(self, value: Any) -> bool:
        """Whether it is an object of the engine that changes; specs, constraints and statuses do not."""
        kind = type(value)
        if isinstance(value, (*self._shared, Enum, Struct)) or not kind.__module__.startswith("hekla.placement"):
            return False
        parameters = getattr(kind, "__dataclass_params__", None)
        return parameters is None or not parameters.frozen
