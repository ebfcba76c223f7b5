import msgspec
import pytest

from hekla.api.nodes import Node
from hekla.api.volcano.scheduling import PodGroup
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.feed import ClusterFeed
from hekla.dialects.topology import closeness, domain_spec
from hekla.placement.cluster import Cluster
from hekla.placement.topology.topology import Members
from hekla.placement.topology.wish import Closeness


def hyper_node(name: str, tier: int, *members: dict[str, object], tier_name: str = "") -> HyperNode:
    listed = [{"type": member.pop("type", "Node"), "selector": member} for member in map(dict, members)]
    spec = {"tier": tier, "tierName": tier_name, "members": listed}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, HyperNode)


def feed() -> ClusterFeed:
    made = ClusterFeed(Cluster(), scheduler_names=["volcano"])
    for name, rack in (("n1", "a"), ("n2", "a"), ("n3", "b")):
        made.on_node(None, msgspec.convert({"metadata": {"name": name, "labels": {"rack": rack}}}, Node))
    return made


def held(made: ClusterFeed) -> dict[str, set[str]]:
    tree, nodes = made.cluster.topology.tree(), made.cluster.nodes
    return {tree.names[at]: {nodes.name(row) for row in tree.rows(at).tolist()} for at in range(tree.root)}


def test_members_are_read_by_name_pattern_and_labels() -> None:
    read = domain_spec(
        hyper_node(
            "r", 2, {"exactMatch": {"name": "n1"}}, {"regexMatch": {"pattern": "^n"}},
            {"labelMatch": {"matchLabels": {"rack": "a"}}}, {"type": "HyperNode", "exactMatch": {"name": "s"}},
            tier_name="row",
        )
    )  # fmt: skip
    assert (read.tier, read.tier_name) == (2, "row")
    assert read.members[:2] == (Members(name="n1"), Members(pattern="^n"))
    assert read.members[2].matches("n9", {"rack": "a"})
    assert not read.members[2].matches("n9", {"rack": "b"})
    assert read.members[3] == Members(name="s", are_domains=True)


@pytest.mark.parametrize("operator", ["Near", ""])
def test_a_selector_that_cannot_be_understood_selects_nothing(operator: str) -> None:
    broken = {"labelMatch": {"matchExpressions": [{"key": "rack", "operator": operator}]}}
    (members,) = domain_spec(hyper_node("a", 1, broken)).members
    assert not members.matches("n1", {"rack": "a"})


def test_hyper_nodes_that_come_change_and_go_change_the_tree() -> None:
    made = feed()
    one = hyper_node("a", 1, {"exactMatch": {"name": "n1"}})
    made.on_hyper_node(None, one)
    assert held(made) == {"a": {"n1"}}
    other = hyper_node("a", 1, {"labelMatch": {"matchLabels": {"rack": "a"}}})
    made.on_hyper_node(one, other)
    assert held(made) == {"a": {"n1", "n2"}}
    made.on_node(msgspec.convert({"metadata": {"name": "n2"}}, Node), None)
    assert held(made) == {"a": {"n1"}}
    made.on_hyper_node(other, None)
    assert held(made) == {}


def test_a_status_that_is_written_changes_nothing() -> None:
    made = feed()
    one = hyper_node("a", 1, {"exactMatch": {"name": "n1"}})
    made.on_hyper_node(None, one)
    tree, gains = made.cluster.topology.tree(), made.cluster.gains
    made.on_hyper_node(one, msgspec.structs.replace(one, status=msgspec.structs.replace(one.status, node_count=1)))
    assert made.cluster.topology.tree() is tree
    assert made.cluster.gains == gains


def test_the_wishes_of_a_pod_group_and_its_sub_groups_are_read() -> None:
    made = feed()
    spec = {
        "minMember": 2, "networkTopology": {"mode": "soft", "highestTierName": "row"},
        "subGroupPolicy": [{"name": "p", "matchLabelKeys": ["p"], "networkTopology": {"highestTierAllowed": 0}}],
    }  # fmt: skip
    metadata = {"name": "g", "namespace": "default", "uid": "u"}
    made.on_pod_group(None, msgspec.convert({"metadata": metadata, "spec": spec}, PodGroup))
    read = made.cluster.jobs["u"].spec
    assert read.closeness == Closeness(is_hard=False, tier_name="row")
    assert read.subgroups[0].closeness == Closeness(highest_tier=0)
    assert read.wants_closeness


def test_no_wish_is_no_wish() -> None:
    assert closeness(None) is None
