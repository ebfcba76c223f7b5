"""Claims to devices, on a scheduler and an API server in this process: what is written before a pod is bound."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import structlog
from structlog.testing import capture_logs

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.pods import Pod
from hekla.dialects.device_allocation import FINALIZER
from hekla.dialects.feed import ClusterFeed
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import ApiError, ConflictError
from hekla.scheduler import device_claims
from hekla.scheduler.device_claims import ATTEMPTS, DeviceClaims
from hekla.scheduler.pseudonyms import anonymous
from hekla.scheduler.replay import Replay
from hekla.scheduler.snapshot import documents_of, packed, unpacked
from scheduler.schedulerkit import events, until, world

DRIVER = "gpu.example.com"


def run(story: Callable[[ApiClient], Awaitable[None]], nodes: int = 2) -> None:
    async def told() -> None:
        async with world(nodes=nodes) as (client, _):
            await client.create(DeviceClass, {"metadata": {"name": "gpu"}, "spec": class_spec()})
            await story(client)

    asyncio.run(told())


def class_spec() -> dict[str, Any]:
    opaque = {"driver": DRIVER, "parameters": {"kind": "GpuConfig"}}
    return {"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], "config": [{"opaque": opaque}]}


async def offer(client: ApiClient, node: str, *devices: str, pool: str = "") -> None:
    attributes = {"model": {"string": "large"}}
    spec = {
        "driver": DRIVER, "nodeName": node, "pool": {"name": pool or node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": name, "attributes": attributes} for name in devices],
    }  # fmt: skip
    await client.create(ResourceSlice, {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec})


async def ask(client: ApiClient, claim: str, count: int = 1) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}
    await client.create(
        ResourceClaim,
        {"metadata": {"name": claim, "namespace": "default"}, "spec": {"devices": {"requests": [request]}}},
    )


async def start(client: ApiClient, pod: str, claim: str, entry: str = "gpu", **more: Any) -> Pod:
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": entry}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": entry, "resourceClaimName": claim}]}
    return await client.create(Pod, {"metadata": {"name": pod, "namespace": "default"}, "spec": {**spec, **more}})


async def node_of(client: ApiClient, pod: str) -> str:
    return (await client.get(Pod, pod, "default")).spec.node_name


async def claim_of(client: ApiClient, name: str) -> ResourceClaim:
    return await client.get(ResourceClaim, name, "default")


def test_a_claim_says_what_it_has_before_its_pod_is_bound() -> None:
    async def story(client: ApiClient) -> None:
        await offer(client, "n1", "gpu-0", "gpu-1")
        await ask(client, "mine", count=2)
        await start(client, "p", "mine")
        await until(lambda: node_of(client, "p"))
        assert await node_of(client, "p") == "n1"
        claim = await claim_of(client, "mine")
        assert claim.metadata.finalizers == ["resource.kubernetes.io/delete-protection"]
        assert [one.name for one in claim.status.reserved_for] == ["p"]
        allocation = claim.status.allocation
        assert allocation is not None
        assert [(one.request, one.driver, one.pool, one.device) for one in allocation.devices.results] == [
            ("gpu", DRIVER, "n1", "gpu-0"),
            ("gpu", DRIVER, "n1", "gpu-1"),
        ]
        assert [(one["source"], one["requests"]) for one in allocation.devices.config] == [("FromClass", ["gpu"])]
        assert allocation.node_selector is not None
        (term,) = allocation.node_selector.node_selector_terms
        assert [(one.key, one.values) for one in term.match_fields] == [("metadata.name", ["n1"])]

    run(story)


def test_pods_that_share_a_claim_are_all_written_into_it() -> None:
    async def story(client: ApiClient) -> None:
        await offer(client, "n0", "gpu-0")
        await ask(client, "ours")
        for number in range(4):
            await start(client, f"p{number}", "ours")
        for number in range(4):
            await until(lambda number=number: node_of(client, f"p{number}"))  # type: ignore[misc]
            assert await node_of(client, f"p{number}") == "n0"
        claim = await claim_of(client, "ours")
        assert sorted(one.name for one in claim.status.reserved_for) == ["p0", "p1", "p2", "p3"]

    run(story)


def test_what_was_decided_over_claims_is_decided_again_from_a_snapshot() -> None:
    async def told() -> None:
        async with world(nodes=2) as (client, scheduler):
            await client.create(DeviceClass, {"metadata": {"name": "gpu"}, "spec": class_spec()})
            await offer(client, "n1", "gpu-0")
            await ask(client, "mine")
            await start(client, "first", "mine")
            await until(lambda: node_of(client, "first"))
            await ask(client, "second")
            await start(client, "second", "second")

            async def is_read() -> bool:
                return scheduler.feed.resource_claim("default", "second") is not None and len(scheduler.feed.pods) == 2

            await until(is_read)
            taken = scheduler.recorded_cycle()
            assert taken.decisions is not None
            assert Replay(unpacked(packed(taken))).cycle().encoded() == taken.decisions.encoded()

    asyncio.run(told())


def test_a_device_that_is_given_back_goes_to_who_waits_for_it() -> None:
    async def story(client: ApiClient) -> None:
        await offer(client, "n0", "gpu-0")
        for name in ("first", "second"):
            await ask(client, name)
        await start(client, "first", "first")
        await until(lambda: node_of(client, "first"))
        await start(client, "second", "second")

        async def is_told() -> bool:
            found = await client.get(Pod, "second", "default")
            return any("cannot allocate all claims" in one.message for one in found.status.conditions)

        await until(is_told)
        await client.delete(Pod, "first", "default", grace_s=0)
        await client.patch(ResourceClaim, "first", {"status": None}, "default", subresource="status")
        await until(lambda: node_of(client, "second"))
        allocation = (await claim_of(client, "second")).status.allocation
        assert allocation is not None
        assert [one.device for one in allocation.devices.results] == ["gpu-0"]

    run(story, nodes=1)


def refuse_to_bind(client: ApiClient, refused: set[str]) -> None:
    """Have the server turn down who is named, as an admission webhook may; `refused` may change meanwhile."""
    bind = client.bind

    async def binds(namespace: str, pod: str, node: str, **details: Any) -> None:
        if pod in refused:
            raise ApiError(403, "Forbidden", f"{pod} may not be bound")
        await bind(namespace, pod, node, **details)

    client.bind = binds  # type: ignore[method-assign]  # the real server beneath it


async def failed_to_bind(client: ApiClient, pod: str) -> bool:
    told = f"Binding rejected: {pod} may not be bound"
    return any((reason, message) == ("FailedScheduling", told) for reason, message in await events(client, pod))


async def has_nothing(client: ApiClient, claim: str) -> bool:
    found = await claim_of(client, claim)
    return (
        found.status.allocation is None and not found.status.reserved_for and FINALIZER not in found.metadata.finalizers
    )


def test_devices_of_a_pod_that_could_not_be_bound_go_to_who_waits_for_them() -> None:
    async def story(client: ApiClient) -> None:
        refuse_to_bind(client, {"first"})
        await offer(client, "n0", "gpu-0")
        for name in ("first", "second"):
            await ask(client, name)
        await start(client, "first", "first")
        await until(lambda: failed_to_bind(client, "first"))
        await start(client, "second", "second")
        await until(lambda: node_of(client, "second"))
        await until(lambda: has_nothing(client, "first"))
        allocation = (await claim_of(client, "second")).status.allocation
        assert allocation is not None
        assert [one.device for one in allocation.devices.results] == ["gpu-0"]

    run(story, nodes=1)


def test_a_pod_that_is_bound_in_the_end_has_its_devices_in_its_claim() -> None:
    """Taken back and given again: what was known of the claim in between may be old."""

    async def story(client: ApiClient) -> None:
        refused = {"p"}
        refuse_to_bind(client, refused)
        await offer(client, "n0", "gpu-0")
        await ask(client, "mine")
        await start(client, "p", "mine")
        await until(lambda: failed_to_bind(client, "p"))
        await until(lambda: has_nothing(client, "mine"))
        refused.clear()
        await until(lambda: node_of(client, "p"))
        claim = await claim_of(client, "mine")
        assert claim.status.allocation is not None
        assert [one.name for one in claim.status.reserved_for] == ["p"]
        assert FINALIZER in claim.metadata.finalizers

    run(story, nodes=1)


def test_who_shares_a_claim_keeps_it_when_another_could_not_be_bound() -> None:
    async def story(client: ApiClient) -> None:
        refuse_to_bind(client, {"second"})
        await offer(client, "n0", "gpu-0")
        await ask(client, "ours")
        await start(client, "first", "ours")
        await until(lambda: node_of(client, "first"))
        await start(client, "second", "ours")

        async def is_first_alone() -> bool:
            return [one.name for one in (await claim_of(client, "ours")).status.reserved_for] == ["first"]

        await until(lambda: failed_to_bind(client, "second"))
        await until(is_first_alone)
        assert (await claim_of(client, "ours")).status.allocation is not None

    run(story, nodes=1)


def test_a_pod_that_was_bound_although_nobody_was_told_keeps_its_devices() -> None:
    async def told() -> None:
        async with world(nodes=1) as (client, scheduler):
            await client.create(DeviceClass, {"metadata": {"name": "gpu"}, "spec": class_spec()})
            await offer(client, "n0", "gpu-0")
            await ask(client, "mine")
            await start(client, "p", "mine")
            await until(lambda: node_of(client, "p"))
            pod = await client.get(Pod, "p", "default")
            await DeviceClaims(client, scheduler.feed).take_back(pod)
            claim = await claim_of(client, "mine")
            assert claim.status.allocation is not None
            assert [one.name for one in claim.status.reserved_for] == ["p"]

    asyncio.run(told())


async def waits_with(
    client: ApiClient, feed: ClusterFeed, *claims: str, is_user: bool = True
) -> tuple[Pod, DeviceClaims]:
    """A pod that another scheduler is to bind, and its claims as they are before: guarded, and, as a user's, with devices."""
    entries = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    pod = await start(client, "p", claims[0], entry=claims[0], schedulerName="another", resourceClaims=entries)
    for claim in claims:
        await ask(client, claim)
        await client.patch(ResourceClaim, claim, {"metadata": {"finalizers": [FINALIZER]}}, "default")
        devices = {"results": [{"request": "gpu", "driver": DRIVER, "pool": "n0", "device": claim}]}
        users = [{"resource": "pods", "name": "p", "uid": pod.metadata.uid}]
        status = {"allocation": {"devices": devices}, "reservedFor": users} if is_user else {}
        await client.patch(ResourceClaim, claim, {"status": status}, "default", subresource="status")
    return pod, DeviceClaims(client, feed)


