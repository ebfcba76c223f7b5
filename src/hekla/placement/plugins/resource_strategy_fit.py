"""Spread some resources and pack others; keep scarce ones for those who ask for them.

    fit  = weighted mean over the requested resources of
               MostAllocated:   (used + request) / allocatable
               LeastAllocated:  1 - (used + request) / allocatable
    sra  = 1 - (weights of scarce resources that the node has and the pod does not ask for) / (all their weights)

    proportional: a pod that asks for no scarce resource must leave, on a node with scarce ones idle,
               idle cpu >= idle scarce * ratio   and the same of memory

A resource is configured by its name, or by a prefix and `*`, of which the longest wins; names win over prefixes. A
pod's annotations may set the type for all its resources, and weights of some.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, Self

import numpy as np

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import CPU, MEMORY, BoolArray, FloatArray, Nodes
from hekla.placement.constraint import Refusal
from hekla.placement.framework import Reading, Refused, plugin
from hekla.placement.model import JobSpec, Task, TaskSpec
from hekla.placement.node_selection.score import NEUTRAL, Score, by_node, mean
from hekla.placement.queue import Queue
from hekla.placement.registry import ArgumentError, as_bool, as_float, as_mapping
from hekla.placement.shape import Shape

TYPE_KEY, WEIGHT_KEY = "volcano.sh/resource-strategy-scoring-type", "volcano.sh/resource-strategy-weight"
"""Annotations by which a pod goes before the configuration."""

DEFAULT_WEIGHT = 10.0
_GB = 1_000_000_000
"""Memory is set aside in decimal gigabytes for each unit of a scarce resource, as Volcano counts."""


class Strategy(StrEnum):
    """Whether a resource is packed or spread."""

    MOST = "MostAllocated"
    LEAST = "LeastAllocated"


@dataclass(frozen=True, slots=True)
class Taste:
    """How one resource is scored."""

    strategy: Strategy = Strategy.LEAST
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Ratio:
    """What is set aside for each idle unit of a scarce resource."""

    cpu: float = 1.0
    """In cpus."""

    memory: float = 1.0
    """In gigabytes."""


@plugin
@dataclass(frozen=True, kw_only=True)
class ResourceStrategyFit:
    """Scores each resource by a strategy of its own."""

    fit_weight: float = DEFAULT_WEIGHT
    """How much the strategies count beside other plug-ins."""

    resources: Mapping[str, Taste] = field(default_factory=lambda: {"cpu": Taste(), "memory": Taste()})
    """Strategy and weight by name of a resource, or by prefix and `*`."""

    scarce: Mapping[str, float] = field(default_factory=dict)
    """Weight by resource that is kept for those who ask for it; empty switches this score off."""

    scarce_weight: float = 0.0
    """How much that counts beside other plug-ins."""

    ratios: Mapping[str, Ratio] = field(default_factory=dict)
    """What must stay idle beside a scarce resource; empty refuses nobody."""

    @property
    def weight(self) -> float:
        """The sum of both parts' weights: each counts as much as if it were a plug-in of its own."""
        return self.fit_weight + self.scarce_weight

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """Both parts, the second from what nodes have at all."""
        parts = {"fit": (self.fit_weight, self._fit(shape)), "sra": (self.scarce_weight, self._spared(nodes, shape))}
        return mean(parts)

    def read(self, task: TaskSpec, job: JobSpec, queues: Mapping[str, Queue]) -> Reading | None:
        """Pods that scarce resources are kept from are decided one by one: each leaves less beside them."""
        return Reading(is_single=True) if self.ratios and not self._asks_for_scarce(task.request) else None

    def refuse_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
        """Nodes where too little cpu or memory would stay beside what is scarce."""
        if self._asks_for_scarce(task.shape.request):
            return
        asked = task.shape.by_index
        cpu, memory = nodes.idle[CPU] - asked.get(CPU, 0), nodes.idle[MEMORY] - asked.get(MEMORY, 0)
        for name, ratio in self.ratios.items():
            if name in nodes.resources:
                idle = nodes.idle[nodes.resources[name]]
                lacks: BoolArray = (cpu < idle * (ratio.cpu * 1000)) | (memory < idle * (ratio.memory * _GB))
                yield Refused(
                    Refusal("proportional", f"proportional of resource {name} check failed"), lacks & (idle > 0)
                )

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `resourceStrategyFitWeight`, `resources`, `sra` and `proportional`."""
        weight = as_float("resourceStrategyFitWeight", arguments.get("resourceStrategyFitWeight", DEFAULT_WEIGHT))
        tastes, sra, proportional = (
            as_mapping(key, arguments.get(key)) for key in ("resources", "sra", "proportional")
        )
        has_sra = as_bool("sra.enable", sra.get("enable", False))
        has_ratios = as_bool("proportional.enable", proportional.get("enable", False))
        return cls(
            fit_weight=weight or DEFAULT_WEIGHT,  # Volcano's reading of 0
            **({"resources": {name: _taste(name, value) for name, value in tastes.items()}} if tastes else {}),
            scarce=_scarce(sra) if has_sra else {},
            scarce_weight=as_float("sra.weight", sra.get("weight", 1)) if has_sra else 0.0,
            ratios=_ratios(proportional) if has_ratios else {},
        )

    def _fit(self, shape: Shape) -> Score:
        tastes = {name: taste for name in shape.request if (taste := self._taste_of(shape, name)) is not None}
        total = sum(taste.weight for taste in tastes.values())
        if not total:
            return NEUTRAL
        signs = {name: 1 if taste.strategy is Strategy.MOST else -1 for name, taste in tastes.items()}
        return Score(
            constant=sum(taste.weight for name, taste in tastes.items() if signs[name] < 0) / total,
            fullness={name: signs[name] * taste.weight / total for name, taste in tastes.items()},
        )

    def _taste_of(self, shape: Shape, name: str) -> Taste | None:
        """How a resource is scored for a pod; None if it does not count."""
        constraints = shape.constraints
        strategy, weights = pods_own(str(constraints.trait(TYPE_KEY) or ""), str(constraints.trait(WEIGHT_KEY) or ""))
        taste = configured(self.resources, name)
        own = next((weight for resource, weight in weights if resource == name), None)
        if taste is None and own is None:
            return None
        taste = taste or Taste()
        return Taste(strategy or taste.strategy, taste.weight if own is None else own)

    def _spared(self, nodes: Nodes, shape: Shape) -> Score:
        """The node facts' part: 1 where nothing scarce would lie beside the pod unused."""
        total = sum(self.scarce.values())
        if not total:
            return NEUTRAL
        wasted: FloatArray = np.zeros(nodes.rows, np.float32)
        for name, weight in self.scarce.items():
            if not shape.asks(name) and name in nodes.resources:
                wasted += (nodes.allocatable[nodes.resources[name]] > 0) * np.float32(weight / total)
        return by_node(1 - wasted)

    def _asks_for_scarce(self, request: Mapping[str, int]) -> bool:
        return any(request.get(name, 0) > 0 for name in self.ratios)


