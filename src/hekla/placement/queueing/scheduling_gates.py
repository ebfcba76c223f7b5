"""Open the gates of pods that wait for their queue: a pod that its queue has no room for is not shown to whoever adds nodes.

A pod that asks for it is made with a scheduling gate, and an autoscaler buys no node for a pod that has one. The gate opens
when the queue may take the pod beside all that it holds and all that were let through before and have no node yet. A gang's
gates open together, as many as it lacks, or none do. (Volcano opens them pod by pod, so that a part of a gang may wait
for the rest in front of an autoscaler.)
"""

from collections.abc import Iterable, Sequence

from hekla.placement.model import Job, JobPhase, Task, TaskStatus
from hekla.placement.session import Session


def open_gates(session: Session) -> None:
    """Find out whose gates open now; `session.let_through` has them afterwards."""
    askers = session.cluster.queue_askers
    waiting = [task for task in askers.values() if task.status is TaskStatus.PENDING]
    gated = [task for task in waiting if task.spec.is_gated]
    if not gated:
        return
    # While we ask, who was let through counts as if it had its node: what a queue promised to one it promises to no other.
    counted = [task for task in waiting if not task.spec.is_gated]
    for task in counted:
        _move(task, TaskStatus.PIPELINED)
    for job in _in_turn(session, {task.job.uid: task.job for task in gated if task.job is not None}.values()):
        opened = _opened(
            session, job, [task for task in session.in_task_order(job.tasks.values()) if _is_waiting(task)]
        )
        counted += opened
        session.let_through += opened
    for task in counted:
        _move(task, TaskStatus.PENDING)


def _opened(session: Session, job: Job, gated: Sequence[Task]) -> list[Task]:
    """The tasks of a job that its queue has room for, all moved out of its room already; nobody if a gang lacks more."""
    without_node = sum(1 for task in job.tasks.values() if task.status is TaskStatus.PIPELINED)
    lacking = session.shortfall(job) - without_node - sum(1 for _ in job.pending())
    opened = list[Task]()
    for task in gated:
        if not session.allowance(job, task, 1):
            session.note_queue_full(job, task)
            break
        _move(task, TaskStatus.PIPELINED)
        opened.append(task)
    if len(opened) >= min(lacking, len(gated)):
        return opened
    for task in opened:
        _move(task, TaskStatus.PENDING)
    return []


def _is_waiting(task: Task) -> bool:
    return task.spec.is_gated and task.spec.asks_queue and task.status is TaskStatus.PENDING


def _in_turn(session: Session, jobs: Iterable[Job]) -> list[Job]:
    queues = session.cluster.queues
    inside = [job for job in jobs if job.phase is not JobPhase.PENDING and job.spec.queue in queues]
    return sorted(inside, key=lambda job: (session.queue_key(queues[job.spec.queue]), session.job_key(job)))


def _move(task: Task, status: TaskStatus) -> None:
    assert task.job is not None
    task.job.move(task, status)
