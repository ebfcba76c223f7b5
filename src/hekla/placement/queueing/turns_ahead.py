"""Whose turns come next where several queues take turns: told for many lone pods at once, before anybody is placed.

    queue a   0.00  0.02  0.04  0.06 ...      the keys by which it lines up, before each of its next jobs
    queue b   0.01  0.04  0.07 ...
    turns     a b a a b ...                   the smallest key first: a merge of sorted lists

What a queue is told by follows from its own account and grows with what it holds (`QueueOrderAhead`); so each queue's keys
are told by themselves, a chunk at a time, and merged as far as those of all queues are known.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain

from hekla.placement.framework import Key
from hekla.placement.model import Job
from hekla.placement.queue import Queue
from hekla.placement.queueing.job_line import JobLine, Place
from hekla.placement.queueing.projected_use import ProjectedUse, grown
from hekla.placement.shape import Shape

Turn = tuple[Key, str, Place]
"""The key by which a queue had lined up, the queue, and the job whose turn it is."""

KeysOf = Callable[[Queue, ProjectedUse], Iterable[Key] | None]
"""`Session.queue_keys`."""

LEAST_CHUNK = 16
"""How many turns of a queue are told at least, if it has as many."""


class Course:
    """The next turns of one queue, as far as they are lone pods."""

    __slots__ = ("_growths", "_is_over", "_is_plain", "_line", "_queue", "_share", "keys", "name", "places", "used")

    def __init__(self, queue: Queue, line: JobLine, key: Key, share: int, is_plain: Callable[[Shape], bool]) -> None:
        """`key` is the one by which it stands in line now; of lone pods of plain shapes about so many are wanted."""
        self._queue, self.name, self._line, self._is_plain = queue, queue.name, line, is_plain
        self._share = share
        self.places: list[Place] = []
        """Those whose turns were told."""

        self._growths: list[ProjectedUse] = []
        """What the queue holds more after each of them, a chunk at a time."""

        self._is_over = False
        """Whether no more can be told: nobody comes after those, or one who is no lone pod of a plain shape."""

        self.keys = [key]
        """Before each of them, and after the last."""

        self.used = 0
        """How many of the turns were given out."""

    @property
    def is_short(self) -> bool:
        """Whether the turns that were told are used up, and there may be more."""
        return self.used == len(self.places) and not self._is_over

    @property
    def bound(self) -> tuple[Key, str] | None:
        """The turn from which on nothing is known of this queue; None if there is none."""
        return None if self._is_over and len(self.places) == len(self._line) else (self.keys[-1], self.name)

    def tell_more(self, keys_of: KeysOf, given: int, lacking: int) -> bool:
        """Tell the next turns, if there are more; False if that cannot be done. So many turns of all were given out, and so many
        are lacking.

        At first half of its share, then as many as it will use if it goes on as it began: what is told and not used is told
        again, and each chunk costs 40 us besides 0.6 for each turn.
        """  # fmt: skip
        chunk = max(lacking * self.used * 9 // (8 * given) if given else self._share // 2 + 1, LEAST_CHUNK)
        places, shapes = _lone(self._line.ahead(chunk, self.places[-1] if self.places else None), self._is_plain)
        self._is_over = len(places) < chunk
        if not places:
            return True
        growth = grown(self._growths[-1].last() if self._growths else {}, shapes)
        keys = None if growth is None else keys_of(self._queue, growth)
        if growth is None or keys is None:
            return False
        self.places += places
        self._growths.append(growth)
        self.keys += keys
        return True

    def turns(self, bound: tuple[Key, str] | None) -> Iterator[Turn]:
        """Those that were told and come before a bound."""
        start, end = self.used, len(self.places)
        if bound is not None and bound[1] != self.name:  # of its own turns all that were told come before it
            end = bisect_left(self.keys, bound[0], start, end)
        return zip(self.keys[start:end], [self.name] * (end - start), self.places[start:end], strict=True)

    def asked(self) -> tuple[Job, dict[str, int]]:
        """(The first job, what all ask for together) of the turns that were given out."""
        last = self.used - 1
        for growth in self._growths:
            if last < growth.count:
                break
            last -= growth.count
        return self.places[0][4], growth.at(last)

    def leave(self) -> Key:
        """Let those go whose turns were given out; the key by which the queue stands in line then."""
        if self.used:
            self._line.leave(self.places[self.used - 1])
        return self.keys[self.used]


def interleaved(courses: Sequence[Course], most: int, keys_of: KeysOf) -> list[Turn]:
    """The next turns of all queues, at most so many; fewer, or none, where more cannot be told."""
    turns: list[Turn] = []
    while len(turns) < most:
        short = [course for course in courses if course.is_short]
        if not all(course.tell_more(keys_of, len(turns), most - len(turns)) for course in short):
            break
        bound = min((course.bound for course in courses if course.bound is not None), default=None)
        merged = sorted(chain.from_iterable(course.turns(bound) for course in courses))[: most - len(turns)]
        if not merged and not short:
            break
        turns += merged
        _give_out(courses, merged)
    return turns


def _give_out(courses: Iterable[Course], turns: Sequence[Turn]) -> None:
    names = [name for _, name, _ in turns]
    for course in courses:
        course.used += names.count(course.name)


def _lone(places: Sequence[Place], is_plain: Callable[[Shape], bool]) -> tuple[Sequence[Place], Sequence[Shape]]:
    """Those before the first that is no lone pod of a plain shape, with their shapes."""
    items = [place[5] for place in places]
    items = items[: items.index(None)] if None in items else items
    shapes = [item[1][0].shape for item in items if item is not None]
    if odd := {shape for shape in set(shapes) if not is_plain(shape)}:
        shapes = shapes[: next(at for at, shape in enumerate(shapes) if shape in odd)]
    return places[: len(shapes)], shapes
