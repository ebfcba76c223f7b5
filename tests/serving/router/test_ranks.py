"""Data-parallel ranks of one engine: each is an endpoint with a cache, a queue and a publisher of its own."""

import asyncio
import socket

import msgspec
import pytest
import zmq
import zmq.asyncio

from hekla.serving.router.annotations import KV_EVENTS_PORT, KV_REPLAY_PORT, RANKS
from hekla.serving.router.cache_events import CacheEvents
from hekla.serving.router.endpoints import Fleet
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Destination, Fault
from hekla.serving.router.policies.soonest import Soonest
from hekla.serving.router.pool import Pool
from hekla.serving.router.question import Question
from hekla.serving.router.scraping import Scraper, read_sample
from hekla.serving.router.world import World
from hekla.wire.client import HttpClient
from hekla.wire.messages import Response
from serving.router.worldkit import pod, server

PATIENCE_S = 60.0
END = (-1).to_bytes(8, "big", signed=True)


def annotated(name, ranks, *, events=0, replays=0, ip="127.0.0.1"):
    one = pod(name, {"app": "s"}, ip=ip)
    told = {RANKS: ranks, KV_EVENTS_PORT: events, KV_REPLAY_PORT: replays}
    one.metadata.annotations.update({key: str(value) for key, value in told.items() if value})
    return one


def world_of(*objects):
    fleet = Fleet()
    made = World(fleet, lambda name: Pool(name, fleet, Soonest(), lambda: 0.0))
    for one in objects:
        made.note(None, one)
    return made


def members(at):
    return [one for pool in at.pools() for one in pool.members]


def test_a_pod_brings_one_endpoint_for_each_rank():
    found = members(world_of(server("s"), annotated("engine", 3, events=5557, replays=6557)))
    assert [(one.name, one.rank, one.host, one.port) for one in found] == [
        ("engine", 0, "127.0.0.1", 8000), ("engine@1", 1, "127.0.0.1", 8000), ("engine@2", 2, "127.0.0.1", 8000)
    ]  # fmt: skip
    assert [(one.events_port, one.replay_port) for one in found] == [(5557, 6557), (5558, 6558), (5559, 6559)]
    assert [one.headers for one in found] == [((b"X-data-parallel-rank", b"%d" % rank),) for rank in range(3)]
    assert len({one.slot for one in found}) == 3


@pytest.mark.parametrize("said", ["9" * 5000, "\u0663", "", "1", "0", "-2", "two"])
def test_an_engine_without_ranks_is_one_endpoint_and_its_requests_carry_nothing(said):
    [one] = members(world_of(server("s"), annotated("engine", said, events=5557)))
    assert (one.name, one.rank, one.headers, one.events_port) == ("engine", None, (), 5557)


def test_a_rank_whose_port_would_lie_beyond_all_ports_is_not_followed():
    found = members(world_of(server("s"), annotated("engine", "2", events=65_535)))
    assert [one.events_port for one in found] == [65_535, 0]
    [beyond] = members(world_of(server("s"), annotated("engine", "", events=70_000)))
    assert beyond.events_port == 0


def test_ranks_come_and_go_with_what_the_pod_says():
    before, after = annotated("engine", 2), annotated("engine", 0)
    at = world_of(server("s"), before)
    assert len(members(at)) == 2
    at.note(before, after)
    assert [(one.name, one.headers) for one in members(at)] == [("engine", ())]


