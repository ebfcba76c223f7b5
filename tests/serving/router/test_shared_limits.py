"""Budgets that routers share: one budget for all of them, and each by itself while the server is gone."""

import asyncio

import pytest
import structlog
from redis.asyncio import Redis

from hekla.edge.redis_buckets import RedisBuckets, buckets_at
from hekla.edge.shared_buckets import AbsentBuckets, BucketsGoneError, MemoryBuckets, Share
from hekla.serving.router import shared_limits
from hekla.serving.router.doors import SharedBudgets
from hekla.serving.router.limits import Limit
from hekla.serving.router.plan import NOT_ASKED, Refusal, Usage
from hekla.serving.router.question import Question
from hekla.serving.router.shared_limits import SharedLimits

LIMIT = Limit(input_tokens=100, output_tokens=50, period_s=86_400.0, key="llama", redis="redis:6379")


def ask(tokens=30, model="llama"):
    return Question(path="/v1/x", model=model, prompt=b"", input_tokens=tokens)


class Gone:
    """A server that is not there."""

    async def take(self, asked):
        raise BucketsGoneError("connection refused")


class Silent:
    """A server that never answers."""

    is_closed = False

    async def take(self, asked):
        await asyncio.Event().wait()

    async def close(self):
        self.is_closed = True


class Router:
    """One router's guard, its clock, and a way to wait for what it decides."""

    def __init__(self, buckets, server=""):
        self.now = 0.0
        self.guard = SharedLimits(buckets, lambda: self.now, server=server)
        self.guard.set_routes({"llama": LIMIT})
        self.running = asyncio.create_task(self.guard.run())

    async def send(self, question):
        found = self.guard.admit(question, self.now)
        if found is None or isinstance(found, Refusal):
            return found
        told = asyncio.get_running_loop().create_future()
        found.when_ready(told.set_result)
        return await told

    async def close(self):
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)


def tell(story):
    asyncio.run(story())


async def share_one_budget(buckets):
    routers = [Router(buckets), Router(buckets)]
    answers = [await routers[number % 2].send(ask()) for number in range(4)]
    assert [one is None for one in answers] == [True, True, True, False]
    assert answers[3].message.startswith("input token rate limit exceeded: the route of ")
    routers[0].guard.ended(ask(), Usage(10, 60), 0.0)
    while (refusal := await routers[1].send(ask(1))) is None:
        pass  # the settlement goes with the next batch
    assert refusal.message.startswith("output token rate limit exceeded: the route of ")
    for one in routers:
        await one.close()


def test_routers_share_one_budget():
    tell(lambda: share_one_budget(MemoryBuckets(lambda: 0.0)))


@pytest.fixture
def patient(monkeypatch):
    """A server that is there is waited for, however busy the machine: 250 ms were not enough at a load of 95."""
    monkeypatch.setattr(shared_limits, "TIMEOUT_S", 60.0)


@pytest.mark.usefixtures("patient")
def test_routers_share_one_budget_in_a_real_server(redis):
    async def story():
        client = Redis.from_url(redis.url)
        await client.flushall()
        await share_one_budget(RedisBuckets(client))
        await client.aclose()

    tell(story)


@pytest.mark.usefixtures("patient")
def test_a_key_that_holds_no_bucket_is_one_limits_trouble_and_not_the_servers(redis):
    """It counted as a server that is gone, for every limit that was kept there."""

    async def story():
        client = Redis.from_url(redis.url)
        await client.flushall()
        await client.set("kthena:ratelimit:llama:input", "somebody else's")
        router = Router(RedisBuckets(client), server="redis")
        other = Limit(input_tokens=100, output_tokens=None, period_s=86_400.0, key="other", redis="redis:6379")
        router.guard.set_routes({"llama": LIMIT, "other": other})
        with structlog.testing.capture_logs() as told:
            both = await asyncio.gather(router.send(ask(60)), router.send(ask(60, "other")))
            assert both == [None, None]
            assert (await router.send(ask(60, "other"))).status == 429
            assert (await router.send(ask(60))).status == 429  # by itself
        assert not router.guard.is_gone
        assert [one["event"] for one in told] == ["shared limit unusable, each router keeps it alone"]
        assert "kthena:ratelimit:llama:input" in told[0]["why"]
        assert await client.get("kthena:ratelimit:llama:input") == b"somebody else's"
        assert float(await client.hget("kthena:ratelimit:other:input", "tokens")) == pytest.approx(40, abs=1)
        await router.close()
        await client.aclose()

    tell(story)


class Slow(MemoryBuckets):
    """A server whose answers come when it is let go."""

    def __init__(self):
        super().__init__(lambda: 0.0)
        self.is_asked, self.may_answer = asyncio.Event(), asyncio.Event()

    async def take(self, asked):
        self.is_asked.set()
        await self.may_answer.wait()
        return await super().take(asked)


