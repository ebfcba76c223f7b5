"""Room kept for jobs that wait for much of it, and filled meanwhile by those who are gone before it is needed.

A gang that needs half of the cluster never finds it free at once while small jobs keep coming. So when it does not fit, it
is found out when it will, and where: pods are taken away in the order in which they are expected to end, on a copy of the
cluster, until it fits. From then on that room is reserved. Whoever

    ends before the reservation begins       may use it (backfill)
    is of higher priority                     does not heed it
    else                                      uses only what the reservation does not need of what is idle now:
                                              max(0, reserved - given back on that node until then)

so that nobody who was let in delays it, as long as estimates hold. What its queue, or one above, may hold at most is kept
by the same rule. A pod that outlives its estimate is expected to take twice as long, then four times as long.

A job that is kept out for want of room has its reservation before it enters, planned with the pods that it will make; so it
enters at once. Its claim is in an account of its own (`entered.py`): others enter as if it were not there, but for what is
kept of the idle room. `forecast.py` finds out when it fits. The plug-in `reservation` has this switched on, and how many
jobs it is done for.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from typing import Protocol, runtime_checkable

from hekla.placement.constraint import Refusal
from hekla.placement.forecast import Kept, Rooms, expected_start, place_freely
from hekla.placement.model import ALLOCATED_STATUSES, Job, JobPhase, Task, TaskStatus
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.quota.amounts import added

RESERVED = "reserved"
PATIENCE_S = 60.0
"""How long after its start room is kept for a job that was let in and has made no pods."""

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

    rooms: Rooms = field(default_factory=dict)
    """By node, what it needs there."""

    is_imagined: bool = False
    """Whether it was planned before the job made its pods, so that it is planned anew when they are there."""

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
        self._back_to_queue: dict[tuple[str, str], Mapping[str, int]] = {}
        self._kept_idle: dict[tuple[str, ...], Mapping[str, int]] = {}
        for uid, reservation in list(self.kept.items()):
            if self._is_void(reservation):
                self._strike(uid)
            else:
                session.look_again(self._next_look(reservation))
        for uid in self._cluster.let_in - self.kept.keys():
            if not self._is_yet_to_start(uid):
                self._cluster.let_in.discard(uid)

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
        """What these need of what is idle now, and of what their queues may hold, counts as in use within the block."""
        nodes, ledger = self._cluster.nodes, self._cluster.ledger
        taken = [(row, *nodes.vector(held)) for row, held in self._held_on_rows(heeded)]
        posted = list(self._held_in_queues(heeded))
        for row, resources, amounts in taken:
            nodes.take(row, resources, amounts)
        for name, held in posted:
            ledger.of(name).post(held, 0, 1)
        try:
            yield
        finally:
            for row, resources, amounts in taken:
                nodes.give(row, resources, amounts)
            for name, held in posted:
                ledger.of(name).post(held, 0, -1)

    def kept_idle(self, heeded: Sequence[Reservation]) -> Mapping[str, int]:
        """How much these need of what is idle now, by resource."""
        key = tuple(reservation.uid for reservation in heeded)
        known = self._kept_idle.get(key)
        if known is None:
            known = self._kept_idle[key] = added(held for _, held in self._held_on_rows(heeded))
        return known

    def _held_on_rows(self, heeded: Sequence[Reservation]) -> Iterator[tuple[int, Mapping[str, int]]]:
        for name in sorted({name for reservation in heeded for name in reservation.rooms}):
            row = self._cluster.nodes.row_of.get(name, -1)
            if row >= 0 and (held := self._to_hold(row, name, heeded)):
                yield row, held

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

    def _held_in_queues(self, heeded: Sequence[Reservation]) -> Iterator[tuple[str, Mapping[str, int]]]:
        """The same of the queues that may hold so much and no more: those of the jobs, and those above."""
        cluster, needed, held = self._cluster, dict[str, Counter[str]](), dict[str, dict[str, int]]()
        for reservation in heeded:
            job, rooms = cluster.jobs.get(reservation.uid), added(reservation.rooms.values())
            for name in cluster.ledger.line(job.spec.queue) if job is not None else ():
                queue = cluster.queues.get(name)
                if queue is None or not queue.capability:
                    continue
                needed.setdefault(name, Counter()).update(rooms)
                back, kept = self._back_to(name, reservation), held.setdefault(name, {})
                for resource, amount in needed[name].items():
                    kept[resource] = max(kept.get(resource, 0), amount - back.get(resource, 0))
        yield from held.items()

    def _back_to(self, queue: str, reservation: Reservation) -> Mapping[str, int]:
        """What the pods of a queue, and of those below it, give back until a reservation begins. Kept for the session: what
        is placed meanwhile is not counted, so that a cycle counts once.
        """  # fmt: skip
        key = (queue, reservation.uid)
        known = self._back_to_queue.get(key)
        if known is None:
            line, by_s = self._cluster.ledger.line, reservation.start_s
            jobs = (job for job in self._cluster.jobs.values() if job.holding and queue in line(job.spec.queue))
            tasks = (task for job in jobs for task in job.tasks.values() if task.row >= 0 and self.end_of(task) <= by_s)
            known = self._back_to_queue[key] = added(task.shape.request for task in tasks)
        return known

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
        self._cluster.let_in.discard(job.uid)
        self._strike(job.uid)
        self._on_row = None

    def wish(self, job: Job) -> None:
        """A job did not fit: reserve room for it, or find out anew when it will fit."""
        known = self.kept.get(job.uid)
        if known is None and not self._is_eligible(job):
            return
        is_firm = known is not None and not known.is_imagined and self._session.wall_s < known.start_s
        if known is not None and is_firm and self._is_in_reach(known):
            return
        self._keep(job, self._planned(job))

    def lets_in(self, job: Job) -> bool:
        """Whether a job that finds no room may enter since room is kept for it, from now on if it was not before."""
        if job.uid in self.kept or job.uid in self._cluster.let_in:
            return True
        gains = self._cluster.gains
        if job.barred_at.get(RESERVED, -1) == gains or not self._is_eligible(job):
            return False
        self._keep(job, self._planned(job))
        if job.uid in self.kept:
            self._cluster.let_in.add(job.uid)
            return True
        job.barred_at = {**job.barred_at, RESERVED: gains}
        return False

    def _is_eligible(self, job: Job) -> bool:
        """Whether room may be kept for one more job, and this one has waited long enough."""
        if len(self.kept) >= self._terms.depth or job.ready_count:
            return False
        due_s = job.spec.created + self._terms.after_s
        if self._terms.after_s and self._session.wall_s < due_s:
            self._session.look_again(due_s)
            return False
        return True

    def _keep(self, job: Job, found: Reservation | None) -> None:
        """Keep this room for a job from now on, instead of what was kept for it before."""
        if found == self.kept.get(job.uid):
            return
        self._strike(job.uid)
        if found is not None:
            self.kept[job.uid] = found
            self._session.look_again(self._next_look(found))
        self._on_row = None
        self._kept_idle.clear()
        self._session.recount_entered()

    def _strike(self, uid: str) -> None:
        if self.kept.pop(uid, None) is not None:
            self._cluster.gains += 1  # who was kept back may go
            self._kept_idle.clear()
            self._session.recount_entered()

    def _next_look(self, reservation: Reservation) -> float:
        """When the reservation begins, or is over because there are no pods for it."""
        start_s, now_s = reservation.start_s, self._session.wall_s
        if start_s > now_s:
            return start_s
        return start_s + PATIENCE_S if reservation.is_imagined else inf

    def _is_void(self, reservation: Reservation) -> bool:
        job = self._cluster.jobs.get(reservation.uid)
        if job is None or job.ready_count or not self._session.is_admitted_to_queue(job):
            return True
        if not job.tasks:  # let in, and about to make its pods
            return self._session.wall_s >= reservation.start_s + PATIENCE_S
        return not job.wants_more

    def _is_yet_to_start(self, uid: str) -> bool:
        job = self._cluster.jobs.get(uid)
        return job is not None and not job.ready_count and job.phase is JobPhase.INQUEUE

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
        kept = [Kept(self._cluster.jobs[r.uid].spec.queue, r.rooms) for r in others]
        found = expected_start(self._session, job, self.end_of, kept)
        if found is None:
            return None
        return Reservation(
            uid=job.uid, job=job.key, priority=job.spec.priority, start_s=found.start_s, rooms=found.rooms,
            is_imagined=not job.tasks,
        )  # fmt: skip


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
