from datetime import timedelta

import pytest

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.controlplane.node_lifecycle import NOT_READY, UNREACHABLE, reconcile_node, reconcile_tainted_pod
from hekla.controlplane.pod_gc import MAX_ENDED, reconcile_lost_pod, surplus_ended
from hekla.testing.reconcilers import assert_converges, converge
from hekla.testing.world import FakeWorld


def node(ready="True", taints=(), **spec):
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletReady"}] if ready else []
    return {
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "creationTimestamp": "2025-12-01T00:00:00Z"},
        "spec": {"taints": list(taints), **spec}, "status": {"conditions": conditions},
    }  # fmt: skip


def lease(renewed):
    return {
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "n", "namespace": "kube-node-lease"},
        "spec": {"holderIdentity": "n", "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.000000Z")},
    }  # fmt: skip


def pod(name="p", node_name="n", **changes):
    toleration = {"key": UNREACHABLE, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    return {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z", **changes.get("metadata", {})},
        "spec": {"nodeName": node_name, "tolerations": changes.get("tolerations", [toleration])},
        "status": {
            "phase": "Running" if node_name else "Pending", "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }  # fmt: skip


def taints(world):
    return sorted((taint.key, taint.effect) for taint in world.get(Node, "", "n").spec.taints)


def test_a_node_that_renews_its_lease_has_no_taint(now):
    world = FakeWorld(node(), lease(now - timedelta(seconds=10)))
    converge(reconcile_node, world, "", "n", now=now)
    assert taints(world) == []
    assert 40 <= world.requeues[-1] <= 41


def test_a_stale_lease_makes_the_node_unreachable_and_a_new_one_brings_it_back(now):
    other = {"key": "mine", "effect": "NoSchedule"}
    world = FakeWorld(node(taints=[other]), lease(now - timedelta(seconds=60)))
    converge(reconcile_node, world, "", "n", now=now)
    assert taints(world) == [("mine", "NoSchedule"), (UNREACHABLE, "NoExecute"), (UNREACHABLE, "NoSchedule")]
    condition = world.get(Node, "", "n").status.conditions[0]
    assert (condition.status, condition.reason) == ("Unknown", "NodeStatusUnknown")
    world.put(lease(now))
    world.change(Node, "", "n", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    converge(reconcile_node, world, "", "n", now=now)
    assert taints(world) == [("mine", "NoSchedule")]


def test_a_node_that_is_not_ready_or_cordoned_is_tainted(now):
    world = FakeWorld(node(ready="False", unschedulable=True), lease(now))
    converge(reconcile_node, world, "", "n", now=now)
    assert taints(world) == [
        (NOT_READY, "NoExecute"),
        (NOT_READY, "NoSchedule"),
        ("node.kubernetes.io/unschedulable", "NoSchedule"),
    ]


def test_it_converges(now):
    world = FakeWorld(node(), lease(now - timedelta(seconds=60)))
    assert_converges(reconcile_node, world, "", "n", now=now)


def tainted(now, seconds_ago):
    added = (now - timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return node(taints=[{"key": UNREACHABLE, "effect": "NoExecute", "timeAdded": added}])


def test_a_pod_is_evicted_when_its_toleration_is_used_up(now):
    world = FakeWorld(tainted(now, 100), pod())
    converge(reconcile_tainted_pod, world, "default", "p", now=now)
    assert not world.get(Pod, "default", "p").metadata.deletion_timestamp
    assert 200 <= world.requeues[-1] <= 201
    converge(reconcile_tainted_pod, world, "default", "p", now=now + timedelta(seconds=201))
    assert world.get(Pod, "default", "p").metadata.deletion_timestamp


@pytest.mark.parametrize(
    ("tolerations", "is_evicted"),
    [([], True), ([{"operator": "Exists"}], False), ([{"key": "x", "operator": "Exists"}], True)],
)
def test_who_tolerates_for_ever_stays(now, tolerations, is_evicted):
    world = FakeWorld(tainted(now, 0), pod(tolerations=tolerations))
    converge(reconcile_tainted_pod, world, "default", "p", now=now)
    assert bool(world.get(Pod, "default", "p").metadata.deletion_timestamp) == is_evicted


def test_a_pod_that_cannot_be_reached_is_not_ready(now):
    world = FakeWorld(tainted(now, 0), pod())
    converge(reconcile_tainted_pod, world, "default", "p", now=now)
    assert world.get(Pod, "default", "p").status.conditions[0].status == "False"


def test_a_pod_of_a_node_that_is_gone_fails_and_goes_after_its_quarantine(now):
    world = FakeWorld(pod())
    converge(reconcile_lost_pod, world, "default", "p", now=now - timedelta(minutes=9, seconds=50))
    assert world.get(Pod, "default", "p").status.phase == "Running"
    converge(reconcile_lost_pod, world, "default", "p", now=now)
    assert world.get(Pod, "default", "p") is None


def test_a_pod_that_leaves_before_it_had_a_node_is_forced_away(now):
    world = FakeWorld(pod(node_name="", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"}))
    converge(reconcile_lost_pod, world, "default", "p", now=now)
    assert world.get(Pod, "default", "p") is None


def test_the_oldest_ended_pods_are_forgotten_when_there_are_too_many():
    assert surplus_ended([]) == []
    assert MAX_ENDED > 1000


def test_a_condition_without_a_type_keeps_no_node_from_being_told_as_lost(now):
    # the reconciler failed on it for ever, and its pods were never evicted
    lost = node()
    lost["status"]["conditions"] = [{"lastHeartbeatTime": "2020-01-01T00:00:00Z"}]
    world = FakeWorld(lost)
    converge(reconcile_node, world, "", "n", now=now)
    told = {one.type: one.status for one in world.get(Node, "", "n").status.conditions}
    assert told["Ready"] == "Unknown"


@pytest.mark.parametrize("renewed", ["9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-23:59"])
def test_a_lease_of_the_last_second_of_all_time_is_a_sign_of_life(now, renewed):
    said = lease(now)
    said["spec"]["renewTime"] = renewed
    world = FakeWorld(node(), said)
    converge(reconcile_node, world, "", "n", now=now)
    assert taints(world) == []


@pytest.mark.parametrize("heartbeat", ["2020-01-01T00:00:00", "2020-01-01"])
def test_a_heartbeat_without_a_zone_is_one_of_utc(now, heartbeat):
    # it could not be compared with the other signs of life, and the reconciler failed on it for ever
    lost = node()
    lost["status"]["conditions"] = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    world = FakeWorld(lost)
    converge(reconcile_node, world, "", "n", now=now)
    assert [one.status for one in world.get(Node, "", "n").status.conditions] == ["Unknown"]
