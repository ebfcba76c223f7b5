"""Finds the best node for a task: the sum of all plug-ins' opinions, evaluated by the kernels.

What depends on demands and node facts alone is a *profile*: a mask and a part of the score, computed once for all
nodes. What depends on amounts is scored in one pass by a kernel; for a shape that comes again, the scores are kept
in an *index* and only the rows that changed since are scored again.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hekla.placement.cluster import Cluster
from hekla.placement.columns import CPU, MEMORY, BoolArray, FloatArray, IdArray, IntArray, Nodes
from hekla.placement.constraint import Refusal
from hekla.placement.devices.shares import WHOLE
from hekla.placement.filters.spread import TOO_FULL
from hekla.placement.framework import (
    ComparingScorer,
    DeviceChoice,
    Filter,
    LiveFilter,
    LiveScorer,
    NearScorer,
    RowScorer,
    Scorer,
)
from hekla.placement.kernels import BLOCK, active
from hekla.placement.model import Task
from hekla.placement.node_selection.even_domains import Groups, keep_even, place_evenly
from hekla.placement.node_selection.network_nearness import NearRuns
from hekla.placement.node_selection.normalized_scores import NormalizedScores
from hekla.placement.node_selection.one_per_node import best_rows, keep_apart
from hekla.placement.node_selection.score import NEUTRAL
from hekla.placement.node_selection.stream import Profile, Program, Stream
from hekla.placement.shape import Shape
from hekla.placement.topology.venue import Venue, slots

MOST_PROFILES, MOST_INDEXES = 512, 128
"""How many are kept; the one unused for longest makes room."""

ABOVE_ALL = np.float32(8)
"""What the nodes of our shard are liked more than others: more than all scores add up to."""

MOST_ROW_SCORES_BYTES = 64 << 20


@dataclass(slots=True)
class Index:
    """Scores of all nodes for one shape, right up to a position in the log of changes."""

    program: Program
    quantised: IdArray  # [node]
    keys: IntArray  # [block]
    rank: IdArray
    epoch: int = 0
    position: int = 0
    goes_by: object = None
    """What the scores go by that depends on which nodes can be had (`ComparingScorer.goes_by`)."""


@dataclass(slots=True)
class RowScores:
    """What a row scorer said of all nodes for one shape, right up to a position in the log of changes."""

    shape: Shape  # held, so that its id stays its own
    values: FloatArray  # [node]
    version: int
    epoch: int
    position: int


class Placer:
    """Places tasks of one cluster by the opinions of one set of plug-ins."""

    def __init__(self, cluster: Cluster, plugins: Sequence[object]) -> None:
        self.cluster = cluster
        self._filters = [p for p in plugins if isinstance(p, Filter)]
        self._live_filters = [p for p in plugins if isinstance(p, LiveFilter)]
        self._scorers = [p for p in plugins if isinstance(p, Scorer)]
        self._live_scorers = [p for p in plugins if isinstance(p, LiveScorer)]
        self._comparing = [p for p in plugins if isinstance(p, ComparingScorer)]
        self._row_scorers = [p for p in plugins if isinstance(p, RowScorer)]
        self._near_scorers = [p for p in plugins if isinstance(p, NearScorer)]
        self._device_choice = next((p for p in plugins if isinstance(p, DeviceChoice)), None)
        live = (*self._live_filters, *self._live_scorers, *self._comparing)
        self._keeps_apart = all(getattr(p, "follows_tallies", False) for p in live) and any(
            getattr(p, "keeps_apart", False) for p in self._live_filters
        )
        """Whether pods that repel one another are kept apart, and nothing else that plug-ins say changes as they are placed."""

        self._keeps_even = self._keeps_apart and any(getattr(p, "keeps_even", False) for p in self._live_filters)

        self._row_scores: OrderedDict[tuple[int, int], RowScores] = OrderedDict()
        self._profiles: OrderedDict[object, Profile] = OrderedDict()
        self._indexes: OrderedDict[int, tuple[Shape, Index]] = OrderedDict()
        self._scratch: IdArray = np.zeros(0, np.int32)
        self._among = NormalizedScores(cluster.nodes, self._comparing, self._profile, self._program, self._compared)
        self.stream = Stream(cluster.nodes, self._among)
        self._near = NearRuns(cluster, self._near_scorers, self._program)

    def place(self, task: Task, venue: Venue | None = None) -> int:
        """Take the best node for a task, of a venue where one is given; its row, or -1. The caller settles the task."""
        shape = task.shape
        if self.goes_one_by_one(task):
            if venue is None and shape.uses and self.compares_alone(task):
                return next(iter(self._place_among([task])), -1)
            shape.uses += 1
            return self._place_live(task, venue)
        shape.uses += 1
        if venue is None and shape.uses == 1 and not self.heeds_domains:
            return self._place_once(shape)
        return next(iter(self.place_run(shape, 1, venue)), -1)

    def goes_one_by_one(self, task: Task) -> bool:
        """Whether every placement changes more than the kernels know of: pods that run there, or single devices."""
        shape = task.shape
        if self._row_scorers or shape.gpu_milli:
            return True
        return bool(task.carriers) or not shape.constraints.is_local or self._profile(shape).compares

    def place_apart(self, tasks: Sequence[Task]) -> Sequence[int] | None:
        """Take nodes for equal tasks that repel one another, keep domains even, or mind which nodes can be had, in one pass or a
        few; None if they are not such.
        """
        shape, nodes = tasks[0].shape, self.cluster.nodes
        if self.compares_alone(tasks[0]):
            return self._place_among(tasks)
        if not self._keeps_apart or shape.gpu_milli or self._row_scorers or self.heeds_domains:
            return None
        if self._keeps_even and keep_even(tasks):
            return self._place_evenly(tasks) if nodes.height else ()
        if not keep_apart(nodes, self.cluster.tallies, tasks):
            return None
        program, out = self._live_program(tasks[0]), self._out()
        if self._compared(program, tasks[0]) is not program:
            return None
        active().score(*nodes.amounts(), *_arguments(program, shape), nodes.height, out)
        rows = best_rows(out[: nodes.height], nodes.rank(), len(tasks))
        nodes.take_many(np.array(rows, np.int64), shape.resources, shape.amounts)
        return rows

    def _place_evenly(self, tasks: Sequence[Task]) -> Sequence[int] | None:
        first, nodes = tasks[0], self.cluster.nodes
        program = self._live_program(first, but=TOO_FULL)
        if self._compared(program, first) is not program:
            return None
        index, changed = self._blank(program), np.zeros(1, np.int32)
        self._build(index, first.shape)
        given = (
            *nodes.amounts(), *_arguments(index.program, first.shape), nodes.height,
            index.quantised, index.rank, index.keys, changed, 0, 1,
        )  # fmt: skip

        def take(row: int) -> None:
            nodes.take(row, first.shape.resources, first.shape.amounts)
            changed[0] = row
            active().repair(*given)

        groups = Groups(nodes, self.cluster.tallies, first)
        return place_evenly(groups, index.quantised, index.rank, len(tasks), take)

    def compares_alone(self, task: Task) -> bool:
        """Whether beside amounts and node facts nothing is said of a task but how nodes compare with those it can go to."""
        shape = task.shape
        if self._row_scorers or shape.gpu_milli or task.carriers or not shape.constraints.is_local:
            return False
        return self._profile(shape).compares and not self.heeds_domains

    def _place_among(self, tasks: Sequence[Task]) -> Sequence[int]:
        """Take nodes for equal tasks as long as what nodes are compared by stays; then look anew.

        Each task fills one node at most, so as many can be placed as there are nodes that it rests on: 10 us for a pod of a
        gang on 10,000 nodes of a busy machine, and 130 us for one that comes by itself; looking anew for each took 650 and 400.
        """
        shape, rows = tasks[0].shape, list[int]()
        shape.uses += len(tasks)
        while len(rows) < len(tasks):
            index, most = self._index_among(tasks[0])
            wanted = min(most, len(tasks) - len(rows))
            found = self._run(index, shape, wanted)
            rows += found
            if len(found) < wanted:
                break
        return rows

    def _index_among(self, task: Task) -> tuple[Index, int]:
        """The index of a task's shape, and how many may be placed by it."""
        shape = task.shape
        index = self._index(shape)  # whatever its scores go by, it tells which nodes can be had
        goes_by, number = self._among.goes_by(shape, index.quantised >= 0)
        if index.goes_by != goes_by:
            index = self._new_index(shape, self._compared(self._program(shape), task))
            index.goes_by = goes_by
        return index, max(1, number)

    def place_run(self, shape: Shape, count: int, venue: Venue | None = None) -> Sequence[int]:
        """Take the best nodes for up to `count` tasks of one shape, one after the other; the rows that were found."""
        if venue is not None or self.heeds_domains:
            return self._near.take(shape, count, venue)
        return self._run(self._index(shape), shape, count)

    def _run(self, index: Index, shape: Shape, count: int) -> list[int]:
        nodes, out = self.cluster.nodes, np.empty(count, np.int32)
        placed = active().place_run(
            *nodes.amounts(), *_arguments(index.program, shape), nodes.height,
            index.quantised, index.rank, index.keys, out,
        )  # fmt: skip
        rows = out[:placed]
        nodes.touch_all(rows)
        index.epoch, index.position = nodes.log_epoch, nodes.log_length
        found: list[int] = rows.tolist()
        return found

    def open_rows(self, shape: Shape) -> BoolArray:
        """The nodes that pods of a shape may use, amounts and the pods that run there aside.  # [node]"""
        return self._profile(shape).ok

    def lets_in(self, task: Task) -> BoolArray:
        """The nodes that a task may use, amounts aside.  # [node]"""
        ok = self.open_rows(task.shape).copy()
        if task.carriers or not task.shape.constraints.is_local:
            for plugin in self._live_filters:
                for refused in plugin.refuse_live(self.cluster.nodes, self.cluster.tallies, task):
                    ok &= ~refused.rows
        return ok

    def likes(self, shape: Shape) -> IdArray:
        """How much each node is liked for pods of a shape, full or not; -1 where they may not run.  # [node]"""
        nodes, profile, program = self.cluster.nodes, self._profile(shape), self._program(shape)
        out, nothing = np.full(nodes.rows, -1, np.int32), np.zeros(0, np.int64)
        active().score(
            *nodes.amounts(), profile.ok, profile.base, nothing, nothing, profile.scored, profile.weight, program.adding,
            program.balance, nodes.height, out,
        )  # fmt: skip
        return out

    def slots(self, shape: Shape) -> IntArray:
        """How many tasks of a shape each node has room for, the pods that run there aside.  # [node]"""
        nodes = self.cluster.nodes
        room = slots(nodes.idle, shape.resources, shape.amounts, self._profile(shape).ok)
        return np.minimum(room, nodes.devices.slots(shape.gpu_milli, nodes.rows)) if shape.gpu_milli else room

    def scores(self, task: Task, venue: Venue | None = None) -> IdArray:
        """The rounded score of every node, -1 where not feasible; for explanations and tests.  # [node]"""
        nodes = self.cluster.nodes
        program = self._whole_program(task, venue)
        out = np.full(nodes.rows, -1, np.int32)
        active().score(*nodes.amounts(), *_arguments(program, task.shape), nodes.height, out)
        return out

    def _place_once(self, shape: Shape) -> int:
        nodes = self.cluster.nodes
        row = active().place_one(
            *nodes.amounts(), *_arguments(self._program(shape), shape), nodes.height, self._out(), nodes.rank()
        )
        if row >= 0:
            nodes.touch(row)
        return row

    def _place_live(self, task: Task, venue: Venue | None) -> int:
        nodes = self.cluster.nodes
        program = self._whole_program(task, venue)
        row = active().place_one(
            *nodes.amounts(), *_arguments(program, task.shape), nodes.height, self._out(), nodes.rank()
        )
        if row >= 0:
            nodes.touch(row)
            self._take_devices(task, row)
            if venue is not None:
                venue.settle(row)
        return row

    def _take_devices(self, task: Task, row: int) -> None:
        """Decide which GPUs of its node a task gets, where it asks for thousandths of them."""
        shape, devices = task.shape, self.cluster.nodes.devices
        if not shape.gpu_milli:
            return
        if self._device_choice is not None and shape.gpu_milli < WHOLE:
            task.devices = (self._device_choice.choose_device(self.cluster.nodes, shape, row),)
        else:
            task.devices = devices.fullest(row, shape.gpu_milli)
        devices.take(row, task.devices, shape.gpu_milli)
        assert devices.left[task.devices, row].min() >= 0, f"{task} has a part of a GPU that is not free"

    @property
    def heeds_domains(self) -> bool:
        """Whether the network has a say about pods that have no wish themselves."""
        return bool(self._near_scorers) and bool(self.cluster.topology.specs)

    def _out(self) -> IdArray:
        if len(self._scratch) < self.cluster.nodes.rows:
            self._scratch = np.zeros(self.cluster.nodes.rows, np.int32)
        return self._scratch

    # Programs

    def _index(self, shape: Shape) -> Index:
        """The index of a shape, brought up to date."""
        nodes = self.cluster.nodes
        entry = self._indexes.get(id(shape))
        if entry is None or not self._is_current(entry[1]):
            index = self._new_index(shape)
        else:
            index = entry[1]
            self._indexes.move_to_end(id(shape))
            self._catch_up(index, shape)
        index.epoch, index.position = nodes.log_epoch, nodes.log_length
        return index

    def _is_current(self, index: Index) -> bool:
        nodes = self.cluster.nodes
        return index.program.profile.version == nodes.version and index.rank is nodes.rank()

    def _new_index(self, shape: Shape, program: Program | None = None) -> Index:
        index = self._blank(program or self._program(shape))
        self._indexes[id(shape)] = shape, index
        while len(self._indexes) > MOST_INDEXES:
            self._indexes.popitem(last=False)
        self._build(index, shape)
        return index

    def _blank(self, program: Program) -> Index:
        nodes = self.cluster.nodes
        return Index(
            program,
            np.full(nodes.rows, -1, np.int32),
            np.full((nodes.rows + BLOCK - 1) // BLOCK, -1 << 32, np.int64),
            nodes.rank(),
        )

    def _build(self, index: Index, shape: Shape) -> None:
        nodes = self.cluster.nodes
        active().build(
            *nodes.amounts(), *_arguments(index.program, shape), nodes.height, index.quantised, index.rank, index.keys
        )

    def _catch_up(self, index: Index, shape: Shape) -> None:
        """Score again what changed since; all of it if that is as much as everything."""
        nodes = self.cluster.nodes
        changes = nodes.log_length - index.position
        if index.epoch != nodes.log_epoch or changes > nodes.height:
            self._build(index, shape)
        elif changes:
            active().repair(
                *nodes.amounts(), *_arguments(index.program, shape), nodes.height,
                index.quantised, index.rank, index.keys, nodes.log, index.position, nodes.log_length,
            )  # fmt: skip

    def _program(self, shape: Shape) -> Program:
        profile = self._profile(shape)
        adding = np.array([shape.adding(r) for r in profile.scored_list], np.float32)
        balance = np.array([profile.balance, shape.adding(CPU), shape.adding(MEMORY)], np.float32)
        return Program(profile, adding, balance)

    def _whole_program(self, task: Task, venue: Venue | None) -> Program:
        """All that there is to say of nodes for one task."""
        program = self._live_program(task)
        if venue is not None or self.heeds_domains:
            program = self._near.near(program, task.shape, venue)
        return self._compared(program, task)

    def _compared(self, program: Program, task: Task) -> Program:
        """A program that also heeds how nodes compare with the others that the task can go to; itself if nobody compares them."""
        nodes, profile, found = self.cluster.nodes, program.profile, list[BoolArray]()

        def among() -> BoolArray:
            """Nodes of our shard while there are any: the others are out of the question till then."""
            if not found:  # looked up for whoever asks first
                out = np.full(nodes.rows, -1, np.int32)
                active().score(*nodes.amounts(), *_arguments(program, task.shape), nodes.height, out)
                ours = (out >= 0) & ~nodes.is_beside
                found.append(ours if ours.any() else out >= 0)
            return found[0]

        liked = [one.score_among(nodes, self.cluster.tallies, task, among) for one in self._comparing]
        told = [values for values in liked if values is not None]
        if not told:
            return program
        base = profile.base + sum(told[1:], told[0]) / np.float32(profile.total_weight)
        return Program(replace(profile, base=base), program.adding, program.balance)

    def _live_program(self, task: Task, *, but: Refusal | None = None) -> Program:
        """A program that also heeds the pods that run where, one refusal left out."""
        program = self._program(task.shape)
        profile, nodes, tallies = program.profile, self.cluster.nodes, self.cluster.tallies
        ok, base = profile.ok.copy(), profile.base.copy()
        if task.shape.gpu_milli:
            ok &= nodes.devices.fits(task.shape.gpu_milli, nodes.rows)
        for rows in self._row_scorers:
            base += self._scored_rows(rows, task.shape) * np.float32(rows.weight / profile.total_weight)
        for plugin in self._live_filters:
            for refused in plugin.refuse_live(nodes, tallies, task):
                if refused.refusal is not but:
                    ok &= ~refused.rows
        for scorer in self._live_scorers:
            liked = scorer.score_live(nodes, tallies, task)
            if liked is not None:
                base += liked / np.float32(profile.total_weight)
        live = replace(profile, ok=ok, base=base)
        return Program(live, program.adding, program.balance)

    def _scored_rows(self, plugin: RowScorer, shape: Shape) -> FloatArray:
        """What a row scorer says of all nodes, asked again only about those that changed."""
        nodes, key = self.cluster.nodes, (id(plugin), id(shape))
        known = self._row_scores.get(key)
        changes = nodes.log_length - known.position if known is not None else 0
        is_void = known is None or known.version != nodes.version or known.epoch != nodes.log_epoch
        if known is None or is_void or changes > nodes.height:
            known = self._row_scores[key] = RowScores(shape, np.zeros(nodes.rows, np.float32), nodes.version, 0, 0)
            rows = np.flatnonzero(nodes.is_live)
            self._forget_row_scores()
        else:
            self._row_scores.move_to_end(key)
            rows = np.unique(nodes.log[known.position : nodes.log_length]).astype(np.int64)
        if len(rows):
            known.values[rows] = plugin.score_rows(nodes, shape, rows)
        known.epoch, known.position = nodes.log_epoch, nodes.log_length
        return known.values

    def _forget_row_scores(self) -> None:
        """Keep as many as the bound on memory allows; the ones unused for longest make room."""
        most = max(16, MOST_ROW_SCORES_BYTES // (4 * self.cluster.nodes.rows))
        while len(self._row_scores) > most:
            self._row_scores.popitem(last=False)

    def _profile(self, shape: Shape) -> Profile:
        profile = self._profiles.get(shape.kind)
        if profile is None or profile.version != self.cluster.nodes.version:
            profile = self._new_profile(shape)
            self._profiles[shape.kind] = profile
            while len(self._profiles) > MOST_PROFILES:
                self._profiles.popitem(last=False)
        self._profiles.move_to_end(shape.kind)
        return profile

    def _new_profile(self, shape: Shape) -> Profile:
        nodes = self.cluster.nodes
        total_weight = sum(p.weight for p in self._scorers) + sum(p.weight for p in self._row_scorers) or 1.0
        ok = self._allowed(nodes, shape)
        score = NEUTRAL
        for plugin in self._scorers:
            if plugin.weight > 0:
                score = score + plugin.score(nodes, shape) * (plugin.weight / total_weight)
        # In order of name: floats are added in this order, and indices depend on which resource was heard of first.
        weights = {nodes.resource(name): weight for name, weight in sorted(score.fullness.items()) if weight}
        base = np.full(nodes.rows, score.constant, np.float32)
        if nodes.is_beside.any():
            base += np.where(nodes.is_beside, np.float32(0), ABOVE_ALL)  # scores are 0 to 1
        return Profile(
            version=nodes.version,  # read after the plug-ins ran: a new resource in a weight enlarges the columns
            ok=ok if len(ok) == nodes.rows else self._allowed(nodes, shape),
            base=base if score.static is None else base + score.static.astype(np.float32),
            scored=np.array(list(weights), np.int64),
            weight=np.array(list(weights.values()), np.float32),
            scored_list=list(weights),
            balance=score.balance,
            total_weight=total_weight,
            compares=any(one.compares(nodes, shape) for one in self._comparing),
        )

    def _allowed(self, nodes: Nodes, shape: Shape) -> BoolArray:
        ok = nodes.is_live.copy()
        for plugin in self._filters:
            for refused in plugin.refuse(nodes, shape.constraints):
                ok &= ~refused.rows
        return ok


def _arguments(program: Program, shape: Shape) -> tuple[object, ...]:
    profile = program.profile
    return (
        profile.ok, profile.base, shape.resources, shape.amounts, profile.scored, profile.weight,
        program.adding, program.balance,
    )  # fmt: skip
