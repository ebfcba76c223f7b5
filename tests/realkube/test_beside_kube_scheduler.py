"""Kubernetes' own scheduler and ours on one control plane, asked about the same pods in turns: both must find the same nodes good.

Left out is what differs by design: the balance of cpu and memory, whose formula changed in 1.36, and the words of a refusal.
"""

import asyncio

import pytest

from hekla.api.core import Pod
from realkube.rivals import OURS, THEIRS, Rivals, clear, decided, put_namespaces, put_nodes, put_pods
from realkube.thrown_worlds import Dice

COMING = 12
ROUNDED = 2
"""Of a score: kube-scheduler cuts each part of one to a whole number."""


@pytest.mark.parametrize("seed", [0, 3, 10, 12])
def test_both_find_the_same_nodes_good(rivals: Rivals, seed: int) -> None:
    differ = asyncio.run(_differences(rivals, seed))
    assert not differ, "\n".join(differ)


async def _differences(rivals: Rivals, seed: int) -> list[str]:
    client, dice, found = rivals.client(), Dice(seed), list[str]()
    try:
        nodes = dice.nodes()
        await put_namespaces(client)
        await put_nodes(client, nodes)
        running = dice.running(nodes)
        await put_pods(client, running)
        for pod in dice.leaving(running):
            await client.delete(Pod, pod["metadata"]["name"], pod["metadata"]["namespace"], grace_s=3600)
        for pod in dice.coming(COMING):
            since = len(rivals.plane.log("kube-scheduler"))
            theirs = await decided(client, pod, THEIRS)
            scores = rivals.scores(pod["metadata"]["name"], since)
            ours = await decided(client, pod, OURS)
            if (theirs is None) != (ours is None):
                found.append(f"{pod}: they {theirs}, we {ours}")
            elif ours is not None and scores.get(ours, 0) < max(scores.values(), default=0) - ROUNDED:
                found.append(f"{pod}: they {scores}, we {ours}")
    finally:
        await clear(client)
        await client.close()
    return found
