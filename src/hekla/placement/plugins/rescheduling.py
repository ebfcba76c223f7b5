"""Move pods off nodes that are too busy, while others are idle: shuffle asks who should go, once in an interval.

lowNodeUtilization, with nodes' cpu and memory as measured and their pods as counted, in percent:

    low      schedulable, and every resource below its threshold
    high     some resource above its target threshold
    victims  on high nodes, the busiest first: pods of the lowest priority first, then those that ask for least, until
             the node is at its targets or the low nodes have reached theirs

Of the peer's faults none is kept: the measurements are found, `pods` counts, and a node of which nothing is known is
neither. Nobody goes in vain: a pod goes only where a low node has room for it, and leaves its gang able to work. And nobody
goes twice for one measurement: who left since, and who came, does not show in it, so it counts for one look.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Self

import numpy as np

from hekla.placement.columns import CPU, MEMORY, PODS, BoolArray, FloatArray, Nodes
from hekla.placement.explain import open_rows
from hekla.placement.framework import Departure, plugin
from hekla.placement.model import Task
from hekla.placement.registry import ArgumentError, as_float, as_mapping, as_seconds_above_0
from hekla.placement.session import Session

NAME, STRATEGY = "rescheduling", "lowNodeUtilization"
RESOURCES = {"cpu": CPU, "memory": MEMORY, "pods": PODS}
_HIGHEST = {"cpu": 100.0, "memory": 100.0, "pods": 100.0}


@plugin
@dataclass(frozen=True, kw_only=True)
class Rescheduling:
    """Evens out how busy nodes are."""

    interval_s: float = 300.0
    """How often it looks."""

    metrics_period_s: float = 300.0
    """How old a measurement may be."""

    thresholds: Mapping[str, float] = field(default_factory=lambda: dict(_HIGHEST))
    """Below all of these, in percent, a node is low."""

    targets: Mapping[str, float] = field(default_factory=lambda: dict(_HIGHEST))
    """Above one of these a node is high."""

    is_on: bool = True
    """Whether the one strategy is among those configured."""

    def victims(self, session: Session) -> Sequence[Departure]:
        """Pods on high nodes that low nodes have room for."""
        last = session.cluster.last_due.get(NAME, -inf)
        if not self.is_on or not session.is_due(NAME, self.interval_s):
            return []
        return list(_Evening(self, session, last).departures())

    def to_leave(self, session: Session) -> int:
        """The nodes that were measured since it last looked."""
        nodes, last = session.cluster.nodes, session.cluster.last_due.get(NAME, -inf)
        return int(nodes.usages.columns(nodes).after(last).sum()) if self.is_on else 0

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `interval`, `metricsPeriod` and `strategies`."""
        strategies = arguments.get("strategies")
        chosen = [{"name": STRATEGY}] if strategies is None else strategies
        if not isinstance(chosen, list) or not all(isinstance(entry, Mapping) for entry in chosen):
            raise ArgumentError(f"argument strategies is {strategies!r}; a list of names with params is expected")
        for entry in chosen:
            if entry.get("name") != STRATEGY:
                raise ArgumentError(f"argument strategies has {entry.get('name')!r}; {STRATEGY} is what there is")
        params = as_mapping("strategies.params", chosen[0].get("params") if chosen else None)
        return cls(
            interval_s=as_seconds_above_0("interval", arguments.get("interval", "5m")),
            metrics_period_s=as_seconds_above_0("metricsPeriod", arguments.get("metricsPeriod", "5m")),
            thresholds=_percents("thresholds", params),
            targets=_percents("targetThresholds", params),
            is_on=bool(chosen),
        )


