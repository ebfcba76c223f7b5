"""One bad object is told so where its owner looks, and everybody else goes on."""

import asyncio
from typing import Any

import msgspec
import pytest
from prometheus_client import REGISTRY, generate_latest

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.api.volcano.topology import HyperNode
from hekla.dialects.feed import ClusterFeed
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import InvalidError
from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, TaskStatus
from hekla.placement.plugins.gang import Gang
from hekla.placement.session import Session
from hekla.scheduler import batch
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.configuration import DEFAULT_TEXT
from hekla.testing.cluster import check
from scheduler.schedulerkit import (
    add_group,
    add_node,
    add_pod,
    events,
    group_condition,
    is_bound,
    nodes_of,
    scheduled_condition,
    until,
    world,
)

TREE = """
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: gang
  - name: capacity
    enableHierarchy: true
  - name: predicates
"""


async def goes_on(client: ApiClient, name: str = "fine", **spec: Any) -> None:
    """A gang that has nothing to do with it starts."""
    await add_group(client, name, 1, **spec)
    await add_pod(client, f"{name}-0", gpus=1, group=name)
    await until(lambda: is_bound(client, f"{name}-0"))


async def add_queue(client: ApiClient, name: str, parent: str = "root", **spec: Any) -> None:
    await client.create(Queue, {"metadata": {"name": name}, "spec": {"parent": parent, **spec}})


@pytest.mark.parametrize("amount", [2**62, 2**63 - 1, 2**56, 2**56 + 1])
def test_a_pod_that_asks_for_more_than_anybody_has_is_told_what_is_missing(amount: int) -> None:
    async def story() -> None:
        async with world(nodes=1) as (client, scheduler):
            await add_group(client, "huge", 2)
            for number in range(2):
                await add_pod(client, f"huge-{number}", gpus=amount, group="huge")

            async def is_told() -> bool:
                return (await scheduled_condition(client, "huge-0"))[1] == "Unschedulable"

            await until(is_told)
            assert (await scheduled_condition(client, "huge-0"))[2] == (
                "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
            )
            assert "Insufficient nvidia.com/gpu" in (await group_condition(client, "huge"))[2]
            await goes_on(client)
            await scheduler.idle()
            check(scheduler.cluster)
            assert b"hekla_waiting_jobs" in generate_latest(REGISTRY)

    asyncio.run(story())


@pytest.mark.parametrize("amount", ["1e308", "9e999", "9" * 200])
def test_a_quantity_that_no_float_holds_leaves_the_metrics_readable_and_every_plugin_at_work(amount: str) -> None:
    # `proportional` subtracted it from what is idle, and one such pod made /metrics fail for the whole platform
    fit = "resource-strategy-fit, arguments: {proportional: {enable: true, resources: nvidia.com/gpu, "
    fit += "resourceProportion: {nvidia.com/gpu: {cpu: 1, memory: 1}}}}"
    configuration = DEFAULT_TEXT + f"  - {{name: {fit}}}\n"

    async def story() -> None:
        async with world(nodes=1, configuration=configuration) as (client, scheduler):
            await add_group(client, "huge", 1)
            resources = {"requests": {"cpu": amount, "memory": amount}}
            containers = [{"name": "main", "image": "trainer", "resources": resources}]
            await add_pod(client, "huge-0", group="huge", containers=containers)

            async def is_told() -> bool:
                return (await scheduled_condition(client, "huge-0"))[1] == "Unschedulable"

            await until(is_told)
            assert "stumbled" not in (await group_condition(client, "huge"))[2]
            await goes_on(client)
            await scheduler.idle()
            assert b"volcano_queue_request_milli_cpu" in generate_latest(REGISTRY)

    asyncio.run(story())


def test_a_node_that_says_it_has_more_than_can_be_counted_takes_pods_all_the_same() -> None:
    async def story() -> None:
        async with world(nodes=0) as (client, scheduler):
            await add_node(client, "boaster", gpus=2**63 - 1)
            await goes_on(client)
            await scheduler.idle()
            check(scheduler.cluster)
            assert b"hekla_idle_amount" in generate_latest(REGISTRY)

    asyncio.run(story())


def test_negative_amounts_are_refused_by_the_server_with_the_field() -> None:
    async def story() -> None:
        async with world(nodes=1) as (client, _):
            with pytest.raises(InvalidError, match="must be greater than or equal to 0"):
                await add_pod(client, "less", gpus=-1)
            await goes_on(client)

    asyncio.run(story())


