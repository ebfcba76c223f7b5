import pytest

from hekla.api.core import ConfigMap
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.kube.commands import Create, Delete, Patch, SetStatus, target_of
from hekla.testing.world import CommandRefusedError, FakeWorld, ImpossibleWorldError


def pod(name="p", **spec):
    status = spec.pop("status", {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec, "status": status}


def test_a_running_pod_without_a_node_is_refused_with_advice():
    with pytest.raises(ImpossibleWorldError, match=r"Pod default/p is Running on no node; set spec.nodeName"):
        FakeWorld(pod(status={"phase": "Running"}))


def test_a_pod_on_an_absent_node_is_refused():
    with pytest.raises(ImpossibleWorldError, match="not in the world; add it"):
        FakeWorld(pod(nodeName="n2"), {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})


def test_an_owner_that_is_missing_is_refused():
    owned = pod()
    owned["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "nobody", "controller": True}]
    with pytest.raises(ImpossibleWorldError, match=r"uid 'nobody', which nothing has"):
        FakeWorld(owned)


def test_commands_change_the_world_as_a_server_would():
    world = FakeWorld(pod())
    target = target_of(world.get(Pod, "default", "p"))
    world.execute([SetStatus(target, {"phase": "Failed"}), Patch(target, {"metadata": {"labels": {"a": "b"}}})])
    changed = world.get(Pod, "default", "p")
    assert changed.status.phase == "Failed"
    assert world.list(Pod, labels={"a": "b"}) == [changed]
    with pytest.raises(CommandRefusedError, match="has changed"):
        world.execute_one(Patch(target, {}, is_guarded=True))
    world.execute_one(Delete(target))
    assert world.get(Pod, "default", "p") is None


def test_a_finalizer_holds_a_deleted_object():
    world = FakeWorld({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "finalizers": ["x/y"]}})
    target = target_of(world.get(ConfigMap, "default", "c"))
    world.execute_one(Delete(target))
    assert world.get(ConfigMap, "default", "c").metadata.deletion_timestamp
    world.execute_one(Patch(target, {"metadata": {"finalizers": None}}))
    assert world.get(ConfigMap, "default", "c") is None


def test_a_name_is_taken_once():
    world = FakeWorld({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}})
    with pytest.raises(CommandRefusedError, match="already exists"):
        world.execute_one(
            Create(Node, {"metadata": {"name": "n", "ownerReferences": [{"uid": "x", "controller": True}]}})
        )
