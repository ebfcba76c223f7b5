"""Why does a job wait? Its place in the queue, what is missing, and every node's refusal, counted.

Pure: the job is tried on a copy of the cluster, so the answer is what the next cycle would find, and nothing changes.
`remedies.py` looks for the smallest change that would let it start; `explanation_document.py` writes the answer down.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from hekla.placement.actions.allocate import place_tasks
from hekla.placement.amounts import told
from hekla.placement.columns import IntArray
from hekla.placement.constraint import Refusal
from hekla.placement.explain import Explanation, examples, open_rows
from hekla.placement.framework import Vote
from hekla.placement.model import Job, JobPhase, Task, TaskStatus
from hekla.placement.named_jobs import NamedJob, Telling, told_to
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.queueing.strict_fifo import behind_head
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.reservations.place_beside import book_of
from hekla.placement.reservations.planning_budget import MOST_PLANS, Unplanned
from hekla.placement.reservations.reservation import NOBODY
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.scheduler import sentences

MOST_EXAMPLES, MOST_AHEAD = 3, 5


@dataclass(frozen=True, kw_only=True)
class Lack:
    """A resource of which the waiting pods need more than there is, or more than any one node has."""

    resource: str
    pods: int
    each: int
    """What each of these pods asks for, at most."""

    needed: int
    """What all of them ask for."""

    free: int
    """On the nodes that would otherwise do."""

    free_on: tuple[tuple[str, int], ...]
    """The nodes with the most."""

    nodes: int
    """On how many nodes some is free."""

    largest: int
    """What the largest of these nodes has in all."""

    def sentence(self) -> str:
        """`needs 8 nvidia.com/gpu (2 pods of 4), 4 are free: 2 on node-1, 2 on node-2`."""
        name = self.resource
        pods = f" ({self.pods} pods of {told(name, self.each)})" if self.pods > 1 else ""
        where = ", ".join(f"{told(name, amount)} on {node}" for node, amount in self.free_on)
        others = self.nodes - len(self.free_on)
        more = f" and less on {others} more" if others > 0 else ""
        free = f"{told(name, self.free)} are free: {where}{more}" if self.free else "none is free"
        tail = f"; no node has more than {told(name, self.largest)}" if self.each > self.largest else ""
        return f"needs {told(name, self.needed)} {name}{pods}, {free}{tail}"


@dataclass(frozen=True, kw_only=True)
class Why:
    """Why a job waits; `fits` is True for one that would start in the next cycle."""

    job: str
    queue: str
    place: int
    """Its place among the jobs of its queue that wait; 1 is next."""

    fits: bool
    refusal: Refusal | None = None
    """Why it is not even tried."""

    task: str = ""
    """The first task that finds no node."""

    explanation: Explanation | None = None
    """Every node's refusal of that task."""

    examples: Mapping[Refusal, Sequence[str]] = field(default_factory=dict)
    """A few of the nodes behind each refusal."""

    placeable: int = 0
    """How many tasks would find a node."""

    wanted: int = 0
    """How many must."""

    ahead: tuple[str, ...] = ()
    """The jobs that go before it, the next one first; not more than a few."""

    waiting: int = 0
    """How many jobs of the queue wait, with this one."""

    statuses: Mapping[str, int] = field(default_factory=dict)
    """How many of the job's tasks are in each status."""

    lacks: tuple[Lack, ...] = ()
    reserved: Telling = ()
    """Which nodes are kept for it, and from when it is to start, or why none are where some might be; else empty."""

    @property
    def is_waiting(self) -> bool:
        """Whether any task waits for a node, or the job waits for its first."""
        return self.statuses.get(TaskStatus.PENDING.name, 0) > 0 or not sum(self.statuses.values())

    def sentence(self, may_see: Callable[[str], bool] | None = None) -> str:
        """In one sentence, for somebody who may see what is in these namespaces; in that of the job alone, if that is not said."""
        may_see = may_see or (lambda namespace: namespace == self.job.partition("/")[0])
        if not self.is_waiting:
            return f"{self.job} does not wait: all of its pods have a node"
        if self.fits:
            return f"{self.job} fits and will start"
        tail = f"; {told_to(self.reserved, may_see)}" if self.reserved else ""
        if self.refusal is not None:
            return f"{self.refusal.told_to(may_see)}{tail}"
        reason = self.explanation.sentence() if self.explanation is not None else "it is not its turn yet"
        return (
            f"{self.placeable} of the {self.wanted} pods that {self.job} needs find a node; {self.task}: {reason}{tail}"
        )


