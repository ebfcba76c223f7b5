"""Whether a pod that waits in a pool may be sent away for other work, and one that is somebody's may not."""

from typing import Any

import pytest

from hekla.api.agents import Sandbox, SandboxWarmPool, names
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.kube.commands import Event
from hekla.sandbox.sandbox import reconcile_sandbox
from sandbox.test_late_environment import RUNTIME, pod_of, settled, warm
from sandbox.test_pools_and_claims import NOW, claim

IDLE: Document = {
    "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": names.IDLE_PRIORITY_CLASS},
    "value": names.IDLE_PRIORITY,
}  # fmt: skip


def template_with(**spec: Any) -> Document:
    return {"spec": {"containers": [{"name": "main", "image": "python"}], **spec}}


def test_whoever_waits_has_the_lowest_priority_and_whoever_is_claimed_is_protected() -> None:
    world = warm(RUNTIME, IDLE)
    (waiting,) = world.list(Pod, "ns")
    assert waiting.spec.priority_class_name == names.IDLE_PRIORITY_CLASS
    assert names.PREEMPTABLE not in waiting.metadata.annotations
    world.put(claim())
    settled(world)
    assert pod_of(world)["metadata"]["uid"] == waiting.metadata.uid
    assert pod_of(world)["metadata"]["annotations"][names.PREEMPTABLE] == "false"


def test_one_that_was_sent_away_comes_back_to_wait() -> None:
    world = warm(RUNTIME, IDLE)
    (waiting,) = world.list(Pod, "ns")
    world.remove(Pod, "ns", waiting.metadata.name)
    settled(world)
    (again,) = world.list(Pod, "ns")
    assert (again.metadata.name, again.spec.priority_class_name) == (waiting.metadata.name, names.IDLE_PRIORITY_CLASS)
    assert len(world.list(Sandbox, "ns")) == 1


def test_one_that_makes_way_says_so_once_and_its_pool_does() -> None:
    """The pool's only word was that it had fewer: who asked where they went found nothing."""
    world = settled(warm(RUNTIME, IDLE))
    (waiting,) = world.list(Pod, "ns")
    (box,) = world.list(Sandbox, "ns")
    document = world.document(Pod, "ns", waiting.metadata.name)
    document["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    why = "Preempted in order to admit job ns/gang"
    document["status"]["conditions"].append(
        {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": why}
    )
    world.put(document)
    events = [one for one in reconcile_sandbox.decide(box, world, NOW) if isinstance(one, Event)]
    assert [(one.target.kind, one.reason) for one in events] == [(Sandbox, "Evicted"), (SandboxWarmPool, "Evicted")]
    assert all(why in one.message for one in events)
    settled(world)
    (box,) = world.list(Sandbox, "ns")
    told = next(one for one in box.status.conditions if one.type == "Ready")
    assert (told.status, told.message) == ("False", f"Pod is sent away: {why}")
    assert not [one for one in reconcile_sandbox.decide(box, world, NOW) if isinstance(one, Event)]


def test_a_sandbox_that_did_not_wait_has_the_priority_of_any_pod() -> None:
    world = settled(warm(RUNTIME, IDLE, claim(), members=0))
    assert "priorityClassName" not in pod_of(world)["spec"]


@pytest.mark.parametrize(
    ("objects", "given", "named"),
    [((RUNTIME,), {}, ""), ((RUNTIME, IDLE), {"priorityClassName": "mine"}, "mine")],
    ids=["no such class", "a template that says its own"],
)
def test_nothing_is_said_where_there_is_no_class_or_another_is_named(
    objects: tuple[Document, ...], given: Document, named: str
) -> None:
    world = warm(*objects, podTemplate=template_with(**given))
    assert [one.spec.priority_class_name for one in world.list(Pod, "ns")] == [named]
    world.put(claim())
    settled(world)
    assert names.PREEMPTABLE not in pod_of(world)["metadata"]["annotations"]
