"""Takes nodes for equal pods where the network has a say: each that is placed changes how some nodes are liked.

What changes is told by the plug-ins (`Nearness.follow`), and only those rows are scored again: of a rack, or of the nodes
under one block. For pods without a wish the scores are kept from run to run, and follow the log of changes.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hekla.placement.cluster import Cluster
from hekla.placement.columns import FloatArray, IdArray, IntArray
from hekla.placement.framework import Nearness, NearScorer
from hekla.placement.kernels import BLOCK, active
from hekla.placement.node_selection.stream import Program
from hekla.placement.shape import Shape
from hekla.placement.topology.tree import Tree
from hekla.placement.topology.venue import Venue

MOST_INDEXES = 128
"""How many shapes have their scores kept; the one unused for longest makes room. At 10,000 nodes one takes 200 kB."""


@dataclass(slots=True)
class _Index:
    """Scores of all nodes for one shape, nearness included."""

    shape: Shape
    program: Program
    """With a base of its own, which nearness is added to."""

    far: FloatArray  # [node] the base without nearness
    told: Sequence[Nearness]
    tree: Tree
    version: int
    quantised: IdArray  # [node]
    keys: IntArray  # [block]
    rank: IdArray
    epoch: int = 0
    position: int = 0


class NearRuns:
    """Runs of equal pods, by the opinions of plug-ins on nearness."""

    def __init__(self, cluster: Cluster, scorers: Sequence[NearScorer], program_of: Callable[[Shape], Program]) -> None:
        self._cluster, self._scorers, self._program_of = cluster, scorers, program_of
        self._kept: OrderedDict[int, _Index] = OrderedDict()

    def take(self, shape: Shape, count: int, venue: Venue | None) -> list[int]:
        """Take the best nodes for up to `count` tasks, one after the other; the rows that were found."""
        nodes, index = self._cluster.nodes, self._index(shape) if venue is None else self._new(shape, venue)
        if not index.told:
            rows = self._run(index, count)
            nodes.touch_all(rows)
            if venue is not None:
                for row in rows:
                    venue.settle(row)
        else:
            rows = self._one_by_one(index, count, venue)
        index.epoch, index.position = nodes.log_epoch, nodes.log_length
        return rows

    def _one_by_one(self, index: _Index, count: int, venue: Venue | None) -> list[int]:
        """Each placement is followed by what it changes."""
        given, place, found = self._given(index), active().place_run, list[int]()
        rows = np.empty(1, np.int32)
        while len(found) < count and place(*given, rows):
            found.append(int(rows[0]))
            self._cluster.nodes.touch(found[-1])
            if venue is not None:
                venue.settle(found[-1])
            if len(found) < count or venue is None:
                self._follow(index, rows, given)
        return found

    def near(self, program: Program, shape: Shape, venue: Venue | None) -> Program:
        """A program that also heeds where siblings are, and stays inside the venue."""
        program, far, told = self._told(program, shape, venue)
        self._tell(program, far, told, None)
        return program

    def _told(
        self, program: Program, shape: Shape, venue: Venue | None
    ) -> tuple[Program, FloatArray, Sequence[Nearness]]:
        nodes, tree, profile = self._cluster.nodes, self._cluster.topology.tree(), program.profile
        ok = profile.ok
        if venue is not None and venue.allowed is not None:
            ok = ok & venue.allowed
        told = [n for p in self._scorers if (n := p.score_near(nodes, tree, shape, venue)) is not None]
        own = replace(profile, ok=ok, base=profile.base.copy() if told else profile.base)
        return Program(own, program.adding, program.balance), profile.base, told

    @staticmethod
    def _tell(program: Program, far: FloatArray, told: Sequence[Nearness], rows: IdArray | None) -> None:
        """Add what plug-ins say to the base, of some rows or of all."""
        some, total = slice(None) if rows is None else rows, np.float32(program.profile.total_weight)
        base = far[some]
        for one in told:
            base = base + one.values[some] / total
        if told:
            program.profile.base[some] = base

    # Runs

    def _run(self, index: _Index, count: int) -> list[int]:
        out = np.empty(count, np.int32)
        found: list[int] = out[: active().place_run(*self._given(index), out)].tolist()
        return found

    def _follow(self, index: _Index, rows: IdArray, given: Sequence[object]) -> None:
        """Tell the plug-ins of rows whose amounts changed, and score again what they like otherwise now."""
        first, *others = (one.follow(rows) for one in index.told)
        changed = np.concatenate([first, *others]) if others else first  # a row that is named twice is scored twice
        self._tell(index.program, index.far, index.told, changed)
        active().repair(*given, changed, 0, len(changed))

    def _given(self, index: _Index) -> tuple[object, ...]:
        nodes, program, shape = self._cluster.nodes, index.program, index.shape
        profile = program.profile
        return (
            *nodes.amounts(), profile.ok, profile.base, shape.resources, shape.amounts, profile.scored, profile.weight,
            program.adding, program.balance, nodes.height, index.quantised, index.rank, index.keys,
        )  # fmt: skip

    # Indexes

    def _index(self, shape: Shape) -> _Index:
        """The scores that are kept of a shape without a wish, brought up to date."""
        nodes, tree = self._cluster.nodes, self._cluster.topology.tree()
        known = self._kept.get(id(shape))
        if known is not None and (known.version, known.tree, id(known.rank)) == (nodes.version, tree, id(nodes.rank())):
            rows = nodes.changed_since(known.epoch, known.position)
            if rows is not None:
                self._kept.move_to_end(id(shape))
                if len(rows):
                    given = self._given(known)
                    active().repair(*given, rows, 0, len(rows))
                    self._follow(known, rows, given)
                known.epoch, known.position = nodes.log_epoch, nodes.log_length
                return known
        known = self._kept[id(shape)] = self._new(shape, None)
        while len(self._kept) > MOST_INDEXES:
            self._kept.popitem(last=False)
        return known

    def _new(self, shape: Shape, venue: Venue | None) -> _Index:
        nodes = self._cluster.nodes
        program, far, told = self._told(self._program_of(shape), shape, venue)
        self._tell(program, far, told, None)
        index = _Index(
            shape, program, far, told, self._cluster.topology.tree(), nodes.version,
            np.full(nodes.rows, -1, np.int32),
            np.full((nodes.rows + BLOCK - 1) // BLOCK, -1 << 32, np.int64),
            nodes.rank(),
        )  # fmt: skip
        active().build(*self._given(index))
        index.epoch, index.position = nodes.log_epoch, nodes.log_length
        return index
