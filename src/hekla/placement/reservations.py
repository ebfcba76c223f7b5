"""Room kept for jobs that wait for much of it, and filled meanwhile by those who are gone before it is needed.

A gang that needs half of the cluster never finds it free at once while small jobs keep coming. So when it does not fit, it
is found out when it will, and where: pods are taken away in the order in which they are expected to end, on a copy of the
cluster, until it fits. From then on that room is reserved. Whoever

    ends before the reservation begins       may use it (backfill)
    is of higher priority                     does not heed it
    else                                      uses only what the reservation does not need of what is idle now:
                                              max(0, reserved - given back on that node until then)

so that nobody who was let in delays it, as long as estimates hold. A pod that outlives its estimate is expected to take
twice as long, then four times as long. The plug-in `reservation` has this switched on, and how many jobs it is done for.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, runtime_checkable

from hekla.placement.constraint import Refusal
from hekla.placement.filling import fill_places
from hekla.placement.model import ALLOCATED_STATUSES, Job, Task, TaskStatus
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.placement.topology.gang import place_close

RESERVED = "reserved"
MOST_NODES_TOLD = 3
_ENDS_IN_DUE_TIME = frozenset(ALLOCATED_STATUSES) - {TaskStatus.ALLOCATED}


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Which nodes are kept for a job, from when, and how much of each."""

    uid: str
    job: str
    priority: int
    start_s: float
    """When it is expected to start, by the wall clock."""

    rooms: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By node, what it needs there."""

    def sentence(self, now_s: float) -> str:
        """`node-1, node-2 are reserved for ml/big, which is to start in 12 min`."""
        names = sorted(self.rooms)
        more = f" and {len(names) - MOST_NODES_TOLD} more" if len(names) > MOST_NODES_TOLD else ""
        verb = "are" if len(names) > 1 else "is"
        told = ", ".join(names[:MOST_NODES_TOLD]) + more
        return f"{told} {verb} reserved for {self.job}, which is to start {when(self.start_s - now_s)}"


def when(seconds: float) -> str:
    """`now`, `in 90 s`, `in 12 min`."""
    if seconds <= 0:
        return "now"
    return f"in {seconds:.0f} s" if seconds < 120 else f"in {seconds / 60:.0f} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the plug-in was told."""

    depth: int
    """For how many jobs at a time room is kept."""

    after_s: float
    """How long a job must have waited."""

    estimate_s: float | None
    """How long jobs are expected to run that say nothing."""


