"""How full domains are, and would be: what hypernode binpack scores.

    fill(domain) = weighted mean over the requested resources of (used + request) / allocatable

A resource that would be overused, or that a domain lacks, adds nothing, while its weight still counts.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import IdArray, IntArray, Nodes
from hekla.placement.topology.tree import Tree

Scores = NDArray[np.float64]

_MOST = np.int64(1 << 46)
"""What a node counts for at most (70 TB of memory), so that sums over 65,536 nodes cannot overflow: only the order of
scores depends on them."""


class DomainUse:
    """What the nodes of each domain have, and have in use: summed once, then brought up to date by the log of changes."""

    def __init__(self, nodes: Nodes, tree: Tree) -> None:
        self.nodes, self.tree = nodes, tree
        self._version, self._epoch, self._position = nodes.version, nodes.log_epoch, nodes.log_length
        self._has: dict[str, IntArray] = {}  # [domain]
        self._used: dict[str, IntArray] = {}  # [domain]
        self._seen: dict[str, IntArray] = {}  # [node] what of it is in the sums

    def of(self, name: str) -> tuple[IntArray, IntArray]:
        """What each domain has of a resource, and has in use.  # [domain]"""
        self._catch_up()
        if name not in self._has:
            resource = self.nodes.resource(name)
            self._has[name] = self.tree.sums(np.minimum(self.nodes.allocatable[resource], _MOST))
            self._seen[name] = np.minimum(self.nodes.used[resource], _MOST)
            self._used[name] = self.tree.sums(self._seen[name])
        return self._has[name], self._used[name]

    def _catch_up(self) -> None:
        nodes = self.nodes
        rows = nodes.changed_since(self._epoch, self._position)
        if rows is None or self._version != nodes.version:
            self._has, self._used, self._seen = {}, {}, {}
        else:
            for name in self._seen:
                self._add(name, rows)
        self._version, self._epoch, self._position = nodes.version, nodes.log_epoch, nodes.log_length

    def _add(self, name: str, rows: IdArray) -> None:
        seen, used = self._seen[name], self._used[name]
        change = np.minimum(self.nodes.used[self.nodes.resources[name], rows], _MOST) - seen[rows]
        seen[rows] += change
        for level in self.tree.lines[:, self.tree.leaf[rows]]:
            is_in = level >= 0
            np.add.at(used, level[is_in], change[is_in])


def domain_use(nodes: Nodes, tree: Tree) -> DomainUse:
    """The sums of a tree, kept for a cycle."""
    known = nodes.notes.get("domain use")
    if not isinstance(known, DomainUse) or known.nodes is not nodes or known.tree is not tree:
        known = nodes.notes["domain use"] = DomainUse(nodes, tree)
    return known


def fill(nodes: Nodes, tree: Tree, request: Mapping[str, int], weights: Mapping[str, float]) -> Scores:
    """How full each domain would be with a request; 0 where nothing that is asked for has a weight.  # [domain]"""
    counted = {name: weight for name, weight in weights.items() if weight > 0 and request.get(name, 0) > 0}
    total = np.zeros(len(tree.names), np.float64)
    use = domain_use(nodes, tree)
    for name, weight in counted.items():
        has, used = (sums.astype(np.float64) for sums in use.of(name))  # absurd requests must not overflow
        would = used + request[name]
        fits = (has > 0) & (would <= has)
        total += np.where(fits, would / np.where(fits, has, 1), 0) * weight
    return total / (sum(counted.values()) or 1.0)
