"""What cannot be read is told on the object that says it, once, and stops nobody."""

import asyncio
from typing import Any

import msgspec
import pytest

from hekla.api.core import ResourceQuota
from hekla.api.meta import Resource
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup
from hekla.scheduler.unreadable import unreadable
from scheduler.schedulerkit import add_group, add_pod, events, is_bound, until, world


def made(kind: type[Resource], **fields: Any) -> Resource:
    return msgspec.convert({"metadata": {"name": "x", **fields.pop("metadata", {})}, **fields}, kind)


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (made(Node, status={"allocatable": {"cpu": "lots", "memory": "1Gi"}}), 'status.allocatable.cpu is "lots"'),
        (made(Node, status={"allocatable": {"cpu": "-1"}}), "less than nothing"),
        (made(Node, metadata={"annotations": {"hekla.dev/node-usage": "busy"}}), "counts as not measured"),
        (made(PodGroup, spec={"minResources": {"cpu": "lots"}}), "let in as one that names none"),
        (made(PodGroup, metadata={"annotations": {"hekla.dev/running-estimate": "long"}}), "a duration above 0"),
        (made(PodGroup, metadata={"annotations": {"hekla.dev/running-estimate": "0s"}}), "a duration above 0"),
        (made(PodGroup, metadata={"annotations": {"hekla.dev/running-estimate": "-45m"}}), "a duration above 0"),
        (made(PodGroup, metadata={"annotations": {"hekla.dev/running-estimate": "NaN"}}), "a duration above 0"),
        (made(PodGroup, metadata={"annotations": {"hekla.dev/running-estimate": "9" * 18 + "h"}}), "it counts as none"),
        (made(PodGroup, metadata={"annotations": {"hekla.dev/running-estimate": "1" * 250_000}}), '11..."; a duration'),
        (made(Pod, metadata={"annotations": {"hekla.dev/running-estimate": "2 hours"}}), 'is "2 hours"; a duration'),
        (made(PodGroup, metadata={"annotations": {"sla-waiting-time": "-5m"}}), "it counts as none"),
        (made(ResourceQuota, spec={"hard": {"requests.cpu": "lots"}}), "heeds nothing of this quota"),
    ],
    ids=[
        "node",
        "negative",
        "usage",
        "group",
        "estimate",
        "estimate 0",
        "estimate below 0",
        "no number",
        "estimate beyond all time",
        "estimate of many digits",
        "estimate of a lone pod",
        "patience",
        "quota",
    ],
)
def test_each_is_told_in_a_sentence_when_it_comes_and_not_again(obj: Resource, words: str) -> None:
    (sentence,) = unreadable(None, obj)
    assert words in sentence
    assert list(unreadable(obj, obj)) == []
    assert list(unreadable(obj, None)) == []


def test_what_can_be_read_is_not_talked_about() -> None:
    fine = made(Node, status={"allocatable": {"cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "8"}})
    assert list(unreadable(None, fine)) == []
    of_group = {"hekla.dev/running-estimate": "long", "scheduling.k8s.io/group-name": "g"}
    assert list(unreadable(None, made(Pod, metadata={"annotations": of_group}))) == [], (
        "its group says how long it runs"
    )
    told = {"hekla.dev/running-estimate": "45m", "sla-waiting-time": "1h30m"}
    group = made(PodGroup, metadata={"annotations": told}, spec={"minResources": {"cpu": "2", "count/pods": "3"}})
    assert list(unreadable(None, group)) == []


@pytest.mark.parametrize("estimate", ["long", "9" * 18 + "h"])
def test_a_gang_with_an_estimate_that_is_none_hears_of_it_and_starts(estimate: str) -> None:
    asyncio.run(start_all_the_same(estimate))


async def start_all_the_same(estimate: str) -> None:
    async with world(nodes=1) as (client, _):
        await add_group(client, "odd", 1)
        await client.patch(
            PodGroup, "odd", {"metadata": {"annotations": {"hekla.dev/running-estimate": estimate}}}, "default"
        )
        await add_pod(client, "odd-0", group="odd")
        await until(lambda: is_bound(client, "odd-0"))

        async def is_told() -> bool:
            return any(
                reason == "Unreadable" and f'"{estimate}"' in message for reason, message in await events(client, "odd")
            )

        await until(is_told)
