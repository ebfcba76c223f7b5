"""How full domains are, and would be: what hypernode binpack scores.

    fill(domain) = weighted mean over the requested resources of (used + request) / allocatable

A resource that would be overused, or that a domain lacks, adds nothing, while its weight still counts.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import Nodes
from hekla.placement.topology.tree import Tree

Scores = NDArray[np.float64]


def fill(nodes: Nodes, tree: Tree, request: Mapping[str, int], weights: Mapping[str, float]) -> Scores:
    """How full each domain would be with a request; 0 where nothing that is asked for has a weight.  # [domain]"""
    counted = {name: weight for name, weight in weights.items() if weight > 0 and request.get(name, 0) > 0}
    total = np.zeros(len(tree.names), np.float64)
    for name, weight in counted.items():
        resource = nodes.resource(name)
        # Sums as floats: absurd nodes must not overflow, and only the order of scores depends on them.
        has = tree.sums(nodes.allocatable[resource].astype(np.float64))
        would = tree.sums(nodes.used[resource].astype(np.float64)) + request[name]
        fits = (has > 0) & (would <= has)
        total += np.where(fits, would / np.where(fits, has, 1), 0) * weight
    return total / (sum(counted.values()) or 1.0)