class Book:
    """The reservations as one session sees them."""

    def __init__(self, session: Session, terms: Terms) -> None:
        self._session, self._terms = session, terms
        self._cluster = session.cluster
        self._on_row: dict[int, list[Task]] | None = None
        for uid, reservation in list(self.kept.items()):
            if self._is_void(reservation):
                self._strike(uid)
            else:
                session.look_again(reservation.start_s if reservation.start_s > session.wall_s else inf)

    @property
    def kept(self) -> dict[str, Reservation]:
        """By job; they outlive the session."""
        return self._cluster.reservations

    # Who heeds what

    def heeded(self, job: Job) -> list[Reservation]:
        """The reservations that a job must not delay, the earliest first."""
        end = self._session.wall_s + self._estimate(job)
        found = (
            r for r in self.kept.values() if r.uid != job.uid and r.priority >= job.spec.priority and r.start_s < end
        )
        return sorted(found, key=lambda r: (r.start_s, r.uid))

    @contextmanager
    def kept_free(self, heeded: Sequence[Reservation]) -> Iterator[None]:
        """What these need of what is idle now counts as in use within the block."""
        nodes, taken = self._cluster.nodes, []
        for name in sorted({name for reservation in heeded for name in reservation.rooms}):
            row = nodes.row_of.get(name, -1)
            held = self._to_hold(row, name, heeded) if row >= 0 else {}
            if held:
                taken.append((row, *nodes.vector(held)))
        for row, resources, amounts in taken:
            nodes.take(row, resources, amounts)
        try:
            yield
        finally:
            for row, resources, amounts in taken:
                nodes.give(row, resources, amounts)

    def _to_hold(self, row: int, name: str, heeded: Sequence[Reservation]) -> dict[str, int]:
        """What must stay idle on a node: for each reservation what it and those before it need and nobody gives back."""
        nodes, needed, held = self._cluster.nodes, dict[str, int](), dict[str, int]()
        for reservation in heeded:
            back = self._given_back(row, reservation.start_s)
            for resource, amount in reservation.rooms.get(name, {}).items():
                needed[resource] = needed.get(resource, 0) + amount
                lacking = needed[resource] - back.get(resource, 0)
                idle = int(nodes.idle[nodes.resource(resource), row])
                held[resource] = max(held.get(resource, 0), min(lacking, idle))
        return {resource: amount for resource, amount in held.items() if amount > 0}

    def _given_back(self, row: int, by_s: float) -> Mapping[str, int]:
        """What the pods on a node give back until then."""
        back: dict[str, int] = {}
        for task in self._tasks_on(row):
            if task.row == row and self.end_of(task) <= by_s:
                for resource, amount in task.shape.request.items():
                    back[resource] = back.get(resource, 0) + amount
        return back

    def _tasks_on(self, row: int) -> Sequence[Task]:
        if self._on_row is None:
            rows = {self._cluster.nodes.row_of.get(name, -1) for r in self.kept.values() for name in r.rooms}
            self._on_row = {row: [] for row in rows}
            for task in self._cluster.placed():
                if task.row in self._on_row:
                    self._on_row[task.row].append(task)
        return self._on_row.get(row, ())

    def end_of(self, task: Task) -> float:
        """When a pod is expected to end, by the wall clock; never, if nobody has said how long it runs."""
        job, now_s = task.job, self._session.wall_s
        estimate = self._estimate(job) if job is not None else inf
        if estimate == inf or task.status not in _ENDS_IN_DUE_TIME:
            return inf
        known = (at for at in (task.spec.started, task.spec.scheduled_at) if at is not None)
        began = next(known, now_s)  # not `or`: 0.0 is a time too
        while began + estimate <= now_s:
            estimate *= 2  # it has been wrong before, so it is believed less
        return began + estimate

    def _estimate(self, job: Job) -> float:
        estimate = job.spec.estimate_s if job.spec.estimate_s is not None else self._terms.estimate_s
        return estimate or inf

    # Keeping them

    def placed(self, job: Job) -> None:
        """A job's pods were given nodes: it needs no reservation, and gives back there what it takes when it ends."""
        self._strike(job.uid)
        self._on_row = None

    def wish(self, job: Job) -> None:
        """A job did not fit: reserve room for it, or find out anew when it will fit."""
        now_s, known = self._session.wall_s, self.kept.get(job.uid)
        if known is None and (len(self.kept) >= self._terms.depth or job.ready_count):
            return
        due_s = job.spec.created + self._terms.after_s
        if known is None and self._terms.after_s and now_s < due_s:
            self._session.look_again(due_s)
            return
        if known is not None and now_s < known.start_s and self._is_in_reach(known):
            return
        found = self._planned(job)
        if found is None or found == known:
            return
        self._strike(job.uid)
        self.kept[job.uid] = found
        self._on_row = None
        self._session.look_again(found.start_s)

    def _strike(self, uid: str) -> None:
        if self.kept.pop(uid, None) is not None:
            self._cluster.gains += 1  # who was kept back may go

    def _is_void(self, reservation: Reservation) -> bool:
        job = self._cluster.jobs.get(reservation.uid)
        return job is None or not job.wants_more or bool(job.ready_count) or not self._session.is_admitted_to_queue(job)

    def _is_in_reach(self, reservation: Reservation) -> bool:
        """Whether its nodes are there and will have the room by then."""
        nodes = self._cluster.nodes
        for name, room in reservation.rooms.items():
            row = nodes.row_of.get(name, -1)
            if row < 0 or not nodes.is_live[row]:
                return False
            back = self._given_back(row, reservation.start_s)
            if any(int(nodes.idle[nodes.resource(r), row]) + back.get(r, 0) < amount for r, amount in room.items()):
                return False
        return True

    def _planned(self, job: Job) -> Reservation | None:
        """When and where a job will fit as others end; None if it will not, by all that is known."""
        others = sorted((r for r in self.kept.values() if r.uid != job.uid), key=lambda r: (r.start_s, r.uid))
        ends = sorted({end for task in self._cluster.placed() if (end := self.end_of(task)) < inf})
        return _Forecast(self._session, self, job, others, ends).earliest()