def test_whose_client_leaves_while_the_server_is_asked_takes_nothing():
    """Nobody told the server that no engine was asked: whoever came and left emptied the route's budget for all."""

    async def story():
        buckets = Slow()
        router = Router(buckets)
        for _ in range(2):
            found = router.guard.admit(ask(60), 0.0)
            found.when_ready(lambda refusal: None)
            await buckets.is_asked.wait()
            found.abandon()
            buckets.may_answer.set()
            assert await router.send(ask(1)) is None
            buckets.is_asked.clear()
            buckets.may_answer.clear()
        before = router.guard.admit(ask(60), 0.0)
        before.when_ready(lambda refusal: None)
        before.abandon()
        buckets.may_answer.set()
        assert await router.send(ask(90)) is None
        await router.close()

    tell(story)


def test_a_request_that_no_engine_was_asked_gives_its_tokens_back():
    async def story():
        router = Router(MemoryBuckets(lambda: 0.0))
        for _ in range(5):
            assert await router.send(ask(60)) is None
            router.guard.ended(ask(60), NOT_ASKED, 0.0)
        await router.close()

    tell(story)


def test_tokens_are_given_back_to_whom_they_were_taken_from_alone():
    """A request that came while the server was gone and was not asked when it was back filled the server's budget."""

    async def story():
        buckets = MemoryBuckets(lambda: 0.0)
        router = Router(buckets)
        assert await router.send(ask(100)) is None
        found, router.guard._buckets = router.guard._buckets, Gone()
        alone = ask(60)
        assert await router.send(alone) is None
        router.guard._buckets, router.now = found, 2.0
        router.guard.ended(alone, NOT_ASKED, 2.0)
        assert (await router.send(ask(1))).message.startswith("input"), "the server took nothing for it"
        router.guard._buckets = Gone()
        assert await router.send(ask(90)) is None, "the router itself did"
        router.guard.ended(ask(100), NOT_ASKED, 2.0)
        assert (await router.send(ask(30))).status == 429, "and nothing of what the server took"
        router.guard._buckets, router.now = found, 4.0
        router.guard.ended(alone, Usage(60, 60), 4.0)
        assert [one.take for one in router.guard._pending[0].shares] == [60], "of an answer's tokens it is told"
        await router.close()

    tell(story)


def test_a_model_without_a_shared_limit_is_not_asked_about():
    async def story():
        router = Router(Gone())
        assert router.guard.admit(ask(model="other"), 0.0) is None
        await router.close()

    tell(story)


def test_a_limit_that_bounds_nothing_is_not_asked_about():
    """Redis was asked of no bucket, which it cannot answer: whose budgets are there waited a second for each such request."""

    async def story():
        router = Router(Gone())
        router.guard.set_routes({"llama": Limit(key="llama", redis="redis:6379")})
        assert router.guard.admit(ask(), 0.0) is None
        assert not router.guard.is_gone
        await router.close()

    tell(story)


def test_a_router_goes_on_alone_within_the_limit_when_the_server_is_gone():
    async def story():
        router = Router(Gone())
        answers = [await router.send(ask()) for _ in range(4)]
        assert [one is None for one in answers] == [True, True, True, False]
        assert router.guard.is_alone
        router.guard.ended(ask(), Usage(30, 70), 0.0)
        assert (await router.send(ask(1))).message.startswith("output token rate limit exceeded")
        await router.close()

    tell(story)


def test_nobody_waits_for_a_server_that_speaks_redis_and_says_something_else():
    """Who had asked waited until their requests were given up, an hour later: the answer ended who carries them."""

    async def says_ok(reader, writer):
        while data := await reader.read(65_536):
            writer.write(b"+OK\r\n" * (data.count(b"\r\n*") + 1))

    async def story():
        server = await asyncio.start_server(says_ok, "127.0.0.1", 0)
        router = Router(RedisBuckets(Redis(port=server.sockets[0].getsockname()[1])))
        async with asyncio.timeout(10):
            assert await router.send(ask()) is None
            assert router.guard.is_alone
        await router.close()
        server.close()

    tell(story)


def test_nobody_waits_for_a_mistake_of_ours():
    class Broken:
        async def take(self, asked):
            raise ZeroDivisionError

    async def story():
        router = Router(Broken())
        async with asyncio.timeout(10):
            assert await router.send(ask()) is None
        with pytest.raises(ZeroDivisionError):
            await router.running

    tell(story)


def test_the_log_says_once_that_the_server_is_gone_and_once_that_it_is_back():
    async def story():
        buckets = Gone()
        router = Router(buckets, server="cache:6379")
        with structlog.testing.capture_logs() as logs:
            for now in (0.0, 2.0, 4.0):
                router.now = now
                await router.send(ask(1))
            buckets.take = MemoryBuckets(lambda: router.now).take
            for now in (6.0, 8.0):
                router.now = now
                await router.send(ask(1))
        assert [(one["event"].split(",")[0], one["server"]) for one in logs] == [
            ("shared limits unreachable", "cache:6379"), ("shared limits reachable again", "cache:6379"),
        ]  # fmt: skip
        await router.close()

    tell(story)


