"""Kubernetes' tastes: which of the nodes that may take a pod suits it best. A weighted mean of eight opinions."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import UNASKED, BoolArray, FloatArray, Nodes
from hekla.placement.filters import pod_affinity, selectors, spread, taints
from hekla.placement.framework import Among, plugin
from hekla.placement.model import Task
from hekla.placement.node_selection.score import NEUTRAL, Score, balanced, by_node, empty, full, mean
from hekla.placement.registry import as_float
from hekla.placement.shape import Shape

_EVEN = {"cpu": 1.0, "memory": 1.0}
_SMALL_IMAGE, _LARGE_IMAGE = 23 << 20, 1000 << 20
"""Images below the first bring nothing, above the second nothing more (kube-scheduler's thresholds)."""


@plugin
@dataclass(frozen=True, kw_only=True)
class NodeOrder:
    """Scores nodes as kube-scheduler does."""

    leastrequested: float = 1.0
    """Prefer nodes that stay emptier."""

    mostrequested: float = 0.0
    """Prefer nodes that become fuller."""

    nodeaffinity: float = 2.0
    """Prefer nodes that meet preferred node terms."""

    podaffinity: float = 2.0
    """Prefer nodes near, or far from, the pods of preferred pod terms; the terms of pods that run there count too."""

    balancedresource: float = 1.0
    """Prefer nodes whose cpu and memory are used in equal parts."""

    tainttoleration: float = 3.0
    """Avoid nodes with taints of effect PreferNoSchedule."""

    imagelocality: float = 1.0
    """Prefer nodes that have the pod's images."""

    podtopologyspread: float = 2.0
    """Prefer the emptier domains of soft spread constraints."""

    @property
    def weight(self) -> float:
        """The sum of the parts' weights: a part counts as much as if it were a plug-in of its own."""
        return float(sum(getattr(self, field.name) for field in fields(self)))

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """The parts that node facts and amounts decide."""
        silent = NEUTRAL  # live parts, whose weight counts in the mean, and what a pod that asks for nothing makes no more even
        return mean(
            {
                "leastrequested": (self.leastrequested, empty(_EVEN) + _unasked(nodes) * -1.0),
                "mostrequested": (self.mostrequested, full(_EVEN) + _unasked(nodes)),
                "balancedresource": (
                    self.balancedresource,
                    balanced() if shape.asks("cpu") or shape.asks("memory") else silent,
                ),
                "nodeaffinity": (self.nodeaffinity, _or_neutral(selectors.score(nodes, shape.constraints))),
                "tainttoleration": (self.tainttoleration, _or_neutral(taints.score(nodes, shape.constraints))),
                "imagelocality": (self.imagelocality, _or_neutral(_images(nodes, shape))),
                "podaffinity": (self.podaffinity, silent),
                "podtopologyspread": (self.podtopologyspread, silent),
            }
        )

    follows_tallies = True
    """Asked by the placer: of pods that run there it says nothing but to a pod that minds them, or that they mind."""

    def compares(self, nodes: Nodes, shape: Shape) -> bool:
        """Taints that would rather be left alone, where some nodes have more of them than others."""
        return self.tainttoleration > 0 and taints.compares(nodes, shape.constraints)

    def goes_by(self, nodes: Nodes, shape: Shape, among: BoolArray) -> tuple[float, int]:
        """The most taints of a node that can be had, and how many nodes have so many."""
        return taints.worst(nodes, shape.constraints, among)

    def score_among(self, nodes: Nodes, tallies: Tallies, task: Task, among: Among) -> FloatArray | None:
        """The parts that are scaled over the nodes that the task can go to, each times its weight."""
        near = pod_affinity.score_among(nodes, tallies, task, among) if self.podaffinity > 0 else None
        even = spread.score_among(nodes, tallies, task, among) if self.podtopologyspread > 0 else None
        is_told = self.compares(nodes, task.shape)
        mild = taints.milder(nodes, task.shape.constraints, among()) if is_told else None
        parts = [(self.podaffinity, near), (self.podtopologyspread, even), (self.tainttoleration, mild)]
        told = [part * np.float32(weight) for weight, part in parts if part is not None]
        return sum(told[1:], told[0]) if told else None

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `leastrequested.weight` and its siblings."""
        keys = {field.name: f"{field.name}.weight" for field in fields(cls)}
        return cls(**{name: as_float(key, arguments[key]) for name, key in keys.items() if key in arguments})


def _unasked(nodes: Nodes) -> Score:
    """How full nodes are by pods that do not say what they need, on top of the others: without it they would look empty."""
    there = {name: times / len(UNASKED) for name, times, _ in UNASKED.values() if name in nodes.resources}
    return Score(fullness=there)


def _images(nodes: Nodes, shape: Shape) -> FloatArray | None:
    """How much of the pod's images a node has, between the thresholds; an image that is everywhere counts most."""
    images = shape.constraints.images
    if not images:
        return None
    there = np.zeros(nodes.rows, np.float64)
    for image in images:
        sizes = nodes.image(image)
        there += sizes * (np.count_nonzero(sizes) / max(len(nodes), 1))
    if not there.any():
        return None
    low, high = _SMALL_IMAGE, _LARGE_IMAGE * len(images)
    return np.clip((there - low) / (high - low), 0, 1).astype(np.float32)


def _or_neutral(values: FloatArray | None) -> Score:
    return NEUTRAL if values is None else by_node(values)
