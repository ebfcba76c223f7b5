"""Claims to devices by template: made, named in the pod, and given up, with the scheduler's own part in one story."""

import asyncio
from typing import Any

import pytest

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from hekla.api.pods import Pod
from hekla.controlplane.controllers import run_controllers
from hekla.controlplane.resource_claims import (
    ENTRY,
    base_name,
    reconcile_claims_of_bound_pod,
    reconcile_claims_of_pod,
    reconcile_users_of_claim,
)
from hekla.kube.commands import RequeueAfter
from hekla.kube.errors import ConflictError
from hekla.kube.events import SilentRecorder
from hekla.kube.execute import CommandError, Executor
from hekla.kube.informer import Informers
from hekla.testing.reconcilers import converge, decide, writes
from hekla.testing.server import api_server, in_process_client
from hekla.testing.world import FakeWorld
from scheduler.schedulerkit import events, until, world

DEVICES = {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 1}}]}
LEAVING = "2026-01-01T00:00:00Z"
KEPT = "resource.kubernetes.io/delete-protection"


def template(name: str = "one-gpu") -> dict[str, Any]:
    given = {"metadata": {"labels": {"team": "a"}, "annotations": {"why": "training"}}, "spec": {"devices": DEVICES}}
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": "default"}, "spec": given,
    }  # fmt: skip


def pod(name: str = "p", *, phase: str = "Pending", **status: Any) -> dict[str, Any]:
    entries, node = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}], "n" if phase == "Running" else ""
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"containers": [{"name": "c", "image": "any"}], "resourceClaims": entries, "nodeName": node},
        "status": {"phase": phase, **status},
    }  # fmt: skip


def claim(name: str = "c", *users: str, owner: str = "", has_device: bool = False, **metadata: Any) -> dict[str, Any]:
    reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
    whose = {"ownerReferences": [reference], "annotations": {ENTRY: "gpu"}} if owner else {}
    status: dict[str, Any] = {
        "reservedFor": [{"resource": "pods", "name": user, "uid": f"uid-{user}"} for user in users]
    }
    if has_device:
        status["allocation"] = {
            "devices": {"results": [{"request": "gpu", "driver": "gpu.example.com", "pool": "n", "device": "gpu-0"}]}
        }
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": name, "namespace": "default", **whose, **metadata}, "spec": {"devices": DEVICES},
        "status": status,
    }  # fmt: skip


def claims(world: FakeWorld) -> list[ResourceClaim]:
    return list(world.list(ResourceClaim, "default"))


def named(world: FakeWorld, name: str = "p") -> list[tuple[str, str]]:
    found = world.get(Pod, "default", name)
    assert found is not None
    return [(one.name, one.resource_claim_name) for one in found.status.resource_claim_statuses]


def test_a_pod_gets_a_claim_of_its_own_that_says_whose_it_is(now):
    world = FakeWorld(pod(), template())
    converge(reconcile_claims_of_pod, world, "default", "p", now=now)
    (made,) = claims(world)
    assert made.metadata.name.startswith("p-gpu-")
    assert made.metadata.labels == {"team": "a"}
    assert made.metadata.annotations == {"why": "training", ENTRY: "gpu"}
    (owner,) = made.metadata.owner_references
    assert (owner.kind, owner.uid, owner.controller, owner.block_owner_deletion) == ("Pod", "uid-p", True, True)
    assert made.spec.devices.requests[0].name == "gpu"
    assert named(world) == [("gpu", made.metadata.name)]


def test_a_claim_that_was_made_before_a_kill_is_found_again_and_not_made_twice(now):
    world = FakeWorld(pod(), template(), claim("p-gpu-12345", owner="p"))
    converge(reconcile_claims_of_pod, world, "default", "p", now=now)
    assert [one.metadata.name for one in claims(world)] == ["p-gpu-12345"]
    assert named(world) == [("gpu", "p-gpu-12345")]


def test_without_its_template_an_event_says_so_and_the_template_wakes_the_pod(now):
    world = FakeWorld(pod())
    converge(reconcile_claims_of_pod, world, "default", "p", now=now)
    assert claims(world) == []
    event = world.events[0]
    assert (event.reason, event.type) == ("FailedResourceClaimCreation", "Warning")
    assert event.message == (
        'PodResourceClaim gpu: resource claim template "one-gpu": resourceclaimtemplate.resource.k8s.io "one-gpu" not found'
    )
    world.put(template())
    found = world.get(ResourceClaimTemplate, "default", "one-gpu")
    assert list(reconcile_claims_of_pod.finds[ResourceClaimTemplate](found, world)) == [("default", "p")]