def conflict(client: ApiClient, claim: str, times: int) -> None:
    """Have the server answer to writes of a claim's metadata, so often, that somebody else wrote in between."""
    patch, left = client.patch, [times]

    async def patched(kind: Any, name: str, *details: Any, **more: Any) -> Any:
        if (kind, name) == (ResourceClaim, claim) and not more.get("subresource") and left[0]:
            left[0] -= 1
            raise ConflictError(409, "Conflict", "the object has been modified")
        return await patch(kind, name, *details, **more)

    client.patch = patched  # type: ignore[method-assign]  # the real server beneath it


@pytest.mark.parametrize(("is_user", "times"), [(True, 1), (True, ATTEMPTS - 1), (False, 0)])
def test_a_claim_without_devices_is_let_go_of_whatever_came_in_between(is_user: bool, times: int) -> None:
    """Others wrote between devices and finalizer; or the pod had got no farther than the finalizer when it failed."""

    async def told() -> None:
        async with world(nodes=1) as (client, scheduler):
            pod, devices = await waits_with(client, scheduler.feed, "mine", is_user=is_user)
            conflict(client, "mine", times)
            await devices.take_back(pod)
            assert await has_nothing(client, "mine")

    asyncio.run(told())


def test_a_claim_that_keeps_changing_is_told_and_the_pods_others_are_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_claims, "log", structlog.get_logger())  # one that nobody has set up before

    async def told() -> None:
        async with world(nodes=1) as (client, scheduler):
            pod, devices = await waits_with(client, scheduler.feed, "busy", "calm")
            conflict(client, "busy", ATTEMPTS)
            with capture_logs() as logged:
                await devices.take_back(pod)
            said = [one for one in logged if one["event"] == "devices not taken back"]
            assert [one["error"] for one in said] == ['resourceclaim "busy" keeps changing']
            assert await has_nothing(client, "calm")

    asyncio.run(told())


