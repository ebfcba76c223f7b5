"""Schedulers that share a cluster by NodeShards: what is told to be in use, and when."""

import asyncio
from typing import Any

import msgspec

from hekla.api.pods import Pod
from hekla.api.volcano.scheduling import PodGroup, Queue
from hekla.api.volcano.shard import NodeShard
from hekla.dialects.shards import NodeShards, Sharding, ShardingMode
from hekla.kube.api_client import ApiClient
from hekla.kube.informer import Informers
from hekla.placement.shard import ShardSide
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.settings import EMBEDDED_SCHEDULER_NAMES, SchedulerSettings
from hekla.testing.server import api_server, in_process_client
from scheduler.schedulerkit import add_node, scheduled_condition, served, until


def shard(name: str, desired: list[str], in_use: list[str] | None = None) -> NodeShard:
    document = {
        "metadata": {"name": name, "resourceVersion": "7"}, "spec": {"nodesDesired": desired},
        "status": {"nodesInUse": in_use or []},
    }  # fmt: skip
    return msgspec.convert(document, NodeShard)


def test_what_is_desired_is_ours_but_for_what_others_have_in_use() -> None:
    shards = NodeShards(Sharding(mode=ShardingMode.HARD, name="mine"))
    assert list(shards.put(None, shard("mine", ["n1", "n2"]))) == ["n1", "n2"]
    assert list(shards.put(None, shard("other", [], ["n2", "n3"]))) == ["n2"]
    sides = {name: shards.side_of(name) for name in ("n1", "n2", "n3")}
    assert sides == {"n1": ShardSide.OURS, "n2": ShardSide.SHUT, "n3": ShardSide.SHUT}
    assert list(shards.put(shard("mine", ["n1", "n2"]), None)) == ["n1"]  # what is lost changes sides, too


def test_what_is_in_use_is_told_with_what_has_still_to_change_hands() -> None:
    shards = NodeShards(Sharding(mode=ShardingMode.SOFT, name="mine"))
    shards.put(None, shard("other", [], ["n2"]))
    shards.put(None, shard("mine", ["n1", "n2"], ["n0"]))
    patch = shards.status_patch("2026-01-01T00:00:00Z")
    assert patch == {
        "metadata": {"resourceVersion": "7"},
        "status": {
            "nodesInUse": ["n1"], "nodesToRemove": [], "nodesToAdd": ["n2"],
            "lastUpdateTime": "2026-01-01T00:00:00Z",
        },
    }  # fmt: skip


def test_nothing_is_told_where_it_has_been_told_or_nobody_asked() -> None:
    told = msgspec.structs.replace(shard("mine", ["n1"], ["n1"]))
    shards = NodeShards(Sharding(mode=ShardingMode.HARD, name="mine"))
    assert shards.status_patch("now") is None
    shards.put(None, told)
    assert shards.status_patch("now") is None
    heedless = NodeShards(Sharding(name="mine"))
    heedless.put(None, shard("mine", ["n1"]))
    assert heedless.status_patch("now") is None
    assert heedless.side_of("n2") is ShardSide.OURS


def test_two_shards_never_have_one_node_in_use_whatever_the_order_of_news() -> None:
    """The hand-over: each takes what it should have once the other has told that it has let go."""
    mine, other = (NodeShards(Sharding(mode=ShardingMode.HARD, name=name)) for name in ("mine", "other"))
    states = {"mine": shard("mine", ["n1", "n2"], ["n1", "n2"]), "other": shard("other", ["n3"], ["n3"])}
    for shards in (mine, other):
        for state in states.values():
            shards.put(None, state)

    def tell(name: str, **fields: Any) -> None:
        before = states[name]
        states[name] = shard(
            name, fields.get("desired", before.spec.nodes_desired), fields.get("in_use", before.status.nodes_in_use)
        )
        for shards in (mine, other):
            shards.put(before, states[name])
        assert not set(states["mine"].status.nodes_in_use) & set(states["other"].status.nodes_in_use)

    tell("other", desired=["n2", "n3"])
    assert other.side_of("n2") is ShardSide.SHUT  # still in use by the other one
    tell("mine", desired=["n1"])
    patch = mine.status_patch("now")
    assert patch is not None
    tell("mine", in_use=patch["status"]["nodesInUse"])
    assert other.side_of("n2") is ShardSide.OURS
    patch = other.status_patch("now")
    assert patch is not None
    tell("other", in_use=patch["status"]["nodesInUse"])
    assert states["other"].status.nodes_in_use == ["n2", "n3"]


def test_a_scheduler_with_a_hard_shard_binds_there_alone_and_tells_what_it_uses() -> None:
    async def story(client: ApiClient) -> None:
        await client.create(NodeShard, {"metadata": {"name": "volcano"}, "spec": {"nodesDesired": ["n1"]}})

        async def is_told() -> bool:
            return (await client.get(NodeShard, "volcano")).status.nodes_in_use == ["n1"]

        await until(is_told)
        for number in range(3):
            container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
            spec = {"containers": [container]}
            await client.create(Pod, {"metadata": {"name": f"p{number}", "namespace": "default"}, "spec": spec})
        for number in range(3):

            async def node(number: int = number) -> str:
                return (await client.get(Pod, f"p{number}", "default")).spec.node_name

            await until(node)
            assert await node() == "n1"

    asyncio.run(with_shards(story))


def test_a_scheduler_without_its_hard_shard_says_that_there_is_none() -> None:
    async def story(client: ApiClient) -> None:
        container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "1"}}}
        metadata = {"name": "p", "namespace": "default"}
        await client.create(Pod, {"metadata": metadata, "spec": {"containers": [container]}})

        async def says() -> str:
            return (await scheduled_condition(client, "p"))[2]

        await until(says)
        assert await says() == (
            '0/3 nodes are available: 3 node(s) could not be used as the scheduler\'s NodeShard "volcano" does not exist '
            "(create it, or run the scheduler with --scheduler-sharding-mode=none)."
        )
        await client.create(NodeShard, {"metadata": {"name": "volcano"}, "spec": {"nodesDesired": ["n9"]}})
        await until(lambda: _eventually(says, "3 node(s) were not in the scheduler's shard."))

    async def _eventually(says: Any, words: str) -> bool:
        return str(await says()).endswith(words)

    asyncio.run(with_shards(story))


async def with_shards(story: Any) -> None:
    kinds = (PodGroup, Queue, NodeShard)
    sharding = Sharding(mode=ShardingMode.HARD)
    async with api_server(kinds=kinds) as server, in_process_client(server) as client:
        for kind in kinds:
            await until(lambda kind=kind: served(client, kind))  # type: ignore[misc]
        for number in range(3):
            await add_node(client, f"n{number}")
        async with Informers(client) as informers:
            settings = SchedulerSettings(scheduler_names=EMBEDDED_SCHEDULER_NAMES, sharding=sharding)
            task = asyncio.create_task(BatchScheduler(informers, settings).run())
            try:
                await story(client)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
