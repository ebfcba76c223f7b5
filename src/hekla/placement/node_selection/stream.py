"""Places pods of many shapes in one pass: a class per shape, with an index of scores that is repaired as others place.

A kernel call costs more than a placement, so jobs whose order is certain beforehand (`queueing/lookahead.py`) are placed
together. A shape that comes again has a row in the pool of indexes; one that comes once is scored over all nodes.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import BoolArray, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.kernels import BLOCK, NOT_ASKED, active
from hekla.placement.shape import Shape

T = TypeVar("T", bound=np.generic)

MOST_INDEXED = 128
"""Shapes that have an index; the one unused for longest makes room. At 10,000 nodes one takes 40 kB."""


@dataclass(slots=True)
class Profile:
    """What a kind of shape may use and likes, amounts aside."""

    version: int
    ok: BoolArray  # [node]
    base: FloatArray  # [node]
    scored: IntArray  # resources whose fullness counts
    weight: FloatArray  # how much
    scored_list: list[int]
    balance: float
    total_weight: float
    compares: bool
    """Whether a node that fills up changes how others are liked."""


@dataclass(slots=True)
class Program:
    """A profile with the amounts of one shape: what a kernel reads (see `kernels/twin.py`)."""

    profile: Profile
    adding: FloatArray
    balance: FloatArray  # [3]


@dataclass(frozen=True, slots=True)
class Classes:
    """The programs of some shapes as tables with a column for each, as the kernel reads them (see `kernels/twin.py`)."""

    version: int  # of the nodes' facts
    ok: BoolArray  # [profile, node]
    base: FloatArray  # [profile, node]
    profile: IntArray  # [class]
    asked: IntArray  # resources
    least: IntArray  # [asked, class]
    scored: IntArray  # resources
    weight: FloatArray  # [scored, class]
    adding: FloatArray  # [scored, class]
    balance: FloatArray  # [3, class]

    def of(self, columns: IntArray) -> "Classes":
        """Of some of them, in this order: the tables of nodes are shared."""
        return replace(
            self,
            profile=self.profile[columns],
            **{name: getattr(self, name).take(columns, axis=1) for name in ("least", "weight", "adding", "balance")},
        )


class Programs(Protocol):
    """Where programs come from, and for how long they hold (`normalized_scores.py`)."""

    voided: Callable[[Shape], None]
    """Told of each shape whose program is not what it was."""

    def program(self, shape: Shape) -> Program:
        """What a kernel reads of a shape."""

    def compares(self, shape: Shape) -> bool:
        """Whether it depends on which nodes can be had."""

    def certain(self, shape: Shape) -> int:
        """How many pods, of any shape, may be placed at least before the program changes, where it depends on that."""

    def placed(self, number: int) -> None:
        """So many pods were placed."""


class Stream:
    """Takes nodes for pods of many shapes in turn."""

    def __init__(self, nodes: Nodes, programs: Programs) -> None:
        self._nodes = nodes
        self._programs = programs
        programs.voided = self._void
        self._slots: OrderedDict[Shape, int] = OrderedDict()
        self._quantised: IdArray = np.zeros((0, 0), np.int32)  # [slot, node]
        self._keys: IntArray = np.zeros((0, 0), np.int64)  # [slot, block]
        self._position: IntArray = np.zeros(0, np.int64)  # [slot]
        self._scratch: IdArray = np.zeros(0, np.int32)
        self._known: tuple[tuple[Shape, ...], Classes] | None = None
        self._all: Classes | None = None
        """Of shapes that come again."""
        self._column: dict[Shape, int] = {}
        self._right_at = (-1, -1)
        self._rank: IdArray | None = None
        self._by_rank: IdArray = np.zeros(0, np.int32)  # [rank], the row that has it
        self.calls = 0
        """How often the kernel was called, for tests of how work is shared."""
        self.packs = 0
        """How often tables were packed, for the same."""

    def take(self, shapes: Sequence[Shape], counts: Sequence[int]) -> tuple[list[int], int]:
        """Take the best nodes for `counts[i]` pods of `shapes[i]`, one item after the other, each whole.

        Stops before the first item that does not fit. (rows in order, items placed)
        """
        nodes, total = self._nodes, sum(counts)
        uses: dict[Shape, int] = Counter(shapes)
        if total > len(shapes):
            for shape, count in zip(shapes, counts, strict=True):
                uses[shape] += count - 1
        self._make_ready(2 * total)
        slots = self._slots_for(uses)
        kinds = (*slots, *(shape for shape in uses if shape not in slots))  # those with an index go first
        classes, number = self._classes(kinds), {shape: at for at, shape in enumerate(kinds)}
        out = np.empty(total, np.int32)
        self.calls += 1
        items, placed, nodes.log_length = active().place_stream(
            *nodes.amounts(),
            classes.ok, classes.base, classes.profile, classes.asked, classes.least,
            classes.scored, classes.weight, classes.adding, classes.balance,
            nodes.height, nodes.rank(), self._by_rank, np.array([slots.get(shape, -1) for shape in kinds], np.int64),
            self._quantised, self._keys, self._position, nodes.log, nodes.log_length,
            np.array(list(map(number.__getitem__, shapes)), np.int64), np.array(counts, np.int64), self._scratch, out,
        )  # fmt: skip
        self._programs.placed(placed)
        for shape, count in uses.items():
            shape.uses += count
        rows: list[int] = out[:placed].tolist()
        return rows, items

    def certain(self, shapes: Sequence[Shape], counts: Sequence[int]) -> int:
        """How many of these items, from the first, can be placed by programs that hold till then."""
        compare = {shape for shape in set(shapes) if self._programs.compares(shape)}
        if not compare:
            return len(shapes)
        pods, most, told = 0, sum(counts), set[Shape]()
        for at, (shape, count) in enumerate(zip(shapes, counts, strict=True)):
            if shape in compare and shape not in told:
                told.add(shape)
                most = min(most, self._programs.certain(shape))
            pods += count
            if pods > most:
                return at
        return len(shapes)

    def _void(self, shape: Shape) -> None:
        """Forget what follows from a shape's program."""
        self._known = None
        slot = self._slots.get(shape)
        if slot is not None:
            self._position[slot] = -1
        if shape in self._column:
            self._all = None

    def _classes(self, kinds: tuple[Shape, ...]) -> Classes:
        """In this order: columns of what was packed before, as long as the nodes and the shapes are the same."""
        known = self._known
        if known is not None and known[0] == kinds and known[1].version == self._nodes.version:
            return known[1]
        if not all(map(self._slots.__contains__, kinds)):
            # some come once: all that come again would be packed for them
            self._known = kinds, self._pack(kinds)
            return self._known[1]
        kept = self._all
        if kept is None or kept.version != self._nodes.version or not all(map(self._column.__contains__, kinds)):
            # most calls have some of a few shapes, in another order each time
            kept = self._all = self._pack(shapes := tuple(self._slots))
            self._column = {shape: at for at, shape in enumerate(shapes)}
        self._known = kinds, kept.of(np.array([self._column[shape] for shape in kinds], np.int64))
        return self._known[1]

    def _pack(self, kinds: tuple[Shape, ...]) -> Classes:
        self.packs += 1
        while True:
            classes = self._packed(kinds)
            if classes.version == self._nodes.version:  # a new resource in a weight enlarges the columns on the way
                return classes

    def _packed(self, kinds: Sequence[Shape]) -> Classes:
        version = self._nodes.version
        programs = [self._programs.program(shape) for shape in kinds]
        profiles: dict[int, tuple[int, Profile]] = {}
        for program in programs:
            profiles.setdefault(id(program.profile), (len(profiles), program.profile))
        asked = sorted({index for shape in kinds for index in shape.by_index})
        scored = self._in_order({index for program in programs for index in program.profile.scored_list})
        balance: FloatArray = np.stack([program.balance for program in programs], axis=1)
        return Classes(
            version,
            np.stack([profile.ok for _, profile in profiles.values()]),
            np.stack([profile.base for _, profile in profiles.values()]),
            np.array([profiles[id(program.profile)][0] for program in programs], np.int64),
            np.array(asked, np.int64),
            _table(asked, [shape.by_index for shape in kinds], NOT_ASKED, np.int64),
            np.array(scored, np.int64),
            _table(scored, [_by_resource(p.profile, p.profile.weight) for p in programs], 0, np.float32),
            _table(scored, [_by_resource(p.profile, p.adding) for p in programs], 0, np.float32),
            np.ascontiguousarray(np.maximum(balance, np.float32(0))),
        )

    def _in_order(self, resources: Iterable[int]) -> list[int]:
        """In order of name, as floats are added for each class by itself."""
        names = {index: name for name, index in self._nodes.resources.items()}
        return sorted(resources, key=names.__getitem__)

    def _make_ready(self, changes: int) -> None:
        """Void what is not right any more, and make room in the log."""
        nodes = self._nodes
        if nodes.log_length + changes > len(nodes.log):
            nodes.log_length = 0
            nodes.log_epoch += 1
        if self._right_at[0] != nodes.version:
            self._slots.clear()
            if self._quantised.shape[1] != nodes.rows:
                self._scratch = np.full(nodes.rows, -1, np.int32)
                self._grow(8)
        if self._right_at != (nodes.version, nodes.log_epoch) or self._rank is not nodes.rank():
            self._position[:] = -1
            self._by_rank = _inverse(nodes.rank())
        self._right_at, self._rank = (nodes.version, nodes.log_epoch), nodes.rank()

    def _slots_for(self, uses: dict[Shape, int]) -> dict[Shape, int]:
        """A row of the pool for each shape that comes again."""
        known = self._slots
        again = [shape for shape, count in uses.items() if count + shape.uses > 1]
        if len(again) > MOST_INDEXED:
            again = sorted(again, key=lambda shape: -uses[shape])[:MOST_INDEXED]
        for shape in again:
            if shape in known:
                known.move_to_end(shape)
        for shape in again:
            if shape not in known:
                slot = known[shape] = self._free_slot()
                self._position[slot] = -1
        return {shape: known[shape] for shape in again}

    def _free_slot(self) -> int:
        taken = len(self._slots)
        if taken >= MOST_INDEXED:
            return self._slots.popitem(last=False)[1]
        if taken >= len(self._position):
            self._grow(min(2 * len(self._position), MOST_INDEXED))
        return taken

    def _grow(self, slots: int) -> None:
        nodes = self._nodes
        kept = len(self._slots)
        quantised = np.full((slots, nodes.rows), -1, np.int32)
        keys = np.full((slots, (nodes.rows + BLOCK - 1) // BLOCK), -1 << 32, np.int64)
        position = np.full(slots, -1, np.int64)
        if kept:
            quantised[:kept], keys[:kept], position[:kept] = (
                self._quantised[:kept], self._keys[:kept], self._position[:kept],
            )  # fmt: skip
        self._quantised, self._keys, self._position = quantised, keys, position


def _table(rows: Sequence[int], columns: Sequence[Mapping[int, float]], none: int, kind: type[T]) -> NDArray[T]:
    """A column for each class; `none` where it says nothing of a resource.  # [resource, class]"""
    return np.array([[column.get(row, none) for column in columns] for row in rows], kind).reshape(-1, len(columns))


def _by_resource(profile: Profile, values: FloatArray) -> dict[int, float]:
    return dict(zip(profile.scored_list, values.tolist(), strict=True))


def _inverse(rank: IdArray) -> IdArray:
    rows = np.zeros(int(rank.max(initial=0)) + 1, np.int32)
    rows[rank] = np.arange(len(rank), dtype=np.int32)
    return rows
