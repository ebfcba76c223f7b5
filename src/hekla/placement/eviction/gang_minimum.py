"""Which of a gang's waiting tasks come first: those with which it could start. `evict_for_gang.py` makes room for these."""

from collections import Counter
from collections.abc import Iterable, Sequence

from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.session import Session
from hekla.placement.topology.gang import groups_in_order


def needed(session: Session, job: Job, askers: Sequence[Task]) -> Sequence[Task]:
    """The first tasks with which a job could start, the roles that it cannot do without before others."""
    chosen = _by_sub_gang(session, job, askers) if job.spec.subgroups else _by_role(job, askers)
    return chosen if _would_be_enough(session, job, chosen) else askers


def _by_role(job: Job, askers: Sequence[Task]) -> Sequence[Task]:
    promised = job.statuses[TaskStatus.PIPELINED]
    lacking = Counter(job.spec.role_minimums if job.enforces_roles else {})
    for task in job.tasks.values():
        if task.row >= 0 and not task.is_leaving:
            lacking[task.spec.role] -= 1
    wanted = job.spec.min_available - job.ready_count - job.pending_best_effort - promised
    first, others = list[Task](), list[Task]()
    for task in askers:
        (first if lacking[task.spec.role] > 0 else others).append(task)
        lacking[task.spec.role] -= 1
    chosen = {task.uid for task in (*first, *others[: max(wanted - len(first), 0)])}
    return [task for task in askers if task.uid in chosen]


def _by_sub_gang(session: Session, job: Job, askers: Sequence[Task]) -> Sequence[Task]:
    known, chosen = {task.uid for task in askers}, list[Task]()
    for group in groups_in_order(session, job):
        if group.can_be_whole and not _would_be_enough(session, job, chosen):
            chosen += [task for task in group.waiting if task.uid in known][: group.missing]
    return chosen


def _would_be_enough(session: Session, job: Job, tasks: Iterable[Task]) -> bool:
    """Whether a job would neither starve nor be a part of a gang if these tasks were promised rows."""
    moved = list(tasks)
    for task in moved:
        job.move(task, TaskStatus.PIPELINED)
    is_enough = session.eligibility.is_pipelined(job) and not session.eligibility.is_starving(job)
    for task in moved:
        job.move(task, TaskStatus.PENDING)
    return is_enough
