"""Let jobs in, one per queue and round, while the cluster has room for what they will ask.

A job that asks for no minimum enters at once. Plug-ins vote on the others; one that is turned away does not stop the
jobs behind it. Want of room does not keep a job out for which others would be evicted once it was in: where all is
borrowed, nobody could ever take back what he deserves.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.constraint import Refusal
from hekla.placement.framework import Vote
from hekla.placement.model import JobPhase
from hekla.placement.session import Session
from hekla.placement.statement import Decision
from hekla.placement.strict_order import StrictOrder
from hekla.placement.turns import Turns


@action
def enqueue(session: Session) -> Iterator[Decision]:
    """Move jobs from Pending to Inqueue; it binds nothing."""
    order = StrictOrder(session)
    outside = list(session.cluster.lines.by_phase[JobPhase.PENDING].values())
    for job in Turns(session, (job for job in outside if not job.is_held and session.is_admitted_to_queue(job))):
        if order.holds_back(job):
            continue
        opinion = session.opinion_on_entry(job)
        if job.spec.min_resources is not None and opinion.vote is Vote.REJECT:
            session.refusals[job.uid] = Refusal("enqueue", opinion.reason)
            order.block(job)
        else:
            session.admit(job)
    yield from ()