def why(policy: Policy, job: Job, *, now: float = 0.0) -> Why:
    """What keeps a job waiting, at this moment."""
    return why_in(Rehearsal(policy, now=now), job.uid)


def why_in(rehearsal: Rehearsal, uid: str) -> Why:
    """The same in a rehearsal that exists."""
    job, session = rehearsal.job(uid), rehearsal.session()
    line = waiting_line(session, job)
    before = line.index(job)
    whole = Why(
        job=sentences.job_told(job), queue=job.spec.queue, place=1 + before, fits=False, wanted=session.shortfall(job),
        ahead=tuple(sentences.job_told(other) for other in line[:before][:MOST_AHEAD]), waiting=len(line), statuses=_statuses(job),
    )  # fmt: skip
    refusal = refusal_of(session, job)
    if refusal is not None:
        return replace(whole, refusal=refusal)
    free = session.cluster.nodes.idle.copy()
    with session.statement() as statement:
        is_ready = place(statement, session, job)
        placed, failure = len(statement), session.failures.get(uid)
        if is_ready:
            return replace(whole, fits=True, refusal=session.refusals.get(uid), placeable=placed)
        shown = examples(rehearsal.policy, failure.task, MOST_EXAMPLES) if failure is not None else {}
    if failure is None:
        return replace(whole, refusal=session.refusals.get(uid), placeable=placed, reserved=_reserved(session, job))
    return replace(
        whole, task=failure.task.spec.name, explanation=failure.explanation, examples=shown, placeable=placed,
        lacks=tuple(_lacks(session, job, failure.task, failure.explanation, free)), reserved=_reserved(session, job),
    )  # fmt: skip


def would_start(rehearsal: Rehearsal, job: Job) -> bool:
    """Whether a job would start if it were its turn; one whose pods are made only once it is let in would be let in."""
    session = rehearsal.session()
    if not job.tasks and job.phase is JobPhase.PENDING:
        return session.is_admitted_to_queue(job) and session.opinion_on_entry(job).vote is not Vote.REJECT
    if refusal_of(session, job) is not None:
        return False
    with session.statement() as statement:
        return place(statement, session, job)


def place(statement: Statement, session: Session, job: Job) -> bool:
    """Place a job's tasks as a cycle would; whether it would start, or grow."""
    place_tasks(statement, session, job)
    if not statement and job.uid not in session.failures:
        idle = next((task for task in session.in_task_order(job.pending()) if task.is_best_effort), None)
        if idle is not None and not statement.allocate(idle):
            session.explain_failure(job, idle)
    return len(statement) > 0 and session.is_ready(job)


def waiting_line(session: Session, job: Job) -> list[Job]:
    """The jobs of the queue that wait, in the order of their turns, with this one."""
    queue = job.spec.queue
    others = (other for other in session.jobs_waiting() if other is not job and other.spec.queue == queue)
    outside = session.cluster.lines.by_phase[JobPhase.PENDING].values()
    all_waiting = [*others, *(other for other in outside if other is not job and other.spec.queue == queue), job]
    return sorted(all_waiting, key=session.job_key)


