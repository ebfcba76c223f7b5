"""Make room for jobs that starve by evicting jobs of a lower order in the same queue; then within jobs.

First phase, queue by queue: a job's tasks are promised room, with evictions where they are needed, until the job
starves no more. It stands only if the job then has enough to start; else nobody goes for it. Second phase: a task of a
higher priority may displace one of a lower priority of the same job, each by itself.

Jobs that want to be close together are left to `gangpreempt`: room made pod by pod would scatter them.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.constraint import Refusal
from hekla.placement.eviction.evict_for_gang import GangManner, GangRoom
from hekla.placement.eviction.evict_for_task import Manner, RoomMaker, manner_of
from hekla.placement.framework import Preemptable
from hekla.placement.model import Job, JobPhase, Task
from hekla.placement.queue import Queue
from hekla.placement.queueing.turns import Turns
from hekla.placement.session import Session
from hekla.placement.statement import Decision, Statement

NO_VICTIMS = Refusal("noVictims", "evicting the pods that may be evicted for it would not make room")


@action
def preempt(session: Session) -> Iterator[Decision]:
    """Evict for jobs that starve, and yield what was decided."""
    arguments = session.policy.arguments.get("preempt", {})
    manner = manner_of("preempt", Preemptable, arguments, nodes=len(session.cluster.nodes))
    session.eligibility.heed_budgets(Preemptable, bool(arguments.get("heedDisruptionBudgets", True)))
    makers: dict[str, RoomMaker] = {}
    starving = [job for job in starving_jobs(session, "preempt") if not job.spec.wants_closeness]
    for job in Turns(session, starving):
        yield from _between_jobs(session, _maker(session, makers, job, manner), job)
    for job in sorted(starving, key=session.job_key):
        yield from _within_job(session, _maker(session, makers, job, manner), job)


def starving_jobs(session: Session, action: str) -> list[Job]:
    """Jobs for which others may be evicted, and for which the action was not in vain since anything has changed."""
    waiting = (job for job in session.jobs_waiting() if job.phase is not JobPhase.PENDING)
    return [
        job
        for job in waiting
        if not session.is_barred(job, action)
        and session.why_invalid(job) is None
        and session.eligibility.is_starving(job)
        and may_ask(job)
    ]


def may_ask(job: Job) -> bool:
    """Whether others may be evicted for any of a job's waiting tasks (`preemptionPolicy`)."""
    return any(not task.spec.preemption_never for task in job.pending())


def _maker(session: Session, makers: dict[str, RoomMaker], job: Job, manner: Manner) -> RoomMaker:
    queue: Queue = session.cluster.queues[job.spec.queue]
    if queue.name not in makers:
        makers[queue.name] = RoomMaker(session, queue, manner)
    return makers[queue.name]


def _between_jobs(session: Session, maker: RoomMaker, job: Job) -> Iterator[Decision]:
    if _has_lesser_promises(session, job):
        with session.statement() as statement:
            room = GangRoom(session, job, GangManner("preempt", Preemptable, 1, allows_whole=False, promises_only=True))
            if room.make(statement):
                yield from conclude(session, statement, job, "preempt")
                return
    with session.statement() as statement:
        ask_for_room(session, maker, statement, job)
        yield from conclude(session, statement, job, "preempt")


def ask_for_room(session: Session, maker: RoomMaker, statement: Statement, job: Job) -> None:
    """Have a job's tasks promised room until it starves no more."""
    maker.begin(job)
    for task in _askers(session, job):
        if not session.eligibility.is_starving(job):
            return
        maker.make_room(statement, task)


def _has_lesser_promises(session: Session, job: Job) -> bool:
    """Whether room was promised to a job of a lower priority in the same queue: to take that over harms no pod."""
    return any(
        other.spec.queue == job.spec.queue and other.spec.priority < job.spec.priority
        for other in session.cluster.lines.promised.values()
    )


def conclude(session: Session, statement: Statement, job: Job, action: str) -> Iterator[Decision]:
    """Let an attempt stand if the job has enough with what it was promised; else note that it was in vain."""
    if statement and session.eligibility.is_pipelined(job):
        session.forget_hopeless()
        yield from statement.commit()
        return
    statement.discard()
    session.bar(job, action)
    session.note_no_room(job, NO_VICTIMS)


def _within_job(session: Session, maker: RoomMaker, job: Job) -> Iterator[Decision]:
    """Tasks of a higher priority in place of those of a lower one."""
    lowest = min((t.spec.priority for t in job.tasks.values() if t.status.is_evictable), default=None)
    if lowest is None:
        return
    for task in _askers(session, job):
        if task.spec.priority <= lowest:
            continue
        maker.begin(job)
        with session.statement() as statement:
            if maker.make_room(statement, task, within=job):
                session.refusals.pop(job.uid, None)
                session.forget_hopeless()
                yield from statement.commit()


def _askers(session: Session, job: Job) -> list[Task]:
    """The job's waiting tasks, in order, for which somebody may be evicted."""
    return session.in_task_order(task for task in job.pending() if not task.spec.preemption_never)
