"""Let jobs in, one per queue and round, while the cluster has room for what they will ask.

A job that asks for no minimum enters at once. Plug-ins vote on the others; one that is turned away does not stop the
jobs behind it. Want of room does not keep a job out for which others would be evicted once it was in: where all is
borrowed, nobody could ever take back what he deserves.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.constraint import Refusal
from hekla.placement.framework import Vote
from hekla.placement.model import Job, JobPhase
from hekla.placement.queueing.strict_fifo import StrictOrder
from hekla.placement.queueing.turns import Turns
from hekla.placement.session import Session
from hekla.placement.statement import Decision

_Kind = tuple[str, int, tuple[tuple[str, int], ...]]
"""Queue, priority, and what is asked for at least."""


@action
def enqueue(session: Session) -> Iterator[Decision]:
    """Move jobs from Pending to Inqueue; it binds nothing."""
    order = StrictOrder(session)
    alike = _Alike(session)
    turns = Turns(session, alike.first_ones())
    for job in turns:
        if order.holds_back(job):
            continue
        opinion = session.opinion_on_entry(job)
        if job.spec.min_resources is not None and opinion.vote is Vote.REJECT:
            refusal = Refusal("enqueue", opinion.reason)
            order.block(job)
            for one in alike.all_left(job):
                session.refusals[one.uid] = refusal
        else:
            session.admit(job)
            if (following := alike.next_one(job)) is not None:
                turns.join(following)
    yield from ()


class _Alike:
    """Who stands outside, by what is asked for: of each kind the first one stands in line for all.

    Who is turned away speaks for those behind him of his queue and priority that ask for as much, since in a pass room is
    taken and never given: they are turned away by the same words. With five thousand that wait, a turn for each was two
    thirds of a cycle.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._is_on = session.judges_entry_alike
        self._left: dict[_Kind, list[Job]] = {}
        """Of each kind those who have had no turn, the first one last."""

    def first_ones(self) -> Iterator[Job]:
        """Who stands in line from the beginning: the first of each kind, and all that are of none."""
        session = self._session
        queues = {name for name, queue in session.cluster.queues.items() if queue.is_open}
        for job in list(session.cluster.lines.by_phase[JobPhase.PENDING].values()):
            if job.is_held or job.spec.queue not in queues:
                continue
            if job.spec.left_to and not job.tasks:
                continue
            kind = self._kind(job)
            if kind is None:
                yield job
            else:
                self._left.setdefault(kind, []).append(job)
        for jobs in self._left.values():
            jobs.sort(key=session.job_key, reverse=True)
            yield jobs[-1]

    def next_one(self, job: Job) -> Job | None:
        """Who follows one that was let in."""
        kind = self._kind(job)
        if kind is None:
            return None
        left = self._left[kind]
        left.pop()
        return left[-1] if left else None

    def all_left(self, job: Job) -> list[Job]:
        """One that was turned away, and those that he speaks for."""
        kind = self._kind(job)
        return [job] if kind is None else self._left[kind]

    def _kind(self, job: Job) -> _Kind | None:
        """What those who are judged alike have in common; None for one who is judged by himself."""
        spec = job.spec
        if not self._is_on or spec.min_resources is None or spec.queue in self._session.strict_queues:
            return None
        return spec.queue, spec.priority, tuple(spec.min_resources.items())
