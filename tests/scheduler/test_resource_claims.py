"""Claims to devices, on a scheduler and an API server in this process: what is written before a pod is bound."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.pods import Pod
from hekla.kube.api_client import ApiClient
from hekla.scheduler.replay import Replay
from hekla.scheduler.snapshot import packed, unpacked
from scheduler.schedulerkit import until, world

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


async def offer(client: ApiClient, node: str, *devices: str) -> None:
    spec = {
        "driver": DRIVER, "nodeName": node, "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": name} for name in devices],
    }  # fmt: skip
    await client.create(ResourceSlice, {"metadata": {"name": f"{node}-{DRIVER}"}, "spec": spec})


async def ask(client: ApiClient, claim: str, count: int = 1) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": count}}
    await client.create(
        ResourceClaim,
        {"metadata": {"name": claim, "namespace": "default"}, "spec": {"devices": {"requests": [request]}}},
    )


async def start(client: ApiClient, pod: str, claim: str) -> None:
    container = {"name": "main", "image": "busybox", "resources": {"claims": [{"name": "gpu"}]}}
    spec = {"containers": [container], "resourceClaims": [{"name": "gpu", "resourceClaimName": claim}]}
    await client.create(Pod, {"metadata": {"name": pod, "namespace": "default"}, "spec": spec})


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
