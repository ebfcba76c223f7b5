"""Whose turns come next where several queues take turns: told for many lone pods at once, before anybody is placed.

    queue a   0.00  0.02  0.04  0.06 ...      the keys by which it lines up, before each of its next jobs
    queue b   0.01  0.04  0.07 ...
    turns     a b a a b ...                   the smallest key first: a merge of sorted lists

What a queue is told by follows from its own account and grows with what it holds (`QueueOrderAhead`); so each queue's keys
are told by themselves, a chunk at a time, and merged as far as those of all queues are known.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from hekla.placement.framework import Key
from hekla.placement.line import Line, Place
from hekla.placement.model import Job, Queue
from hekla.placement.shape import Shape

Turn = tuple[Key, str, Place]
"""The key by which a queue had lined up, the queue, and the job whose turn it is."""

KeysOf = Callable[[Queue, Mapping[str, Sequence[int]], int], Sequence[Key] | None]
"""`Session.queue_keys`."""

LEAST_CHUNK = 16
"""How many turns of a queue are told at least, if it has as many."""


class Course:
    """The next turns of one queue, as far as they are lone pods."""

    __slots__ = ("_chunk", "_line", "_queue", "_shapes", "_sums", "is_all", "keys", "name", "places", "used")

    def __init__(self, queue: Queue, line: Line, key: Key, share: int, is_plain: Callable[[Shape], bool]) -> None:
        """`key` is the one by which it stands in line now; of lone pods of plain shapes about so many are wanted."""
        self._queue, self.name, self._line = queue, queue.name, line
        self._chunk = max(share // 2, LEAST_CHUNK)
        self.places, self._shapes = _lone(line.ahead(4 * self._chunk), is_plain)
        self.is_all = len(self.places) == len(line)
        """Whether nobody stands in line behind those."""

        self.keys = [key]
        """Before each of them whose turn was told, and after the last."""

        self.used = 0
        """How many of the turns were given out."""

        self._sums: dict[str, int] = {}
        """What those whose turns were told ask for together."""

    @property
    def told(self) -> int:
        """How many turns were told."""
        return len(self.keys) - 1

    @property
    def is_short(self) -> bool:
        """Whether the turns that were told are used up, and there are more."""
        return self.used == self.told < len(self.places)

    @property
    def bound(self) -> tuple[Key, str] | None:
        """The turn from which on nothing is known of this queue; None if there is none."""
        return None if self.is_all and self.told == len(self.places) else (self.keys[-1], self.name)

    def tell_more(self, keys_of: KeysOf) -> bool:
        """Tell the next turns; False if that cannot be done."""
        shapes = self._shapes[self.told : self.told + self._chunk]
        kinds, held = set(shapes), dict[str, Sequence[int]]()
        for name in {name for kind in kinds for name in kind.request} | self._sums.keys():
            asked = {kind: kind.request.get(name, 0) for kind in kinds}
            _, *sums = accumulate(map(asked.__getitem__, shapes), initial=self._sums.get(name, 0))
            self._sums[name], held[name] = sums[-1], sums
        keys = keys_of(self._queue, held, len(shapes))
        self.keys += keys or ()
        return keys is not None

    def turns(self, bound: tuple[Key, str] | None) -> Iterator[Turn]:
        """Those that were told and come before a bound."""
        start, end = self.used, self.told
        if bound is not None:
            end = bisect_left(self.keys, bound[0], start, end)
        return zip(self.keys[start:end], [self.name] * (end - start), self.places[start:end], strict=True)

    def asked(self) -> tuple[Job, dict[str, int]]:
        """(The first job, what all ask for together) of the turns that were given out."""
        sums: dict[str, int] = {}
        for shape, number in Counter(self._shapes[: self.used]).items():
            for name, amount in shape.request.items():
                sums[name] = sums.get(name, 0) + amount * number
        return self.places[0][4], sums

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
        if not all(course.tell_more(keys_of) for course in short):
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
