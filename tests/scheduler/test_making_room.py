"""Room is made for those who go first: evictions, nominations, and what is left of both when the scheduler dies."""

import asyncio
from typing import Any

from hekla.api.crd import crd_document
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.policy import PodDisruptionBudget
from hekla.api.scheduling import PriorityClass
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import NotFoundError
from hekla.placement.model import TaskStatus
from hekla.scheduler.batch import BatchScheduler
from hekla.testing.cluster import check
from hekla.testing.server import api_server, in_process_client
from scheduler.schedulerkit import (
    add_group,
    add_node,
    add_pod,
    events,
    group_condition,
    is_bound,
    nodes_of,
    running,
    scheduled_condition,
    until,
    world,
)

PREEMPT = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
  - name: pdb
- plugins:
  - name: predicates
"""


async def classes(client: ApiClient) -> None:
    for name, value in (("low", 1), ("high", 1000)):
        await client.create(PriorityClass, {"metadata": {"name": name}, "value": value})


async def gang(client: ApiClient, name: str, pods: int, gpus: int, priority: str) -> None:
    await add_group(client, name, pods, priorityClassName=priority)
    for number in range(pods):
        await add_pod(client, f"{name}-{number}", gpus=gpus, group=name, priorityClassName=priority)


async def run(client: ApiClient, *pods: str) -> None:
    """What a node would say: these run."""
    status = {"phase": "Running", "startTime": "2026-11-21T00:00:00Z"}
    for pod in pods:
        await until(lambda pod=pod: is_bound(client, pod))  # type: ignore[misc]
        await client.patch(Pod, pod, {"status": status}, "default", subresource="status")


async def leaving(client: ApiClient) -> list[str]:
    return [pod.metadata.name for pod in (await client.list(Pod, "default")).items if pod.metadata.deletion_timestamp]


async def leave(client: ApiClient) -> None:
    """What a node would do: those who are told to go are gone."""
    for pod in await leaving(client):
        await client.delete(Pod, pod, "default", grace_s=0)


async def nominated(client: ApiClient, pod: str) -> str:
    return (await client.get(Pod, pod, "default")).status.nominated_node_name


async def full_house(client: ApiClient) -> None:
    """Two nodes of 8 GPUs, full of a gang of low priority; a gang of high priority that needs both."""
    await classes(client)
    await gang(client, "low", 4, 4, "low")
    await run(client, *(f"low-{number}" for number in range(4)))
    await gang(client, "high", 2, 8, "high")


async def happened(client: ApiClient, name: str, event: tuple[str, str]) -> bool:
    return event in await events(client, name)


def test_a_gang_goes_whole_for_one_of_higher_priority() -> None:
    async def story() -> None:
        async with world(configuration=PREEMPT) as (client, scheduler):
            await full_house(client)

            async def are_told_to_go() -> bool:
                return len(await leaving(client)) == 4

            await until(are_told_to_go)
            await scheduler.idle()
            assert sorted([await nominated(client, f"high-{number}") for number in range(2)]) == ["n0", "n1"]

            async def is_told() -> bool:
                group_told = (await group_condition(client, "high"))[2]
                return bool((await scheduled_condition(client, "high-0"))[0]) and "2 Pipelined" in group_told

            await until(is_told)
            status, reason, message = await scheduled_condition(client, "high-0")
            assert (status, reason) == ("False", "Unschedulable")
            assert message.startswith("Pod default/high-0 can possibly be assigned to n")
            assert message.endswith(", once resource is released and minAvailable is satisfied")
            assert "2 Pipelined" in (await group_condition(client, "high"))[2]
            victim = await client.get(Pod, "low-0", "default")
            (condition,) = [c for c in victim.status.conditions if c.type == "DisruptionTarget"]
            assert (condition.status, condition.reason) == ("True", "PreemptionByScheduler")
            assert "default/high" in condition.message
            await until(lambda: happened(client, "low-0", ("Evict", "Pod is evicted, because of preempt")))
            await until(lambda: happened(client, "low", ("Evict", "preempt")))
            placed = await nodes_of(client)
            assert (placed["high-0"], placed["high-1"]) == ("", ""), "the room is not free yet"
            await leave(client)
            await until(lambda: is_bound(client, "high-0"))
            await until(lambda: is_bound(client, "high-1"))
            await scheduler.idle()
            check(scheduler.cluster)

    asyncio.run(story())


def test_a_budget_that_allows_nothing_keeps_the_gang() -> None:
    async def story() -> None:
        async with world(configuration=PREEMPT) as (client, scheduler):
            budget = {"metadata": {"name": "keep", "namespace": "default"}, "spec": {"minAvailable": 4, "selector": {}}}
            await client.create(PodDisruptionBudget, budget, "default")
            await full_house(client)

            async def is_told() -> bool:
                return (await group_condition(client, "high"))[0] == "Unschedulable"

            await until(is_told)
            await scheduler.idle()
            assert await leaving(client) == []
            kept = {"status": {"disruptionsAllowed": 4, "observedGeneration": 1}}
            await client.patch(PodDisruptionBudget, "keep", kept, "default", subresource="status")

            async def are_told_to_go() -> bool:
                return len(await leaving(client)) == 4

            await until(are_told_to_go)

    asyncio.run(story())


def test_a_scheduler_that_dies_between_eviction_and_bind_keeps_its_word_after_it() -> None:
    async def story() -> None:
        async with api_server() as server, in_process_client(server) as client:
            for kind in (PodGroup, Queue):
                await client.request(
                    "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd_document(kind)
                )
            await until(lambda: is_served(client, PodGroup))
            await until(lambda: is_served(client, Queue))
            for name in ("n0", "n1"):
                await add_node(client, name)
            async with running(client, PREEMPT) as first:
                await full_house(client)

                async def are_told_to_go() -> bool:
                    return len(await leaving(client)) == 4

                await until(are_told_to_go)
                await first.idle()
            # Somebody small and early slips in while nobody watches, and one victim is gone already.
            promised = {f"high-{number}": await nominated(client, f"high-{number}") for number in range(2)}
            await client.delete(Pod, "low-0", "default", grace_s=0)
            await add_pod(client, "small", gpus=4)
            async with running(client, PREEMPT) as second:
                await until(lambda: knows(second, "small"))
                await second.idle()
                assert (await nodes_of(client))["small"] == "", "the freed room is the nominee's"
                await leave(client)
                await until(lambda: is_bound(client, "high-0"))
                await until(lambda: is_bound(client, "high-1"))
                assert promised.items() <= (await nodes_of(client)).items()
                await second.idle()
                check(second.cluster)

    asyncio.run(story())


async def is_served(client: ApiClient, kind: Any) -> bool:
    try:
        await client.list(kind)
    except NotFoundError:
        return False
    return True


async def knows(scheduler: BatchScheduler, pod: str) -> bool:
    return any(task.spec.name == pod for task in scheduler.cluster.tasks.values())


def test_a_promise_whose_node_goes_is_taken_back_where_it_was_written() -> None:
    async def story() -> None:
        async with world(nodes=1, configuration=PREEMPT) as (client, scheduler):
            await classes(client)
            await gang(client, "low", 1, 8, "low")
            await run(client, "low-0")
            await gang(client, "high", 1, 8, "high")

            async def is_nominated() -> bool:
                return await nominated(client, "high-0") == "n0"

            await until(is_nominated)
            await scheduler.idle()
            await client.delete(Node, "n0")

            async def is_off() -> bool:
                return await nominated(client, "high-0") == ""

            await until(is_off)
            await scheduler.idle()
            (task,) = [t for t in scheduler.cluster.tasks.values() if t.spec.name == "high-0"]
            assert task.status is TaskStatus.PENDING
            check(scheduler.cluster)

    asyncio.run(story())
