"""When will a job fit, and where, as others end? `reservations.py` keeps that room from then on.

The job is tried on a copy of the cluster from which pods are taken in the order in which they are expected to end. What
fits when some have ended, fits when more have, so the earliest time is found by halving.
"""

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from hekla.placement.filling import fill_places
from hekla.placement.imagined import imagine_pods
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.placement.topology.gang import place_close
from hekla.quota.amounts import added

Rooms = Mapping[str, Mapping[str, int]]
"""By node, how much of what."""


class Kept(NamedTuple):
    """What is kept for a job, and the queue that holds it then."""

    queue: str
    rooms: Rooms


class Expected(NamedTuple):
    """When a job is expected to start, by the wall clock, and what it takes where."""

    start_s: float
    rooms: Rooms


def expected_start(
    session: Session, job: Job, end_of: Callable[[Task], float], others: Sequence[Kept]
) -> Expected | None:
    """When and where a job will fit, beside the rooms that are kept for others; None if it will not, by all that is known."""
    by_end: dict[float, list[Task]] = {}
    for task in session.cluster.placed():
        if (end := end_of(task)) < inf:
            by_end.setdefault(end, []).append(task)
    # Asked first: where nobody says how long pods run, there is no cluster to copy.
    return _Forecast(session, job, by_end, others).earliest() if by_end else None


def place_freely(statement: Statement, session: Session, job: Job) -> None:
    """Place tasks until the job is ready, or is one task larger if it was, whatever is reserved."""
    if job.spec.wants_closeness:
        place_close(statement, session, job)
    else:
        fill_places(statement, session, job)


class _Forecast:
    """A copy of the cluster, at the time at which some of the ends have passed."""

    def __init__(
        self, session: Session, job: Job, by_end: Mapping[float, Sequence[Task]], others: Sequence[Kept]
    ) -> None:  # fmt: skip
        self._rehearsal = Rehearsal(session.policy, now=session.now)
        self._cluster = self._rehearsal.cluster
        self._cluster.reservations = {}
        self._by_end, self._ends = by_end, sorted(by_end)
        self._leave_room_for(others)
        self._job = self._rehearsal.job(job.uid)
        imagine_pods(self._rehearsal, self._job)
        self._gone: list[tuple[Task, int, tuple[int, ...], TaskStatus]] = []
        self._at = 0
        self._marks = [0]
        """How many were gone when so many ends had passed."""

    def earliest(self) -> Expected | None:
        """By halving: what fits when some have ended, fits when more have."""
        if self._rooms_at(len(self._ends)) is None:
            return None
        low, high = 1, len(self._ends)
        while low < high:
            middle = (low + high) // 2
            if self._rooms_at(middle) is None:
                low = middle + 1
            else:
                high = middle
        rooms = self._rooms_at(low)
        assert rooms is not None, "what fitted fits again"
        return Expected(self._ends[low - 1], rooms)

    def _rooms_at(self, number: int) -> Rooms | None:
        """What the job would take where, when so many ends have passed; None if it does not fit then."""
        self._pass(number)
        session, job = self._rehearsal.session(), self._job
        rooms: dict[str, dict[str, int]] = {}
        with session.statement() as statement:
            place_freely(statement, session, job)
            if not statement or not session.is_ready(job):
                return None
            for task in statement.placed:
                room = rooms.setdefault(self._cluster.nodes.name(task.row), {})
                for resource, amount in task.shape.request.items():
                    room[resource] = room.get(resource, 0) + amount
        return rooms

    def _pass(self, number: int) -> None:
        """Let it be the time at which so many ends have passed."""
        while self._at < number:
            for task in self._by_end[self._ends[self._at]]:
                self._end(task)
            self._at += 1
            self._marks.append(len(self._gone))
        while self._at > number:
            self._marks.pop()
            self._at -= 1
            while len(self._gone) > self._marks[-1]:
                self._return()

    def _end(self, task: Task) -> None:
        assert task.job is not None
        twin = self._rehearsal.job(task.job.uid).tasks[task.uid]
        assert twin.job is not None
        self._gone.append((twin, twin.row, twin.devices, twin.status))
        self._cluster.displace(twin)
        twin.job.move(twin, TaskStatus.SUCCEEDED)

    def _return(self) -> None:
        twin, row, devices, status = self._gone.pop()
        assert twin.job is not None
        twin.job.move(twin, status)
        self._cluster.place(twin, row, devices)

    def _leave_room_for(self, others: Sequence[Kept]) -> None:
        """Count what is kept for others as in use, on nodes and in queues."""
        nodes, ledger = self._cluster.nodes, self._cluster.ledger
        for queue, rooms in others:
            ledger.post(queue, added(rooms.values()), 1)
            for name, room in rooms.items():
                row = nodes.row_of.get(name, -1)
                if row >= 0:
                    nodes.take(row, *nodes.vector(room))