def test_without_the_package_the_limit_holds_all_the_same():
    async def story():
        router = Router(AbsentBuckets("not installed"))
        answers = [await router.send(ask()) for _ in range(4)]
        assert [one is None for one in answers] == [True, True, True, False]
        await router.close()

    tell(story)


def test_a_server_that_is_gone_is_so_between_two_questions_too():
    async def story():
        router = Router(Gone())
        assert not router.guard.is_gone
        assert await router.send(ask()) is None
        router.now = 60.0
        assert (router.guard.is_alone, router.guard.is_gone) == (False, True)
        await router.close()

    tell(story)


def test_a_server_that_is_back_is_found_so_where_no_request_comes():
    """The gauge stayed 1 until one came."""

    async def story():
        buckets = MemoryBuckets(lambda: 0.0)
        router = Router(Gone())
        assert await router.send(ask()) is None
        router.guard.ask_anew()
        assert not router.guard._pending, "it was asked a moment ago"
        router.guard._buckets, router.now = buckets, 60.0
        router.guard.ask_anew()
        async with asyncio.timeout(10):
            while router.guard.is_gone:
                await asyncio.sleep(0)
        assert await router.send(ask(100)) is None, "nothing was taken"
        await router.close()

    tell(story)


def test_a_server_that_says_nothing_holds_nobody(monkeypatch):
    monkeypatch.setattr(shared_limits, "TIMEOUT_S", 0.001)

    async def story():
        router = Router(Silent())
        assert await router.send(ask()) is None
        assert router.guard.is_alone
        await router.close()

    tell(story)


@pytest.mark.usefixtures("patient")
def test_a_server_that_comes_back_is_used_again(redis):
    async def story():
        client = Redis.from_url(redis.url)
        router = Router(RedisBuckets(client))
        redis.stop()
        assert await router.send(ask(100)) is None
        assert router.guard.is_alone
        redis.start()
        router.now = 2.0
        assert await router.send(ask(100)) is None
        assert (await router.send(ask(100))).status == 429
        assert not router.guard.is_alone
        await router.close()
        await client.aclose()

    tell(story)


@pytest.mark.usefixtures("patient")
def test_a_server_that_goes_keeps_no_connection_of_the_router(redis):
    async def story():
        client = Redis.from_url(redis.url, max_connections=1)
        router = Router(RedisBuckets(client))
        await router.send(ask(1))
        for at in range(2, 8, 2):
            redis.stop()
            router.now = at
            await router.send(ask(1))
            assert router.guard.is_alone
            redis.start()
            router.now = at + 1.5
            await router.send(ask(1))
            assert not router.guard.is_alone
        await router.close()
        await client.aclose()

    tell(story)


@pytest.mark.usefixtures("patient")
def test_a_server_that_refuses_connections_is_told_as_such_and_not_waited_for():
    async def story():
        buckets = buckets_at("127.0.0.1", 1, "")
        with pytest.raises(BucketsGoneError, match=r"Error 111 connecting to 127\.0\.0\.1:1"):
            await buckets.take([[Share("a", 10, 1.0, 1, 1)]])
        await buckets.close()

    tell(story)


def test_who_leaves_is_not_called():
    async def story():
        router = Router(MemoryBuckets(lambda: 0.0))
        told = []
        held = router.guard.admit(ask(), 0.0)
        held.when_ready(told.append)
        held.abandon()
        assert await router.send(ask()) is None
        assert told == []
        await router.close()

    tell(story)


def test_what_waits_for_the_server_is_bounded(monkeypatch):
    monkeypatch.setattr(shared_limits, "MOST_PENDING", 2)

    async def story():
        router = Router(Silent())
        answers = [router.guard.admit(ask(30), 0.0) for _ in range(7)]
        assert answers[2:5] == [None, None, None]
        assert answers[5].status == 429
        await router.close()

    tell(story)


def test_a_server_that_no_route_names_any_more_is_let_go_and_nobody_waits_for_it():
    async def story():
        made = []

        def connect(address):
            made.append(Silent())
            return made[-1]

        budgets = SharedBudgets(connect, lambda: 0.0)
        running = asyncio.create_task(budgets.run())
        budgets.set_routes({"llama": LIMIT})
        waiting = budgets.admit(ask(), 0.0)
        told = asyncio.get_running_loop().create_future()
        waiting.when_ready(told.set_result)
        await asyncio.sleep(0)
        budgets.set_routes({})
        assert await told is None
        while not made[0].is_closed:
            await asyncio.sleep(0)
        assert budgets.admit(ask(), 0.0) is None
        budgets.set_routes({"llama": LIMIT})
        assert len(made) == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert made[1].is_closed or not any(budgets.is_alone.values())

    tell(story)
