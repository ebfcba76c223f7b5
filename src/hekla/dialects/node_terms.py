"""Kubernetes' selectors as the engine's requirements."""

from collections.abc import Mapping

from hekla.api.pod_scheduling import NodeSelectorTerm
from hekla.api.selectors import LabelSelector
from hekla.placement.constraint import NodeTerm, Operator, Requirement


def node_term(term: NodeSelectorTerm) -> NodeTerm:
    """A node selector term."""
    return NodeTerm(
        labels=tuple(Requirement(e.key, Operator(e.operator), tuple(e.values)) for e in term.match_expressions),
        names=tuple(Requirement(e.key, Operator(e.operator), tuple(e.values)) for e in term.match_fields),
    )


def label_requirements(selector: LabelSelector) -> tuple[Requirement, ...]:
    """The clauses of a label selector."""
    return (
        *(Requirement(key, Operator.IN, (value,)) for key, value in sorted(selector.match_labels.items())),
        *(Requirement(e.key, Operator(e.operator), tuple(e.values)) for e in selector.match_expressions),
    )


def selects(selector: LabelSelector, labels: Mapping[str, str]) -> bool:
    """Whether an object with these labels is selected."""
    return all(requirement.matches(labels) for requirement in label_requirements(selector))
