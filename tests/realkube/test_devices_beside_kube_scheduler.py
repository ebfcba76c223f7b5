"""Pods with claims to devices, asked of Kubernetes' own scheduler and of ours in turns: counts, all devices, alternatives, selectors,
attributes that must agree or differ, taints.
"""

import asyncio
import json
from collections.abc import Mapping

import pytest

from hekla.api.devices import DeviceClass, ResourceClaim, ResourceSlice
from hekla.api.meta import Document, Resource
from hekla.kube.api_client import ApiClient
from realkube.rivals import OURS, THEIRS, Rivals, clear, decided, put_namespaces, put_nodes
from realkube.thrown_worlds import Workshop

ASKED = 12
KINDS: Mapping[str, type[Resource]] = {"DeviceClass": DeviceClass, "ResourceClaim": ResourceClaim}


@pytest.mark.parametrize("seed", range(4))
def test_both_find_nodes_that_have_the_devices(rivals: Rivals, seed: int) -> None:
    differ = asyncio.run(_differences(rivals, seed))
    assert not differ, "\n".join(differ)


async def _differences(rivals: Rivals, seed: int) -> list[str]:
    client, dice, found = rivals.client(), Workshop(seed), list[str]()
    try:
        nodes = dice.nodes()
        slices = dice.slices(nodes)
        await put_namespaces(client)
        await put_nodes(client, nodes)
        for one in slices:
            await client.create(ResourceSlice, one)
        for number in range(ASKED):
            asked = dice.ask(nodes)
            for again in range(3):  # who has just been told of other claims may not know yet that they are gone
                name, since = f"{number}-{again}", len(rivals.plane.log("kube-scheduler"))
                theirs = await _decided(client, asked, THEIRS, f"k{name}")
                scores = rivals.scores(f"k{name}", since)
                ours = await _decided(client, asked, OURS, f"o{name}")
                if (theirs is None) == (ours is None) and (not scores or ours in scores):
                    break
            else:
                found.append(f"{json.dumps(asked)} on {json.dumps(slices)}: they {theirs} of {scores}, we {ours}")
    finally:
        await clear(client, {ResourceSlice: ""})
        await client.close()
    return found


Asked = tuple[Document, Mapping[str, list[Document]]]


async def _decided(client: ApiClient, asked: Asked, scheduler: str, name: str) -> str | None:
    """The node that a scheduler finds for a pod, with claims that are its alone; all its devices are free again afterwards."""
    pod, around = json.loads(json.dumps(asked).replace("NAME", name))
    for kind, documents in around.items():
        for document in documents:
            await client.create(KINDS[kind], document, document["metadata"].get("namespace", ""))
    try:
        return await decided(client, pod, scheduler)
    finally:
        for kind, documents in reversed(around.items()):
            for document in documents:
                await client.delete(
                    KINDS[kind], document["metadata"]["name"], document["metadata"].get("namespace", "")
                )
        while (await client.list(ResourceClaim, "near")).items:
            await asyncio.sleep(0.02)
