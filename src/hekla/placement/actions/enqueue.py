"""Let jobs in, one per queue and round, while the cluster has room for what they will ask.

A job that asks for no minimum enters at once. Plug-ins vote on the others; one that is turned away does not stop the
jobs behind it. Want of room does not keep a job out for which others would be evicted once it was in: where all is
borrowed, nobody could ever take back what he deserves.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.constraint import Refusal
from hekla.placement.framework import Opinion, Vote
from hekla.placement.model import Job, JobPhase
from hekla.placement.session import Session
from hekla.placement.statement import Decision
from hekla.placement.strict_order import StrictOrder
from hekla.placement.turns import Turns


@action
def enqueue(session: Session) -> Iterator[Decision]:
    """Move jobs from Pending to Inqueue; it binds nothing."""
    order = StrictOrder(session)
    rejected = _Rejected(session)
    outside = list(session.cluster.lines.by_phase[JobPhase.PENDING].values())
    for job in Turns(session, (job for job in outside if not job.is_held and session.is_admitted_to_queue(job))):
        if order.holds_back(job):
            continue
        opinion = rejected.of(job) or session.opinion_on_entry(job)
        if job.spec.min_resources is not None and opinion.vote is Vote.REJECT:
            session.refusals[job.uid] = Refusal("enqueue", opinion.reason)
            order.block(job)
            rejected.note(job, opinion)
        else:
            session.admit(job)
    yield from ()


class _Rejected:
    """Who was turned away in this pass: others of the same queue and priority that ask for as much are turned away by the same
    words, since in a pass room is taken and never given. With five thousand that wait, asking each anew was the cycle.
    """  # fmt: skip

    def __init__(self, session: Session) -> None:
        self._is_on = session.judges_entry_alike
        self._known: dict[tuple[str, int, tuple[tuple[str, int], ...]], Opinion] = {}

    def of(self, job: Job) -> Opinion | None:
        """What was said of one like this."""
        return self._known.get(_kind(job)) if self._known and job.spec.min_resources is not None else None

    def note(self, job: Job, opinion: Opinion) -> None:
        """One was turned away."""
        if self._is_on:
            self._known[_kind(job)] = opinion


def _kind(job: Job) -> tuple[str, int, tuple[tuple[str, int], ...]]:
    return job.spec.queue, job.spec.priority, tuple((job.spec.min_resources or {}).items())