def refusal_of(session: Session, job: Job) -> Refusal | None:
    """Why a job is not tried at all."""
    queue = session.cluster.queues.get(job.spec.queue)
    if queue is None:
        return Refusal("QueueNotFound", sentences.queue_missing(job.spec.queue))
    if not queue.is_open:
        return Refusal("QueueNotOpen", sentences.queue_closed(job.spec.queue, "not open"))
    if job.phase is JobPhase.PENDING and job.spec.min_resources is not None:
        opinion = session.opinion_on_entry(job)
        if opinion.vote is Vote.REJECT:
            return Refusal("enqueue", opinion.reason)
    gated = [task for task in job.tasks.values() if task.spec.is_gated and task.status is TaskStatus.PENDING]
    if gated and not any(True for _ in job.pending()):
        return _behind_gates(queue, gated)
    if session.is_overused(queue):
        sentence = f'queue "{queue.name}" holds all that it deserves while others ask for their share'
        return Refusal("overShare", sentence)
    return behind_head(session, job) or session.why_invalid(job)


def _behind_gates(queue: Queue, gated: Sequence[Task]) -> Refusal:
    if all(task.spec.asks_queue for task in gated):
        return Refusal("QueueGate", f'{len(gated)} pods are held back until queue "{queue.name}" has room for them')
    return Refusal(
        "SchedulingGated", f"{len(gated)} pods have scheduling gates; whoever put these there must remove them"
    )


def _reserved(session: Session, job: Job) -> Telling:
    """`n1, n2 are reserved for ml/big, which is to start in 12 min, when ml/old has ended; a job that ends before may go first`."""
    book = book_of(session)  # opened before it is looked into: it may have planned the job anew
    reservation = session.cluster.reservations.get(job.uid)
    if reservation is None:
        why_none = book.why_unplanned(job) if book is not None else None
        return (_UNPLANNED[why_none],) if why_none is not None else ()
    last = book.waits_for(reservation) if book is not None else ""
    until: Telling = (", when ", NamedJob(last), " has ended") if last else ()
    who = reservation.who_may_use_it(session.wall_s)
    others = "nobody else is let in there until then" if who == NOBODY else f"{who} may go first"
    return *reservation.telling(session.wall_s), *until, f"; {others}"


_UNPLANNED = {
    Unplanned.NEVER: "no room is kept for it: when all have ended of whom it is known when, it would not fit beside what others need",
    Unplanned.NOT_YET: f"when it will fit was not looked at yet: a cycle does so for {MOST_PLANS} jobs, and each has its turn",
}


def _statuses(job: Job) -> Mapping[str, int]:
    return {status.name: job.statuses[status] for status in TaskStatus if job.statuses[status]}


def _lacks(session: Session, job: Job, task: Task, explanation: Explanation, free: IntArray) -> Iterator[Lack]:
    """The resources of which there is too little, as seen before any of the job's tasks were placed."""
    nodes, rows = session.cluster.nodes, open_rows(session.policy, task)
    refused = {refusal.code for refusal, _ in explanation.reasons}
    tasks = list(
        islice(session.in_task_order(t for t in job.pending() if not t.is_best_effort), session.shortfall(job))
    )
    for name in sorted(task.shape.request.keys() - {"pods"}):
        each = max((one.shape.request.get(name, 0) for one in tasks), default=0)  # all may ask for nothing of anything
        needed = sum(one.shape.request.get(name, 0) for one in tasks)
        if not needed or f"insufficient/{name}" not in refused:
            continue
        column = np.where(rows, np.maximum(free[nodes.resources[name]], 0), 0)
        most = [row for row in np.argsort(-column, kind="stable")[:MOST_EXAMPLES].tolist() if column[row]]
        yield Lack(
            resource=name, pods=len(tasks), each=each, needed=needed, free=int(column.sum()),
            free_on=tuple((nodes.names[row], int(column[row])) for row in sorted(most, key=lambda r: -column[r])),
            nodes=int(np.count_nonzero(column)),
            largest=int(np.where(rows, nodes.allocatable[nodes.resources[name]], 0).max(initial=0)),
        )  # fmt: skip
