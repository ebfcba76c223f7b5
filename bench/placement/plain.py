"""The plain oracle's nodes: formulas of the default plug-ins, each written as it is told, in 64-bit floats.

Nothing here is shared with the engine: it reads the specs of nodes and pods (what a dialect hands over) and keeps its own
books. Every pod is a pass over all nodes, every term a line; where the line is from is beside it. Nodes are in natural
order of their names, so that the first of equals is the one that wins a tie.

What Volcano adds up as points of 0 to 100 by weight is here a mean of 0 to 1, by the same weights.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import (
    Constraints,
    Effect,
    NodeTerm,
    PodSelector,
    PodTerm,
    Requirement,
    Taint,
    TopologySpread,
)
from hekla.placement.model import TaskSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

STEPS = 1 << 20
"""Scores are rounded to so many steps from 0 to 1, so that equal nodes tie (docs: scheduler-plugins)."""

WEIGHTS = {
    "leastrequested": 1, "balancedresource": 1, "nodeaffinity": 2, "podaffinity": 2, "tainttoleration": 3,
    "imagelocality": 1, "podtopologyspread": 2, "binpack": 1, "network-topology-aware": 1,
}  # fmt: skip
"""Volcano's defaults (specs/volcano-scheduler.md 4.11, 4.12, 4.14)."""

FILTERS = ("cordon", "taints", "selector", "affinity", "anti-affinity", "spread")


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """`n2` before `n10`: numbers by value, and before words."""
    return tuple((0, int(part)) if part.isdecimal() else (1, part) for part in re.split(r"(\d+)", name) if part)


@dataclass
class Counts:
    """How many pods of a selector run in each domain of a topology key."""

    domain: Ints  # [node] -1 where the key is absent
    by_domain: Ints
    selects: Callable[[TaskSpec], bool]

    @property
    def here(self) -> Ints:
        """By node, 0 where the key is absent.  # [node]"""
        return np.where(self.domain >= 0, self.by_domain[self.domain], 0)


@dataclass
class Pass:
    """One pod weighed on all nodes."""

    may: Bools
    parts: Mapping[str, Floats]
    refused: Mapping[str, Bools]
    fits: Bools

    def total(self, without: str = "") -> Floats:
        """The weighted sum, one term or filter left out; -1 where the pod may not go."""
        total = np.zeros(len(self.may))
        for name, part in self.parts.items():
            if name != without:
                total += WEIGHTS[name] * part
        may = self.may
        if without in self.refused:
            may = self.fits.copy()
            for name, refused in self.refused.items():
                if name != without:
                    may &= ~refused
        return np.where(may, total, -1.0)


@dataclass
class Facts:
    """What node facts decide of pods with the same demands."""

    refused: dict[str, Bools]
    parts: dict[str, Floats]
    mild: Ints
    """How many taints would rather be left alone by the pod."""


