"""Places pods of many shapes in one pass: a class per shape, with an index of scores that is repaired as others place.

A kernel call costs more than a placement, so jobs whose order is certain beforehand (`lookahead.py`) are placed
together. A shape that comes again has a row in the pool of indexes; one that comes once is scored over all nodes.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import BoolArray, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.kernels import BLOCK, active
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


@dataclass(slots=True)
class Program:
    """A profile with the amounts of one shape: what a kernel reads (see `kernels/twin.py`)."""

    profile: Profile
    adding: FloatArray
    balance: FloatArray  # [3]


@dataclass(frozen=True, slots=True)
class Classes:
    """The programs of some shapes as the kernel reads them."""

    version: int  # of the nodes' facts
    ok: BoolArray  # [profile, node]
    base: FloatArray  # [profile, node]
    profile: IntArray  # [class]
    needs: IntArray  # [class]
    need: IntArray  # [class, resource]
    amount: IntArray  # [class, resource]
    scoreds: IntArray  # [class]
    scored: IntArray  # [class, resource]
    weight: FloatArray  # [class, resource]
    adding: FloatArray  # [class, resource]
    balance: FloatArray  # [class, 3]


class Stream:
    """Takes nodes for pods of many shapes in turn."""

    def __init__(self, nodes: Nodes, program: Callable[[Shape], Program]) -> None:
        self._nodes = nodes
        self._program = program
        self._slots: OrderedDict[Shape, int] = OrderedDict()
        self._quantised: IdArray = np.zeros((0, 0), np.int32)  # [slot, node]
        self._keys: IntArray = np.zeros((0, 0), np.int64)  # [slot, block]
        self._position: IntArray = np.zeros(0, np.int64)  # [slot]
        self._scratch: IdArray = np.zeros(0, np.int32)
        self._known: tuple[tuple[Shape, ...], Classes] | None = None
        self._right_at = (-1, -1)
        self._rank: IdArray | None = None
        self.calls = 0
        """How often the kernel was called, for tests of how work is shared."""

    def take(self, shapes: Sequence[Shape], counts: Sequence[int]) -> tuple[list[int], int]:
        """Take the best nodes for `counts[i]` pods of `shapes[i]`, one item after the other, each whole.

        Stops before the first item that does not fit. (rows in order, items placed)
        """
        uses: dict[Shape, int] = {}
        for shape, count in zip(shapes, counts, strict=True):
            uses[shape] = uses.get(shape, 0) + count
        kinds = tuple(uses)
        classes, nodes, total = self._classes(kinds), self._nodes, sum(counts)
        self._make_ready(2 * total)
        slot = self._slots_for(uses)
        number = {shape: at for at, shape in enumerate(kinds)}
        out = np.empty(total, np.int32)
        self.calls += 1
        items, placed, nodes.log_length = active().place_stream(
            *nodes.amounts(),
            classes.ok, classes.base, classes.profile, classes.needs, classes.need, classes.amount,
            classes.scoreds, classes.scored, classes.weight, classes.adding, classes.balance,
            nodes.height, nodes.rank(), slot, self._quantised, self._keys, self._position,
            nodes.log, nodes.log_length,
            np.array([number[shape] for shape in shapes], np.int64), np.array(counts, np.int64), self._scratch, out,
        )  # fmt: skip
        for shape, count in uses.items():
            shape.uses += count
        rows: list[int] = out[:placed].tolist()
        return rows, items

    def _classes(self, kinds: tuple[Shape, ...]) -> Classes:
        known = self._known
        if known is not None and known[0] == kinds and known[1].version == self._nodes.version:
            return known[1]
        while True:
            classes = self._packed(kinds)
            if classes.version == self._nodes.version:  # a new resource in a weight enlarges the columns on the way
                self._known = kinds, classes
                return classes

    def _packed(self, kinds: Sequence[Shape]) -> Classes:
        version = self._nodes.version
        programs = [self._program(shape) for shape in kinds]
        profiles: dict[int, tuple[int, Profile]] = {}
        for program in programs:
            profiles.setdefault(id(program.profile), (len(profiles), program.profile))
        amounts = [(shape.resources, shape.amounts) for shape in kinds]
        needs = [len(resources) for resources, _ in amounts]
        scoreds = [len(program.adding) for program in programs]
        return Classes(
            version,
            np.stack([profile.ok for _, profile in profiles.values()]),
            np.stack([profile.base for _, profile in profiles.values()]),
            np.array([profiles[id(program.profile)][0] for program in programs], np.int64),
            np.array(needs, np.int64),
            _padded([resources for resources, _ in amounts], needs, np.int64),
            _padded([asked for _, asked in amounts], needs, np.int64),
            np.array(scoreds, np.int64),
            _padded([program.profile.scored for program in programs], scoreds, np.int64),
            _padded([program.profile.weight for program in programs], scoreds, np.float32),
            _padded([program.adding for program in programs], scoreds, np.float32),
            np.stack([program.balance for program in programs]),
        )

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
        self._right_at, self._rank = (nodes.version, nodes.log_epoch), nodes.rank()

    def _slots_for(self, uses: dict[Shape, int]) -> IntArray:
        """A row of the pool for each shape that comes again, -1 for the others.  # [class]"""
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
        return np.array([known.get(shape, -1) for shape in uses], np.int64)

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


def _padded(rows: Sequence[NDArray[T]], lengths: Sequence[int], kind: type[T]) -> NDArray[T]:
    table: NDArray[T] = np.zeros((len(rows), max(1, max(lengths))), kind)
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
