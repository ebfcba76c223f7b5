"""Counts the nodes below every HyperNode, for all HyperNodes in one pass.

A node that changes may enter or leave any of them, and each counts towards those around it; one pass resolves every member
once. It hangs on the HyperNode whose name comes first, so that a burst of changes is one pass and not one for each of them.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.topology import domain_spec
from hekla.kube.commands import Command, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.placement.topology.topology import Members


def _first(changed: Resource, world: World) -> Iterator[tuple[str, str]]:
    """The HyperNode that the pass hangs on."""
    for one in world.list(HyperNode)[:1]:
        yield "", one.metadata.name


def _is_first(node: HyperNode, world: World) -> bool:
    return ("", node.metadata.name) in _first(node, world)


@reconciler(HyperNode, concerns=_is_first, finds={HyperNode: _first, Node: _first}, name="hypernode")
def reconcile_hyper_node(node: HyperNode, world: World, now: datetime) -> Iterator[Command]:
    """For the first HyperNode: bring the counts of all of them up to date."""
    if not _is_first(node, world):
        return
    domains = world.list(HyperNode)
    counts = node_counts(domains, world.list(Node))
    for one in domains:
        count = counts[one.metadata.name]
        if count != one.status.node_count and one.metadata.deletion_timestamp is None:
            yield SetStatus(target_of(one), {"nodeCount": count})


def node_counts(domains: Sequence[HyperNode], nodes: Sequence[Node]) -> dict[str, int]:
    """How many distinct nodes lie below each HyperNode. A member that is not there counts nothing, nor does a ring twice."""
    domains_by_name = {one.metadata.name: one for one in domains}
    nodes_by_name = {one.metadata.name: one for one in nodes}
    own: dict[str, set[str]] = {}
    inner: dict[str, set[str]] = {}
    for one in domains:
        name, members = one.metadata.name, domain_spec(one).members
        own[name] = {found for m in members if not m.are_domains for found in _named(m, nodes_by_name)}
        inner[name] = {found for m in members if m.are_domains for found in _named(m, domains_by_name)}
    return {name: len(set().union(*(own[below] for below in _below(name, inner)))) for name in domains_by_name}


def _named(members: Members, there: "dict[str, Node] | dict[str, HyperNode]") -> Iterator[str]:
    """Which of the objects that are there are meant."""
    if members.name:
        yield from (members.name,) if members.name in there else ()
        return
    for name, one in there.items():
        if members.matches(name, one.metadata.labels or {}):
            yield name


def _below(name: str, inner: dict[str, set[str]]) -> set[str]:
    """A HyperNode and all that lie in it, each once, however they hold one another."""
    seen, left = {name}, [name]
    while left:
        fresh = inner[left.pop()] - seen
        seen |= fresh
        left.extend(fresh)
    return seen