@dataclass
class PlainNodes:
    """Nodes, what is in use on them, and who runs there."""

    specs: Sequence[NodeSpec]
    row: dict[str, int] = field(default_factory=dict)
    most: dict[str, Ints] = field(default_factory=dict)
    used: dict[str, Ints] = field(default_factory=dict)
    _facts: dict[int, tuple[Constraints, Facts]] = field(default_factory=dict)
    _counts: dict[Any, Counts] = field(default_factory=dict)
    _there: dict[str, tuple[TaskSpec, int]] = field(default_factory=dict)
    _repel: dict[PodTerm, None] = field(default_factory=dict)
    """Terms of pods that came, against others."""

    _fond: dict[tuple[PodTerm, int], None] = field(default_factory=dict)
    """Terms of pods that came, for others, with their weights."""

    def __post_init__(self) -> None:
        self.specs = sorted(self.specs, key=lambda spec: natural(spec.name))
        self.row = {spec.name: row for row, spec in enumerate(self.specs)}
        for name in {name for spec in self.specs for name in spec.allocatable}:
            self.most[name] = np.array([spec.allocatable.get(name, 0) for spec in self.specs], np.int64)
            self.used[name] = np.zeros(len(self.specs), np.int64)
        self.is_ready = np.array([spec.is_ready for spec in self.specs])
        self._open = np.array([spec.is_schedulable for spec in self.specs])

    # Who runs where

    def put(self, pod: TaskSpec, row: int, sign: int = 1) -> None:
        """A pod comes to a node, or leaves it."""
        for name, amount in (*pod.request.items(), ("pods", 1)):
            self.used[name][row] += sign * amount
        if sign > 0:
            self._there[pod.uid] = pod, row
        else:
            del self._there[pod.uid]
        self._repel.update(dict.fromkeys(pod.constraints.anti_affinity))
        self._fond.update(dict.fromkeys(_fond_terms(pod)))
        for counts in self._counts.values():
            if counts.domain[row] >= 0 and counts.selects(pod):
                counts.by_domain[counts.domain[row]] += sign

    def weigh(self, pod: TaskSpec, extra: Mapping[str, Floats] | None = None, inside: Bools | None = None) -> Pass:
        """Weigh a pod on all nodes; `extra` are parts that others know of, `inside` the nodes that it must stay in."""
        wishes = pod.constraints
        facts = self._facts_of(wishes)
        refused = {**facts.refused, **self._refused_by_others(pod)}
        fits = self.is_ready.copy()
        for name, amount in (*pod.request.items(), ("pods", 1)):
            fits &= self.used[name] + amount <= self.most[name]
        if inside is not None:
            fits &= inside
        may = fits.copy()
        for rows in refused.values():
            may &= ~rows
        parts = {**facts.parts, **self._fullness(pod), **self._company(pod, may), **(extra or {})}
        if facts.mild.any():
            parts["tainttoleration"] = 1 - facts.mild / max(facts.mild[may].max(initial=0), 1)
        return Pass(may, parts, refused, fits)

    # What amounts decide

    def _fullness(self, pod: TaskSpec) -> dict[str, Floats]:
        cpu, memory = (
            np.minimum((self.used[name] + pod.request[name]) / self.most[name], 1) for name in ("cpu", "memory")
        )
        return {
            "leastrequested": ((1 - cpu) + (1 - memory)) / 2,
            # kube-scheduler's NodeResourcesBalancedAllocation: 1 - the standard deviation of two fractions
            "balancedresource": 1 - np.abs(cpu - memory) / 2,
            # 4.12; whatever the pod asks for beside cpu and memory has no weight by default
            "binpack": (cpu + memory) / 2,
        }

    # What node facts decide

    def _facts_of(self, wishes: Constraints) -> Facts:
        known = self._facts.get(id(wishes))
        if known is None:
            known = self._facts[id(wishes)] = wishes, self._new_facts(wishes)
        return known[1]

    def _new_facts(self, wishes: Constraints) -> Facts:
        specs = self.specs
        hard = [
            any(t.effect is not Effect.PREFER_NO_SCHEDULE and not _bears(wishes, t) for t in s.taints) for s in specs
        ]
        selected = [_is_selected(spec, wishes) for spec in specs]
        parts = {}
        if total := sum(wish.weight for wish in wishes.preferred_nodes):
            met = [sum(w.weight for w in wishes.preferred_nodes if _meets(spec, w.term)) for spec in specs]
            parts["nodeaffinity"] = np.array(met) / total
        soft = np.array(
            [
                sum(t.effect is Effect.PREFER_NO_SCHEDULE and not _bears(wishes, t) for t in spec.taints)
                for spec in specs
            ]
        )
        if wishes.images:
            parts["imagelocality"] = self._images(wishes.images)
        return Facts({"cordon": ~self._open, "taints": np.array(hard), "selector": ~np.array(selected)}, parts, soft)

    def _images(self, images: Sequence[str]) -> Floats:
        """kube-scheduler's ImageLocality: sizes by how many nodes have them, from 23 MB up to 1,000 MB per container."""
        there = np.zeros(len(self.specs))
        for image in images:
            sizes = np.array([spec.images.get(image, 0) for spec in self.specs], np.float64)
            there += sizes * np.count_nonzero(sizes) / len(self.specs)
        low, high = 23 * 2**20, 1000 * 2**20 * len(images)
        return np.clip((there - low) / (high - low), 0, 1)

    # What the pods that run there decide

    def _refused_by_others(self, pod: TaskSpec) -> dict[str, Bools]:
        wishes, none = pod.constraints, np.zeros(len(self.specs), np.bool_)
        refused = {}
        if wishes.affinity:
            far, counts = none.copy(), [self._count(term.topology_key, term.selector) for term in wishes.affinity]
            is_first = not any(c.by_domain.any() for c in counts) and all(c.selects(pod) for c in counts)
            for one in counts:
                far |= (one.domain < 0) | ((one.here == 0) & (not is_first))
            refused["affinity"] = far
        apart = none.copy()
        for term in wishes.anti_affinity:
            apart |= self._count(term.topology_key, term.selector).here > 0
        for one in self._repelling(pod):
            apart |= one.here > 0
        if wishes.anti_affinity or apart.any():
            refused["anti-affinity"] = apart
        for spread in wishes.spreads:
            if spread.is_hard:
                refused["spread"] = refused.get("spread", none) | self._uneven(spread, pod)
        return refused

    def _uneven(self, spread: TopologySpread, pod: TaskSpec) -> Bools:
        """Kubernetes' PodTopologySpread: the count there, this pod included, less the least of all, beyond the skew."""
        counts = self._count(spread.topology_key, spread.selector)
        usable = counts.domain >= 0
        if spread.honours_affinity:
            usable &= ~self._facts_of(pod.constraints).refused["selector"]
        if spread.honours_taints:
            usable &= ~self._facts_of(pod.constraints).refused["taints"]
        domains = np.unique(counts.domain[usable])
        least = counts.by_domain[domains].min(initial=1 << 40) if len(domains) >= spread.min_domains else 0
        return (counts.domain < 0) | (counts.here + int(counts.selects(pod)) - least > spread.max_skew)

    def _company(self, pod: TaskSpec, may: Bools) -> dict[str, Floats]:
        """kube-scheduler's InterPodAffinity, which counts both ways, and its PodTopologySpread over soft constraints.

        Both are scaled over the nodes that the pod can go to.
        """
        wishes, parts = pod.constraints, {}
        liked, is_asked = np.zeros(len(self.specs)), bool(wishes.preferred_pods)
        for wish in wishes.preferred_pods:
            liked += wish.weight * self._count(wish.term.topology_key, wish.term.selector).here
        for term, weight in self._fond:
            if _selects(term.selector, pod):
                there = self._counted(
                    ("fond", term, weight), term.topology_key, lambda p, t=(term, weight): t in _fond_terms(p)
                ).here
                is_asked |= bool(there.any())
                liked += weight * there
        if is_asked:
            least, most = (liked[may].min(), liked[may].max()) if may.any() else (0, 0)
            parts["podaffinity"] = (liked - least) / (most - least) if most > least else np.zeros(len(self.specs))
        soft = [spread for spread in wishes.spreads if not spread.is_hard]
        if soft:
            crowd, heeded = np.zeros(len(self.specs)), may.copy()
            for spread in soft:
                heeded &= self._count(spread.topology_key, spread.selector).domain >= 0
            for spread in soft:
                counts = self._count(spread.topology_key, spread.selector)
                domains = len(set(counts.domain[heeded].tolist()))
                crowd += counts.here * np.log(domains + 2) + spread.max_skew - 1
            least, most = (crowd[heeded].min(), crowd[heeded].max()) if heeded.any() else (0, 0)
            parts["podtopologyspread"] = np.where(heeded, (most + least - crowd) / most if most else 1.0, 0.0)
        return parts

    def _repelling(self, pod: TaskSpec) -> list[Counts]:
        """Domains of the pods that want this one away."""
        return [
            self._counted(("repels", term), term.topology_key, lambda p, t=term: t in p.constraints.anti_affinity)
            for term in self._repel
            if _selects(term.selector, pod)
        ]

    def _count(self, key: str, selector: PodSelector) -> Counts:
        return self._counted((key, selector), key, lambda pod: _selects(selector, pod))

    def _counted(self, name: Any, key: str, selects: Callable[[TaskSpec], bool]) -> Counts:
        if name not in self._counts:
            numbers: dict[str, int] = {}
            domain = [
                numbers.setdefault(spec.labels[key], len(numbers)) if key in spec.labels else -1 for spec in self.specs
            ]
            counts = Counts(np.array(domain, np.int64), np.zeros(max(len(numbers), 1), np.int64), selects)
            for pod, row in self._there.values():
                if domain[row] >= 0 and selects(pod):
                    counts.by_domain[domain[row]] += 1
            self._counts[name] = counts
        return self._counts[name]


