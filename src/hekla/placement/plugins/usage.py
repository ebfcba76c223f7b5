"""Go by what nodes really do, not by what their pods asked for: busy nodes are avoided, overloaded ones refused.

    refused        measured use above a threshold
    composite(r) = min(1, measured share + estimates of pods that came of late / capacity)
    score        = weighted mean of 1 - composite(r) over cpu and memory

A pod that came within the last `metrics.interval` does not show in measurements, so it is estimated:

    estimate = (request * request_ratio + (limit - request) * burst_ratio) * risk, at most the limit
    risk     = risk_factor where the node's composite, weighted alike, has reached risk_threshold; else 1

Measurements older than five minutes are not believed: then nothing is refused, and the node scores 0.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from hekla.lib.quantity import QuantityError, to_int, to_milli
from hekla.placement.columns import CPU, MEMORY, BoolArray, FloatArray, IntArray, Nodes
from hekla.placement.constraint import Constraints, Refusal
from hekla.placement.framework import Refused, plugin
from hekla.placement.model import Task
from hekla.placement.registry import ArgumentError, as_float, as_mapping, as_seconds
from hekla.placement.session import Session
from hekla.placement.shape import Shape

VALID_S = 300.0
"""For how long a measurement is believed."""

DEFAULT_WINDOW_S = 30.0

CPU_BUSY = Refusal("usage/cpu", "the CPU load of the node exceeds the upper limit.")
MEMORY_BUSY = Refusal("usage/memory", "the memory load of the node exceeds the upper limit.")


class Load(NamedTuple):
    """Cpu and memory: in milli and bytes, or as shares."""

    cpu: float
    memory: float


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """How much a pod will use that was not measured yet."""

    request_ratio: float = 0.7
    """The part of its requests."""

    burst_ratio: float = 0.0
    """The part of what its limits leave above its requests."""

    risk_threshold: float = 0.6
    """From which load on a node's pods are estimated higher."""

    risk_factor: float = 1.2
    """How much higher."""

    best_effort: Load = field(default_factory=lambda: Load(250, 200 << 20))
    """What a pod counts that asks for nothing."""

    def risk(self, load: float) -> float:
        """By how much estimates on a node of this load are multiplied."""
        return self.risk_factor if load >= self.risk_threshold else 1.0

    def estimate(self, request: float, limit: float, risk: float) -> float:
        """What a pod that asks for something will use of one resource; a missing limit is the request."""
        most = max(limit, request)
        return min((request * self.request_ratio + (most - request) * self.burst_ratio) * risk, most)

    def of_task(self, task: Task, risk: float) -> Load:
        """What a pod will use."""
        if task.is_best_effort:
            return Load(self.best_effort.cpu * risk, self.best_effort.memory * risk)
        asks, limits = task.shape.request, task.spec.limits
        cpu, memory = (self.estimate(asks.get(name, 0), limits.get(name, 0), risk) for name in ("cpu", "memory"))
        return Load(cpu, memory)


def composite(measured: float, estimated: float, capacity: float) -> float:
    """How busy a resource of a node is, estimates included, from 0 to 1; 0 of nothing."""
    return min(max(measured + estimated / capacity, 0.0), 1.0) if capacity > 0 else 0.0


