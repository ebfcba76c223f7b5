"""Give a node to the pods that ask for nothing: they fit wherever they may run."""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.model import Job
from hekla.placement.queueing.strict_fifo import StrictOrder
from hekla.placement.queueing.turns import Turns
from hekla.placement.session import Session
from hekla.placement.statement import Decision


@action
def backfill(session: Session) -> Iterator[Decision]:
    """Place best-effort tasks one by one: they hold nothing, so a gang loses nothing by having some of them early."""
    worth_it = StrictOrder(session).admitted(job for job in session.jobs_waiting() if _is_worth_a_try(session, job))
    for job in Turns(session, worth_it):
        for task in session.in_task_order(task for task in job.pending() if task.is_best_effort):
            with session.statement() as statement:
                if statement.allocate(task):
                    yield from statement.commit()
                else:
                    session.explain_failure(job, task)


def _is_worth_a_try(session: Session, job: Job) -> bool:
    """Whether the job has best-effort tasks waiting, and tasks enough to be a gang."""
    return job.pending_best_effort > 0 and session.why_invalid(job) is None