def asked(pool, now, prompt=b"hello"):
    plan = LocalPlan(pool, Question("/v1/completions", "m", prompt, max(1, len(prompt) // 4)), Destination("m"))
    return plan, plan.next(now)


def test_requests_are_spread_over_ranks_and_say_which():
    at = world_of(server("s"), annotated("engine", 2))
    [pool] = [pool for pool in at.pools() if pool.members]
    headers = [asked(pool, 0.0, b"%d" % number * 4000)[1].headers for number in range(4)]
    assert sorted(headers) == [((b"X-data-parallel-rank", b"%d" % rank),) for rank in (0, 0, 1, 1)]


def test_an_engine_that_fails_is_not_asked_again_by_its_other_ranks():
    at = world_of(server("s"), annotated("a", 4), annotated("b", 4, ip="127.0.0.2"))
    [pool] = [pool for pool in at.pools() if pool.members]
    plan, first = asked(pool, 0.0)
    plan.failed(first, Fault.CONNECT, 0.0)
    assert plan.next(0.0).target.host != first.target.host


PAGE = """\
vllm:num_requests_running{engine="0",model_name="m"} 3
vllm:num_requests_running{engine="1",model_name="m"} 5
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="0"} 1
vllm:cache_config_info{block_size="16",num_gpu_blocks="100",engine="1"} 1
"""


def test_each_rank_is_what_its_own_series_say():
    whole, first, second = (read_sample(PAGE, None, rank)[0] for rank in (None, 0, 1))
    assert [one.running for one in (whole, first, second)] == [8, 3, 5]
    assert [one.kv_usage for one in (whole, first, second)] == [0.5, 0.25, 0.75]
    assert [one.cache_tokens for one in (whole, first, second)] == [3200, 1600, 1600]
    assert read_sample("vllm:num_requests_running 2\n", None, 1)[0].running == 2, "no rank is named: all are meant"


def test_the_ranks_of_an_engine_are_asked_once(monkeypatch):
    pages = []

    async def answered(client, method, url, **_):
        pages.append(url)
        return Response(200, body=PAGE.encode())

    monkeypatch.setattr(HttpClient, "request", answered)
    at = world_of(server("s"), annotated("a", 2), annotated("b", 2, ip="127.0.0.2"))
    found = members(at)

    async def story():
        scraper = Scraper(
            lambda: found, lambda: False, interval_s=3600.0, now=lambda: 0.0, make_client=lambda _: HttpClient()
        )
        running = asyncio.create_task(scraper.run())
        await until(lambda: all(one.running is not None for one in found))
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())
    assert [one.running for one in found] == [3, 5, 3, 5]
    assert sorted(pages) == ["http://127.0.0.1:8000/metrics", "http://127.0.0.2:8000/metrics"]


# ---- what ranks publish


class Rank:
    """A rank's publisher, as vLLM's: it numbers its messages and sends again what it is asked for."""

    def __init__(self, context, rank, events, replays, *, is_map):
        self.rank, self._is_map, self._sent, self.asked = rank, is_map, [], []
        self.events, self.replays = context.socket(zmq.XPUB), context.socket(zmq.ROUTER)
        for one, port in ((self.events, events), (self.replays, replays)):
            one.setsockopt(zmq.LINGER, 0)
            one.bind(f"tcp://127.0.0.1:{port}")
        self.answering = asyncio.create_task(self._answer())

    async def subscribed(self):
        while await self.events.recv() != b"\x01":
            pass

    async def store(self, name, tokens, *, is_lost=False, says=None):
        """Blocks of two tokens; a message that is lost is only sent again when asked for."""
        hashes = [hash((self.rank, name, place)) & 0xFFFFFFFF or 1 for place in range(len(tokens) // 2)]
        event = {
            "type": "BlockStored",
            "block_hashes": hashes,
            "parent_block_hash": None,
            "token_ids": tokens,
            "block_size": 2,
        }
        told = event if self._is_map else list(event.values())
        number = len(self._sent)
        self._sent.append(msgspec.msgpack.encode([0.0, [told], self.rank if says is None else says]))
        if not is_lost:
            await self.events.send_multipart((b"kv", number.to_bytes(8, "big"), self._sent[number]))

    async def _answer(self):
        while True:
            client, _, start = await self.replays.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for number in range(self.asked[-1], len(self._sent)):
                await self.replays.send_multipart((client, b"", b"kv", number.to_bytes(8, "big"), self._sent[number]))
            await self.replays.send_multipart((client, b"", b"", END, b""))


async def until(condition):
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def free_pairs():
    """Two ports that are followed by a free one each."""
    for _ in range(100):
        with socket.socket() as one, socket.socket() as other, socket.socket() as third, socket.socket() as last:
            try:
                one.bind(("127.0.0.1", 0))
                other.bind(("127.0.0.1", one.getsockname()[1] + 1))
                third.bind(("127.0.0.1", 0))
                last.bind(("127.0.0.1", third.getsockname()[1] + 1))
            except (OSError, OverflowError):
                continue
            return one.getsockname()[1], third.getsockname()[1]
    raise AssertionError("no free ports in a row")


def tell(story, *, is_map):
    """Run a story with an engine of two ranks, followed and subscribed."""

    async def told():
        events, replays = free_pairs()
        context = zmq.asyncio.Context()
        ranks = [Rank(context, rank, events + rank, replays + rank, is_map=is_map) for rank in range(2)]
        at = world_of(server("s"), annotated("engine", 2, events=events, replays=replays))
        followed = CacheEvents(at)
        following = asyncio.create_task(followed.run())
        try:
            for rank in ranks:
                await rank.subscribed()
            await asyncio.wait_for(story(at, ranks, followed), PATIENCE_S)
        finally:
            tasks = [following, *(rank.answering for rank in ranks)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            context.destroy(linger=0)

    asyncio.run(told())


def holds(at, tokens):
    """By rank: how much of a prompt it is known to hold."""
    bits = {one.slot: one.rank for one in members(at)}
    found = at.fleet.precise.match(tokens, sum(1 << slot for slot in bits))
    return {rank: depth for mask, depth in found for slot, rank in bits.items() if mask >> slot & 1}


def chosen_for(at, tokens):
    """The rank that a prompt of tokens is sent to."""
    [pool] = [pool for pool in at.pools() if pool.members]
    prompt = msgspec.json.encode(tokens)
    question = Question("/v1/completions", "m", prompt, len(tokens), is_tokens=True)
    return LocalPlan(pool, question, Destination("m")).next(0.0).headers[0][1]


@pytest.mark.parametrize("is_map", [False, True], ids=["arrays", "maps"])
def test_a_prompt_goes_to_the_rank_that_holds_most_of_it(is_map):
    async def story(at, ranks, _):
        shared, long = list(range(100, 108)), list(range(100, 140))
        await ranks[0].store("shared", shared)
        await ranks[1].store("long", long)
        await until(lambda: holds(at, long) == {0: 8, 1: 40})
        assert chosen_for(at, [*long, 7]) == b"1"
        other = list(range(500, 560))
        await ranks[0].store("other", other)
        await until(lambda: holds(at, other) == {0: 60})
        assert chosen_for(at, [*other, 7]) == b"0"

    tell(story, is_map=is_map)


@pytest.mark.parametrize("is_map", [False, True], ids=["arrays", "maps"])
def test_halves_in_two_ranks_do_not_make_a_whole(is_map):
    async def story(at, ranks, _):
        prompt = list(range(100, 120))
        await ranks[0].store("first half", prompt[:10])
        await ranks[1].store("second half", prompt[10:])
        await until(lambda: holds(at, prompt) == {0: 10})
        assert holds(at, prompt[10:]) == {1: 10}

    tell(story, is_map=is_map)


@pytest.mark.parametrize("is_map", [False, True], ids=["arrays", "maps"])
def test_what_one_rank_lost_is_asked_of_that_rank_alone(is_map):
    async def story(at, ranks, _):
        prompts = [list(range(start, start + 10)) for start in (100, 200, 300)]
        await ranks[0].store("of the other", list(range(900, 910)))
        await ranks[1].store(0, prompts[0])
        await until(lambda: holds(at, prompts[0]) == {1: 10})
        before = [len(rank.asked) for rank in ranks]
        await ranks[1].store(1, prompts[1], is_lost=True)
        await ranks[1].store(2, prompts[2])
        await until(lambda: holds(at, prompts[1]) == holds(at, prompts[2]) == {1: 10})
        assert ranks[1].asked[-1] == 1, "from the first that is missing"
        assert [len(rank.asked) for rank in ranks] == [before[0], before[1] + 1]
        assert holds(at, list(range(900, 910))) == {0: 10}, "the other rank's blocks are as they were"

    tell(story, is_map=is_map)


def test_what_another_rank_tells_at_a_ranks_port_is_left_out():
    async def story(at, ranks, followed):
        await ranks[1].store("astray", list(range(100, 110)), says=0)
        await ranks[1].store("own", list(range(200, 210)))
        await until(lambda: holds(at, list(range(200, 210))) == {1: 10})
        assert holds(at, list(range(100, 110))) == {}
        assert followed.strangers == 1

    tell(story, is_map=True)