class _Forecast:
    """Tries a job on a copy of the cluster from which pods are taken in the order of their ends."""

    def __init__(
        self, session: Session, book: Book, job: Job, others: Sequence[Reservation], ends: Sequence[float]
    ) -> None:  # fmt: skip
        self._session, self._ends, self._uid = session, ends, job.uid
        self._rehearsal = Rehearsal(session.policy, now=session.now)
        self._cluster = self._rehearsal.cluster
        self._cluster.reservations = {}
        self._leave_room_for(others)
        by_end: dict[float, list[Task]] = {}
        for task in session.cluster.placed():
            if (end := book.end_of(task)) < inf:
                by_end.setdefault(end, []).append(task)
        self._by_end = by_end
        self._gone: list[tuple[Task, int, object, TaskStatus]] = []
        self._at = 0
        self._marks = [0]
        """How many were gone when so many ends had passed."""

    def earliest(self) -> Reservation | None:
        """By halving: what fits when some have ended, fits when more have."""
        if not self._ends or self._rooms_at(len(self._ends)) is None:
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
        job = self._session.cluster.jobs[self._uid]
        return Reservation(
            uid=job.uid, job=job.key, priority=job.spec.priority, start_s=self._ends[low - 1], rooms=rooms
        )

    def _rooms_at(self, number: int) -> Mapping[str, Mapping[str, int]] | None:
        """What the job would take where, when so many ends have passed; None if it does not fit then."""
        self._pass(number)
        session, job = self._rehearsal.session(), self._rehearsal.job(self._uid)
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
        self._cluster.place(twin, row, devices)  # type: ignore[arg-type]  # what displace took off it

    def _leave_room_for(self, others: Sequence[Reservation]) -> None:
        nodes = self._cluster.nodes
        for reservation in others:
            for name, room in reservation.rooms.items():
                row = nodes.row_of.get(name, -1)
                if row >= 0:
                    nodes.take(row, *nodes.vector(room))


@runtime_checkable
class KeepsBook(Protocol):
    """A plug-in that keeps reservations."""

    keeps_reservations: bool

    def open(self, session: Session) -> Book:
        """The book as it stands."""


def book_of(session: Session) -> Book | None:
    """The session's book; None where no plug-in keeps one."""
    plugin = next(iter(session.policy.asked(KeepsBook)), None)  # type: ignore[type-abstract]  # it is a Protocol
    return session.opened(plugin) if plugin is not None else None


def place_freely(statement: Statement, session: Session, job: Job) -> None:
    """Place tasks until the job is ready, or is one task larger if it was, whatever is reserved."""
    if job.spec.wants_closeness:
        place_close(statement, session, job)
    else:
        fill_places(statement, session, job)


def place_beside(statement: Statement, session: Session, job: Job, book: Book) -> None:
    """The same on what reservations leave; if those are why it does not fit, that is noted."""
    heeded = book.heeded(job)
    if not heeded:
        place_freely(statement, session, job)
        return
    start = statement.savepoint
    with book.kept_free(heeded):
        place_freely(statement, session, job)
    if statement.savepoint > start and session.is_ready(job):
        return
    statement.back_to_savepoint(start)
    session.failures.pop(job.uid, None)
    session.forget_hopeless()
    with session.statement() as trial:  # would it fit but for the reservations?
        place_freely(trial, session, job)
        fits = bool(trial) and session.is_ready(job)
    if fits:
        session.failures.pop(job.uid, None)
        session.refusals[job.uid] = Refusal(RESERVED, _kept_back(session, heeded[0]))


def _kept_back(session: Session, first: Reservation) -> str:
    hint = "a job that ends before may use them: say how long this one runs with hekla.dev/running-estimate"
    return f"{first.sentence(session.wall_s)}; {hint}"
