"""The moment between a claim and its pod's mark: the scheduler may not take the pod for idle capacity then."""

from typing import Any

import pytest

from hekla.api.agents import Sandbox
from hekla.api.core import ConfigMap
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.status import StatusError
from hekla.sandbox.admission import TakenSandboxes
from hekla.testing.world import FakeWorld
from sandbox.test_idle_pools import IDLE
from sandbox.test_late_environment import RUNTIME, settled, warm
from sandbox.test_pools_and_claims import claim

EVICTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
OF_NOBODY: Document = {"metadata": {"ownerReferences": []}}


class Objects:
    """A world as rules read it."""

    def __init__(self, world: FakeWorld) -> None:
        self.world = world

    def get(self, resource: str, namespace: str, name: str) -> Document | None:
        assert resource == Sandbox.kind_info.resource
        there = self.world.get(Sandbox, namespace, name) is not None
        return self.world.document(Sandbox, namespace, name) if there else None

    def list(self, resource: str, namespace: str = "") -> list[Document]:
        raise AssertionError("nothing is listed")


def waiting(*conditions: Document, **spec: Any) -> tuple[FakeWorld, str]:
    """A pool with one member, whose pod has these conditions."""
    world = warm(RUNTIME, IDLE, **spec)
    (pod,) = world.list(Pod, "ns")
    world.change(Pod, "ns", pod.metadata.name, {"status": {"conditions": list(conditions)}})
    return world, pod.metadata.name


def deletion(world: FakeWorld, name: str) -> AdmissionRequest:
    pod = world.document(Pod, "ns", name)
    return AdmissionRequest(Pod.kind_info, Operation.DELETE, "ns", name, "", None, pod, User("scheduler"))


def refusal(world: FakeWorld, name: str) -> str:
    rule, request = TakenSandboxes(), deletion(world, name)
    assert rule.wants(request)
    try:
        rule.validate(request, Objects(world))
    except StatusError as error:
        return f"{error.code}: {error}"
    return ""


def test_who_waits_in_a_pool_gives_way() -> None:
    assert refusal(*waiting(EVICTED)) == ""


def test_who_was_just_taken_does_not_though_the_pod_says_nothing_of_it_yet() -> None:
    world, name = waiting(EVICTED)
    world.change(Sandbox, "ns", name, OF_NOBODY)
    assert refusal(world, name) == (
        f'403: pods "{name}" is forbidden: Sandbox {name!r} has been taken from its pool and is no idle capacity any more; '
        "choose another victim"
    )


def test_whoever_deletes_the_pod_of_a_session_that_ends_may() -> None:
    world, name = waiting()
    world.change(Sandbox, "ns", name, OF_NOBODY)
    assert refusal(world, name) == ""


def test_a_sandbox_that_is_gone_or_another_by_now_keeps_no_pod() -> None:
    world, name = waiting(EVICTED)
    world.change(Sandbox, "ns", name, OF_NOBODY)
    world.change(Sandbox, "ns", name, {"metadata": {"uid": "another"}})
    assert refusal(world, name) == ""
    world.remove(Sandbox, "ns", name)
    assert refusal(world, name) == ""


def test_one_that_is_preemptible_by_its_template_may_be_evicted_as_any_pod() -> None:
    world, name = waiting(EVICTED)
    world.change(Sandbox, "ns", name, {**OF_NOBODY, "spec": {"podTemplate": {"spec": {"priorityClassName": "mine"}}}})
    assert refusal(world, name) == ""


def test_once_the_pod_says_it_itself_the_rule_is_silent() -> None:
    world, name = waiting(EVICTED)
    world.put(claim())
    settled(world)
    assert refusal(world, name) == ""


@pytest.mark.parametrize(
    ("kind", "operation", "subresource"),
    [(ConfigMap, Operation.DELETE, ""), (Pod, Operation.UPDATE, ""), (Pod, Operation.CREATE, "eviction")],
)
def test_other_writes_are_not_looked_at(kind: Any, operation: Operation, subresource: str) -> None:
    request = AdmissionRequest(kind.kind_info, operation, "ns", "one", subresource, None, None, User("anybody"))
    assert not TakenSandboxes().wants(request)
