"""What a scheduler that is started anew must know: written by the one before, read by the next."""

import asyncio

import msgspec
import pytest

from hekla.api.core import ConfigMap
from hekla.kube.api_client import ApiClient
from hekla.kube.errors import NotFoundError
from hekla.placement.cluster import Cluster
from hekla.scheduler.batch import BatchScheduler
from hekla.scheduler.memory import (
    KEY,
    MOST_PAIRS,
    NAME,
    Memory,
    MemoryKeeper,
    PrecedencePair,
    fingerprint,
    memory_of,
    recall,
)
from scheduler.schedulerkit import running, until, world

NAMESPACE = "kube-system"


def test_what_is_remembered_is_known_again_by_another_clock() -> None:
    before, after = Cluster(), Cluster()
    before.precedence.note("first", "second", 90.0)
    before.let_in.add("large")
    before.last_due["rescheduling"] = 1000.0
    memory = msgspec.json.decode(msgspec.json.encode(memory_of(before, now=100.0, wall_s=5000.0)), type=Memory)
    assert memory.precedence == [PrecedencePair(uid="second", first="first", at=4990.0)]
    recall(after, memory, now=3.0, wall_s=5020.0)
    assert after.precedence.pairs() == [("second", "first", -27.0)]
    assert (after.let_in, after.last_due) == ({"large"}, {"rescheduling": 1000.0})
    assert memory_of(after, now=3.0, wall_s=5020.0) == memory


def test_a_ring_that_somebody_wrote_is_cut() -> None:
    cluster = Cluster()
    ring = [
        PrecedencePair(uid="a", first="b", at=1.0),
        PrecedencePair(uid="b", first="a", at=2.0),
        PrecedencePair(uid="c", first="c", at=3.0),
    ]
    recall(cluster, Memory(precedence=ring), now=0.0, wall_s=10.0)
    assert cluster.precedence.pairs() == [("a", "b", -9.0)]


def test_only_the_newest_pairs_are_kept() -> None:
    cluster = Cluster()
    for number in range(MOST_PAIRS + 5):
        cluster.precedence.note("first", f"j{number:05}", float(number))
    kept = memory_of(cluster, now=0.0, wall_s=0.0).precedence
    assert (len(kept), kept[0].uid) == (MOST_PAIRS, "j00005")


def test_everything_that_is_remembered_is_news() -> None:
    cluster = Cluster()
    seen = [fingerprint(cluster)]
    cluster.precedence.note("first", "second", 0.0)
    seen.append(fingerprint(cluster))
    cluster.let_in.add("large")
    seen.append(fingerprint(cluster))
    cluster.last_due["tdm"] = 1.0
    seen.append(fingerprint(cluster))
    cluster.precedence.world_changed()
    cluster.precedence.forget_old(1e9)
    seen.append(fingerprint(cluster))
    assert len(set(seen)) == len(seen)


def test_who_has_a_key_of_its_own_since_an_upgrade_remembers_what_it_wrote_before() -> None:
    """Every scheduler wrote under `memory`: one of another name than `volcano` forgot who made way, and two jobs could change places."""

    async def story() -> None:
        async with world(nodes=1) as (client, first):
            await until(lambda: _follows(first))
            first.cluster.precedence.note("urgent", "modest", first.now_s())
            await first._memory.keep()

            def of_team() -> tuple[Cluster, MemoryKeeper]:
                cluster = Cluster()
                times = lambda: (first.now_s(), 1.8e9)  # noqa: E731
                return cluster, MemoryKeeper(client, NAMESPACE, cluster=cluster, times=times, key=f"{KEY}.team-a")

            cluster, keeper = of_team()
            await keeper.recall()
            assert cluster.precedence.before("modest") == frozenset({"urgent"})
            await keeper.keep()
            await client.patch(ConfigMap, NAME, {"data": {KEY: '{"letIn":["anothers"]}'}}, NAMESPACE)
            cluster, keeper = of_team()
            await keeper.recall()
            assert cluster.precedence.before("modest") == frozenset({"urgent"})
            assert cluster.let_in == set(), "what others wrote since is theirs"

    asyncio.run(story())


async def _is_written(client: ApiClient, words: str) -> bool:
    try:
        return words in (await client.get(ConfigMap, NAME, NAMESPACE)).data.get(KEY, "")
    except NotFoundError:
        return False


async def _follows(scheduler: BatchScheduler) -> bool:
    return scheduler.is_following


@pytest.mark.parametrize("text", [None, "{", '{"precedence": 5}'], ids=["written", "broken", "of-another-kind"])
def test_who_made_way_is_known_after_a_restart(text: str | None) -> None:
    asyncio.run(start_anew(text))


async def start_anew(text: str | None) -> None:
    async with world(nodes=1) as (client, first):
        await until(lambda: _follows(first))
        first.cluster.precedence.note("urgent", "modest", first.now_s())
        await first._memory.keep()
        assert await _is_written(client, '"uid":"modest","for":"urgent"')
        if text is not None:
            await client.patch(ConfigMap, NAME, {"data": {KEY: text}}, NAMESPACE)
        async with running(client) as second:
            await until(lambda: _follows(second))
            assert second.cluster.precedence.before("modest") == (
                frozenset({"urgent"}) if text is None else frozenset()
            )
            second.cluster.let_in.add("large")
            await second._memory.keep()
            assert await _is_written(client, '"letIn":["large"]'), "a broken memory is written anew"
