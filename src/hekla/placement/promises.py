"""Promised room is kept across cycles: whoever was promised a node gets it as soon as the room is free, before all others.

A promise ends when the task has its room, here or anywhere else; when the node is gone, closed to it, or smaller than
what it was promised; when the domains of the network have changed so that its gang would not be as close as it wishes;
when its gang is evicted; or when those who were to leave do not: a pod that is still there
`PATIENCE_S` after its grace period no longer counts as leaving. A gang keeps all of its promises or none.
"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.constraint import Refusal
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.session import Session
from hekla.placement.statement import Decision, Nominate, Statement
from hekla.placement.topology.kept import is_close_enough, venue_near
from hekla.placement.topology.venue import Venue

PATIENCE_S = 60.0
"""How long after its grace period a pod that was told to go still counts as leaving."""


def keep_promises(session: Session) -> Iterator[Decision]:
    """Give promised room to whom it was promised where it is free, and end promises that cannot be kept."""
    cluster = session.cluster
    cluster.precedence.forget_old(session.now)
    if not (cluster.lines.promised or cluster.leaving or cluster.forsaken or cluster.nominated):
        return
    _lose_patience(session)
    _remember(session)
    _end_void(session)
    for job in _in_turn(session):
        with session.statement() as statement:
            if _redeem(session, statement, job):
                yield from statement.commit()
    told, cluster.forsaken = cluster.forsaken, {}
    for task in told.values():
        if task.row < 0:
            yield Nominate(task, -1, "")


def promise_future(session: Session, statement: Statement, job: Job) -> bool:
    """Promise a job that cannot start now the room that others are leaving, and what is free of it already; all or nothing."""
    cluster = session.cluster
    if not cluster.leaving or job.spec.wants_closeness:
        return False
    with cluster.looking_ahead():
        for task in session.in_task_order(job.pending()):
            if session.eligibility.is_pipelined(job) and job.ready_count + job.statuses[TaskStatus.PIPELINED]:
                break
            row = _future_row(session, job, task)
            if row >= 0:
                statement.pipeline(task, row)
    if not any(task.is_claim for task in statement.placed) or not session.eligibility.is_pipelined(job):
        return False
    statement.promise_all()
    return True


def _future_row(session: Session, job: Job, task: Task) -> int:
    """The best node for a task when all who are leaving have left; -1 if there is none."""
    if task.is_best_effort or task.shape.gpu_milli or session.why_not_allocatable(job, task) is not None:
        return -1
    nodes, shape, placer = session.cluster.nodes, task.shape, session.policy.placer
    room = (nodes.future_idle()[shape.resources] >= shape.amounts[:, None]).all(axis=0)
    rows = np.flatnonzero(room & placer.lets_in(task))
    if not len(rows):
        return -1
    return int(rows[np.lexsort((-nodes.rank()[rows], -placer.likes(shape)[rows]))[0]])


def _lose_patience(session: Session) -> None:
    """Stop to count on those who should have left long ago."""
    cluster, now = session.cluster, session.now
    for task in list(cluster.leaving.values()):
        if task.leaving_since is None:
            task.leaving_since = now
        until = task.leaving_since + task.spec.grace_s + PATIENCE_S
        if until <= now:
            cluster.give_up_on(task)
        else:
            session.look_again(session.wall_s + until - now)


def _remember(session: Session) -> None:
    """Make promises of the nominations that pods came with: we were started anew while room was being made for them."""
    cluster = session.cluster
    came, cluster.nominated = cluster.nominated, {}
    for task in came.values():
        row, job = cluster.nodes.row_of.get(task.spec.nominated, -1), task.job
        if job is None or task.status is not TaskStatus.PENDING:
            continue
        cluster.forsaken[task.uid] = task  # told that it is off, unless it is promised here
        if (
            row >= 0
            and session.is_admitted_to_queue(job)
            and _may_still(session, task, row)
            and _is_free(session, task, row)
        ):
            cluster.claim(task, row, session.now)
            job.move(task, TaskStatus.PIPELINED)


def _is_free(session: Session, task: Task, row: int) -> bool:
    nodes, shape = session.cluster.nodes, task.shape
    return bool((nodes.future_idle()[shape.resources, row] >= shape.amounts).all())


def _may_still(session: Session, task: Task, row: int) -> bool:
    """Whether a task may run on a node, amounts and the pods that run there aside."""
    return bool(session.policy.placer.open_rows(task.shape)[row])


def _end_void(session: Session) -> None:
    """End promises that cannot be kept, those of the lowest order first; of a gang, all with the one."""
    cluster, nodes = session.cluster, session.cluster.nodes
    jobs = _in_turn(session)
    for job in reversed(jobs):
        for task in _promised(job):
            is_short = (nodes.future_idle()[task.shape.resources, task.row] < 0).any()
            if is_short or not _may_still(session, task, task.row):
                _break(session, job, task, "is no longer being freed" if is_short else "may no longer be used by it")
    for job in jobs:
        if (promised := _promised(job)) and not is_close_enough(session, job):
            _break(session, job, promised[0], "is too far from the others of its gang by now")
        if _promised(job) and not (session.eligibility.is_pipelined(job) and is_close_enough(session, job)):
            for task in _promised(job):
                cluster.forsake(task)


def _break(session: Session, job: Job, task: Task, why: str) -> None:
    node = session.cluster.nodes.names[task.row]
    session.refusals[job.uid] = Refusal(
        "promiseEnded", f'pod "{task.key}" was promised room on node "{node}", which {why}; it waits for another'
    )
    session.cluster.forsake(task)


def _redeem(session: Session, statement: Statement, job: Job) -> bool:
    """Give a job the room that it was promised, as far as it is free; whether it may start with it."""
    nodes, placer = session.cluster.nodes, session.policy.placer
    for task in session.in_task_order(_promised(job)):
        start, row, shape = statement.savepoint, task.row, task.shape
        is_bound, near = _elsewhere(session, job, task)
        statement.forsake(task)
        has_room = (nodes.idle[shape.resources, row] >= shape.amounts).all() and placer.lets_in(task)[row]
        if has_room and not (shape.gpu_milli and not nodes.devices.fits(shape.gpu_milli, nodes.rows)[row]):
            statement.allocate_at(task, row)
        elif is_bound or not statement.allocate(task, near):
            statement.back_to_savepoint(start)
    return bool(statement) and session.is_ready(job)


def _elsewhere(session: Session, job: Job, task: Task) -> tuple[bool, Venue | None]:
    """Whether a task is bound to the row that it was promised, and else where it may go; a gang stays together."""
    if not job.spec.wants_closeness:
        return False, None
    return not session.cluster.topology.is_known, venue_near(session, job, task)


def _promised(job: Job) -> list[Task]:
    return [task for task in job.tasks.values() if task.is_claim]


def _in_turn(session: Session) -> list[Job]:
    queues = session.cluster.queues
    jobs = [job for job in session.cluster.lines.promised.values() if job.spec.queue in queues]
    return sorted(jobs, key=lambda job: (session.queue_key(queues[job.spec.queue]), session.job_key(job)))
