"""Nodes as columns: one row per node, stable while it lives, updated by events and never rebuilt.

Amounts are `int64` in base units, so that taking and giving back restores every bit. `idle`, `share` and `inverse`
follow from `allocatable` and `used` and are kept beside them because the kernels read nothing else. Every row whose
amounts change is logged, so that cached scores are repaired row by row instead of being computed again.

What is being freed, and who waits for it:

    releasing    held by pods that are on their way out; they hold it until they are gone
    pipelined    promised to pods that wait for it
    reserved     max(0, pipelined - releasing): free already, and kept for those who were promised it
    used         held by pods, and reserved
    idle         allocatable - used: what anybody may have now
    future idle  allocatable - held + releasing - pipelined: what may still be promised
"""

import re
from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hekla.placement.bookkeeping.arrivals import Arrivals
from hekla.placement.bookkeeping.measured_usage import Usages
from hekla.placement.bookkeeping.queue_use import QueueUse
from hekla.placement.constraint import Taint
from hekla.placement.devices.shares import GPU_MILLI, DeviceShares
from hekla.placement.kernels import active
from hekla.placement.shard import OTHER_SHARD, ShardSide

IntArray = NDArray[np.int64]
IdArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]
T = TypeVar("T", bound=np.generic)

CPU, MEMORY, PODS = 0, 1, 2
LARGEST_AMOUNT = 1 << 56
"""More than any node has; larger amounts are cut to it, so that sums of a node's pods cannot overflow."""

UNASKED = {
    "cpu": ("cpu that nobody asked for", 1 << 20, 1),
    "memory": ("memory that nobody asked for", 1 << 12, 64 << 20),
}
"""A resource beside cpu and memory each, for what pods that do not say are counted as where it is compared how full nodes are.

A node has so many times as much of it as of the other, which it is taken to have at least a little of: a thousand such pods are never
refused for it, and what is in use of it times this is a share of the other. It is there from the first such pod on, so that clusters in which all pods say what they ask for do not pay.
"""

WITHOUT_END = 1 << 62
"""As much as a node has of what is beside a resource that it lacks: any share of it is next to nothing."""

HOST = ""
"""The topology key under which every node is a domain of its own, whatever its labels."""

MOST_TIES = 1 << 18
"""How many digests of names are remembered; then they are computed anew."""

_LOG_SIZE = 1 << 16
_FIRST_ROWS, _FIRST_RESOURCES = 64, 4


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """What a dialect knows of one node."""

    name: str
    allocatable: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    is_schedulable: bool = True
    is_ready: bool = True
    images: Mapping[str, int] = field(default_factory=dict)
    """Bytes by image name."""

    volume_limits: Mapping[str, int] = field(default_factory=dict)
    """By driver, how many volumes can be attached; a driver that is not named attaches as many as one likes."""

    shard: ShardSide = ShardSide.OURS
    """Where it stands, if schedulers share the cluster."""


