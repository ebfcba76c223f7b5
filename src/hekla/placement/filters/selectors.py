"""Has the node the labels that the pod selects by?"""

from collections.abc import Iterator

import numpy as np

from hekla.placement.columns import BoolArray, FloatArray, Nodes
from hekla.placement.constraint import Constraints, Operator, Refusal, Requirement
from hekla.placement.framework import Refused
from hekla.placement.node_masks import any_term, meets, whole_term

NO_MATCH = Refusal("node-affinity", "node(s) didn't match Pod's node affinity/selector")


def refuse(nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
    """Nodes outside the pod's node selector or its required node affinity."""
    allowed = eligible(nodes, constraints)
    if allowed is not None:
        yield Refused(NO_MATCH, ~allowed)


def eligible(nodes: Nodes, constraints: Constraints) -> BoolArray | None:
    """Nodes inside selector and affinity; None if the pod has neither.  # [node]"""
    if not constraints.selector and constraints.node_affinity is None:
        return None
    allowed = np.ones(nodes.rows, np.bool_)
    for key, value in constraints.selector:
        allowed &= meets(nodes, Requirement(key, Operator.IN, (value,)))
    if constraints.node_affinity is not None:
        allowed &= any_term(nodes, constraints.node_affinity)
    return allowed


def score(nodes: Nodes, constraints: Constraints) -> FloatArray | None:
    """The weight of the preferred terms that a node meets, as a part of all; None if there are none.  # [node]"""
    total = sum(preferred.weight for preferred in constraints.preferred_nodes)
    if total <= 0:
        return None
    met = np.zeros(nodes.rows, np.float32)
    for preferred in constraints.preferred_nodes:
        met += whole_term(nodes, preferred.term) * np.float32(preferred.weight / total)
    return np.minimum(met, np.float32(1))
