import numpy as np
import pytest

from hekla.placement.plugins.network_topology_aware import NetworkTopologyAware
from hekla.placement.registry import ArgumentError, build_plugin
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.tree import Tree
from hekla.placement.topology.venue import Venue, venue
from hekla.testing.cluster import World, amounts


def world(**uses: float) -> World:
    """Two racks of two nodes of 10 cpus and 10 GiB in a row, and a node in no rack."""
    made = World()
    for name in ("a1", "a2", "b1", "b2", "loose"):
        made.node(name, cpu=10, memory=10)
    for rack in ("a", "b"):
        nodes = tuple(Members(name=f"{rack}{number}") for number in (1, 2))
        made.cluster.put_domain(DomainSpec(name=rack, tier=1, members=nodes))
    racks = tuple(Members(name=rack, are_domains=True) for rack in ("a", "b"))
    made.cluster.put_domain(DomainSpec(name="r", tier=2, members=racks))
    for node, cpu in uses.items():
        made.running(f"on-{node}", node, cpu=cpu)
    return made


def tree_of(made: World) -> Tree:
    return made.cluster.topology.tree()


def domains(made: World, plugin: NetworkTopologyAware, where: Venue | None = None, **asks: float) -> dict[str, float]:
    tree = tree_of(made)
    scores = plugin.score_domains(made.cluster.nodes, tree, amounts(**asks), where)
    return dict(zip(tree.names, scores.tolist(), strict=True))


def near(made: World, plugin: NetworkTopologyAware, where: Venue | None, **asks: float) -> dict[str, float]:
    job = made.job("probe", tasks=1, **asks)
    (task,) = job.tasks.values()
    told = plugin.score_near(made.cluster.nodes, tree_of(made), task.shape, where)
    assert told is not None
    return {name: float(told.values[row]) for name, row in made.cluster.nodes.row_of.items()}


def test_a_domain_scores_the_mean_of_how_full_the_gang_would_leave_it() -> None:
    scores = domains(world(a1=4), NetworkTopologyAware(), cpu=6, memory=2)
    assert scores["a"] == pytest.approx(((4 + 6) / 20 + 2 / 20) / 2)
    assert scores["b"] == pytest.approx((6 / 20 + 2 / 20) / 2)
    assert scores["r"] == pytest.approx(((4 + 6) / 40 + 2 / 40) / 2)


def test_resources_count_by_their_weights_and_those_not_asked_for_do_not() -> None:
    plugin = NetworkTopologyAware(weights={"cpu": 3.0, "memory": 1.0, "nvidia.com/gpu": 5.0})
    assert domains(world(), plugin, cpu=6, memory=2)["a"] == pytest.approx((3 * 6 / 20 + 2 / 20) / 4)
    assert domains(world(), plugin, cpu=6)["a"] == pytest.approx(6 / 20)


def test_a_resource_that_would_be_overused_adds_nothing() -> None:
    assert domains(world(a1=10), NetworkTopologyAware(), cpu=11, memory=2)["a"] == pytest.approx((0 + 2 / 20) / 2)


def test_among_the_fullest_domains_the_one_with_siblings_is_liked_more() -> None:
    made = world()
    rows = made.cluster.nodes.row_of
    where = venue(tree_of(made), tree_of(made).root, made.cluster.nodes.rows, siblings=[rows["b1"]], wanted=4)
    scores = domains(made, NetworkTopologyAware(), where, cpu=6, memory=2)
    assert scores["b"] - scores["a"] == pytest.approx(1 / 4)


def test_nodes_near_the_siblings_score_by_the_tier_of_what_they_have_in_common() -> None:
    made = world()
    rows = made.cluster.nodes.row_of
    where = venue(tree_of(made), tree_of(made).root, made.cluster.nodes.rows, siblings=[rows["a1"]], wanted=4)
    scores = near(made, NetworkTopologyAware(weight=2.0), where, cpu=1)
    # tiers 1, 2 and 3 for the root: (3 - 2) / (3 - 1) in the row; a quarter of the siblings is in rack a
    assert scores == pytest.approx({"a1": 2.5, "a2": 2.5, "b1": 1.0, "b2": 1.0, "loose": 0.0})


def test_nothing_is_near_before_the_first_sibling_is_placed() -> None:
    made = world()
    (task,) = made.job("g", tasks=1, cpu=1).tasks.values()
    where = venue(tree_of(made), tree_of(made).root, made.cluster.nodes.rows)
    told = NetworkTopologyAware().score_near(made.cluster.nodes, tree_of(made), task.shape, where)
    assert told is not None
    assert not told.values.any()


def test_inside_one_rack_all_nodes_are_alike() -> None:
    made = world()
    (task,) = made.job("g", tasks=1, cpu=1).tasks.values()
    where = venue(tree_of(made), tree_of(made).names.index("a"), made.cluster.nodes.rows)
    assert NetworkTopologyAware().score_near(made.cluster.nodes, tree_of(made), task.shape, where) is None


def test_pods_without_a_wish_score_the_fading_mean_over_the_tiers() -> None:
    made = world(a1=4)
    scores = near(made, NetworkTopologyAware(), None, cpu=1, memory=1)
    weights = np.array([1.0, 0.8, 0.8**2])
    root = 0.0  # the same for all nodes, so it is left out
    row = ((4 + 1) / 40 + 1 / 40) / 2
    expected = {
        "a": (((4 + 1) / 20 + 1 / 20) / 2, row, root), "b": ((1 / 20 + 1 / 20) / 2, row, root), "loose": (1, 1, root),
    }  # fmt: skip
    for name, parts in expected.items():
        node = name if name == "loose" else f"{name}2"
        assert scores[node] == pytest.approx(float(weights @ np.array(parts) / weights.sum()))


def test_packing_pods_without_a_wish_can_be_switched_off() -> None:
    made = world(b1=4)
    (task,) = made.job("p", tasks=1, cpu=1).tasks.values()
    plugin = NetworkTopologyAware(packs_others=False)
    assert plugin.score_near(made.cluster.nodes, tree_of(made), task.shape, None) is None


def test_arguments_are_read_in_volcanos_spelling() -> None:
    plugin = build_plugin(
        "network-topology-aware",
        {
            "weight": 10, "hypernode.binpack.cpu": 5, "hypernode.binpack.resources": "nvidia.com/gpu, example.com/foo",
            "hypernode.binpack.resources.nvidia.com/gpu": "2", "hypernode.binpack.normal-pod.enable": "false",
            "hypernode.binpack.normal-pod.fading": 0.5, "hypernode.gradient.evict.max-hypernodes": 3,
        },
    )  # fmt: skip
    weights = {"cpu": 5.0, "memory": 1.0, "nvidia.com/gpu": 2.0, "example.com/foo": 1.0}
    assert plugin == NetworkTopologyAware(weight=10.0, weights=weights, packs_others=False, fading=0.5, most_domains=3)
    assert build_plugin("network-topology-aware") == NetworkTopologyAware()
    assert NetworkTopologyAware().weights == {"cpu": 1.0, "memory": 1.0}


@pytest.mark.parametrize(
    ("key", "value"),
    [("weight", "much"), ("hypernode.binpack.cpu", -1), ("hypernode.gradient.evict.max-hypernodes", 1.5)],
)
def test_an_argument_that_makes_no_sense_is_named(key: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=key):
        build_plugin("network-topology-aware", {key: value})
