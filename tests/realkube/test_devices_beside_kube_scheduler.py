"""Pods with claims to devices, asked of Kubernetes' own scheduler and of ours in turns: counts, all devices, alternatives, selectors,
attributes that must agree or differ, taints.
"""

import asyncio
import json
from collections.abc import Mapping

import pytest

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.meta import Resource
from hekla.kube.api_client import ApiClient
from realkube.rivals import Asked, Rivals, answers_differ, clear, decided, its_own, put_namespaces, put_nodes
from realkube.thrown_worlds import Workshop

ASKED = 12
KINDS: Mapping[str, type[Resource]] = {"DeviceClass": DeviceClass, "ResourceClaim": ResourceClaim}


@pytest.mark.parametrize("seed", range(4))
def test_both_find_nodes_that_have_the_devices(rivals: Rivals, seed: int) -> None:
    differ = asyncio.run(_differences(rivals, seed))
    assert not differ, "\n".join(differ)


async def _differences(rivals: Rivals, seed: int) -> list[str]:
    client, dice = rivals.client(), Workshop(seed)
    try:
        nodes = dice.nodes()
        slices = dice.slices(nodes)
        await put_namespaces(client)
        await put_nodes(client, nodes)
        for one in slices:
            await client.create(ResourceSlice, one)
        differ = await answers_differ(rivals, client, (dice.ask(nodes) for _ in range(ASKED)), _decided)
        return [f"{one} on {json.dumps(slices)}" for one in differ]
    finally:
        await clear(client, {ResourceSlice: ""})
        await client.close()


async def _decided(client: ApiClient, asked: Asked, scheduler: str, name: str) -> str | None:
    """The node that a scheduler finds for a pod, with claims that are its alone; all its devices are free again afterwards."""
    async with its_own(client, KINDS, asked, name) as (pod, _):
        node = await decided(client, pod, scheduler)
    while (await client.list(ResourceClaim, "near")).items:
        await asyncio.sleep(0.02)
    return node
