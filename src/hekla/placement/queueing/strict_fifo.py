"""Queues that start their jobs strictly in order: nothing behind the head starts while the head waits.

The order is priority, then age, whatever plug-ins say of others. A head waits while it has too few nodes to be ready:
because it does not fit, its pods are still being made, or it was not let in yet. A job that is ready and only wants to grow
keeps nobody back, nor does one whose pods all have scheduling gates: its owner keeps it back.
"""

from collections.abc import Iterable, Iterator

from hekla.placement.constraint import Refusal
from hekla.placement.model import Job, JobPhase
from hekla.placement.named_jobs import NamedJob
from hekla.placement.session import Session

BEHIND_HEAD = "behindHead"


def behind_head(session: Session, job: Job) -> Refusal | None:
    """Why a job of a strict queue is kept back where those before it wait; None if it is the head, or not in such a queue."""
    order = StrictOrder(session)
    if job.spec.queue not in session.strict_queues:
        return None
    for other in waiting_strictly(session):
        if other is not job and other.spec.queue == job.spec.queue:
            order.block(other)
    return session.refusals.get(job.uid) if order.holds_back(job) else None


class StrictOrder:
    """Who may have a turn in one pass, as far as strict queues are concerned."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._heads: dict[str, Job] = {}
        """By strict queue, the job that waits and is known not to start in this pass."""

    def admitted(self, jobs: Iterable[Job]) -> Iterable[Job]:
        """Of jobs that are worth a try, those that no head keeps back which is not."""
        if not self._session.strict_queues:
            return jobs
        tried = {job.uid: job for job in jobs}
        for job in waiting_strictly(self._session):
            if job.uid not in tried:
                self.block(job)
        return [job for job in tried.values() if not self.holds_back(job)]

    def holds_back(self, job: Job) -> bool:
        """Whether a job has to wait because one before it does; the reason is noted."""
        head = self._heads.get(job.spec.queue)
        if head is None or head is job or self._session.job_key(job) < self._session.job_key(head):
            return False
        order = f'queue "{job.spec.queue}" starts its jobs strictly in order, and '
        telling = order, NamedJob(head.told, quote='"'), " waits before this one"
        self._session.refusals[job.uid] = Refusal.naming(BEHIND_HEAD, telling, job.spec.namespace)
        return True

    def block(self, job: Job) -> None:
        """A job does not start in this pass; in a strict queue it keeps back those behind it."""
        name = job.spec.queue
        if name not in self._session.strict_queues or (job.ready_count and self._session.is_ready(job)):
            return
        if job.tasks and job.phase is not JobPhase.PENDING and not any(True for _ in job.pending()):
            return
        head = self._heads.get(name)
        if head is None or self._session.job_key(job) < self._session.job_key(head):
            self._heads[name] = job


def waiting_strictly(session: Session) -> Iterator[Job]:
    """The jobs of strict queues that wait for nodes, or to be let in."""
    lines, queues = session.cluster.lines, session.strict_queues
    for job in lines.for_nodes.values():
        if job.spec.queue in queues and any(True for _ in job.pending()):
            yield job
    for job in lines.by_phase[JobPhase.PENDING].values():
        if job.spec.queue in queues:
            yield job
