"""When are running pods expected to end, and what do they give back until then? By what their owners say; see `book.py`.

A pod that outlives its estimate is expected to take twice as long, then four times as long. One that was told to go is
expected to be gone when its grace period is over; who does not go in time ends never, as far as anybody knows.
"""

from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from hekla.placement.model import ALLOCATED_STATUSES, Job, Task, TaskStatus
from hekla.placement.session import Session
from hekla.quota.amounts import added

_ENDS_IN_DUE_TIME = frozenset(ALLOCATED_STATUSES) - {TaskStatus.ALLOCATED}


class Ends:
    """The expected ends as one session sees them."""

    def __init__(self, session: Session, default_s: float | None) -> None:
        self._session, self._cluster = session, session.cluster
        self._default_s = default_s
        """How long jobs run that say nothing; None: nobody knows."""

        self._on_row: dict[int, list[Task]] | None = None
        self._back_to_queue: dict[tuple[str, float], Mapping[str, int]] = {}
        self._in_order: list[tuple[float, Task]] | None = None
        self._in_it: set[str] = set()
        """Who is in that order, by uid."""

        self._leaving = 0
        """How many were leaving when it was made."""

    def estimate_s(self, job: Job) -> float:
        """How long the pods of a job are expected to run."""
        estimate = job.spec.estimate_s if job.spec.estimate_s is not None else self._default_s
        return estimate or inf

    def of(self, task: Task) -> float:
        """When a pod is expected to end, by the wall clock; never, if nobody has said how long it runs."""
        job, now_s = task.job, self._session.wall_s
        if task.is_leaving:
            since = task.leaving_since if task.leaving_since is not None else self._session.now
            return now_s + max(task.spec.grace_s - (self._session.now - since), 0.0)
        estimate = self.estimate_s(job) if job is not None else inf
        if estimate == inf or task.status not in _ENDS_IN_DUE_TIME:
            return inf
        known = (at for at in (task.spec.started, task.spec.scheduled_at) if at is not None)
        began = next(known, now_s)  # not `or`: 0.0 is a time too
        while began + estimate <= now_s:
            estimate *= 2  # it has been wrong before, so it is believed less
        return began + estimate

    @property
    def in_order(self) -> Sequence[tuple[float, Task]]:
        """The pods that are expected to end, with when, the first one first."""
        if self._in_order is None or self._leaving != len(self._cluster.leaving):
            found = [(end, task) for task in self._cluster.placed() if (end := self.of(task)) < inf]
            found.sort(key=_turn)
            self._in_order, self._leaving = found, len(self._cluster.leaving)
            self._in_it = {task.uid for _, task in found}
        return self._in_order

    def on(self, row: int) -> Sequence[Task]:
        """The pods of a node."""
        if self._on_row is None:
            self._on_row = {}
            for task in self._cluster.placed():
                self._on_row.setdefault(task.row, []).append(task)
        return self._on_row.get(row, ())

    def given_back(self, row: int, by_s: float) -> Mapping[str, int]:
        """What the pods on a node give back until then, less what was promised of it."""
        back: dict[str, int] = {}
        for task in self.on(row):
            if task.row == row and self.of(task) <= by_s:
                for resource, amount in task.shape.request.items():
                    back[resource] = back.get(resource, 0) + amount
        nodes = self._cluster.nodes
        owed = nodes.pipelined[:, row] - nodes.reserved[:, row]
        if owed.any():
            back = {name: amount - int(owed[nodes.resources[name]]) for name, amount in back.items()}
        return back

    def free_from(self, rooms: Mapping[str, Mapping[str, int]]) -> float:
        """When all of that room is free: 0 if it is now, inf if it never is as far as anybody knows."""
        return max((self._free_on(name, room) for name, room in rooms.items()), default=0.0)

    def _free_on(self, name: str, room: Mapping[str, int]) -> float:
        nodes = self._cluster.nodes
        row = nodes.row_of.get(name, -1)
        if row < 0 or not nodes.is_live[row]:
            return inf
        free = nodes.idle[:, row] - nodes.pipelined[:, row] + nodes.reserved[:, row]
        lacking = {resource: amount - int(free[nodes.resource(resource)]) for resource, amount in room.items()}
        ends = sorted((self.of(task), task.uid, task) for task in self.on(row) if task.row == row)
        from_s = 0.0
        for end_s, _, task in ends:
            if max(lacking.values(), default=0) <= 0:
                break
            from_s = end_s
            lacking = {one: amount - task.shape.request.get(one, 0) for one, amount in lacking.items()}
        return from_s if max(lacking.values(), default=0) <= 0 else inf

    def back_to(self, queue: str, by_s: float) -> Mapping[str, int]:
        """What the pods of a queue, and of those below it, give back until then. Kept for the session: what is placed
        meanwhile is not counted, so that a cycle counts once.
        """  # fmt: skip
        known = self._back_to_queue.get((queue, by_s))
        if known is None:
            known = self._back_to_queue[queue, by_s] = added(self._requests_back_to(queue, by_s))
        return known

    def _requests_back_to(self, queue: str, by_s: float) -> Iterator[Mapping[str, int]]:
        line = self._cluster.ledger.line
        for end_s, task in self.in_order:
            if end_s > by_s:
                return
            assert task.job is not None
            if task.row >= 0 and not task.is_leaving and queue in line(task.job.spec.queue):
                yield task.shape.request

    def note(self, job: Job) -> None:
        """Pods of a job were given nodes."""
        for task in job.tasks.values() if self._in_order is not None else ():
            assert self._in_order is not None
            if task.row >= 0 and task.uid not in self._in_it and (end_s := self.of(task)) < inf:
                # put in its place: to order 10,000 anew took 11 ms, between any two jobs of which one found no room
                insort(self._in_order, (end_s, task), key=_turn)
                self._in_it.add(task.uid)
        for task in job.tasks.values() if self._on_row is not None else ():
            assert self._on_row is not None
            if task.row >= 0 and task not in (there := self._on_row.setdefault(task.row, [])):
                there.append(task)


def _turn(end: tuple[float, Task]) -> tuple[float, str]:
    return end[0], end[1].uid
