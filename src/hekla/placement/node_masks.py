"""Which nodes meet demands on their labels and names, for all nodes at once."""

from collections.abc import Iterable

import numpy as np

from hekla.placement.columns import BoolArray, Nodes
from hekla.placement.constraint import NodeTerm, Operator, Requirement


def any_term(nodes: Nodes, terms: Iterable[NodeTerm]) -> BoolArray:
    """Nodes that meet at least one term.  # [node]"""
    allowed = np.zeros(nodes.rows, np.bool_)
    for term in terms:
        allowed |= whole_term(nodes, term)
    return allowed


def whole_term(nodes: Nodes, term: NodeTerm) -> BoolArray:
    """Nodes that meet all of a term; nobody meets an empty one.  # [node]"""
    if not term.labels and not term.names:
        return np.zeros(nodes.rows, np.bool_)
    allowed = np.ones(nodes.rows, np.bool_)
    for requirement in term.labels:
        allowed &= meets(nodes, requirement)
    for requirement in term.names:
        allowed &= _is_named(nodes, requirement)
    return allowed


def meets(nodes: Nodes, requirement: Requirement) -> BoolArray:
    """Nodes that meet a demand on a label: asked once per value of the label, not per node.  # [node]"""
    ids, values = nodes.label(requirement.key), nodes.label_values(requirement.key)
    answers = np.zeros(len(values) + 1, np.bool_)  # the last answers for nodes without the label: their id is -1
    if requirement.operator is Operator.IN:
        # A thousand volumes, each on a host of its own, would ask about every host a thousand times.
        answers[[values[value] for value in requirement.values if value in values]] = True
    else:
        for value, position in values.items():
            answers[position] = requirement.matches({requirement.key: value})
        answers[-1] = requirement.matches({})
    met: BoolArray = answers[ids]
    return met


def _is_named(nodes: Nodes, requirement: Requirement) -> BoolArray:
    named = np.zeros(nodes.rows, np.bool_)
    if requirement.operator is Operator.IN:
        named[[nodes.row_of[name] for name in requirement.values if name in nodes.row_of]] = True
    else:
        named[[row for name, row in nodes.row_of.items() if requirement.matches({requirement.key: name})]] = True
    return named
