"""Has the node the labels that the pod selects by?"""

from collections.abc import Iterable, Iterator

import numpy as np

from hekla.placement.columns import BoolArray, FloatArray, Nodes
from hekla.placement.constraint import Constraints, NodeTerm, Operator, Refusal, Requirement
from hekla.placement.framework import Refused

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
        allowed &= _meets(nodes, Requirement(key, Operator.IN, (value,)))
    if constraints.node_affinity is not None:
        allowed &= any_term(nodes, constraints.node_affinity)
    return allowed


def any_term(nodes: Nodes, terms: Iterable[NodeTerm]) -> BoolArray:
    """Nodes that meet at least one term.  # [node]"""
    allowed = np.zeros(nodes.rows, np.bool_)
    for term in terms:
        allowed |= _term(nodes, term)
    return allowed


def score(nodes: Nodes, constraints: Constraints) -> FloatArray | None:
    """The weight of the preferred terms that a node meets, as a part of all; None if there are none.  # [node]"""
    total = sum(preferred.weight for preferred in constraints.preferred_nodes)
    if total <= 0:
        return None
    met = np.zeros(nodes.rows, np.float32)
    for preferred in constraints.preferred_nodes:
        met += _term(nodes, preferred.term) * np.float32(preferred.weight / total)
    return np.minimum(met, np.float32(1))


def _term(nodes: Nodes, term: NodeTerm) -> BoolArray:
    if not term.labels and not term.names:
        return np.zeros(nodes.rows, np.bool_)
    allowed = np.ones(nodes.rows, np.bool_)
    for requirement in term.labels:
        allowed &= _meets(nodes, requirement)
    for requirement in term.names:
        named = np.zeros(nodes.rows, np.bool_)
        named[[row for name, row in nodes.row_of.items() if requirement.matches({requirement.key: name})]] = True
        allowed &= named
    return allowed


def _meets(nodes: Nodes, requirement: Requirement) -> BoolArray:
    """Nodes that meet a demand on a label: asked once per value of the label, not per node.  # [node]"""
    ids, values = nodes.label(requirement.key), nodes.label_values(requirement.key)
    answers = np.zeros(len(values) + 1, np.bool_)  # the last answers for nodes without the label: their id is -1
    for value, position in values.items():
        answers[position] = requirement.matches({requirement.key: value})
    answers[-1] = requirement.matches({})
    met: BoolArray = answers[ids]
    return met