class Nodes:
    """The nodes of a cluster. Arrays are annotated with their axes; rows above `height` are not in use."""

    def __init__(self, *, seed: int = 0) -> None:
        self.seed = seed
        self._ties: dict[str, str] = {}
        self.resources: dict[str, int] = {"cpu": CPU, "memory": MEMORY, "pods": PODS}
        shape = (_FIRST_RESOURCES, _FIRST_ROWS)
        self.allocatable: IntArray = np.zeros(shape, np.int64)  # [resource, node]
        self.used: IntArray = np.zeros(shape, np.int64)  # [resource, node]
        self.idle: IntArray = np.zeros(shape, np.int64)  # [resource, node]
        self.releasing: IntArray = np.zeros(shape, np.int64)  # [resource, node]
        self.pipelined: IntArray = np.zeros(shape, np.int64)  # [resource, node]
        self.reserved: IntArray = np.zeros(shape, np.int64)  # [resource, node] part of `used`
        self.share: FloatArray = np.zeros(shape, np.float32)  # [resource, node] used / allocatable
        self.inverse: FloatArray = np.zeros(shape, np.float32)  # [resource, node] 1 / allocatable, 0 where absent
        self.is_live: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)  # [node] exists
        self.is_ready: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)  # [node]
        self.is_schedulable: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)  # [node]
        self.is_shut: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)  # [node] in another scheduler's hands
        self.shut_by = OTHER_SHARD
        """What is said of those."""

        self.is_beside: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)  # [node] used when none of ours will do
        self.devices = DeviceShares()
        """What is left of each GPU, where GPUs are shared."""

        self.usages = Usages()
        """What nodes were measured to use."""

        self.arrivals = Arrivals()
        """Tasks that came to a node of late, where a plug-in asks for it."""

        self.queue_use = QueueUse()
        """What queues hold where, for those that are limited on some nodes."""

        self.notes: dict[Hashable, Any] = {}
        """What plug-ins remember within a cycle; empty when it begins."""

        self.wall_s = 0.0
        """The time of the cycle that decides now, as objects tell time."""

        self.specs: list[NodeSpec | None] = []
        self.names: list[str] = []
        self.row_of: dict[str, int] = {}
        self.version = 0
        """Grows when a fact other than an amount in use changes: what was derived from facts is then stale."""

        self.log: IdArray = np.zeros(_LOG_SIZE, np.int32)
        self.log_length = 0
        self.log_epoch = 0
        """Grows when the log starts over; positions of an older epoch are void."""

        self._totals: dict[str, int] | None = None
        self._total_used: dict[str, int] = {}
        self._used_at = (-1, -1)
        self._free: list[int] = []
        self._labels: dict[str, _LabelColumn] = {}
        self._taints: dict[Taint, BoolArray] = {}
        self._images: dict[str, IntArray] = {}
        self._volume_limits: dict[str, IntArray] = {}
        self._places: list[str] = []
        """What names are ordered by, in order; kept, since to sort 10,000 anew for one node that comes took 240 ms."""

        self._rows_by_place: list[int] = []
        """The rows in the same order."""

        self._rank: IdArray | None = None

    @property
    def height(self) -> int:
        """Rows ever used; the arrays may be longer."""
        return len(self.specs)

    @property
    def rows(self) -> int:
        """Rows the arrays have room for."""
        return int(self.used.shape[1])

    def __len__(self) -> int:
        return len(self.row_of)

    # Facts

    def put(self, spec: NodeSpec) -> int:
        """Add a node, or bring a known one up to date; its row. A report that changes nothing costs one comparison."""
        row = self.row_of.get(spec.name)
        if row is not None and self.specs[row] == spec:
            return row
        if row is None:
            row = self._new_row(spec.name)
        before, self.specs[row] = self.specs[row], spec
        self._totals = None
        self._set_allocatable(row, spec.allocatable)
        self._set_facts(row, spec)
        if before is None or facts_of(before) != facts_of(spec):
            self.version += 1
        return row

    def remove(self, name: str) -> int:
        """Forget a node; its former row, which the next node may take. Nothing may be in use on it."""
        row = self.row_of.pop(name)
        self.specs[row] = None
        self._totals = None
        self.is_live[row] = self.is_ready[row] = self.is_schedulable[row] = False
        self.is_shut[row] = self.is_beside[row] = False
        assert not self.used[:, row].any(), f"node {name} leaves with resources in use"
        self._set_allocatable(row, {})
        for column in self._labels.values():
            column.ids[row] = -1
        for taint in self._taints.values():
            taint[row] = False
        for image in self._images.values():
            image[row] = 0
        for limit in self._volume_limits.values():
            limit[row] = LARGEST_AMOUNT
        self._free.append(row)
        self._leave_order(name)
        self.version += 1
        return row

    def name(self, row: int) -> str:
        """The name of the node in a row."""
        spec = self.specs[row]
        assert spec is not None, f"row {row} has no node"
        return spec.name

    def resource(self, name: str) -> int:
        """The index of a resource; a new name gets a new row in every column of amounts."""
        index = self.resources.get(name)
        if index is None:
            index = self.resources[name] = len(self.resources)
            if index >= self.used.shape[0]:
                self._grow(resources=self.used.shape[0] * 2, rows=self.rows)
        return index

    def unasked(self, amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
        """What pods are counted as beyond their request, by the resource that stands for it."""
        found = {}
        for beside, amount in amounts:
            name = UNASKED[beside][0]
            if name not in self.resources:
                self.resource(name)
                for row, spec in enumerate(self.specs):
                    if spec is not None:
                        self._set_allocatable(row, spec.allocatable)
                self.version += 1
            found[name] = amount
        return found

    def asked_resources(self) -> Iterator[tuple[str, int]]:
        """The resources that pods ask for, with their indices."""
        beside = {name for name, *_ in UNASKED.values()}
        return ((name, index) for name, index in self.resources.items() if name not in beside)

    def label(self, key: str) -> IdArray:
        """The column of a label: an id per value, -1 where it is absent.  # [node]"""
        return self._column(key).ids

    def label_values(self, key: str) -> dict[str, int]:
        """The ids of a label's values."""
        return self._column(key).values

    def domains(self, topology_key: str) -> IdArray:
        """The domain of each node, -1 for nodes that lack the key.  # [node]"""
        return self.label(topology_key)

    def domain_count(self, topology_key: str) -> int:
        """How many domains there are, or were."""
        return len(self._column(topology_key).values)

    def taints(self) -> Mapping[Taint, BoolArray]:
        """Every taint seen, with the nodes that carry it.  # [node]"""
        return self._taints

    def image(self, name: str) -> IntArray:
        """The size of an image where it is present, else 0.  # [node]"""
        return self._images.get(name, np.zeros(self.rows, np.int64))

    def volume_limit(self, driver: str) -> IntArray | None:
        """How many volumes of a driver can be attached; None if no node says.  # [node]"""
        return self._volume_limits.get(driver)

    def host_domain(self, name: str) -> int:
        """The domain that a node is by itself, whether or not it is there."""
        values = self._column(HOST).values
        return values.setdefault(name, len(values))

    def rank(self) -> IdArray:
        """Who wins a tie: the higher rank. By name when the seed is 0, else shuffled by the seed.  # [node]"""
        if self._rank is None:
            self._rank = self._new_rank()
        return self._rank

    # Amounts

    def vector(self, request: Mapping[str, int]) -> tuple[IntArray, IntArray]:
        """A request as (resource indices, amounts), zeros left out, in order of index."""
        pairs = sorted((self.resource(name), min(amount, LARGEST_AMOUNT)) for name, amount in request.items() if amount)
        return np.array([i for i, _ in pairs], np.int64), np.array([a for _, a in pairs], np.int64)

    def total(self, resource: str) -> int:
        """How much of a resource the nodes have that are ready."""
        return self.totals().get(resource, 0)

    def totals(self) -> Mapping[str, int]:
        """How much the nodes have that are ready, by resource; kept until a node changes."""
        if self._totals is None:
            # Python's sum does not overflow: a few absurd nodes must not make a cluster look empty.
            sums = {name: sum(self.allocatable[i, self.is_ready].tolist()) for name, i in self.asked_resources()}
            self._totals = {name: amount for name, amount in sums.items() if amount}
        return self._totals

    def total_used(self, resource: str) -> int:
        """How much of a resource is in use on the nodes that are ready; kept until an amount changes."""
        now = (self.log_epoch, self.log_length)
        if self._used_at != now:
            # every job that asks to be let in is weighed against this: with a thousand of them it was the cycle
            self._total_used, self._used_at = {}, now
        if resource not in self._total_used:
            index = self.resources.get(resource)
            self._total_used[resource] = int(self.used[index, self.is_ready].sum()) if index is not None else 0
        return self._total_used[resource]

    def tie(self, name: str) -> str:
        """By what names that tie are ordered: themselves when the seed is 0, else a digest of them and the seed."""
        if not self.seed:
            return name
        known = self._ties.get(name)
        if known is None:
            if len(self._ties) >= MOST_TIES:
                self._ties.clear()
            digest = blake2b(name.encode(), digest_size=8, key=str(self.seed).encode()[:64]).hexdigest()
            known = self._ties[name] = f"{digest}/{name}"
        return known

    def take(self, row: int, resources: IntArray, amounts: IntArray) -> None:
        """Put amounts to use on a node."""
        active().take(*self.amounts(), resources, amounts, row, 1)
        self.touch(row)

    def take_many(self, rows: IntArray, resources: IntArray, amounts: IntArray) -> None:
        """Put the same amounts to use on many nodes, on one named n times n times."""
        times = np.bincount(rows, minlength=self.rows)
        touched = np.flatnonzero(times)
        for index, amount in zip(resources.tolist(), amounts.tolist(), strict=True):
            most, used = self.allocatable[index, touched], self.used[index, touched] + times[touched] * amount
            self.used[index, touched], self.idle[index, touched] = used, most - used
            self.share[index, touched] = np.where(most > 0, used / np.maximum(most, 1), 0.0)
        self.touch_all(touched.astype(np.int32))

    def give(self, row: int, resources: IntArray, amounts: IntArray) -> None:
        """Give back what was taken, to the bit."""
        active().take(*self.amounts(), resources, amounts, row, -1)
        self.touch(row)

    def release(self, row: int, resources: IntArray, amounts: IntArray, sign: int = 1) -> None:
        """Note that what is in use on a node will be free before long; with sign -1, that it will not."""
        self.releasing[resources, row] += sign * amounts
        self._reserve(row, resources)

    def promise(self, row: int, resources: IntArray, amounts: IntArray, sign: int = 1) -> None:
        """Promise amounts that are free or being freed on a node; with sign -1, take the promise back."""
        self.pipelined[resources, row] += sign * amounts
        self._reserve(row, resources)

    def future_idle(self) -> IntArray:
        """What will be free when those who are leaving have left and all promises are kept.  # [resource, node]"""
        return self.idle + self.reserved + self.releasing - self.pipelined

    def _reserve(self, row: int, resources: IntArray) -> None:
        """Keep from others what is promised and free already."""
        wanted = np.maximum(self.pipelined[resources, row] - self.releasing[resources, row], 0)
        change = wanted - self.reserved[resources, row]
        if change.any():
            self.reserved[resources, row] = wanted
            self.take(row, resources, change)
        else:
            self.touch(row)

    def amounts(self) -> tuple[IntArray, IntArray, IntArray, FloatArray, FloatArray]:
        """The columns that kernels read and write, in their order."""
        return self.allocatable, self.used, self.idle, self.share, self.inverse

    def touch(self, row: int) -> None:
        """Log that a row's amounts changed."""
        if self.log_length == _LOG_SIZE:
            self.log_length = 0
            self.log_epoch += 1
        self.log[self.log_length] = row
        self.log_length += 1

    def touch_all(self, rows: Sequence[int] | IdArray) -> None:
        """Log that many rows' amounts changed."""
        count = len(rows)
        if self.log_length + count > _LOG_SIZE:
            self.log_length = 0
            self.log_epoch += 1
        kept = rows[-_LOG_SIZE:]
        self.log[self.log_length : self.log_length + len(kept)] = kept
        self.log_length += len(kept)

    def changed_since(self, epoch: int, position: int) -> IdArray | None:
        """The rows, each once, whose amounts changed since a position in the log; None if they are as good as all."""
        changes = self.log_length - position
        if epoch != self.log_epoch or changes > self.height:
            return None
        return np.unique(self.log[position : self.log_length])

    # How it is kept

    def _new_row(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
        else:
            row = len(self.specs)
            self.specs.append(None)
            self.names.append("")
            if row >= self.rows:
                self._grow(resources=self.used.shape[0], rows=self.rows * 2)
        self.row_of[name] = row
        self.names[row] = name
        self._enter_order(name, row)
        return row

    def _grow(self, *, resources: int, rows: int) -> None:
        self.allocatable, self.used, self.idle = (
            _enlarged(a, resources, rows) for a in (self.allocatable, self.used, self.idle)
        )
        self.releasing, self.pipelined, self.reserved = (
            _enlarged(a, resources, rows) for a in (self.releasing, self.pipelined, self.reserved)
        )
        self.share, self.inverse = (_enlarged(a, resources, rows) for a in (self.share, self.inverse))
        self.is_live, self.is_ready, self.is_schedulable = (
            _longer(a, rows, fill=0) for a in (self.is_live, self.is_ready, self.is_schedulable)
        )
        self.is_shut, self.is_beside = (_longer(a, rows, fill=0) for a in (self.is_shut, self.is_beside))
        for column in self._labels.values():
            column.ids = _longer(column.ids, rows, fill=-1)
        self._taints = {taint: _longer(a, rows, fill=0) for taint, a in self._taints.items()}
        self._images = {image: _longer(a, rows, fill=0) for image, a in self._images.items()}
        self._volume_limits = {
            driver: _longer(a, rows, fill=LARGEST_AMOUNT) for driver, a in self._volume_limits.items()
        }
        self._rank = None
        self.version += 1

    def _set_allocatable(self, row: int, allocatable: Mapping[str, int]) -> None:
        for name in allocatable:
            self.resource(name)
        self.allocatable[:, row] = 0
        for name, amount in allocatable.items():
            self.allocatable[self.resources[name], row] = min(amount, LARGEST_AMOUNT)
        for beside, (name, times, least) in UNASKED.items():
            if name in self.resources:
                has = allocatable.get(beside, 0)
                most = min(max(has, least) * times, LARGEST_AMOUNT) if has else WITHOUT_END
                self.allocatable[self.resources[name], row] = most
        all_resources = np.arange(self.used.shape[0], dtype=np.int64)
        present = self.allocatable[:, row] > 0
        self.inverse[:, row] = np.where(present, np.float32(1) / np.maximum(self.allocatable[:, row], 1), 0)
        active().take(*self.amounts(), all_resources, np.zeros_like(all_resources), row, 1)
        self.devices.put(row, allocatable.get(GPU_MILLI, 0), self.rows)
        self.touch(row)

    def _set_facts(self, row: int, spec: NodeSpec) -> None:
        self.is_live[row] = True
        self.is_ready[row] = spec.is_ready
        self.is_schedulable[row] = spec.is_schedulable
        self.is_shut[row] = spec.shard is ShardSide.SHUT
        self.is_beside[row] = spec.shard is ShardSide.BESIDE
        for key, column in self._labels.items():
            column.set(row, spec.name if key == HOST else spec.labels.get(key))
        for taint in spec.taints:
            if taint not in self._taints:
                self._taints[taint] = np.zeros(self.rows, np.bool_)
        for taint, carriers in self._taints.items():
            carriers[row] = taint in spec.taints
        for image in spec.images.keys() - self._images.keys():
            self._images[image] = np.zeros(self.rows, np.int64)
        for image, sizes in self._images.items():
            sizes[row] = spec.images.get(image, 0)
        for driver in spec.volume_limits.keys() - self._volume_limits.keys():
            self._volume_limits[driver] = np.full(self.rows, LARGEST_AMOUNT, np.int64)
        for driver, limits in self._volume_limits.items():
            limits[row] = spec.volume_limits.get(driver, LARGEST_AMOUNT)

    def _column(self, key: str) -> "_LabelColumn":
        column = self._labels.get(key)
        if column is None:
            column = self._labels[key] = _LabelColumn(np.full(self.rows, -1, np.int32))
            for row, spec in enumerate(self.specs):
                if spec is not None:
                    column.set(row, spec.name if key == HOST else spec.labels.get(key))
        return column

    def _place_of(self, name: str) -> str:
        """By what names are ordered; with a seed, a node that comes or goes leaves the order of the others as it is."""
        return self.tie(name) if self.seed else natural_key(name)

    def _enter_order(self, name: str, row: int) -> None:
        key = self._place_of(name)
        at = bisect_left(self._places, key)
        self._places.insert(at, key)
        self._rows_by_place.insert(at, row)
        self._rank = None

    def _leave_order(self, name: str) -> None:
        at = bisect_left(self._places, self._place_of(name))
        del self._places[at], self._rows_by_place[at]
        self._rank = None

    def _new_rank(self) -> IdArray:
        rank = np.zeros(self.rows, np.int32)
        rank[self._rows_by_place] = np.arange(len(self._rows_by_place), 0, -1, dtype=np.int32)
        return rank


class _LabelColumn:
    """One label of all nodes: values interned to ids."""

    __slots__ = ("ids", "values")

    def __init__(self, ids: IdArray) -> None:
        self.ids = ids
        self.values: dict[str, int] = {}

    def set(self, row: int, value: str | None) -> None:
        self.ids[row] = -1 if value is None else self.values.setdefault(value, len(self.values))


@lru_cache(MOST_TIES)
def natural_key(name: str) -> str:
    """A sort key by which `n2` comes before `n10`; names that differ have keys that differ, so `n01` and `n1` do not tie."""
    parts = (
        f"0{len(d := str(int(part))):04}{d}" if part.isdecimal() else f"1{part}\0" for part in _parts(name) if part
    )
    return f"{''.join(parts)}\0{name}"  # a number before a word, and the end of a name before both


_parts = re.compile(r"(\d+)").split


def facts_of(spec: NodeSpec) -> tuple[object, ...]:
    """What masks are computed from. Images are left out: nodes report them all the time, and they are a hint only."""
    there = frozenset(name for name, amount in spec.allocatable.items() if amount > 0)
    return spec.labels, spec.taints, spec.is_schedulable, spec.is_ready, there, spec.volume_limits, spec.shard


def _enlarged(array: NDArray[T], resources: int, rows: int) -> NDArray[T]:
    larger = np.zeros((resources, rows), array.dtype)
    larger[: array.shape[0], : array.shape[1]] = array
    return larger


def _longer(array: NDArray[T], rows: int, *, fill: int) -> NDArray[T]:
    longer = np.full(rows, fill, array.dtype)
    longer[: len(array)] = array
    return longer