def test_a_claim_that_somebody_deleted_is_made_again_for_a_pod_that_still_waits(now):
    world = FakeWorld(pod(resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "p-gpu-gone"}]), template())
    converge(reconcile_claims_of_pod, world, "default", "p", now=now)
    (made,) = claims(world)
    assert named(world) == [("gpu", made.metadata.name)]


@pytest.mark.parametrize(
    "there",
    [
        pod(phase="Succeeded"),
        pod(resourceClaimStatuses=[{"name": "gpu"}]),
        pod(resourceClaimStatuses=[{"name": "gpu", "resourceClaimName": "c"}]),
    ],
    ids=["it has ended", "it needs none", "it has one"],
)
def test_no_claim_is_made_for_a_pod_that_needs_none(now, there):
    world = FakeWorld(there, template(), claim())
    assert decide(reconcile_claims_of_pod, world, "default", "p", now=now) == []


def test_names_that_are_too_long_are_cut_in_proportion():
    assert base_name("p", "gpu") == "p-gpu-"
    assert base_name("p" * 63, "gpu") == "p" * 52 + "-" + "gp"
    assert len(base_name("p" * 63, "g" * 63)) <= 57


@pytest.mark.parametrize(
    ("objects", "users", "has_device"),
    [
        ([claim("c", "p", has_device=True), pod(phase="Running")], ["p"], True),
        ([claim("c", "p", has_device=True), pod(phase="Failed")], [], False),
        ([claim("c", "p", "q", has_device=True), pod(phase="Succeeded"), pod("q", phase="Running")], ["q"], True),
        ([claim("c", "gone", has_device=True)], [], False),
        ([claim("c", has_device=True)], [], False),
    ],
    ids=["it runs", "it has ended", "one of two has ended", "it is gone", "nobody uses it"],
)
def test_devices_are_free_after_the_last_pod_that_used_them(now, objects, users, has_device):
    world = FakeWorld(*objects)
    converge(reconcile_users_of_claim, world, "default", "c", now=now)
    left = world.get(ResourceClaim, "default", "c")
    assert left is not None
    assert [one.name for one in left.status.reserved_for] == users
    assert (left.status.allocation is not None) == has_device


def test_a_pod_of_the_same_name_is_another_user(now):
    again = pod(phase="Running")
    again["metadata"]["uid"] = "uid-of-the-next"
    world = FakeWorld(claim("c", "p", has_device=True), again)
    converge(reconcile_users_of_claim, world, "default", "c", now=now)
    left = world.get(ResourceClaim, "default", "c")
    assert left is not None
    assert left.status.reserved_for == []


@pytest.mark.parametrize(
    ("objects", "stays"),
    [
        ([claim("c", "p", owner="p", has_device=True), pod(phase="Running")], True),
        ([claim("c", "p", owner="p", has_device=True), pod(phase="Succeeded")], False),
        ([claim("c", "p", has_device=True), pod(phase="Succeeded")], True),
        ([claim("c", "p", has_device=True, finalizers=[KEPT], deletionTimestamp=LEAVING)], False),
        ([claim("c", "p", finalizers=[KEPT], deletionTimestamp=LEAVING), pod(phase="Running")], True),
        ([claim("c", finalizers=[KEPT]), pod()], True),
    ],
    ids=[
        "in use",
        "its pod has ended",
        "somebody's own",
        "leaving and free",
        "leaving and in use",
        "about to be given",
    ],
)
def test_a_claim_goes_when_nobody_needs_it(now, objects, stays):
    world = FakeWorld(*objects)
    for _ in range(6):
        world.execute(decide(reconcile_users_of_claim, world, "default", "c", now=now))
    assert (world.get(ResourceClaim, "default", "c") is not None) == stays


