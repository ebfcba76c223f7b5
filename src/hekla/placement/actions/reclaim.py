"""Give queues back what they deserve: evict tasks of queues that borrowed it.

Queue by queue, a starving job's tasks are promised room as long as their queue may take back so much (`Preemptive`),
with evictions in queues that give back (`reclaimable`) and hold more than they deserve. It stands only if the job then
has enough to start.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.actions.preempt import conclude, starving_jobs
from hekla.placement.eviction.evict_for_task import RoomMaker, manner_of
from hekla.placement.framework import Reclaimable
from hekla.placement.model import Job
from hekla.placement.queueing.turns import Turns
from hekla.placement.session import Session
from hekla.placement.statement import Decision, Statement


@action
def reclaim(session: Session) -> Iterator[Decision]:
    """Evict for queues that hold less than they deserve, and yield what was decided."""
    arguments = session.policy.arguments.get("reclaim", {})
    manner = manner_of("reclaim", Reclaimable, arguments, nodes=len(session.cluster.nodes))
    session.eligibility.heed_budgets(Reclaimable, bool(arguments.get("heedDisruptionBudgets", True)))
    makers: dict[str, RoomMaker] = {}
    starving = [job for job in starving_jobs(session, "reclaim") if not job.spec.wants_closeness]
    for job in Turns(session, starving, heeds_shares=True):
        queue = session.cluster.queues[job.spec.queue]
        maker = makers.setdefault(queue.name, RoomMaker(session, queue, manner))
        yield from _take_back(session, maker, job)


def _take_back(session: Session, maker: RoomMaker, job: Job) -> Iterator[Decision]:
    with session.statement() as statement:
        ask_back(session, maker, statement, job)
        yield from conclude(session, statement, job, "reclaim")


def ask_back(session: Session, maker: RoomMaker, statement: Statement, job: Job) -> None:
    """Have a job's tasks promised room until it starves no more, as far as its queue may take back so much."""
    maker.begin(job)
    for task in session.in_task_order(task for task in job.pending() if not task.spec.preemption_never):
        if not session.eligibility.is_starving(job):
            return
        refusal = session.eligibility.why_not_preemptive(job, task)
        if refusal is None:
            maker.make_room(statement, task)
        else:
            session.note_no_room(job, refusal)
