"""Pods with volumes, asked of Kubernetes' own scheduler and of ours in turns: bound claims and free ones, volumes that only some nodes or
zones reach, volumes that are to be made, claims that are missing or that should have been bound already.
"""

import asyncio
import json
from collections.abc import Mapping

import pytest

from hekla.api.meta import Resource
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.kube.api_client import ApiClient
from realkube.rivals import Asked, Rivals, answers_differ, clear, decided, its_own, put_namespaces, put_nodes
from realkube.thrown_worlds import Storeroom

ASKED = 10
KINDS: Mapping[str, type[Resource]] = {
    "StorageClass": StorageClass, "PersistentVolume": PersistentVolume, "PersistentVolumeClaim": PersistentVolumeClaim,
}  # fmt: skip
CHOSEN = "volume.kubernetes.io/selected-node"
"""On a claim whose volume is to be made: where."""


@pytest.mark.parametrize("seed", range(4))
def test_both_find_nodes_that_reach_the_volumes(rivals: Rivals, seed: int) -> None:
    differ = asyncio.run(_differences(rivals, seed))
    assert not differ, "\n".join(differ)


async def _differences(rivals: Rivals, seed: int) -> list[str]:
    client, dice = rivals.client(), Storeroom(seed)
    try:
        nodes = dice.nodes()
        await put_namespaces(client)
        await put_nodes(client, nodes)
        differ = await answers_differ(rivals, client, (dice.ask(nodes) for _ in range(ASKED)), _decided)
        return [f"{one} on {json.dumps(nodes)}" for one in differ]
    finally:
        await clear(client)
        await client.close()


async def _decided(client: ApiClient, asked: Asked, scheduler: str, name: str) -> str | None:
    """The node that a scheduler finds for a pod, with volumes and claims that are its alone and go afterwards."""
    async with its_own(client, KINDS, asked, name) as (pod, around):
        claims = around["PersistentVolumeClaim"]
        names = {one["metadata"]["name"] for one in claims}
        for bound in [one["metadata"]["name"] for one in claims if "volumeName" in one["spec"]]:
            while (await client.get(PersistentVolumeClaim, bound, "near")).status.phase != "Bound":
                await asyncio.sleep(0.05)

        async def is_to_be_made() -> str:
            found = [
                one for one in (await client.list(PersistentVolumeClaim, "near")).items if one.metadata.name in names
            ]
            return next((one.metadata.annotations[CHOSEN] for one in found if CHOSEN in one.metadata.annotations), "")

        return await decided(client, pod, scheduler, otherwise=is_to_be_made)
