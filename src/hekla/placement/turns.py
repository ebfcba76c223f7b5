"""Whose turn is it? Queues take turns by their order, and within a queue jobs by theirs.

Keys are computed when a queue or a job joins the line, which is after each of its placements: so shares that grow
with every placement are heeded at once, and nothing is sorted anew.
"""

from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from hekla.placement.framework import Key
from hekla.placement.model import Job
from hekla.placement.session import Session


class Turn(NamedTuple):
    """A turn that was given out."""

    queue_key: Key
    queue: str
    job_key: Key
    job: Job


class Line:
    """The jobs of one queue in order: those that came at first sorted once, those that come back in a heap."""

    __slots__ = ("_at", "_back", "_first")

    def __init__(self, entries: list[tuple[Key, Job]]) -> None:
        entries.sort()
        self._first, self._at = entries, 0
        self._back: list[tuple[Key, Job]] = []

    def __len__(self) -> int:
        return len(self._first) - self._at + len(self._back)

    def __iter__(self) -> Iterator[Job]:
        return (job for _, job in (*self._first[self._at :], *self._back))

    def pop(self) -> tuple[Key, Job]:
        """The next one, out of the line."""
        at = self._at
        if at < len(self._first) and not (self._back and self._back[0] < self._first[at]):
            self._at = at + 1
            return self._first[at]
        return heappop(self._back)

    def push(self, key: Key, job: Job) -> None:
        """Let one join."""
        heappush(self._back, (key, job))


class Turns:
    """Iterates over jobs in turn; a job that may have another turn is given back by `again`.

    Who can tell how turns go on looks ahead: `next_ahead` gives out turns as if all before had been used, and
    `give_back` takes the last ones back.
    """

    def __init__(self, session: Session, jobs: Iterable[Job], *, heeds_shares: bool = False) -> None:
        self._session = session
        self._heeds_shares = heeds_shares
        """Whether a queue that has had its share gets no more turns."""

        waiting: dict[str, list[tuple[Key, Job]]] = {}
        key = session.job_key
        for job in jobs:
            waiting.setdefault(job.spec.queue, []).append((key(job), job))
        self._lines = {name: Line(entries) for name, entries in waiting.items()}
        self._queues: list[tuple[Key, str]] = []
        self._last: str | None = None
        """The queue that had the last turn; it lines up when the next one is asked for."""

        self._ahead: list[tuple[Key, str, tuple[Key, Job]]] = []
        """The turns that were given out: queue and job, with the keys by which they had been in line."""

        for name in self._lines:
            self._line_up(name)

    @property
    def is_one_queue(self) -> bool:
        """Whether all jobs are of one queue, so that nothing that is placed changes their order."""
        return len(self._lines) == 1

    def __iter__(self) -> Iterator[Job]:
        while (job := self.next()) is not None:
            yield job

    def next(self) -> Job | None:
        """The job whose turn it is; None when all had theirs, or time is up."""
        self._ahead.clear()
        return self._next(is_ahead=False)

    def next_ahead(self) -> Job | None:
        """The job that would be next if the turns given out were used as expected; None if that is not to be told."""
        return self._next(is_ahead=True)

    def rest_of_queue(self) -> Iterator[Job]:
        """The same where there is one queue, if it does not get its share by what is placed."""
        session, given, name = self._session, self._ahead.append, self._last
        assert name is not None, "a turn comes before those that follow it"
        line = self._lines[name]
        while line:
            if not session.has_time():
                session.is_cut_short = True
                return
            entry = line.pop()
            given(((), name, entry))
            yield entry[1]

    def give_back(self, count: int) -> None:
        """Take back the last turns that were given out; the queue of the one before lines up anew, by what is held then."""
        for _ in range(count):
            key, name, (job_key, job) = self._ahead.pop()
            self._leave(name)
            self._queues.append((key, name))
            self._lines[name].push(job_key, job)
        if self._ahead:
            self._last = self._ahead[-1][1]
            self._leave(self._last)
        heapify(self._queues)

    def again(self, job: Job) -> None:
        """Let a job that has tasks left join its line again."""
        if job.wants_more:
            self._lines[job.spec.queue].push(self._session.job_key(job), job)

    def _next(self, *, is_ahead: bool) -> Job | None:
        session, queues = self._session, self._queues
        if self._last is not None:
            self._line_up(self._last)
            self._last = None
        while queues:
            if session.is_cut_short or not session.has_time():
                session.is_cut_short = True
                return None
            queue_key, name = queues[0]
            line = self._lines[name]
            if line and self._heeds_shares and session.is_overused(queue := session.cluster.queues[name]):
                if is_ahead:
                    return None
                session.turn_away(queue, line)
                heappop(queues)
            elif line:
                heappop(queues)
                entry = line.pop()
                self._ahead.append((queue_key, name, entry))
                self._last = name
                return entry[1]
            else:
                heappop(queues)
        return None

    def _leave(self, name: str) -> None:
        self._queues = [entry for entry in self._queues if entry[1] != name]

    def _line_up(self, name: str) -> None:
        # A queue that is alone has no order to find.
        key = self._session.queue_key(self._session.cluster.queues[name]) if len(self._lines) > 1 else ()
        heappush(self._queues, (key, name))