def configured(resources: Mapping[str, Taste], name: str) -> Taste | None:
    """What is said of a resource: under its name, else under the longest prefix."""
    if name in resources:
        return resources[name]
    prefixes = [key for key in resources if key.endswith("*") and name.startswith(key[:-1])]
    return resources[max(prefixes, key=len)] if prefixes else None


@lru_cache(maxsize=1024)
def pods_own(strategy: str, weights: str) -> tuple[Strategy | None, tuple[tuple[str, float], ...]]:
    """What a pod's annotations say; what cannot be read counts as not said."""
    try:
        read = json.loads(weights) if weights else {}
        own = tuple((str(name), as_float(name, weight)) for name, weight in read.items())
    except (ValueError, AttributeError):
        own = ()
    return (Strategy(strategy) if strategy in set(Strategy) else None), own


def _taste(name: str, value: Any) -> Taste:
    if "*" in name[:-1] or name == "*":
        raise ArgumentError(f"argument resources has {name!r}; a name, or a prefix with * at its end, is expected")
    if not isinstance(value, Mapping):
        raise ArgumentError(f"argument resources.{name} is {value!r}; a mapping with type and weight is expected")
    text = value.get("type", Strategy.LEAST)
    if text not in list(Strategy):  # not a set: a list has no hash
        raise ArgumentError(f"argument resources.{name}.type is {text!r}; MostAllocated or LeastAllocated is expected")
    return Taste(Strategy(text), as_float(f"resources.{name}.weight", value.get("weight", 1)) or 1.0)


def _names(section: str, value: Any) -> list[str]:
    """Names with commas between, or a list of them."""
    names = value if isinstance(value, list) else str(value or "").split(",")
    found = [str(name).strip() for name in names if str(name).strip()]
    if not found:
        raise ArgumentError(f"argument {section}.resources is {value!r}; names with commas between are expected")
    return found


def _scarce(sra: Mapping[str, Any]) -> Mapping[str, float]:
    weights = as_mapping("sra.resourceWeight", sra.get("resourceWeight"))
    names = _names("sra", sra.get("resources"))
    return {name: as_float(f"sra.resourceWeight.{name}", weights.get(name, 1)) for name in names}


def _ratios(proportional: Mapping[str, Any]) -> Mapping[str, Ratio]:
    told = as_mapping("proportional.resourceProportion", proportional.get("resourceProportion"))

    def ratio(name: str, part: str) -> float:
        own = told.get(name)  # both spellings: {gpu: {cpu: 4}} and {gpu.cpu: 4}
        value = own.get(part, 1) if isinstance(own, Mapping) else told.get(f"{name}.{part}", 1)
        return as_float(f"proportional.resourceProportion.{name}.{part}", value)

    names = _names("proportional", proportional.get("resources"))
    return {name: Ratio(ratio(name, "cpu"), ratio(name, "memory")) for name in names}