def lax_pod(name: str, **requests: str) -> Pod:
    """A pod that a server without validation has let through."""
    document = {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"schedulerName": "volcano", "containers": [{"name": "c", "resources": {"requests": requests}}]},
        "status": {"phase": "Pending"},
    }
    return msgspec.convert(document, Pod)


@pytest.mark.parametrize("amount", ["-1", "-500m", "much", "-9223372036854775808"])
def test_a_negative_amount_that_comes_through_frees_nothing(amount: str) -> None:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    feed.on_pod(None, lax_pod("less", cpu=amount))
    task = feed.cluster.tasks["less"]
    assert not any(value < 0 for value in task.shape.request.values())
    blocked = task.spec.constraints.blocked
    assert blocked is not None
    assert blocked.sentence.startswith("pod cannot be understood: ")
    assert amount == "much" or blocked.sentence.endswith(f"cpu is {amount}, which is less than nothing")


@pytest.mark.parametrize(
    "spec", [{"capability": {"cpu": "-4"}}, {"guarantee": {"resource": {"cpu": "-1"}}}, {"deserved": {"cpu": "a lot"}}]
)
def test_a_queue_with_amounts_that_are_none_is_told_to_its_jobs(spec: dict[str, Any]) -> None:
    async def story() -> None:
        async with world(nodes=1) as (client, scheduler):
            await scheduler.idle()
            # past the server's validation
            scheduler.feed.on_queue(None, msgspec.convert({"metadata": {"name": "odd"}, "spec": spec}, Queue))
            await add_group(client, "unlucky", 1, queue="odd")
            await add_pod(client, "unlucky-0", gpus=1, group="unlucky")

            async def is_told() -> bool:
                return (await group_condition(client, "unlucky"))[:2] == ("Unschedulable", "QueueInvalid")

            await until(is_told)
            assert (await group_condition(client, "unlucky"))[2].startswith('queue "odd" cannot be used: ')
            await goes_on(client)

    asyncio.run(story())


def test_negative_amounts_of_a_gang_count_as_none() -> None:
    feed = ClusterFeed(Cluster(), scheduler_names=("volcano",))
    group = {"metadata": {"name": "g", "namespace": "d", "uid": "g"}, "spec": {"minResources": {"cpu": "-4"}}}
    feed.on_pod_group(None, msgspec.convert(group, PodGroup))
    assert not any(value < 0 for value in (feed.cluster.jobs["g"].spec.min_resources or {}).values())


def test_a_gang_that_needs_more_pods_than_it_has_is_told_so() -> None:
    async def story() -> None:
        async with world(nodes=1) as (client, _):
            await add_group(client, "short", 5)
            for number in range(2):
                await add_pod(client, f"short-{number}", group="short")

            async def is_told() -> bool:
                return (await group_condition(client, "short"))[0] == "Unschedulable"

            await until(is_told)
            assert (
                "Not enough valid tasks for gang-scheduling, valid: 2, min: 5"
                in (await group_condition(client, "short"))[2]
            )
            assert (
                "Not enough valid tasks for gang-scheduling, valid: 2, min: 5"
                in (await scheduled_condition(client, "short-0"))[2]
            )
            await goes_on(client)

    asyncio.run(story())


def test_queues_in_a_ring_or_below_nothing_keep_their_own_jobs_waiting_and_nobody_elses() -> None:
    async def story() -> None:
        async with world(nodes=1, configuration=TREE) as (client, _):
            await add_queue(client, "a", "b")
            await add_queue(client, "b", "a")
            await add_queue(client, "orphan", "nowhere")
            for queue in ("a", "orphan"):
                await add_group(client, f"in-{queue}", 1, queue=queue)
                await add_pod(client, f"in-{queue}-0", gpus=1, group=f"in-{queue}")

            async def is_told() -> bool:
                told = [await group_condition(client, f"in-{queue}") for queue in ("a", "orphan")]
                return all(condition[0] == "Unschedulable" for condition in told)

            await until(is_told)
            assert "b" in (await group_condition(client, "in-a"))[2]
            orphan = (await group_condition(client, "in-orphan"))[2]
            assert 'queue "orphan" is below "nowhere", which does not exist' in orphan
            await add_queue(client, "good")
            await goes_on(client, queue="good")
            assert (await nodes_of(client))["in-a-0"] == ""

    asyncio.run(story())


