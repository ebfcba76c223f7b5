"""When and where a gang of equal pods will fit, counted from amounts: most gangs are such, and need no copy of the cluster.

    a node has room for k of them from the end on after which its idle amounts suffice for k
    the gang starts when there is room for all, and its queue may hold them

Of the places that there are then it takes those that become free last: what is idle before and not needed is for all. A plan
that is made anew takes those that are free soonest, and of equals those that it had: some estimate was wrong, and what is free
hangs on none. A gang that more than amounts decides about is for `forecast.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from hekla.placement.bookkeeping.ledger import Ledger
from hekla.placement.columns import BoolArray, IntArray
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.session import Session
from hekla.quota.amounts import added

Rooms = Mapping[str, Mapping[str, int]]
"""By node, how much of what."""

End = tuple[float, Task]
"""When a pod is expected to end."""


NO_PLACES: Mapping[str, int] = {}


class KeptForJob(NamedTuple):
    """What is kept for a job, and the queue that holds it then."""

    queue: str
    rooms: Rooms


class Expected(NamedTuple):
    """When a job is expected to start, by the wall clock, and what it takes where."""

    start_s: float
    rooms: Rooms


class _Place(NamedTuple):
    """Room for one pod."""

    free_s: float
    is_new: bool
    """Whether it is on a node on which the job has no place yet."""

    tie: int
    row: int


def one_of_equals(session: Session, job: Job) -> Task | None:
    """A task of a job whose tasks are equal, all wait, and mind amounts and facts of nodes alone; None of other jobs."""
    spec, tasks = job.spec, job.tasks
    if not tasks or job.statuses[TaskStatus.PENDING] != len(tasks):
        return None
    if spec.wants_closeness or spec.subgroups or spec.role_minimums:
        return None
    first = next(iter(tasks.values()))
    shape = first.shape
    if shape.is_best_effort or session.policy.placer.goes_one_by_one(first):
        return None
    is_other = (task.shape is not shape or task.carriers or task.spec.is_gated for task in tasks.values())
    return None if any(is_other) else first


def soonest(
    session: Session, job: Job, task: Task, ends: Sequence[End], others: Sequence[KeptForJob],
    had: Mapping[str, int] = NO_PLACES, *, stays: bool = False,
) -> Expected | None:  # fmt: skip
    """When and where such a job will fit as pods end in this order, beside what is kept for others; None if it never will.

    `had` are the places that it has, by node. If it `stays`, it waits for these alone, and takes others only if they are free.
    """
    number, nodes = session.shortfall(job), session.cluster.nodes
    allowed_s = _allowed_from(session, job, task, number, ends, others)
    places = _Places(session, task, others, had, stays=stays).until(number, allowed_s, ends) if allowed_s < inf else ()
    if len(places) < number:
        return None
    in_order, rooms = sorted(places), dict[str, dict[str, int]]()
    taken = in_order[:number] if had else in_order[-number:]
    for place in taken:
        rooms[nodes.name(place.row)] = added((rooms.get(nodes.name(place.row), {}), task.shape.request))
    return Expected(max(allowed_s, taken[-1].free_s), rooms)


class _Places:
    """Where pods like one find room, one end after the other."""

    def __init__(
        self, session: Session, task: Task, others: Sequence[KeptForJob], had: Mapping[str, int], *, stays: bool
    ) -> None:  # fmt: skip
        nodes, self._shape = session.cluster.nodes, task.shape
        self._now_s = session.wall_s
        self._may: BoolArray = session.policy.placer.lets_in(task)
        self._asked = list(enumerate(zip(task.shape.resources.tolist(), task.shape.amounts.tolist(), strict=True)))
        self._idle = self._left_idle(session, others)
        self._ours = {nodes.row_of[name]: places for name, places in had.items() if name in nodes.row_of}
        self._stays = stays
        self._rank = nodes.rank()
        self._found = list[_Place]()
        whole = np.maximum(self._idle, 0) // task.shape.amounts[:, None]
        self._counts: IntArray = np.where(self._may, whole.min(axis=0), 0)
        for row in np.flatnonzero(self._counts).tolist():
            self._add(session.wall_s, row, int(self._counts[row]))

    def until(self, number: int, allowed_s: float, ends: Iterable[End]) -> Sequence[_Place]:
        """The places that there are as soon as there are so many, and that time has come; fewer if there never are."""
        start_s = max(self._now_s, allowed_s)
        for end_s, leaving in ends:
            if len(self._found) >= number and end_s > start_s:
                break
            start_s, row = max(start_s, end_s), leaving.row
            if row < 0 or not self._may[row] or (self._stays and row not in self._ours):
                continue
            given, column = leaving.shape.by_index, self._idle[:, row]
            for at, (resource, _) in self._asked:
                column[at] += given.get(resource, 0)
            count = max(0, min(int(column[at]) // amount for at, (_, amount) in self._asked))
            if self._stays:
                count = min(count, self._ours[row])
            if count > self._counts[row]:
                self._add(end_s, row, count - int(self._counts[row]))
                self._counts[row] = count
        return self._found

    def _left_idle(self, session: Session, others: Sequence[KeptForJob]) -> IntArray:
        """What is idle and not promised, beside what is kept for others.  # [resource that is asked for, node]"""
        nodes, resources = session.cluster.nodes, self._shape.resources
        idle: IntArray = nodes.idle[resources] + nodes.reserved[resources] - nodes.pipelined[resources]
        names = {index: name for name, index in nodes.resources.items()}
        for name, room in ((name, room) for kept in others for name, room in kept.rooms.items()):
            if name in nodes.row_of:
                idle[:, nodes.row_of[name]] -= [room.get(names[index], 0) for index in resources.tolist()]
        return idle

    def _add(self, free_s: float, row: int, count: int) -> None:
        self._found += [_Place(free_s, row not in self._ours, -int(self._rank[row]), row)] * count


def _allowed_from(
    session: Session, job: Job, task: Task, number: int, ends: Iterable[End], others: Sequence[KeptForJob]
) -> float:  # fmt: skip
    """From when on the job's queue may hold so many more, as pods end and with what others will hold; never: inf."""
    ledger = session.cluster.ledger
    posted = [(kept.queue, added(kept.rooms.values()), 1) for kept in others]
    _post(ledger, posted, 1)
    try:
        if session.allowance(job, task, number) >= number:
            return session.wall_s
        ours = set(ledger.line(job.spec.queue))
        for end_s, leaving in ends:
            assert leaving.job is not None
            if leaving.is_leaving or ours.isdisjoint(ledger.line(leaving.job.spec.queue)):
                continue
            posted.append((leaving.job.spec.queue, dict(leaving.shape.request), -1))
            _post(ledger, posted[-1:], 1)
            if session.allowance(job, task, number) >= number:
                return end_s
        return inf
    finally:
        _post(ledger, posted, -1)


def _post(ledger: Ledger, posted: Sequence[tuple[str, Mapping[str, int], int]], sign: int) -> None:
    for queue, amounts, number in posted:
        for account in ledger.chain(queue):
            account.post(amounts, 0, sign * number)
