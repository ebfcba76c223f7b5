"""Those who wait for a while are told their place and what would help, behind the sentence that tools grep for."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.kube.api_client import ApiClient
from hekla.kube.clock import LoopClock
from hekla.kube.informer import Informers
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.explain import Why
from hekla.scheduler.outlooks import MARK, MOST_CHARACTERS, MOST_PODS, sentence_of, with_outlook, without_outlook
from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings
from hekla.testing import virtual_time
from hekla.testing.server import api_server, in_process_client
from scheduler.schedulerkit import add_group, add_node, add_pod, events, served

AFTER_S, EVERY_S = 10.0, 30.0


@asynccontextmanager
async def following() -> AsyncIterator[tuple[ApiClient, BatchScheduler]]:
    """A scheduler in virtual time, with one node of eight GPUs."""
    clock = LoopClock()
    async with api_server(clock=clock.now, kinds=(PodGroup, Queue)) as server, in_process_client(server) as client:
        while not (await served(client, PodGroup) and await served(client, Queue)):
            await asyncio.sleep(0.1)
        await add_node(client, "n0")
        settings = SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES)
        async with Informers(client, dice=random.Random(1)) as informers:
            scheduler = BatchScheduler(informers, settings, clock=clock)
            task = asyncio.create_task(scheduler.run())
            try:
                yield client, scheduler
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


async def gang(client: ApiClient, name: str, pods: int, gpus: int) -> None:
    await add_group(client, name, pods)
    for number in range(pods):
        await add_pod(client, f"{name}-{number}", gpus=gpus, group=name)


async def said(client: ApiClient, name: str) -> str:
    """What the group's condition says."""
    group = await client.get(PodGroup, name, "default")
    return next((one.message for one in group.status.conditions if one.type == "Unschedulable"), "")


async def said_of_pod(client: ApiClient, name: str) -> str:
    pod = await client.get(Pod, name, "default")
    return next((one.message for one in pod.status.conditions if one.type == "PodScheduled"), "")


def test_a_gang_that_waits_is_told_its_place_who_is_ahead_and_the_cheapest_change() -> None:
    async def story() -> None:
        async with following() as (client, _):
            await gang(client, "first", 2, 7)
            await asyncio.sleep(1)
            await gang(client, "train", 3, 4)
            await asyncio.sleep(AFTER_S / 2)
            before = await said(client, "train")
            assert before.startswith("1/3 tasks in gang unschedulable: pod group is not ready, ")
            assert MARK not in before, "not before it has waited for a while"
            await asyncio.sleep(AFTER_S)
            told = await said(client, "train")
            assert told.startswith(before), "the sentence that tools grep for stays in front"
            assert told.partition(MARK)[2] == (
                'place 2 of 2 in queue "default", behind default/first; '
                "would start: ask for 2 nvidia.com/gpu per pod instead of 4"
            )
            of_pod = await said_of_pod(client, "train-2")
            assert of_pod.startswith("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")
            assert of_pod.partition(MARK)[2] == told.partition(MARK)[2]
            assert [message for reason, message in await events(client, "train") if MARK in message] == [told]

    virtual_time.run(story())


def test_it_is_written_once_and_stands_until_something_changes() -> None:
    async def story() -> None:
        async with following() as (client, scheduler):
            await gang(client, "train", 3, 4)
            await asyncio.sleep(2 * AFTER_S)
            group, pod = await client.get(PodGroup, "train", "default"), await client.get(Pod, "train-2", "default")
            assert MARK in await said(client, "train")
            cycles = scheduler.cycles
            await asyncio.sleep(10 * EVERY_S)
            assert (await client.get(PodGroup, "train", "default")).metadata == group.metadata
            assert (await client.get(Pod, "train-2", "default")).metadata == pod.metadata
            assert scheduler.cycles == cycles, "nobody was tried anew for it"

    virtual_time.run(story())


def test_in_a_busy_queue_it_is_rewritten_no_more_often_than_it_says() -> None:
    async def story() -> None:
        async with following() as (client, _):
            await gang(client, "train", 3, 4)
            await asyncio.sleep(2 * AFTER_S)
            told = set()
            for number in range(60):  # somebody of higher rank comes every second: its place changes all the time
                await add_pod(client, f"other-{number}", gpus=8)
                await asyncio.sleep(1)
                told.add((await said(client, "train")).partition(MARK)[2])
            assert 2 <= len(told) <= 1 + 60 / EVERY_S + 1

    virtual_time.run(story())


def test_a_gang_that_starts_says_nothing_of_it_any_more() -> None:
    async def story() -> None:
        async with following() as (client, _):
            await gang(client, "train", 3, 4)
            await asyncio.sleep(2 * AFTER_S)
            assert MARK in await said(client, "train")
            await add_node(client, "n1")
            await asyncio.sleep(5)
            group = await client.get(PodGroup, "train", "default")
            assert [one.status for one in group.status.conditions if one.type == "Unschedulable"] == ["False"]
            assert not await said_of_pod(client, "train-2")

    virtual_time.run(story())


def test_of_a_large_gang_the_first_pods_are_told_and_the_group_for_all() -> None:
    async def story() -> None:
        async with following() as (client, _):
            await gang(client, "train", MOST_PODS + 5, 1)
            await asyncio.sleep(3 * AFTER_S)
            assert MARK in await said(client, "train")
            told = [await said_of_pod(client, f"train-{number}") for number in range(MOST_PODS + 5)]
            assert all(told)
            assert sum(MARK in one for one in told) == MOST_PODS

    virtual_time.run(story())


def test_a_lone_pod_is_told_too() -> None:
    async def story() -> None:
        async with following() as (client, _):
            await add_pod(client, "alone", gpus=16)
            await asyncio.sleep(2 * AFTER_S)
            message = await said_of_pod(client, "alone")
            assert message.startswith("0/1 nodes are available: ")
            assert 'place 1 of 1 in queue "default"; would start: ask for 8 nvidia.com/gpu' in message

    virtual_time.run(story())


def why(**more: object) -> Why:
    whole = {"job": "ml/train", "queue": "research", "place": 3, "waiting": 5, "fits": False, **more}
    return Why(**whole)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "remedy", "sentence"),
    [
        (why(place=1), "", 'place 1 of 5 in queue "research"'),
        (why(ahead=("ml/a", "ml/b")), "", 'place 3 of 5 in queue "research", behind ml/a, ml/b'),
        (
            why(place=9, waiting=9, ahead=("ml/a", "ml/b", "ml/c")),
            "",
            'place 9 of 9 in queue "research", behind ml/a, ml/b and 6 more',
        ),
        (
            why(place=4, ahead=("hr/a", "ml/b", "hr/c")),
            "add a node",
            'place 4 of 5 in queue "research", behind a job of another namespace, ml/b; would start: add a node',
        ),
    ],
)
def test_jobs_of_other_namespaces_are_counted_and_not_named(found: Why, remedy: str, sentence: str) -> None:
    assert sentence_of(found, remedy, lambda namespace: namespace == "ml") == sentence


def test_it_is_bounded_and_comes_off_again() -> None:
    long = sentence_of(why(), "x" * 1000, lambda _: True)
    assert len(long) == MOST_CHARACTERS
    assert without_outlook(with_outlook("0/2 nodes are available.", long)) == "0/2 nodes are available."
    assert with_outlook(with_outlook("a.", "b"), "c") == f"a.{MARK}c"
    assert with_outlook("a.", "") == "a."
