"""Keep gangs close together in the network, and fill started domains first, so that large ones stay whole.

Three opinions, Volcano's formulas in 0..1:

    domain   fill(domain) with the gang's requests; among the fullest, + siblings there / all siblings
    sibling  1 in the domain that holds the siblings, else (top - tier(common domain)) / (top - lowest tier);
             among the nearest, + siblings there / all siblings
    others   mean over the tiers of fill(domain of the tier) with the pod, weighted fading^(place of the tier);
             1 for a tier of which the node has no domain

Which domains a gang may use at all is `topology/gang.py`'s business and holds without this plug-in, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from hekla.placement.columns import FloatArray, Nodes
from hekla.placement.framework import plugin
from hekla.placement.registry import ArgumentError, as_bool, as_float
from hekla.placement.score import NEUTRAL, Score
from hekla.placement.shape import Shape
from hekla.placement.topology.fill import Scores, fill
from hekla.placement.topology.tree import Tree
from hekla.placement.topology.venue import Venue


@plugin
@dataclass(frozen=True, kw_only=True)
class NetworkTopologyAware:
    """Prefer full domains, and nodes near a gang's other pods."""

    weight: float = 1.0
    """How much this plug-in counts beside others."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"cpu": 1.0, "memory": 1.0})
    """How much the fullness of each resource counts."""

    packs_others: bool = True
    """Whether pods without a wish for closeness are packed into full domains, too."""

    fading: float = 0.8
    """How much less each tier counts for those than the one below."""

    most_domains: int = 8
    """In how many domains an eviction for a gang is tried."""

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """Nothing: nearness depends on where others are (`score_near`)."""
        return NEUTRAL

    def score_domains(self, nodes: Nodes, tree: Tree, request: Mapping[str, int], venue: Venue | None = None) -> Scores:
        """How much each domain is liked for pods that ask for this together.  # [domain]"""
        scores = fill(nodes, tree, request, self.weights)
        if venue is not None and venue.siblings and len(scores):
            scores += np.where(scores == scores.max(), _shares(tree, venue), 0.0)
        return scores * self.weight

    def score_near(self, nodes: Nodes, tree: Tree, shape: Shape, venue: Venue | None) -> FloatArray | None:
        """What nearness adds to a node's score, times the weight; None if nothing.  # [node]"""
        if venue is not None:
            values = _nearness(tree, venue) if venue.anchor >= 0 else None
        else:
            values = self._packing(nodes, tree, shape) if self.packs_others and not tree.is_flat else None
        return None if values is None else (values * self.weight).astype(np.float32)

    def _packing(self, nodes: Nodes, tree: Tree, shape: Shape) -> Scores:
        fills = fill(nodes, tree, shape.request, self.weights)
        fades = self.fading ** np.arange(len(tree.lines))
        by_tier = np.where(tree.lines >= 0, fills[tree.lines], 1.0)  # [tier, domain]
        by_leaf: Scores = (fades[:, None] * by_tier).sum(axis=0) / fades.sum()
        return by_leaf[tree.leaf]

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's spelling: `weight`, `hypernode.binpack.cpu`, `hypernode.binpack.resources: a, b`."""
        own = "hypernode.binpack"
        named = [name.strip() for name in str(arguments.get(f"{own}.resources", "")).split(",") if name.strip()]
        keys = {"cpu": f"{own}.cpu", "memory": f"{own}.memory", **{n: f"{own}.resources.{n}" for n in named}}
        packs, fading, most = (
            f"{own}.normal-pod.enable",
            f"{own}.normal-pod.fading",
            "hypernode.gradient.evict.max-hypernodes",
        )
        return cls(
            weight=as_float("weight", arguments.get("weight", 1)),
            weights={name: as_float(key, arguments.get(key, 1)) for name, key in keys.items()},
            packs_others=as_bool(packs, arguments.get(packs, True)),
            fading=as_float(fading, arguments.get(fading, 0.8)),
            most_domains=_whole(most, arguments.get(most, 8)),
        )


def _nearness(tree: Tree, venue: Venue) -> Scores:
    """By node, how near it is to the siblings that are placed."""
    top, lowest = tree.tiers[tree.root], tree.tiers[0]
    span = max(top - lowest, 1)
    near = np.zeros(len(tree.leaf), np.float64)
    for domain in reversed(list(tree.chain(venue.anchor))):
        near[tree.rows(domain)] = (top - tree.tiers[domain]) / span
    near[tree.leaf == venue.anchor] = 1.0
    nearest = near[tree.order].max(initial=0.0)
    return near + np.where(near == nearest, _shares(tree, venue)[tree.leaf], 0.0)


def _shares(tree: Tree, venue: Venue) -> Scores:
    """By domain, which part of the siblings is in it."""
    counts = np.zeros(len(tree.names), np.float64)
    for leaf, count in venue.siblings.items():
        for domain in tree.chain(leaf):
            counts[domain] += count
    return counts / venue.wanted


def _whole(key: str, value: Any) -> int:
    number = as_float(key, value)
    if number != int(number):
        raise ArgumentError(f"argument {key} is {value!r}; a whole number is expected")
    return int(number)