class _Evening:
    """One look at the nodes."""

    def __init__(self, plugin: Rescheduling, session: Session, last_look_s: float) -> None:
        self._plugin, self._session = plugin, session
        nodes = session.cluster.nodes
        self._nodes = nodes
        usages = nodes.usages.columns(nodes)
        is_told = usages.fresh(session.wall_s - plugin.metrics_period_s) & usages.after(last_look_s)
        known = nodes.is_live & nodes.is_ready & is_told
        self._use = utilisation(nodes)
        below = [self._use[name] < plugin.thresholds[name] for name in RESOURCES]
        above = [self._use[name] > plugin.targets[name] for name in RESOURCES]
        self.low: BoolArray = known & nodes.is_schedulable & np.logical_and.reduce(below)
        self.high: BoolArray = known & ~self.low & np.logical_or.reduce(above)
        self._room = np.where(self.low, nodes.idle, 0)
        self._headroom = {
            name: float((self._has(name) * (plugin.targets[name] - self._use[name]) / 100)[self.low].sum())
            for name in RESOURCES
        }
        self._lost: Counter[str] = Counter()

    def departures(self) -> Iterator[Departure]:
        """Who should go, from the busiest node on."""
        if not self.low.any() or not self.high.any():
            return
        on = dict[int, list[Task]]()
        for task in self._session.running():
            if self.high[task.row]:
                on.setdefault(task.row, []).append(task)
        for row in sorted(on, key=lambda row: (-self._use["cpu"][row] - self._use["memory"][row], row)):
            for task in sorted(on[row], key=_value):
                if not self._goes_on(row):
                    break
                if self._may_lose(task) and self._finds_room(task):
                    reason = self._reason(row)
                    self._book(task, row)
                    yield Departure(task, reason)

    def _has(self, name: str) -> Any:
        return self._nodes.allocatable[RESOURCES[name]].astype(np.float64)

    def _goes_on(self, row: int) -> bool:
        """Whether the node is still above a target, and the low nodes below all of theirs."""
        is_high = any(self._use[name][row] > target for name, target in self._plugin.targets.items())
        return is_high and all(left > 0 for left in self._headroom.values())

    def _may_lose(self, task: Task) -> bool:
        """Whether a pod may be evicted at all, and its gang can do without it."""
        job = task.job
        if job is None or not task.spec.is_preemptable or job.spec.is_preemptable is False:
            return False
        spare = job.ready_count - self._lost[job.uid] - job.spec.min_available
        return spare > 0 or not job.spec.has_group

    def _finds_room(self, task: Task) -> bool:
        """Whether a low node has room for the pod, beside those that go there already; if so, it is kept."""
        shape = task.shape
        fits = np.logical_and.reduce(self._room[shape.resources] >= shape.amounts[:, None], axis=0) & self.low
        rows = np.flatnonzero(fits & open_rows(self._session.policy, task) if fits.any() else fits)
        if not len(rows):
            return False
        self._room[shape.resources, rows[0]] -= shape.amounts
        return True

    def _book(self, task: Task, row: int) -> None:
        assert task.job is not None
        self._lost[task.job.uid] += 1
        for name, index in RESOURCES.items():
            asked = task.shape.by_index.get(index, 0)
            self._headroom[name] -= asked
            self._use[name][row] -= asked * 100 / max(self._nodes.allocatable[index, row], 1)

    def _reason(self, row: int) -> str:
        name, target = next((n, t) for n, t in self._plugin.targets.items() if self._use[n][row] > t)
        used = self._use[name][row]
        return (
            f"{name} of node {self._nodes.name(row)} is used by {used:.0f} %, above {target:g} %, while others are idle"
        )


def utilisation(nodes: Nodes) -> dict[str, FloatArray]:
    """How busy nodes are, in percent: cpu and memory as measured, pods as counted.  # [node]"""
    columns = nodes.usages.columns(nodes)
    pods = nodes.used[PODS] * 100.0 / np.maximum(nodes.allocatable[PODS], 1)
    return {"cpu": columns.cpu.copy(), "memory": columns.memory.copy(), "pods": pods.astype(np.float32)}


def _value(task: Task) -> tuple[Any, ...]:
    """Who goes first: the lowest priority, then who asks for nothing, or for least."""
    asked = task.shape.request
    cores = asked.get("cpu", 0) / 1000 + asked.get("memory", 0) / (1 << 30)
    return task.spec.priority, not task.is_best_effort, cores, task.order


def _percents(key: str, params: Mapping[str, Any]) -> Mapping[str, float]:
    values = dict(_HIGHEST)
    for name, value in as_mapping(f"strategies.params.{key}", params.get(key)).items():
        known = "pods" if name == "pod" else name  # the peer reads the one and documents the other
        if known not in values:
            raise ArgumentError(f"argument strategies.params.{key} has {name!r}; cpu, memory and pods are expected")
        values[known] = as_float(f"strategies.params.{key}.{name}", value)
    return values
