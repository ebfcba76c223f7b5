"""Whether variables of a claim come to a Sandbox that waited, without a new pod; and where they cannot, to a new one."""

from typing import Any

import pytest

from hekla.api.agents import Sandbox, SandboxClaim, names
from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.sandbox.sandbox import reconcile_sandbox
from hekla.sandbox.sandbox_claim import reconcile_sandbox_claim
from hekla.sandbox.sandbox_warm_pool import reconcile_sandbox_warm_pool
from hekla.testing.reconcilers import assert_heals, converge
from hekla.testing.world import FakeWorld
from sandbox.test_pools_and_claims import NOW, claim, pool, ready_of, sandbox_of, template

RUNTIME = {
    "apiVersion": "node.k8s.io/v1",
    "kind": "RuntimeClass",
    "metadata": {"name": "sandbox"},
    "handler": "sandbox",
}
ENV = [{"name": "TOKEN", "value": "1"}, {"name": "MODE", "value": "fast"}]


def running(container: str = "c1") -> Document:
    """A pod's status."""
    return {
        "phase": "Running", "podIPs": [{"ip": "10.0.0.1"}], "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "containerID": container}],
    }  # fmt: skip


def told(status: str, reason: str, container: str) -> Document:
    """What a node says of a pod's late environment."""
    condition = {"type": names.ENVIRONMENT_CONDITION, "status": status, "reason": reason, "message": container}
    return {"status": {"conditions": [{"type": "Ready", "status": "True"}, condition]}}


def warm(*objects: Document, members: int = 1, **spec: Any) -> FakeWorld:
    """A pool whose members run."""
    world = FakeWorld(template(envVarsInjectionPolicy="Overrides", **spec), pool(members), *objects)
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    for one in world.list(Sandbox, "ns"):
        converge(reconcile_sandbox, world, "ns", one.metadata.name, now=NOW)
        world.change(Pod, "ns", one.metadata.name, {"status": running()})
        converge(reconcile_sandbox, world, "ns", one.metadata.name, now=NOW)
    return settled(world)


def settled(world: FakeWorld) -> FakeWorld:
    """After everybody did what can be done."""
    for _ in range(3):
        for one in world.list(SandboxClaim, "ns"):
            converge(reconcile_sandbox_claim, world, "ns", one.metadata.name, now=NOW)
        for box in world.list(Sandbox, "ns"):
            converge(reconcile_sandbox, world, "ns", box.metadata.name, now=NOW)
    return world


def pod_of(world: FakeWorld, name: str = "c0") -> Document:
    return world.document(Pod, "ns", sandbox_of(world, name)["metadata"]["name"])


def test_a_claims_environment_comes_to_a_pod_that_runs_and_it_is_ready_when_its_node_says_so() -> None:
    world = warm(RUNTIME)
    (waiting,) = world.list(Pod, "ns")
    world.put(claim(env=ENV))
    settled(world)
    assert [one.metadata.uid for one in world.list(Pod, "ns")] == [waiting.metadata.uid]
    assert pod_of(world)["metadata"]["annotations"][names.LATE_ENVIRONMENT] == '{"MODE":"fast","TOKEN":"1"}'
    assert ready_of(world) == ("False", "DependenciesNotReady")
    world.change(Pod, "ns", waiting.metadata.name, told("True", "Given", "c1"))
    assert ready_of(settled(world)) == ("True", "DependenciesReady")


def test_a_container_that_is_started_anew_needs_it_anew() -> None:
    world = settled(warm(RUNTIME, claim(env=ENV)))
    name = sandbox_of(world)["metadata"]["name"]
    world.change(Pod, "ns", name, told("True", "Given", "c1"))
    assert ready_of(settled(world))[0] == "True"
    world.change(Pod, "ns", name, {"status": running("c2") | told("True", "Given", "c1")["status"]})
    assert ready_of(settled(world)) == ("False", "DependenciesNotReady")


def test_a_pod_with_a_command_of_its_own_is_made_anew_with_the_environment() -> None:
    world = settled(warm(RUNTIME, claim(env=ENV)))
    name = sandbox_of(world)["metadata"]["name"]
    world.change(Pod, "ns", name, told("False", names.ENVIRONMENT_OWN_COMMAND, "c1"))
    settled(world)
    after = pod_of(world)
    assert "status" not in after, "it is another pod, of the same name"
    assert names.LATE_ENVIRONMENT not in after["metadata"]["annotations"]
    given = {one["name"]: one["value"] for one in after["spec"]["containers"][0]["env"]}
    assert given == {"MODE": "fast", "TOKEN": "1"}
    world.change(Pod, "ns", name, {"status": running("c2")})
    assert ready_of(settled(world)) == ("True", "DependenciesReady")


MAIN = {"name": "main", "image": "python"}


@pytest.mark.parametrize(
    ("objects", "containers", "wanted"),
    [
        ([], [MAIN], ENV),
        ([RUNTIME], [{**MAIN, "command": ["serve"]}], ENV),
        ([RUNTIME], [MAIN, {"name": "side", "image": "x"}], [{"name": "A", "value": "1", "containerName": "side"}]),
    ],
    ids=["no daemon inside", "a command of its own", "another container"],
)
def test_where_nobody_can_give_it_a_new_one_is_made(
    objects: list[Document], containers: list[Document], wanted: list[Document]
) -> None:
    world = settled(warm(*objects, claim(env=wanted), podTemplate={"spec": {"containers": containers}}))
    assert sandbox_of(world)["metadata"]["labels"][names.LAUNCH_TYPE] == "cold"


def test_a_claim_that_is_refused_takes_nobodys_place_in_the_line() -> None:
    refused = claim("a", env=ENV)
    world = FakeWorld(template(), pool(1), refused, claim("b"), RUNTIME)
    converge(reconcile_sandbox_warm_pool, world, "ns", "pool", now=NOW)
    (waiting,) = world.list(Sandbox, "ns")
    converge(reconcile_sandbox, world, "ns", waiting.metadata.name, now=NOW)
    world.change(Pod, "ns", waiting.metadata.name, {"status": running()})
    converge(reconcile_sandbox, world, "ns", waiting.metadata.name, now=NOW)
    settled(world)
    assert ready_of(world, "a") == ("False", "EnvVarsInjectionRejected")
    assert sandbox_of(world, "b")["metadata"]["name"] == waiting.metadata.name


def test_it_heals_after_any_lost_write() -> None:
    assert_heals(reconcile_sandbox_claim, lambda: warm(RUNTIME, claim(env=ENV)), "ns", "c0", now=NOW)
