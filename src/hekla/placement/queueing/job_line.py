"""A line of jobs in order. It lets the next one go, takes back who was let go too early, and lets others join.

`turns.py` has a line per queue; those of `kept_lines.py` live on from cycle to cycle.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, merge
from typing import Any

from hekla.placement.model import Item, Job

Place = tuple[tuple[Any, ...], float, str, int, Job, Item | None]
"""A place in line: what plug-ins say, age, tie; the ticket that the job drew for it (0 for none); the job; if its ticket
stands and it is a lone pod that may be offered a node, the job with that pod, so that a hundred thousand of them need not
be looked up one by one.
"""


class JobLine:
    """Those that came at first are sorted once; those that join later wait in a heap, until they are many."""

    __slots__ = ("_at", "_back", "_first", "_is_kept")

    def __init__(self, places: list[Place], *, is_kept: bool = False) -> None:
        places.sort()
        self._first, self._at = places, 0
        self._back: list[Place] = []
        self._is_kept = is_kept
        """Whether jobs may leave meanwhile, which their tickets tell."""

    def __len__(self) -> int:
        return len(self._first) - self._at + len(self._back)

    def __iter__(self) -> Iterator[Job]:
        return (place[4] for place in merge(self._first[self._at :], sorted(self._back)) if self._stands(place))

    def head(self) -> Place | None:
        """The next one; None if there is none."""
        first, at, back = self._first, self._at, self._back
        if self._is_kept:
            while at < len(first) and first[at][3] != first[at][4].ticket:
                at += 1
            while back and not self._stands(back[0]):
                heappop(back)
            self._at = at
        if at < len(first) and not (back and back[0] < first[at]):
            return first[at]
        return back[0] if back else None

    def pop(self) -> Place:
        """The next one, out of the line; there must be one."""
        place = self.head()
        assert place is not None, "nobody stands in line"
        self.take(place)
        return place

    def take(self, head: Place) -> None:
        """Let the one go that `head` has just told."""
        if self._at < len(self._first) and self._first[self._at] is head:
            self._at += 1
        else:
            heappop(self._back)

    def pop_run(self, most: int) -> list[Place]:
        """The next ones, at most so many and perhaps fewer; none only if nobody is left."""
        run = self.ahead(most)
        if run:
            self.leave(run[-1])
        elif self.head() is not None:
            run = [self.pop()]
        return run

    def ahead(self, most: int, after: Place | None = None) -> list[Place]:
        """The next ones, who stay: at most so many, and only those before the first that joined later.

        With `after`, one that was told before, those who come after it.
        """
        head, first, at = self.head(), self._first, self._at
        if head is None or at >= len(first) or first[at] is not head:
            return []
        if after is not None:
            at = bisect_left(first, after, at) + 1
        end = min(len(first), at + most)
        if self._back:
            end = bisect_left(first, self._back[0], at, end)
        run = first[at:end]
        return [place for place in run if place[3] == place[4].ticket] if self._is_kept else run

    def leave(self, last: Place) -> None:
        """Let all go up to one that `ahead` has just told."""
        self._at = bisect_left(self._first, last, self._at) + 1

    def push(self, place: Place) -> None:
        """Let one join, or come back."""
        if self._at and self._first[self._at - 1] is place:
            self._at -= 1
        else:
            heappush(self._back, place)

    def feed(self, places: Iterable[Place]) -> None:
        """Let many join. Each is moved a bounded number of times however long the line is."""
        fresh = sorted(places)
        if 2 * self._at > len(self._first):
            del self._first[: self._at]
            self._at = 0
        if not self._first or (fresh and fresh[0] > self._first[-1]):
            self._first += fresh
            return
        self._back += fresh
        if 8 * len(self._back) > len(self):
            self._first = [*self._first[self._at :], *self._back]
            self._at, self._back = 0, []
            self._first.sort()
        else:
            heapify(self._back)

    def _stands(self, place: Place) -> bool:
        return not self._is_kept or place[3] == place[4].ticket


class JoinedLines:
    """Two lines of one queue as one: the kept one, and one of jobs that are here for this cycle only."""

    __slots__ = ("_kept", "_passing")

    def __init__(self, kept: JobLine, passing: JobLine) -> None:
        self._kept, self._passing = kept, passing

    def __len__(self) -> int:
        return len(self._kept) + len(self._passing)

    def __iter__(self) -> Iterator[Job]:
        return (job for line in (self._kept, self._passing) for job in line)

    def head(self) -> Place | None:
        """The next one; None if there is none."""
        kept, passing = self._kept.head(), self._passing.head()
        if kept is None or passing is None:
            return kept or passing
        return min(kept, passing)

    def take(self, head: Place) -> None:
        """Let the one go that `head` has just told."""
        self._line_of(head).take(head)

    def pop_run(self, most: int) -> list[Place]:
        """The next ones, at most so many and perhaps fewer; none only if nobody is left."""
        line = self._line_of(self.head())
        other = (self._passing if line is self._kept else self._kept).head()
        run = line.pop_run(most)
        if other is not None:
            within = bisect_left(run, other)
            for place in reversed(run[within:]):
                line.push(place)
            del run[within:]
        return run

    def push(self, place: Place) -> None:
        """Let one join, or come back."""
        self._line_of(place).push(place)

    def _line_of(self, place: Place | None) -> JobLine:
        return self._kept if place is not None and place[3] else self._passing
