"""Fill a job's places: its tasks one run of equal ones after the other, until it is ready.

Used by `actions/allocate.py` for the cluster as a whole, and by `topology/gang.py` for one domain after the other.
"""

from collections.abc import Iterator
from itertools import groupby

from hekla.placement.model import Job, Task
from hekla.placement.session import Session
from hekla.placement.statement import Statement
from hekla.placement.topology.venue import Venue


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
    """The job's waiting tasks in order, cut into runs that can be decided together."""
    waiting = session.in_task_order(task for task in job.pending() if not task.is_best_effort)
    if len(waiting) == 1:
        yield waiting
        return
    for _, run in groupby(waiting, key=lambda task: (task.shape, task.spec.role, task.carriers)):
        yield list(run)
