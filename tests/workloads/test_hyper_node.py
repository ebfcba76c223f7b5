from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.api.volcano.topology import HyperNode
from hekla.kube.commands import Command, SetStatus
from hekla.testing.job_world import NOW
from hekla.testing.reconcilers import (
    assert_converges,
    assert_heals,
    assert_touches_only_its_own,
    converge,
    decide,
)
from hekla.testing.world import FakeWorld
from hekla.workloads.hyper_node import reconcile_hyper_node


def node(name: str, **labels: str) -> Document:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def member(kind: str = "Node", **selector: Any) -> Document:
    return {"type": kind, "selector": selector}


def exact(name: str, kind: str = "Node") -> Document:
    return member(kind, exactMatch={"name": name})


def hyper_node(name: str, *members: Document, tier: int = 1, **labels: str) -> Document:
    return {
        "apiVersion": "topology.volcano.sh/v1alpha1",
        "kind": "HyperNode",
        "metadata": {"name": name, "labels": labels},
        "spec": {"tier": tier, "members": list(members)},
    }


def counts(world: FakeWorld) -> dict[str, int]:
    """Every count once the pass is at rest."""
    converge(reconcile_hyper_node, world, "", world.list(HyperNode)[0].metadata.name, now=NOW)
    return {one.metadata.name: one.status.node_count for one in world.list(HyperNode)}


def cluster() -> FakeWorld:
    """Two leaves that share a node, a spine around both, and a HyperNode of what is labelled."""
    return FakeWorld(
        *(node(f"n{number}", gpu="yes" if number < 3 else "no") for number in range(6)),
        hyper_node("leaf-a", exact("n0"), exact("n1"), exact("n2"), exact("gone"), rail="1"),
        hyper_node("leaf-b", member(regexMatch={"pattern": "^n[2-4]$"}), rail="1"),
        hyper_node("spine", exact("leaf-a", "HyperNode"), exact("leaf-b", "HyperNode"), tier=2),
        hyper_node("by-label", member(labelMatch={"matchLabels": {"gpu": "yes"}})),
        hyper_node("by-rail", member("HyperNode", labelMatch={"matchLabels": {"rail": "1"}}), tier=2),
        hyper_node("leaves", member("HyperNode", regexMatch={"pattern": "^leaf-"}), exact("n5"), tier=2),
    )


def test_distinct_nodes_are_counted_however_they_are_named() -> None:
    assert counts(cluster()) == {"leaf-a": 3, "leaf-b": 3, "spine": 5, "by-label": 3, "by-rail": 5, "leaves": 6}


def test_counts_follow_nodes_and_hyper_nodes() -> None:
    world = cluster()
    counts(world)
    world.remove(Node, "", "n1")
    world.change(Node, "", "n3", {"metadata": {"labels": {"gpu": "yes"}}})
    world.remove(HyperNode, "", "leaf-b")
    assert counts(world) == {"leaf-a": 2, "spine": 2, "by-label": 3, "by-rail": 2, "leaves": 3}


def test_a_count_that_falls_to_nothing_is_written() -> None:
    world = FakeWorld(node("n0"), hyper_node("leaf", exact("n0")))
    assert counts(world) == {"leaf": 1}
    world.remove(Node, "", "n0")
    assert counts(world) == {"leaf": 0}


@pytest.mark.parametrize("ring", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_ring_counts_each_of_its_nodes_once(ring: tuple[str, ...]) -> None:
    following = (*ring[1:], ring[0])
    objects = [
        hyper_node(one, exact(f"n-{one}"), exact(after, "HyperNode"))
        for one, after in zip(ring, following, strict=True)
    ]
    world = FakeWorld(*(node(f"n-{one}") for one in ring), *objects)
    assert counts(world) == dict.fromkeys(ring, len(ring))


def test_what_names_nothing_counts_nothing() -> None:
    odd = [
        hyper_node("broken", member(regexMatch={"pattern": "("})),
        hyper_node("empty"),
        hyper_node("missing", exact("gone", "HyperNode"), exact("gone")),
        hyper_node("nothing", member()),
        hyper_node("senseless", member(labelMatch={"matchExpressions": [{"key": "a", "operator": "Like"}]})),
    ]
    assert set(counts(FakeWorld(node("n0"), *odd)).values()) == {0}


def test_every_change_wakes_the_first_hyper_node_which_alone_counts() -> None:
    world = cluster()
    changed: list[Any] = [*world.list(Node), *world.list(HyperNode)]
    for one in changed:
        assert list(reconcile_hyper_node.finds[type(one)](one, world)) == [("", "by-label")]
    assert decide(reconcile_hyper_node, world, "", "spine", now=NOW) == []
    assert reconcile_hyper_node.concerns is not None
    assert [one.metadata.name for one in world.list(HyperNode) if reconcile_hyper_node.concerns(one, world)] == [
        "by-label"
    ]
    assert list(reconcile_hyper_node.finds[Node](changed[0], FakeWorld(node("n0")))) == []


def _is_a_count(command: Command) -> bool:
    return isinstance(command, SetStatus) and command.target.kind is HyperNode and list(command.status) == ["nodeCount"]


def test_it_keeps_what_every_reconciler_keeps() -> None:
    assert_touches_only_its_own(reconcile_hyper_node, cluster(), "", "by-label", now=NOW, may_touch=_is_a_count)
    assert_heals(reconcile_hyper_node, cluster, "", "by-label", now=NOW)
    assert_converges(reconcile_hyper_node, cluster(), "", "by-label", now=NOW)
