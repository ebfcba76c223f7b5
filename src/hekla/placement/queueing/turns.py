"""Whose turn is it? Queues take turns by their order, and within a queue jobs by theirs.

Keys are computed when a queue or a job joins the line, which is after each of its placements: so shares that grow
with every placement are heeded at once, and nothing is sorted anew.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heapify, heappop, heappush

from hekla.placement.framework import Key
from hekla.placement.model import Item, Job
from hekla.placement.queueing.job_line import JobLine, JoinedLines, Place
from hekla.placement.queueing.turns_ahead import Course, interleaved
from hekla.placement.session import Session
from hekla.placement.shape import Shape

_NO_LINES: Mapping[str, JobLine] = {}


class Turns:
    """Iterates over jobs in turn; a job that may have another turn is given back by `again`.

    Who can tell how turns go on looks ahead: `next_ahead` gives out turns as if all before had been used, and
    `give_back` takes the last ones back.
    """

    def __init__(
        self,
        session: Session,
        jobs: Iterable[Job],
        *,
        heeds_shares: bool = False,
        kept: Mapping[str, JobLine] = _NO_LINES,
    ) -> None:
        """`kept` are lines that stand already, by queue: who is popped there is pushed back, placed, or steps out."""
        self._session = session
        self._heeds_shares = heeds_shares
        """Whether a queue that has had its share gets no more turns."""

        waiting: dict[str, list[Place]] = {}
        for job in jobs:
            waiting.setdefault(job.spec.queue, []).append(self._place(job))
        self._lines: dict[str, JobLine | JoinedLines] = {**kept}
        for name, places in waiting.items():
            self._lines[name] = JoinedLines(kept[name], JobLine(places)) if name in kept else JobLine(places)
        self._queues: list[tuple[Key, str]] = []
        self._last: str | None = None
        """The queue that had the last turn; it lines up when the next one is asked for."""

        self._ahead: list[tuple[Key, str, Place]] = []
        """The turns that were given out: queue and job, with the keys by which they had been in line."""

        for name in self._lines:
            self._line_up(name)

    @property
    def is_one_queue(self) -> bool:
        """Whether all jobs are of one queue, so that nothing that is placed changes their order."""
        return len(self._lines) == 1

    @property
    def waiting(self) -> int:
        """How many stand in line, and perhaps some who have left it."""
        return sum(map(len, self._lines.values()))

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

    def run_ahead(self, most: int) -> list[Place]:
        """The next ones of the queue that had the last turn, at most so many, perhaps fewer; none if there are none.

        As `next_ahead` where there is one queue that does not get its share by what is placed; time is asked for once.
        """
        session, name = self._session, self._last
        assert name is not None, "a turn comes before those that follow it"
        if most <= 0 or not session.has_time():
            session.is_cut_short = session.is_cut_short or most > 0
            return []
        run = self._lines[name].pop_run(most)
        self._ahead += [((), name, place) for place in run]
        return run

    def run_of_all(self, most: int, is_plain: Callable[[Shape], bool]) -> tuple[list[Item], list[Course]]:
        """The next ones of all queues, while they are lone pods of plain shapes, at most so many; none where that is not to be told.

        As `next_ahead` where the order of queues is told ahead (`turns_ahead.py`), no queue gets its share by what is placed,
        and each is taken to have placed what it asks for; time is asked for once.
        """
        session, queues = self._session, self._queues
        self._let_last_line_up()
        if not queues or session.is_cut_short or not session.has_time():
            session.is_cut_short = session.is_cut_short or bool(queues)
            return [], []
        courses = list[Course]()
        for key, name in queues:
            line = self._lines[name]
            if not isinstance(line, JobLine):
                return [], []
            courses.append(Course(session.cluster.queues[name], line, key, most // len(queues), is_plain))
        turns = interleaved(courses, most, session.queue_keys)
        if turns:
            self._last = turns[-1][1]
            self._queues = [(course.leave(), course.name) for course in courses if course.name != self._last]
            next(course for course in courses if course.name == self._last).leave()
            heapify(self._queues)
            self._ahead += turns
        lone = [item for _, _, place in turns if (item := place[5]) is not None]
        return lone, [course for course in courses if course.used]

    def give_back(self, count: int) -> None:
        """Take back the last turns that were given out; the queue of the one before lines up anew, by what is held then."""
        if not count:
            return
        for _ in range(count):
            key, name, place = self._ahead.pop()
            self._lines[name].push(place)
            self._leave(name)
            self._queues.append((key, name))
        if self._ahead:
            self._last = self._ahead[-1][1]
            self._leave(self._last)
        heapify(self._queues)

    def again(self, job: Job) -> None:
        """Let a job that has tasks left join its line again."""
        if job.wants_more:
            self.join(job)

    def join(self, job: Job) -> None:
        """Let a job of a queue that has a line here join it."""
        self._lines[job.spec.queue].push(self._place(job))

    def _next(self, *, is_ahead: bool) -> Job | None:
        session, queues = self._session, self._queues
        self._let_last_line_up()
        while queues:
            if session.is_cut_short or not session.has_time():
                session.is_cut_short = True
                return None
            queue_key, name = queues[0]
            line = self._lines[name]
            place = line.head()
            if place is None:
                heappop(queues)
            elif self._heeds_shares and session.is_overused(queue := session.cluster.queues[name]):
                if is_ahead:
                    return None
                session.turn_away(queue, line)
                heappop(queues)
            else:
                heappop(queues)
                line.take(place)
                self._ahead.append((queue_key, name, place))
                self._last = name
                return place[4]
        return None

    def _let_last_line_up(self) -> None:
        if self._last is not None:
            self._line_up(self._last)
            self._last = None

    def _place(self, job: Job) -> Place:
        """Where a job stands that is here for this cycle."""
        *order, age, tie = self._session.job_key(job)
        return tuple(order), age, tie, 0, job, None

    def _leave(self, name: str) -> None:
        self._queues = [entry for entry in self._queues if entry[1] != name]

    def _line_up(self, name: str) -> None:
        # A queue that is alone has no order to find.
        key = self._session.queue_key(self._session.cluster.queues[name]) if len(self._lines) > 1 else ()
        heappush(self._queues, (key, name))
