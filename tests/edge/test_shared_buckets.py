"""Buckets kept in common: the keeper in memory and the one in a real Redis answer alike."""

import asyncio
import math

import pytest
from redis.asyncio import Redis

from hekla.edge.redis_buckets import RedisBuckets
from hekla.edge.shared_buckets import MemoryBuckets, Share, place_of

DAY_S = 86_400.0


def share(key, take, *, amount=100, need=None, period_s=DAY_S):
    return Share(key, amount, period_s, take, need)


class InMemory:
    """The keeper whose clock stands still."""

    def tell(self, story):
        asyncio.run(story(MemoryBuckets(lambda: 0.0)))


class InRedis:
    """The keeper in the server; periods are so long that nothing worth a token flows in while a test runs."""

    def __init__(self, url):
        self.url = url

    def tell(self, story):
        async def told():
            client = Redis.from_url(self.url)
            await client.flushall()
            try:
                await story(RedisBuckets(client))
            finally:
                await client.aclose()

        asyncio.run(told())


@pytest.fixture(params=["memory", "redis"])
def keeper(request):
    return InMemory() if request.param == "memory" else InRedis(request.getfixturevalue("redis").url)


def test_a_bucket_is_full_at_first_and_gives_no_more_than_it_has(keeper):
    async def story(buckets):
        one = [share("a", 60, need=60)]
        assert await buckets.take([one]) == [None]
        (lack,) = await buckets.take([one])
        assert lack.number == 0
        assert lack.wait_s == pytest.approx(DAY_S / 100 * 20, rel=0.01)

    keeper.tell(story)


def test_a_request_takes_all_its_shares_or_none(keeper):
    async def story(buckets):
        both = [share("a", 40, need=40), share("b", 80, need=80)]
        first, second = await buckets.take([both, both])
        assert first is None
        assert second.number == 1
        assert await buckets.take([[share("a", 60, need=60)]]) == [None]

    keeper.tell(story)


def test_what_was_used_already_is_taken_into_debt_and_given_back_no_further_than_full(keeper):
    async def story(buckets):
        assert await buckets.take([[share("a", 250)]]) == [None]
        assert await buckets.take([[share("a", -160)]]) == [None]
        assert (await buckets.take([[share("a", 20, need=20)]]))[0].number == 0
        assert await buckets.take([[share("a", -1000)], [share("a", 100, need=100)]]) == [None, None]
        assert (await buckets.take([[share("a", 1, need=1)]]))[0] is not None

    keeper.tell(story)


def test_more_than_a_bucket_holds_is_never_there(keeper):
    async def story(buckets):
        assert (await buckets.take([[share("a", 101, need=101)]]))[0].wait_s == math.inf

    keeper.tell(story)


def test_a_long_batch_is_answered_in_order(keeper):
    async def story(buckets):
        answers = await buckets.take([[share("a", 1, need=1, amount=300)] for _ in range(700)])
        assert [one is None for one in answers] == [True] * 300 + [False] * 400

    keeper.tell(story)


def test_routers_and_kthenas_read_the_same_hash(redis):
    async def story():
        client = Redis.from_url(redis.url, decode_responses=True)
        await client.hset("kthena:ratelimit:m:input", mapping={"tokens": "7", "last_update": "99999999999"})
        buckets = RedisBuckets(client)
        asked = [share("kthena:ratelimit:m:input", 5, need=5, period_s=60.0)]
        assert await buckets.take([asked]) == [None]
        assert await buckets.take([asked]) != [None]
        kept = await client.hgetall("kthena:ratelimit:m:input")
        assert float(kept["tokens"]) < 3
        assert 0 < await client.ttl("kthena:ratelimit:m:input") <= 600
        await buckets.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("cache:6380", ("cache", 6380)),
        ("cache.ns.svc", ("cache.ns.svc", 6379)),
        ("[::1]:7000", ("::1", 7000)),
        ("[::1]", ("::1", 6379)),
        *((wrong, None) for wrong in ("", ":", ":6379", "::bad", "cache:", "cache:x", "cache:0", "cache:65536", "::1", "redis://c:1", "a b:1", "c:٣")),
    ],
)  # fmt: skip
def test_the_place_of_a_server_is_read_from_its_address(address, place):
    assert place_of(address) == place