@plugin
@dataclass(frozen=True, kw_only=True)
class Usage:
    """Prefers idle nodes, as measured."""

    weight: float = 5.0
    """How much this plug-in counts beside others."""

    cpu_weight: float = 1.0
    """How much cpu counts."""

    memory_weight: float = 1.0
    """How much memory counts."""

    cpu_threshold: float = 80.0
    """The most, in percent, that a node's cpu may be busy to take a pod."""

    memory_threshold: float = 80.0
    """The same of memory."""

    estimator: Estimator = field(default_factory=Estimator)
    """What counts for pods that came of late."""

    arrivals_s: float = DEFAULT_WINDOW_S
    """For how long a pod does not show in measurements; asked by the policy."""

    reads_metrics: ClassVar[bool] = True

    def outlook(self, session: Session) -> Hashable:
        """What was measured, and of which nodes it is believed; asks for a cycle when the next is no longer."""
        nodes = session.cluster.nodes
        nodes.touch_all(nodes.arrivals.expire(session.wall_s))
        columns = nodes.usages.columns(nodes)
        fresh = columns.fresh(session.wall_s - VALID_S)
        if fresh.any():
            session.look_again(float(columns.at_s[fresh].min()) + VALID_S + 1)
        return nodes.usages.version, fresh.tobytes()

    def refuse(self, nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
        """Nodes that are too busy, whatever the pod asks for."""
        columns = nodes.usages.columns(nodes)
        fresh: BoolArray = columns.fresh(nodes.wall_s - VALID_S)
        if fresh.any():
            yield Refused(CPU_BUSY, fresh & (columns.cpu > self.cpu_threshold))
            yield Refused(MEMORY_BUSY, fresh & (columns.memory > self.memory_threshold))

    def score_rows(self, nodes: Nodes, shape: Shape, rows: IntArray) -> FloatArray:
        """How idle these nodes are."""
        columns = nodes.usages.columns(nodes)
        cpu, memory = columns.cpu[rows] / np.float32(100), columns.memory[rows] / np.float32(100)
        where = {int(row): number for number, row in enumerate(rows)} if nodes.arrivals.rows() else {}
        for row in nodes.arrivals.rows():
            if row in where:
                cpu[where[row]], memory[where[row]] = self.load(nodes, row)
        idle = self._mean(1 - np.clip(cpu, 0, 1), 1 - np.clip(memory, 0, 1))
        scores: FloatArray = np.where(columns.fresh(nodes.wall_s - VALID_S)[rows], idle, 0).astype(np.float32)
        return scores

    def load(self, nodes: Nodes, row: int) -> Load:
        """How busy a node is, with the estimates of who came of late: one after the other, as each raises the next."""
        columns, estimated = nodes.usages.columns(nodes), Load(0, 0)
        measured = Load(columns.cpu[row] / 100, columns.memory[row] / 100)
        has = Load(int(nodes.allocatable[CPU, row]), int(nodes.allocatable[MEMORY, row]))
        for task in nodes.arrivals.at(row).values():
            risk = self.estimator.risk(self._mean(*_composites(measured, estimated, has)))
            more = self.estimator.of_task(task, risk)
            estimated = Load(estimated.cpu + more.cpu, estimated.memory + more.memory)
        return _composites(measured, estimated, has)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `usage.weight`, `cpu.weight`, `memory.weight`, `thresholds` and `estimator`."""
        thresholds = as_mapping("thresholds", arguments.get("thresholds"))
        return cls(
            weight=as_float("usage.weight", arguments.get("usage.weight", 5)),
            cpu_weight=as_float("cpu.weight", arguments.get("cpu.weight", 1)),
            memory_weight=as_float("memory.weight", arguments.get("memory.weight", 1)),
            cpu_threshold=as_float("thresholds.cpu", thresholds.get("cpu", 80)),
            memory_threshold=as_float("thresholds.mem", thresholds.get("mem", 80)),
            estimator=_estimator(as_mapping("estimator", arguments.get("estimator"))),
            arrivals_s=_window_s(arguments.get("metrics.interval", f"{DEFAULT_WINDOW_S:g}s")),
        )

    def _mean(self, cpu: Any, memory: Any) -> Any:
        """The weighted mean of cpu and memory; 0 if neither counts."""
        total = self.cpu_weight + self.memory_weight
        return (cpu * self.cpu_weight + memory * self.memory_weight) / total if total else cpu * 0


def _composites(measured: Load, estimated: Load, has: Load) -> Load:
    return Load(
        composite(measured.cpu, estimated.cpu, has.cpu), composite(measured.memory, estimated.memory, has.memory)
    )


def _estimator(told: Mapping[str, Any]) -> Estimator:
    usual = Estimator()
    return Estimator(
        request_ratio=_between(told, "request_ratio", usual.request_ratio, 1),
        burst_ratio=_between(told, "burst_ratio", usual.burst_ratio, 1),
        risk_threshold=_between(told, "risk_threshold", usual.risk_threshold, 1),
        risk_factor=_risk_factor(told.get("risk_factor", usual.risk_factor)),
        best_effort=Load(
            _amount("be_cpu", told.get("be_cpu", "250m"), to_milli),
            _amount("be_memory", told.get("be_memory", told.get("be_mem", "200Mi")), to_int),
        ),
    )


def _between(told: Mapping[str, Any], key: str, usual: float, most: float) -> float:
    value = as_float(f"estimator.{key}", told.get(key, usual))
    if value > most:
        raise ArgumentError(f"argument estimator.{key} is {value:g}; a number from 0 to {most:g} is expected")
    return value


def _risk_factor(told: Any) -> float:
    value = as_float("estimator.risk_factor", told)
    if value < 1:
        raise ArgumentError(f"argument estimator.risk_factor is {value:g}; a number from 1 up is expected")
    return value


def _amount(key: str, value: Any, read: Any) -> float:
    """A quantity; Volcano takes a plain number of cpu for thousandths, and suffixes in any case."""
    text = str(value)
    if key == "be_cpu" and not isinstance(value, str):
        text += "m"
    elif text[-2:-1].lower() in {"k", "m", "g", "t"} and text[-1:].lower() == "i":
        text = text[:-2] + text[-2:].capitalize()
    try:
        amount = float(read(text))
    except QuantityError as error:
        raise ArgumentError(f"argument estimator.{key} is {value!r}: {error}") from error
    if amount < 0:
        raise ArgumentError(f"argument estimator.{key} is {value!r}; an amount from 0 up is expected")
    return amount


def _window_s(value: Any) -> float:
    window_s = as_seconds("metrics.interval", value)
    return window_s if window_s > 0 else DEFAULT_WINDOW_S
