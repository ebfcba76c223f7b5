"""HyperNodes as domains of the network, and Volcano's networkTopology as a wish for closeness."""

from hekla.api.selectors import LabelSelector
from hekla.api.volcano.batch import NetworkTopology
from hekla.api.volcano.topology import HyperNode, Member
from hekla.dialects.node_terms import label_requirements
from hekla.placement.constraint import Requirement
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.wish import Closeness


def domain_spec(node: HyperNode) -> DomainSpec:
    """A HyperNode as a domain."""
    return DomainSpec(
        name=node.metadata.name,
        tier=node.spec.tier,
        tier_name=node.spec.tier_name,
        members=tuple(_members(member) for member in node.spec.members),
        labels=node.metadata.labels or {},
    )


def closeness(wish: NetworkTopology | None) -> Closeness | None:
    """A gang's or sub-gang's networkTopology; any mode but `soft` is hard, as Volcano reads it."""
    if wish is None:
        return None
    return Closeness(
        is_hard=wish.mode != "soft", highest_tier=wish.highest_tier_allowed, tier_name=wish.highest_tier_name
    )


def _members(member: Member) -> Members:
    selector, are_domains = member.selector, member.type == "HyperNode"
    if selector.exact_match is not None:
        return Members(name=selector.exact_match.name, are_domains=are_domains)
    if selector.regex_match is not None:
        return Members(pattern=selector.regex_match.pattern, are_domains=are_domains)
    return Members(labels=_labels(selector.label_match), are_domains=are_domains)


def _labels(selector: LabelSelector | None) -> tuple[Requirement, ...] | None:
    """The clauses of a selector. One that cannot be understood selects nothing."""
    try:
        return label_requirements(selector) if selector is not None else None
    except ValueError:
        return None
