# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Fill a job's places: its tasks one run of equal ones after the other, until it is ready.

Used by `actions/allocate.py` for the cluster as a whole, and by `topology/gang.py` for one domain after the other.
"""

from collections.abc import Iterator
from itertools import groupby, islice

from hekla.placement.framework import TaskOrder
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.placement.topology.venue import Venue

MANY = 64
"""So many waiting tasks of a job are worth keeping in order."""


def fill_places(statement: Statement, session: Session, job: Job, venue: Venue | None = None) -> None:
    """Place tasks until the job is ready, or is one task larger if it was; stop early when it cannot become ready."""
    failed: set[str] = set()
    for run in equal_tasks(session, job):
        if run[0].spec.role in failed:
            continue
        if not place_run(statement, session, job, run, venue):
            failed.add(run[0].spec.role)
            if not session.goes_on(job, frozenset(failed)):
                return
        elif session.is_ready(job):
            return


def place_run(statement: Statement, session: Session, job: Job, run: list[Task], venue: Venue | None = None) -> bool:
    """Place a run of equal tasks, never more than the job still needs to be ready; whether nodes were found for all."""
    while run:
        wanted = run[: session.shortfall(job)]
        placed = session.try_run(statement, job, wanted, venue)
        if placed < len(wanted):
            return False
        if session.is_ready(job):
            return True
        run = run[placed:]
    return True


def equal_tasks(session: Session, job: Job) -> Iterator[list[Task]]:
    """The job's waiting tasks in order, cut into runs that can be decided together; of one that only grows, one task."""
    waiting = _in_order(session, job)
    most = 1 if session.is_ready(job) else None
    for _, run in groupby(waiting, key=lambda task: (task.shape, task.spec.role, task.carriers)):
        yield list(islice(run, most))


def _in_order(session: Session, job: Job) -> Iterator[Task]:
    """The tasks that wait and ask for something. The order of many is kept: a million that start one by one are
    sorted once, not once per turn.
    """
    if job.statuses[TaskStatus.PENDING] < MANY or not _keeps_order(session):
        yield from session.in_task_order(task for task in job.pending() if not task.is_best_effort)
        return
    if job.in_order is None:
        job.in_order = session.in_task_order(task for task in job.pending() if not task.is_best_effort)[::-1]
    line = job.in_order
    while line and line[-1].status is not TaskStatus.PENDING:
        line.pop()
    for task in reversed(line):
        if task.status is TaskStatus.PENDING:
            yield task


def _keeps_order(session: Session) -> bool:
    return all(getattr(plugin, "keeps_task_order", False) for plugin in session.policy.asked(TaskOrder))
