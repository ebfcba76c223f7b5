from typing import Any

import msgspec
import pytest

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano import scheduling
from hekla.api.volcano.scheduling import PodGroup
from hekla.cli.why_text import _lost
from hekla.dialects.feed import ClusterFeed
from hekla.placement.cluster import Cluster
from hekla.scheduler.lost_nodes import lost_nodes

SINCE = "2026-11-28T22:55:16Z"


def node(name: str, ready: str) -> Node:
    condition = {
        "type": "Ready",
        "status": ready,
        "lastTransitionTime": SINCE,
        "message": "Kubelet stopped posting node status.",
    }
    status = {"allocatable": {"cpu": "8", "memory": "16Gi", "pods": "110"}, "conditions": [condition]}
    return msgspec.convert({"metadata": {"name": name}, "status": status}, Node)


def pod(name: str, on: str, phase: str = "Running") -> Pod:
    metadata = {"name": name, "namespace": "ml", "uid": name, "annotations": {"scheduling.k8s.io/group-name": "g"}}
    spec = {"schedulerName": "volcano", "nodeName": on, "containers": [{"name": "c"}]}
    return msgspec.convert({"metadata": metadata, "spec": spec, "status": {"phase": phase}}, Pod)


@pytest.fixture
def feed() -> ClusterFeed:
    found = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    found.on_queue(None, msgspec.convert({"metadata": {"name": "default"}}, scheduling.Queue))
    document: dict[str, Any] = {"metadata": {"name": "g", "namespace": "ml", "uid": "g"}, "spec": {"minMember": 2}}
    found.on_pod_group(None, msgspec.convert(document, PodGroup))
    for one in (node("well", "True"), node("mute", "Unknown")):
        found.on_node(None, one)
    return found


def test_a_gang_on_a_node_that_does_not_answer_says_which_pods_are_there_and_what_to_do(feed: ClusterFeed) -> None:
    """Its phase is Running for minutes yet: `hekla why vcjob` said that it does not wait, and nothing more."""
    for one in (
        pod("w-0", "mute"),
        pod("w-1", "well"),
        pod("w-2", "mute"),
        pod("w-3", "mute", "Succeeded"),
        pod("w-4", "gone"),
    ):
        feed.on_pod(None, one)
    [mute, gone] = lost_nodes(feed, feed.cluster.jobs["g"])
    assert (mute["node"], mute["pods"], mute["since"]) == ("mute", ["w-0", "w-2"], SINCE)
    assert mute["message"].startswith(
        f'node "mute" is not ready since {SINCE} (Kubelet stopped posting node status): Kubernetes evicts'
    )
    assert (gone["node"], gone["pods"]) == ("gone", ["w-4"])
    lines = list(_lost({"lostNodes": [mute, gone]}))
    assert lines[1] == "On nodes that do not answer"
    assert lines[2].startswith('  pods w-0, w-2: node "mute" is not ready')


def test_a_gang_whose_nodes_are_well_says_nothing_of_them(feed: ClusterFeed) -> None:
    feed.on_pod(None, pod("w-1", "well"))
    assert lost_nodes(feed, feed.cluster.jobs["g"]) == []
    assert list(_lost({})) == []
