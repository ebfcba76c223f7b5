"""Pods that find no room, asked of Kubernetes' own scheduler and of ours in turns: both must find that others may go, or that none may.

Who goes is not the same by design: budgets are kept here where kube-scheduler, as a last resort, breaks them, and of equal priority those
go that lose least work; how many go is told from amounts, before anybody is spared. But nobody of a higher priority goes.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from hekla.api.core import Pod
from hekla.api.meta import Document
from hekla.api.scheduling import PriorityClass
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import AlreadyExistsError
from realkube.rivals import OURS, THEIRS, Rivals, clear, decided, put_namespaces, put_nodes, put_pods
from realkube.thrown_worlds import FullHouse

COMING = 8


@pytest.mark.parametrize("seed", range(6))
def test_both_find_who_makes_way(rivals: Rivals, seed: int) -> None:
    differ = asyncio.run(_differences(rivals, seed))
    assert not differ, "\n".join(differ)


async def _differences(rivals: Rivals, seed: int) -> list[str]:
    client, dice, found = rivals.client(), FullHouse(seed), list[str]()
    try:
        nodes = dice.nodes()
        await put_namespaces(client)
        await _put_priorities(client)
        await put_nodes(client, nodes)
        there = dice.running(nodes)
        await put_pods(client, there)
        for pod in dice.coming(COMING):
            try:
                theirs = await _made_way(client, pod, THEIRS, there)
            except TimeoutError:
                continue  # one pod in five hundred it answers in no minute
            ours = await _made_way(client, pod, OURS, there)
            if (theirs[0] is None) != (ours[0] is None) or _harm(ours[1]) > _harm(theirs[1]):
                found.append(f"{pod}: they {_told(theirs)}, we {_told(ours)}")
    finally:
        await clear(client)
        await client.close()
    return found


Outcome = tuple[str | None, Sequence[Document]]


async def _made_way(client: ApiClient, pod: Document, scheduler: str, there: Sequence[Document]) -> Outcome:
    """Where a scheduler put it, and who had to go; they are back afterwards."""
    node = await decided(client, pod, scheduler, others_go=True)
    left = {one.metadata.name for one in (await client.list(Pod, "near")).items}
    gone = [one for one in there if one["metadata"]["name"] not in left]
    await put_pods(client, gone)
    return node, gone


def _harm(gone: Sequence[Document]) -> int:
    """The highest priority of those who went."""
    return max((FullHouse.PRIORITIES[one["spec"]["priorityClassName"]] for one in gone), default=0)


def _told(outcome: Outcome) -> str:
    return f"{outcome[0]} for {[(one['metadata']['name'], one['spec']['priorityClassName']) for one in outcome[1]]}"


async def _put_priorities(client: ApiClient) -> None:
    for name, value in FullHouse.PRIORITIES.items():
        policy = "Never" if name == "patient" else "PreemptLowerPriority"
        with contextlib.suppress(AlreadyExistsError):
            document = {"metadata": {"name": name}, "value": value, "preemptionPolicy": policy}
            await client.create(PriorityClass, document)