def _fond_terms(pod: TaskSpec) -> list[tuple[PodTerm, int]]:
    """What a pod likes to see near it, once it runs: preferred terms by weight, required ones by 1."""
    wishes = pod.constraints
    return [(term, 1) for term in wishes.affinity] + [(wish.term, wish.weight) for wish in wishes.preferred_pods]


def _selects(selector: PodSelector, pod: TaskSpec) -> bool:
    if selector.matches_nothing or (selector.namespaces is not None and pod.namespace not in selector.namespaces):
        return False
    return all(_holds(requirement, pod.labels) for requirement in selector.labels)


def _is_selected(spec: NodeSpec, wishes: Constraints) -> bool:
    if any(spec.labels.get(key) != value for key, value in wishes.selector):
        return False
    return wishes.node_affinity is None or any(_meets(spec, term) for term in wishes.node_affinity)


def _meets(spec: NodeSpec, term: NodeTerm) -> bool:
    if not term.labels and not term.names:
        return False
    return all(_holds(r, spec.labels) for r in term.labels) and all(_holds(r, {r.key: spec.name}) for r in term.names)


def _holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """A requirement on a label, as Kubernetes reads it."""
    value, wanted = labels.get(requirement.key), requirement.values
    match requirement.operator.value:
        case "In":
            return value in wanted if value is not None else False
        case "NotIn":
            return value is None or value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(wanted[0])
        case _:
            return value is not None and int(value) < int(wanted[0])


def _bears(wishes: Constraints, taint: Taint) -> bool:
    """Whether one of the pod's tolerations answers a taint."""
    for one in wishes.tolerations:
        meant = one.effect in (None, taint.effect) and one.key in ("", taint.key)
        if meant and (one.operator == "Exists" or (one.key != "" and one.value == taint.value)):
            return True
    return False