def test_a_ring_of_hypernodes_and_a_member_of_two_are_told_on_the_hypernodes() -> None:
    def hypernode(name: str, tier: int, *members: str, kind: str = "HyperNode") -> dict[str, Any]:
        listed = [{"type": kind, "selector": {"exactMatch": {"name": member}}} for member in members]
        return {"metadata": {"name": name}, "spec": {"tier": tier, "members": listed}}

    async def story() -> None:
        async with world(nodes=2, kinds=(PodGroup, Queue, HyperNode)) as (client, _):
            for document in (
                hypernode("s1", 1, "n0", kind="Node"), hypernode("s2", 1, "n0", kind="Node"),
                hypernode("ring-1", 2, "ring-2"), hypernode("ring-2", 2, "ring-1"),
            ):  # fmt: skip
                await client.create(HyperNode, document)

            async def is_told() -> bool:
                return all([await events(client, name) for name in ("s1", "s2", "ring-1", "ring-2")])

            await until(is_told)
            ((reason, message), *_) = await events(client, "s1")
            assert reason == "LeftOut"
            assert message == (
                'node "n0" is a member of hypernode "s1" and of "s2", which is not around it; it counts for "s1" alone'
            )
            told = [message for _, message in await events(client, "ring-1")]
            assert any("which is not below it" in message for message in told)
            topology = {"mode": "hard", "highestTierAllowed": 1}
            await goes_on(client, networkTopology=topology)

    asyncio.run(story())


def test_a_flood_of_hypernodes_has_their_tree_grown_now_and_then_and_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch, "REST_PER_LOOK", 1e9)  # it rests until the test ends that

    async def story() -> None:
        async with world(nodes=2, kinds=(PodGroup, Queue, HyperNode)) as (client, scheduler):
            topology, grown = scheduler.cluster.topology, list[int]()
            grow = topology.tree
            monkeypatch.setattr(topology, "tree", lambda: (grown.append(len(topology.specs)), grow())[1])
            for number in range(30):
                named = {"type": "Node", "selector": {"exactMatch": {"name": f"n{number}"}}}
                await client.create(
                    HyperNode, {"metadata": {"name": f"h{number}"}, "spec": {"tier": 1, "members": [named]}}
                )

            async def are_all_seen() -> bool:
                return len(topology.specs) == 30

            await until(are_all_seen)
            await scheduler.idle()
            assert len(grown) == 1, "while the scheduler rests from having it grown, others may come"
            scheduler._rested()
            await scheduler.idle()
            assert grown[1:] == [30], "what came meanwhile is heeded then"

    asyncio.run(story())


def test_a_node_that_vanishes_between_the_decision_and_the_bind_stops_nobody() -> None:
    async def story() -> None:
        async with world(nodes=1) as (client, scheduler):
            before = scheduler._binder.submit

            def vanish(bind: Any) -> None:
                scheduler.feed.on_node(node("n0"), None)
                before(bind)

            scheduler._binder.submit = vanish  # type: ignore[method-assign]
            await add_group(client, "caught", 2)
            for number in range(2):
                await add_pod(client, f"caught-{number}", gpus=1, group="caught")
            await until(lambda: is_decided(scheduler))
            scheduler._binder.submit = before  # type: ignore[method-assign]
            await add_node(client, "n9")
            await goes_on(client)
            await scheduler.idle()
            check(scheduler.cluster)

    asyncio.run(story())


async def is_decided(scheduler: BatchScheduler) -> bool:
    return any(task.status is not TaskStatus.PENDING for task in scheduler.cluster.tasks.values())


def node(name: str) -> Node:
    return msgspec.convert({"metadata": {"name": name}}, Node)


def test_a_job_over_which_a_cycle_stumbles_is_set_aside_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one job does to a plug-in must not be done to the rest of the cluster every second."""
    is_ready = Gang.is_ready

    def stumbles(self: Gang, session: Session, job: Job) -> bool:
        if job.spec.name == "poison":
            raise ZeroDivisionError
        return is_ready(self, session, job)

    monkeypatch.setattr(Gang, "is_ready", stumbles)

    async def story() -> None:
        async with world(nodes=1) as (client, scheduler):
            await add_group(client, "poison", 1)
            await add_pod(client, "poison-0", gpus=1, group="poison")
            await goes_on(client)

            async def is_told() -> bool:
                return (await group_condition(client, "poison"))[:2] == ("Unschedulable", "SchedulerError")

            await until(is_told)
            check(scheduler.cluster)

    asyncio.run(story())
