"""Keep gangs close together in the network, and fill started domains first, so that large ones stay whole.

Three opinions, Volcano's formulas in 0..1:

    domain   fill(domain) with the gang's requests; among the fullest, + siblings there / all siblings
    sibling  1 in the domain that holds the siblings, else (top - tier(common domain)) / (top - lowest tier);
             among the nearest, + siblings there / all siblings
    others   mean over the tiers of fill(domain of the tier) with the pod, weighted fading^(place of the tier);
             1 for a tier of which the node has no domain, nothing for the root, in which all nodes are

Siblings that are placed change what their neighbours are worth, and pods in a domain how full it is: `follow` tells.

Which domains a gang may use at all is `topology/gang.py`'s business and holds without this plug-in, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from hekla.placement.columns import FloatArray, IdArray, Nodes
from hekla.placement.framework import Nearness, plugin
from hekla.placement.node_selection.score import NEUTRAL, Score
from hekla.placement.registry import as_bool, as_float, as_whole
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
            scores += np.where(scores == scores.max(), _siblings(tree, venue) / venue.wanted, 0.0)
        return scores * self.weight

    def score_near(self, nodes: Nodes, tree: Tree, shape: Shape, venue: Venue | None) -> Nearness | None:
        """Near the siblings; without a venue, where domains are full. None where all nodes that are allowed are alike."""
        if venue is not None:
            return None if tree.is_leaf(venue.domain) else _BySiblings(tree, venue, self.weight)
        return _ByFullness(self, nodes, tree, shape) if self.packs_others and not tree.is_flat else None

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
            most_domains=as_whole(most, arguments.get(most, 8)),
        )


class _BySiblings:
    """How near nodes are to the siblings that are placed."""

    def __init__(self, tree: Tree, venue: Venue, weight: float) -> None:
        self._tree, self._venue, self._weight = tree, venue, weight
        self._known: dict[int, tuple[list[int], IdArray]] = {}
        self._look_around()

    def follow(self, rows: IdArray) -> IdArray:
        """A sibling more where it is; all anew when they span a wider domain."""
        if self._venue.anchor != self._anchor:
            self._look_around()
            return self._tree.order
        changed = []
        for leaf in self._tree.leaf[rows].tolist():
            around, counted = self._around(leaf)
            self._counts[around] += 1
            self.values[counted] = self._told(counted)
            changed.append(counted)
        return changed[0] if len(changed) == 1 else np.concatenate(changed)

    def _look_around(self) -> None:
        tree, self._anchor = self._tree, self._venue.anchor
        self._counts = _siblings(tree, self._venue)
        self._near = np.zeros(len(tree.leaf), np.float64)
        if self._anchor >= 0:
            top, lowest = tree.tiers[tree.root], tree.tiers[0]
            for domain in reversed(list(tree.chain(self._anchor))):
                self._near[tree.rows(domain)] = (top - tree.tiers[domain]) / max(top - lowest, 1)
            self._near[tree.leaf == self._anchor] = 1.0
        self._is_nearest = self._near == self._near[tree.order].max(initial=0.0)
        self.values = self._told(slice(None))

    def _told(self, rows: IdArray | slice) -> FloatArray:
        shares = self._counts[self._tree.leaf[rows]] / self._venue.wanted
        values = (self._near[rows] + np.where(self._is_nearest[rows], shares, 0.0)) * self._weight
        return values.astype(np.float32)

    def _around(self, leaf: int) -> tuple[list[int], IdArray]:
        """The domains around a node, and the nodes that are in one of them and in no smaller one: what they count changes."""
        if leaf not in self._known:
            tree, around = self._tree, list(self._tree.chain(leaf))
            self._known[leaf] = around, np.concatenate([tree.rows(d)[tree.leaf[tree.rows(d)] == d] for d in around])
        return self._known[leaf]


class _ByFullness:
    """How full the domains of nodes are. What the root adds is the same for all, and left out."""

    def __init__(self, plugin: NetworkTopologyAware, nodes: Nodes, tree: Tree, shape: Shape) -> None:
        self._plugin, self._nodes, self._tree, self._shape = plugin, nodes, tree, shape
        self._levels = tree.lines[:-1]
        fades = plugin.fading ** np.arange(len(tree.lines))
        self._fades = fades[:-1, None] / fades.sum()
        self.values = self._by_leaf()[tree.leaf]

    def follow(self, rows: IdArray) -> IdArray:
        """All nodes of the largest domains around."""
        tree = self._tree
        tops = np.unique(tree.tops[tree.leaf[rows]])
        changed = [tree.rows(top) for top in tops.tolist() if top != tree.root]
        if not changed:
            return rows
        moved = np.concatenate(changed)
        self.values[moved] = self._by_leaf()[tree.leaf[moved]]
        return moved

    def _by_leaf(self) -> FloatArray:
        plugin, levels = self._plugin, self._levels
        fills = fill(self._nodes, self._tree, self._shape.request, plugin.weights)
        by_tier = np.where(levels >= 0, fills[levels], 1.0)  # [tier, domain]
        by_leaf: Scores = (self._fades * by_tier).sum(axis=0)
        return (by_leaf * plugin.weight).astype(np.float32)


def _siblings(tree: Tree, venue: Venue) -> Scores:
    """By domain, how many siblings are in it."""
    counts = np.zeros(len(tree.names), np.float64)
    for leaf, count in venue.siblings.items():
        for domain in tree.chain(leaf):
            counts[domain] += count
    return counts