def test_a_snapshot_without_names_has_none_of_claims_pools_and_requests_and_decides_as_before() -> None:
    async def told() -> None:
        async with world(nodes=3) as (client, scheduler):
            await client.create(DeviceClass, {"metadata": {"name": "secret-class"}, "spec": class_spec()})
            for node in ("n0", "n1"):
                await offer(client, node, "gpu-0", "gpu-1", pool=f"secret-pool-{node}")
            for name, choices in (("secret-one", 0), ("secret-two", 2), ("secret-three", 2)):
                await client.create(ResourceClaim, secret_claim(name, choices))
            await start(client, "first", "secret-one", entry="secret-entry")
            await start(client, "second", "secret-two", entry="secret-entry")
            for name in ("first", "second"):
                await until(lambda name=name: node_of(client, name))  # type: ignore[misc]
            await start_from_template(client, "third", "secret-template", made="secret-three")

            async def is_read() -> bool:
                pod = next((pod for pod in scheduler.feed.pods.values() if pod.metadata.name == "third"), None)
                return pod is not None and bool(pod.status.resource_claim_statuses)

            await until(is_read)
            taken = scheduler.recorded_cycle()
            shown = anonymous(taken, b"a key")
            text = "\n".join(msgspec.json.encode(one).decode() for one in documents_of(shown))
            assert "secret" not in text, re.findall(r"[\w-]*secret[\w-]*", text)
            assert Replay(unpacked(packed(shown))).cycle().encoded() == shown.decisions.encoded()  # type: ignore[union-attr]

    asyncio.run(told())


def secret_claim(name: str, choices: int) -> dict[str, Any]:
    asked = {"deviceClassName": "secret-class"}
    request: dict[str, Any] = {"name": "secret-request", "exactly": asked}
    if choices:
        request = {
            "name": "secret-request", "firstAvailable": [{"name": f"secret-{n}", **asked} for n in range(choices)],
        }  # fmt: skip
    constraint = {"matchAttribute": f"{DRIVER}/model", "requests": ["secret-request"]}
    devices = {"requests": [request], "constraints": [] if choices else [constraint]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"devices": devices}}


async def start_from_template(client: ApiClient, pod: str, template: str, made: str) -> None:
    """A pod whose claim was made by another: so says its status."""
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "secret-entry"}]}}
    entry = {"name": "secret-entry", "resourceClaimTemplateName": template}
    spec = {"containers": [container], "resourceClaims": [entry]}
    await client.create(Pod, {"metadata": {"name": pod, "namespace": "default"}, "spec": spec})
    status = {"resourceClaimStatuses": [{"name": "secret-entry", "resourceClaimName": made}]}
    await client.patch(Pod, pod, {"status": status}, "default", subresource="status")
