"""Give waiting jobs their nodes: queue by queue, job by job, each job as one statement.

A job that cannot become ready takes nothing. One that is ready already (elastic) gets one more task each turn, so
that jobs and queues grow side by side.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.model import Job
from hekla.placement.promises import keep_promises, promise_future
from hekla.placement.queueing.lookahead import Lookahead
from hekla.placement.queueing.scheduling_gates import open_gates
from hekla.placement.queueing.strict_fifo import StrictOrder
from hekla.placement.queueing.turns import Turns
from hekla.placement.reservations.forecast import place_freely
from hekla.placement.reservations.place_beside import book_of, kept_free_from, place_beside
from hekla.placement.session import Session
from hekla.placement.statement import Decision, Statement


@action
def allocate(session: Session) -> Iterator[Decision]:
    """Place jobs in turn and yield the binds of those that became ready; promised room is given out before."""
    yield from keep_promises(session)
    order, book = StrictOrder(session), book_of(session)  # first, for what it no longer keeps others may have
    standing = session.policy.kept_lines
    loose, kept = standing.open(session)
    worth_it = order.admitted(job for job in loose if session.is_worth_a_try(job))
    turns = Turns(session, worth_it, heeds_shares=True, kept=kept)
    ahead = Lookahead(session, turns)
    for job in turns:
        if order.holds_back(job):
            job.step_out()
            continue
        if book is None and (binds := ahead.place(job)):
            yield from binds
            continue
        job.step_out()
        with session.statement() as statement:
            place_tasks(statement, session, job)
            if statement and session.is_ready(job):
                yield from statement.commit()
                turns.again(job)
                if book is not None:
                    book.placed(job)
            elif _is_promised(session, statement, job):
                yield from statement.commit()
            else:
                session.remember_failure(job, statement.placed)
                statement.discard()
                session.let_rest(job)
                order.block(job)
                if book is not None:
                    book.wish(job)
    standing.close()
    open_gates(session)


def _is_promised(session: Session, statement: Statement, job: Job) -> bool:
    """Promise a job what others are leaving, and leave to others what is kept for them."""
    if not session.cluster.leaving:
        return False
    with kept_free_from(session, job):
        return promise_future(session, statement, job)


def place_tasks(statement: Statement, session: Session, job: Job) -> None:
    """Place tasks until the job is ready, or is one task larger if it was: close together where that is wished for."""
    book = book_of(session)
    if book is None:
        place_freely(statement, session, job)
    else:
        place_beside(statement, session, job, book)
