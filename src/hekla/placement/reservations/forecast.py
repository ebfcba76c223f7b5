"""When will a job fit, and where, as others end? `book.py` keeps that room from then on.

A gang of equal pods is counted (`forecast_equal_pods.py`); any other is tried on a copy of the cluster from which pods are taken in the
order in which they are expected to end. What fits when some have ended, fits when more have, so the earliest time is found by
halving, above the time at which the amounts suffice.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.node_selection.filling import fill_places
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.reservations.forecast_equal_pods import (
    NO_PLACES,
    End,
    Expected,
    KeptForJob,
    Rooms,
    one_of_equals,
    soonest,
)
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.placement.topology.gang import place_close
from hekla.placement.unmade_pods import imagine_pods
from hekla.quota.amounts import added


class _Gone(NamedTuple):
    """A pod that has ended, and what it had; without a status only amounts were given back."""

    task: Task
    row: int
    devices: tuple[int, ...] = ()
    status: TaskStatus | None = None
    was_leaving: bool = False


def expected_start(
    session: Session, job: Job, ends: Sequence[End], others: Sequence[KeptForJob], had: Mapping[str, int] = NO_PLACES
) -> Expected | None:  # fmt: skip
    """When and where a job will fit as pods end in this order, beside what is kept for others; None if it will not, by all
    that is known. `had` are the nodes on which room is kept for it, and for how many pods.
    """  # fmt: skip
    task = one_of_equals(session, job)
    if task is not None:
        return soonest(session, job, task, ends, others, had)
    return tried_on_a_copy(session, job, ends, others)


def tried_on_a_copy(session: Session, job: Job, ends: Sequence[End], others: Sequence[KeptForJob]) -> Expected | None:
    """The same of any job, by placing it where those have ended that end before."""
    return _Forecast(session, job, ends, others).earliest()


def place_freely(statement: Statement, session: Session, job: Job) -> None:
    """Place tasks until the job is ready, or is one task larger if it was, whatever is reserved."""
    if job.spec.wants_closeness:
        place_close(statement, session, job)
    else:
        fill_places(statement, session, job)


class _Forecast:
    """A copy of the cluster, at the time at which some of the ends have passed."""

    def __init__(
        self, session: Session, job: Job, ends: Sequence[End], others: Sequence[KeptForJob]
    ) -> None:  # fmt: skip
        self._now_s = session.wall_s
        self._rehearsal = Rehearsal(session.policy, now=session.now)
        self._cluster = self._rehearsal.cluster
        self._cluster.reservations = {}
        self._by_end: dict[float, list[Task]] = {}
        for end_s, task in ends:
            if task.row < 0:  # it was placed when the ends were found, and has been taken back since: it gives nothing
                continue
            self._by_end.setdefault(end_s, []).append(task)
        self._ends = list(self._by_end)
        self._leave_room_for(others)
        self._job = self._rehearsal.job(job.uid)
        imagine_pods(self._rehearsal, self._job)
        self._counts_amounts_alone = not (self._cluster.has_readers or self._cluster.nodes.arrivals.window_s)
        self._gone: list[_Gone] = []
        self._at = 0
        self._marks = [0]
        """How many were gone when so many ends had passed."""

    def earliest(self) -> Expected | None:
        """What fits when some have ended, fits when more have: from where the amounts suffice on by steps that double, then
        by halving what is between. Most jobs fit where the amounts do, so that one try tells.
        """  # fmt: skip
        last, low, step = len(self._ends), self._least(), 1
        number = low
        while number > last or (rooms := self._rooms_at(number)) is None:
            if number >= last:
                return None
            low, number, step = number + 1, min(number + step, last), 2 * step
        while low < number:
            middle = (low + number) // 2
            found = self._rooms_at(middle)
            if found is None:
                low = middle + 1
            else:
                number, rooms = middle, found
        return Expected(self._ends[number - 1] if number else self._now_s, rooms)

    def _least(self) -> int:
        """After how many ends the job can fit at the earliest, by amounts alone; one more than there are if never."""
        number, last = self._rehearsal.session().shortfall(self._job), len(self._ends)
        shapes = {task.shape for task in self._job.pending() if not task.is_best_effort}
        if len(shapes) != 1:
            return 0
        nodes, (shape,) = self._cluster.nodes, shapes
        leaving = [(at, task) for at, end in enumerate(self._ends, start=1) for task in self._by_end[end]]
        ends = np.array([at for at, _ in leaving], np.int64)
        rows = np.array([task.row for _, task in leaving], np.int64)
        # [resource, who leaves], of those resources that the job asks for
        given = np.array([[task.shape.by_index.get(r, 0) for _, task in leaving] for r in shape.resources.tolist()])
        # what leaves gives back what was promised of it, too: at the most, so that nothing is passed over
        idle, each = nodes.idle[shape.resources] + nodes.reserved[shape.resources], shape.amounts[:, None]

        def suffices(passed: int) -> bool:
            gone, free = np.searchsorted(ends, passed, side="right"), idle.copy()
            for of_one, amounts in zip(free, given, strict=True):
                np.add.at(of_one, rows[:gone], amounts[:gone])
            places = np.where(nodes.is_live, (np.maximum(free, 0) // each).min(axis=0), 0)
            return int(places.sum()) >= number

        return bisect_left(range(last + 1), True, key=suffices)

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
        if self._counts_amounts_alone and _is_plain(task):
            # nobody looks at the pod itself: to copy its job took 180 us, and this takes 10
            self._post(task, -1)
            self._gone.append(_Gone(task, task.row))
            return
        twin = self._rehearsal.job(task.job.uid).tasks[task.uid]
        assert twin.job is not None
        self._gone.append(_Gone(twin, twin.row, twin.devices, twin.status, twin.is_leaving))
        self._cluster.displace(twin)
        twin.job.move(twin, TaskStatus.SUCCEEDED)

    def _return(self) -> None:
        gone = self._gone.pop()
        task, row, devices, status, was_leaving = gone
        if status is None:
            self._post(task, 1)
            return
        assert task.job is not None
        task.job.move(task, status)
        self._cluster.place(task, row, devices)
        if was_leaving:
            self._cluster.let_go(task)

    def _post(self, task: Task, sign: int) -> None:
        """Count a pod that runs, or not any more: on its node, and in the accounts of its queue and those above."""
        assert task.job is not None
        nodes, ledger, shape = self._cluster.nodes, self._cluster.ledger, task.shape
        (nodes.take if sign > 0 else nodes.give)(task.row, shape.resources, shape.amounts)
        ledger.changes += 1
        for account in ledger.chain(task.job.spec.queue):
            account.post(shape.request, sign, sign)

    def _leave_room_for(self, others: Sequence[KeptForJob]) -> None:
        """Count what is kept for others as in use, on nodes and in queues."""
        nodes, ledger = self._cluster.nodes, self._cluster.ledger
        for queue, rooms in others:
            ledger.post(queue, added(rooms.values()), 1)
            for name, room in rooms.items():
                row = nodes.row_of.get(name, -1)
                if row >= 0:
                    nodes.take(row, *nodes.vector(room))


def _is_plain(task: Task) -> bool:
    """Whether nothing but the amounts that it holds tells that it runs."""
    is_known_by = task.matched or task.carriers or task.devices or task.granted or task.taken
    return not (is_known_by or task.is_leaving or task.is_claim)
