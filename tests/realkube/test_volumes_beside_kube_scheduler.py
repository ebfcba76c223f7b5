"""Pods with volumes, asked of Kubernetes' own scheduler and of ours in turns: bound claims and free ones, volumes that only some nodes or
zones reach, volumes that are to be made, claims that are missing or that should have been bound already.
"""

import asyncio
import json
from collections.abc import Mapping

import pytest

from hekla.api.meta import Document, Resource
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.kube.api_client import ApiClient
from realkube.rivals import OURS, THEIRS, Rivals, clear, decided, put_namespaces, put_nodes
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
    client, dice, found = rivals.client(), Storeroom(seed), list[str]()
    try:
        nodes = dice.nodes()
        await put_namespaces(client)
        await put_nodes(client, nodes)
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
                found.append(f"{json.dumps(asked)} on {json.dumps(nodes)}: they {theirs} of {scores}, we {ours}")
    finally:
        await clear(client)
        await client.close()
    return found


Asked = tuple[Document, Mapping[str, list[Document]]]


async def _decided(client: ApiClient, asked: Asked, scheduler: str, name: str) -> str | None:
    """The node that a scheduler finds for a pod, with volumes and claims that are its alone and go afterwards."""
    pod, around = json.loads(json.dumps(asked).replace("NAME", name))
    for kind, documents in around.items():
        for document in documents:
            await client.create(KINDS[kind], document, document["metadata"].get("namespace", ""))
    bound = [one["metadata"]["name"] for one in around["PersistentVolumeClaim"] if "volumeName" in one["spec"]]
    for claim in bound:
        while (await client.get(PersistentVolumeClaim, claim, "near")).status.phase != "Bound":
            await asyncio.sleep(0.05)

    async def is_to_be_made() -> str:
        claims = [one for one in (await client.list(PersistentVolumeClaim, "near")).items if one.metadata.name in names]
        return next((one.metadata.annotations[CHOSEN] for one in claims if CHOSEN in one.metadata.annotations), "")

    names = {one["metadata"]["name"] for one in around["PersistentVolumeClaim"]}
    try:
        return await decided(client, pod, scheduler, otherwise=is_to_be_made)
    finally:
        for kind, documents in reversed(around.items()):
            for document in documents:
                await client.delete(
                    KINDS[kind], document["metadata"]["name"], document["metadata"].get("namespace", "")
                )
