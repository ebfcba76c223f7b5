"""Trees of HyperNodes from nodes' labels."""

from typing import Any

import pytest

from hekla.api.core import ConfigMap
from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.topology import domain_spec
from hekla.kube.commands import Create, Event, target_of
from hekla.testing.cluster import World
from hekla.testing.job_world import NOW
from hekla.testing.reconcilers import (
    assert_converges,
    assert_heals,
    converge,
    decide,
)
from hekla.testing.world import FakeWorld
from hekla.workloads.hyper_node import node_counts
from hekla.workloads.hyper_node_discovery import CONFIG_MAP, DiscoveryError, label_discovery, parse

HOME = "volcano-system"
DISCOVERY = label_discovery(HOME)
FABRIC = """
networkTopologyDiscovery:
- source: label
  enabled: true
  interval: 10m
  config:
    networkTopologyTypes:
      Fabric_A:
      - nodeLabel: row
      - nodeLabel: rack
      - nodeLabel: kubernetes.io/hostname
"""


def node(name: str, **labels: str) -> Document:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}


def configuration(text: str = FABRIC, namespace: str = HOME) -> Document:
    return {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": namespace},
        "data": {"volcano-controller.conf": text},
    }  # fmt: skip


def cluster(text: str = FABRIC) -> FakeWorld:
    """Two rows that each have a rack 1, a node without a rack, and one without labels."""
    return FakeWorld(
        configuration(text), node("a1", row="a", rack="1"), node("a2", row="a", rack="1"), node("a3", row="a", rack="2"),
        node("b1", row="b", rack="1"), node("b9", row="b"), node("alone", rack="7"), node("none"),
    )  # fmt: skip


def tree(world: FakeWorld) -> dict[tuple[int, str], int]:
    """How many nodes lie in domains of each tier, sorted: {(tier, its name): counts}."""
    domains = world.list(HyperNode)
    counts = node_counts(domains, world.list(Node))
    found: dict[tuple[int, str], Any] = {}
    for one in domains:
        found.setdefault((one.spec.tier, one.spec.tier_name), []).append(counts[one.metadata.name])
    return {tier: sorted(numbers) for tier, numbers in found.items()}  # type: ignore[misc]


def settled(world: FakeWorld) -> FakeWorld:
    converge(DISCOVERY, world, HOME, CONFIG_MAP, now=NOW)
    return world


def test_racks_in_rows_become_a_tree() -> None:
    world = settled(cluster())
    # racks a/1, a/2, b/1 and 7, which is in no row; rows a and b, the latter with a node that is in no rack
    assert tree(world) == {(1, "rack"): [1, 1, 1, 2], (2, "row"): [2, 3]}
    names = [one.metadata.name for one in world.list(HyperNode)]
    assert all(name.startswith(("hypernode-fabric-a-tier1-", "hypernode-fabric-a-tier2-")) for name in names)
    assert {one.metadata.labels["volcano.sh/network-topology-source"] for one in world.list(HyperNode)} == {"label"}


def test_a_gang_stays_in_a_rack_that_labels_describe() -> None:
    from hekla.placement.topology.wish import Closeness

    made = World()
    for name, labels in (
        ("a1", {"row": "a", "rack": "1"}),
        ("a3", {"row": "a", "rack": "2"}),
        ("b1", {"row": "b", "rack": "1"}),
        ("b2", {"row": "b", "rack": "1"}),
    ):
        made.node(name, cpu=1, labels=labels)
    world = FakeWorld(
        configuration(), node("a1", row="a", rack="1"), node("a3", row="a", rack="2"),
        node("b1", row="b", rack="1"), node("b2", row="b", rack="1"),
    )  # fmt: skip
    for one in settled(world).list(HyperNode):
        made.cluster.put_domain(domain_spec(one))
    made.job("gang", tasks=2, cpu=1, more={"closeness": Closeness(is_hard=True, highest_tier=1)})
    assert set(made.schedule().values()) == {"b1", "b2"}


def test_a_node_that_changes_its_rack_moves_and_what_is_empty_goes() -> None:
    world = settled(cluster())
    world.put(node("a3", row="a", rack="1"))
    settled(world)
    assert tree(world) == {(1, "rack"): [1, 1, 3], (2, "row"): [2, 3]}


def test_what_others_made_is_left_alone_and_without_the_source_all_is() -> None:
    world = settled(cluster())
    before = len(world.list(HyperNode))
    world.put({
        "apiVersion": "topology.volcano.sh/v1alpha1", "kind": "HyperNode", "metadata": {"name": "by-hand"},
        "spec": {"tier": 1, "members": [{"type": "Node", "selector": {"exactMatch": {"name": "none"}}}]},
    })  # fmt: skip
    world.put(configuration("networkTopologyDiscovery: [{source: ufm, enabled: true}]"))
    (told,) = decide(DISCOVERY, world, HOME, CONFIG_MAP, now=NOW)
    assert isinstance(told, Event)
    assert "source ufm is not asked here" in told.message
    assert len(world.list(HyperNode)) == before + 1
    world.put(configuration(FABRIC.replace("enabled: true", "enabled: false")))
    settled(world)
    assert [one.metadata.name for one in world.list(HyperNode)] == ["by-hand"]


def test_the_file_of_another_namespace_makes_nothing() -> None:
    world = FakeWorld(configuration(namespace="mine"), node("a1", row="a", rack="1"))
    assert not decide(DISCOVERY, world, "mine", CONFIG_MAP, now=NOW)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("nodeLabel: row", "label: row"), r"networkTopologyTypes.Fabric_A\[0\] should be a mapping with nodeLabel"),
        (("nodeLabel: row", "nodeLabel: rack"), "Fabric_A should name at least one label above the host, each once"),
        (("networkTopologyTypes", "types"), "line 3: source label names no labels"),
        (("- source", "source"), "expected a mapping with the list networkTopologyDiscovery|not readable"),
        (("enabled: true", "enabled: 'true'"), "line 3: enabled is 'true'; write true or false, without quotes"),
        (("enabled: true", "enabled:"), "line 3: enabled is None; write true or false"),
        (("enabled: true", "enabled: [true"), "line .*: not readable as YAML"),
    ],
    ids=str,
)
def test_a_wrong_file_is_told_and_changes_nothing(change: tuple[str, str], sentence: str) -> None:
    world, text = settled(cluster()), FABRIC.replace(*change)
    with pytest.raises(DiscoveryError, match=sentence):
        parse(text)
    world.put(configuration(text))
    (told,) = decide(DISCOVERY, world, HOME, CONFIG_MAP, now=NOW)
    found = world.get(ConfigMap, HOME, CONFIG_MAP)
    assert found is not None
    assert isinstance(told, Event)
    assert (told.target, told.type) == (target_of(found), "Warning")


def test_it_converges_heals_and_touches_only_its_own() -> None:
    assert_converges(DISCOVERY, cluster(), HOME, CONFIG_MAP, now=NOW)
    assert_heals(DISCOVERY, cluster, HOME, CONFIG_MAP, now=NOW)
    commands = decide(DISCOVERY, cluster(), HOME, CONFIG_MAP, now=NOW)
    assert all(isinstance(one, Create) and one.kind is HyperNode for one in commands)