def test_a_pod_that_only_our_cache_does_not_show_keeps_its_devices(now):
    async def story() -> None:
        async with api_server() as server, in_process_client(server) as client:
            late = await client.create(Pod, pod("late"))
            await client.create(ResourceClaim, claim("c"))
            users = [{"resource": "pods", "name": "late", "uid": late.metadata.uid}]
            users += [{"resource": "pods", "name": "gone", "uid": "gone"}]
            status = {**claim("c", has_device=True)["status"], "reservedFor": users}
            await client.patch(ResourceClaim, "c", {"status": status}, "default", subresource="status")

            async def reconcile() -> None:
                found, shows_no_pods = await client.get(ResourceClaim, "c", "default"), FakeWorld()
                commands = list(reconcile_users_of_claim.decide(found, shows_no_pods, now))
                await Executor(client, SilentRecorder()).run(commands)

            with pytest.raises(CommandError) as refused:
                await reconcile()
            assert isinstance(refused.value.__cause__, ConflictError)
            assert len((await client.get(ResourceClaim, "c", "default")).status.reserved_for) == 2
            await client.delete(Pod, "late", "default", grace_s=0)
            await reconcile()
            left = await client.get(ResourceClaim, "c", "default")
            assert (list(left.status.reserved_for), left.status.allocation) == ([], None)

    asyncio.run(story())


def bound(name: str, **status: Any) -> dict[str, Any]:
    """A pod that nobody scheduled: it came with its node."""
    document = pod(name, phase="Running", **status)
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "c"}]
    return document


def test_a_pod_that_came_with_its_node_keeps_the_devices_of_a_claim_that_others_are_done_with(now):
    world = FakeWorld(claim("c", "p", has_device=True), pod(phase="Running"), bound("q"))
    converge(reconcile_claims_of_bound_pod, world, "default", "q", now=now)
    world.change(Pod, "default", "p", {"status": {"phase": "Succeeded"}})
    converge(reconcile_users_of_claim, world, "default", "c", now=now)
    (left,) = claims(world)
    assert [one.name for one in left.status.reserved_for] == ["q"]
    assert left.status.allocation is not None


@pytest.mark.parametrize(
    ("objects", "looks_again"),
    [
        ([bound("q")], True),
        ([bound("q"), claim("c")], True),
        ([bound("q"), claim("c", "q", has_device=True)], False),
        ([bound("q"), claim("c", *(f"p{n}" for n in range(256)), has_device=True)], False),
        ([bound("q"), pod("p"), claim("c", owner="p", has_device=True)], False),
    ],
    ids=["not made yet", "without devices yet", "said already", "full", "made for another pod"],
)
def test_a_pod_that_came_with_its_node_takes_no_claim_that_it_cannot_have(now, objects, looks_again):
    commands = decide(reconcile_claims_of_bound_pod, FakeWorld(*objects), "default", "q", now=now)
    assert writes(commands) == []
    assert [type(one) for one in commands] == ([RequeueAfter] if looks_again else [])


def test_pods_with_a_template_take_turns_at_one_device_and_their_claims_go_with_them():
    async def story() -> None:
        async with world(nodes=1) as (client, _), Informers(client) as informers:
            controllers = asyncio.create_task(run_controllers(informers))

            async def bound(name: str) -> bool:
                return (await client.get(Pod, name, "default")).spec.node_name == "n0"

            async def owners() -> list[str]:
                found = (await client.list(ResourceClaim, "default")).items
                return sorted(one.metadata.owner_references[0].name for one in found)

            async def only_second_is_left() -> bool:
                return await owners() == ["second"]

            async def is_told() -> bool:
                return any(reason == "FailedResourceClaimCreation" for reason, _ in await events(client, "first"))

            await client.create(Pod, pod("first"))
            await until(is_told)
            await client.create(ResourceClaimTemplate, template())
            await client.create(DeviceClass, {"metadata": {"name": "gpu"}, "spec": {}})
            offered = {
                "driver": "gpu.example.com", "nodeName": "n0", "devices": [{"name": "gpu-0"}],
                "pool": {"name": "n0", "generation": 1, "resourceSliceCount": 1},
            }  # fmt: skip
            await client.create(ResourceSlice, {"metadata": {"name": "n0-gpus"}, "spec": offered})
            await until(lambda: bound("first"))
            await client.create(Pod, pod("second"))
            await client.delete(Pod, "first", "default", grace_s=0)
            await until(lambda: bound("second"))
            await until(only_second_is_left)
            controllers.cancel()
            await asyncio.gather(controllers, return_exceptions=True)

    asyncio.run(story())
