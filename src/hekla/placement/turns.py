"""Whose turn is it? Queues take turns by their order, and within a queue jobs by theirs.

Keys are computed when a queue or a job joins the line, which is after each of its placements: so shares that grow
with every placement are heeded at once, and nothing is sorted anew.
"""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

from hekla.placement.framework import Key
from hekla.placement.model import Job
from hekla.placement.session import Session


class Turns:
    """Iterates over jobs in turn; a job that may have another turn is given back by `again`."""

    def __init__(self, session: Session, jobs: Iterable[Job], *, heeds_shares: bool = False) -> None:
        self._session = session
        self._heeds_shares = heeds_shares
        """Whether a queue that has had its share gets no more turns."""

        self._jobs: dict[str, list[tuple[Key, Job]]] = {}
        self._queues: list[tuple[Key, str]] = []
        for job in jobs:
            self._join(job)
        for name in self._jobs:
            self._line_up(name)

    def __iter__(self) -> Iterator[Job]:
        session = self._session
        while self._queues:
            if not session.has_time():
                session.is_cut_short = True
                return
            _, name = heappop(self._queues)
            jobs = self._jobs[name]
            if not jobs:
                continue
            if self._heeds_shares and session.is_overused(queue := session.cluster.queues[name]):
                session.turn_away(queue, (job for _, job in jobs))
                continue
            _, job = heappop(jobs)
            yield job
            self._line_up(name)

    def again(self, job: Job) -> None:
        """Let a job that has tasks left join its line again."""
        if job.wants_more:
            self._join(job)

    def _line_up(self, name: str) -> None:
        # A queue that is alone has no order to find.
        key = self._session.queue_key(self._session.cluster.queues[name]) if len(self._jobs) > 1 else ()
        heappush(self._queues, (key, name))

    def _join(self, job: Job) -> None:
        heappush(self._jobs.setdefault(job.spec.queue, []), (self._session.job_key(job), job))
