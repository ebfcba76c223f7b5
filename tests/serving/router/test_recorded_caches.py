"""Kthena's `kvcache-aware` through Redis: a real server is filled as Kthena's side-cars fill it, and chats go where it says."""

import asyncio
import hashlib
import struct
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from redis.asyncio import Redis
from redis.exceptions import RedisError
from structlog.testing import capture_logs

from hekla.serving.router import recorded_caches
from hekla.serving.router.configuration import read_configuration
from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.foretelling import foretell
from hekla.serving.router.policies.kvcache_aware import KvCacheAware
from hekla.serving.router.prefix.recorded import LIFE_S, Recorded, RecordFormat, recorded_of, stale
from hekla.serving.router.record_stores import RedisRecords
from hekla.serving.router.recorded_caches import MemoryRecords, RecordedCaches, Records, RecordsGoneError, records_at
from hekla.serving.router.tokenizing import Tokenizing
from hekla.testing.redis import RedisServer
from serving.router import proxykit as kit
from serving.router.poolkit import endpoint, pool_of
from serving.router.poolkit import question as asked_of_blocks
from serving.router.test_tokenizing import BLOCK_SIZE, Clients, cached, routed
from serving.router.worldkit import director, pod, question, route, server, to

pytestmark = pytest.mark.usefixtures("lane")

CONFIGURATION = f"""\
scheduler:
  pluginConfig: [{{name: kvcache-aware, args: {{blockSizeToHash: {BLOCK_SIZE}}}}}]
  plugins: {{Score: {{enabled: [{{name: kvcache-aware, weight: 1}}]}}}}
"""


class SideCar:
    """Writes what an engine tells, key for key as Kthena's runtime does."""

    def __init__(self, client: Redis, pod: str, model: str = "m") -> None:
        self.client, self.pod, self.model = client, pod, model

    async def stored(self, engine_hashes: Sequence[int], ids: Sequence[int], at_s: int = 1_000) -> None:
        size = len(ids) // len(engine_hashes)
        for number, engine_hash in enumerate(engine_hashes):
            block = standard_hash(ids[number * size : (number + 1) * size])
            await self.client.set(f"vllm:kv:block:{self.pod}@{engine_hash}", str(block), ex=86_400)
            await self.client.hset(f"matrix:kv:block:{self.model}@{block}", self.pod, str(at_s))

    async def removed(self, engine_hash: int) -> None:
        block = await self.client.get(f"vllm:kv:block:{self.pod}@{engine_hash}")
        await self.client.hdel(f"matrix:kv:block:{self.model}@{int(block)}", self.pod)
        await self.client.delete(f"vllm:kv:block:{self.pod}@{engine_hash}")


def standard_hash(ids: Iterable[int]) -> int:
    """By the book: eight bytes of SHA-256 over big-endian words, as a positive number."""
    (found,) = struct.unpack(">Q", hashlib.sha256(b"".join(struct.pack(">I", one) for one in ids)).digest()[:8])
    return found & ~(1 << 63)


def test_keys_are_kthenas_to_the_letter() -> None:
    ids = list(range(100_000, 100_020))
    first, rest = standard_hash(ids[:16]), standard_hash(ids[16:])
    assert first == 7640261047871039049, "does not change with us"
    name = "deepseek-ai/DeepSeek-R1"
    assert RecordFormat().keys(name, ids) == [f"matrix:kv:block:{name}@{first}", f"matrix:kv:block:{name}@{rest}"]
    assert len(RecordFormat(block_tokens=4, most_blocks=3).keys(name, ids)) == 3
    assert RecordFormat().keys(name, []) == []


@given(
    st.lists(st.dictionaries(st.sampled_from(["a.ns", "b.ns", "c.other"]), st.integers(0, 20), max_size=3), max_size=8),
    st.integers(0, 20),
)
def test_only_what_is_held_from_the_beginning_on_and_since_the_start_counts(rows: Any, began_s: int) -> None:
    among = [endpoint("a", started_s=began_s), endpoint("b"), endpoint("b:9000")]
    found = recorded_of([{k.encode(): str(v).encode() for k, v in row.items()} for row in rows], among)
    for owner, since in (("a.ns", began_s), ("b.ns", 0), ("c.other", None)):
        held = 0
        for row in rows:
            if since is None or owner not in row or (since and row[owner] <= since):
                break
            held += 1
        assert found.held.get(owner, 0) == held
    assert found.blocks == len(rows)
    scores = [int(found.held.get(owner, 0) / max(1, len(rows)) * 100) for owner in ("a.ns", "b.ns", "b.ns")]
    assert [found.score(one) for one in among] == scores


def test_the_plugin_scores_by_what_is_recorded_and_else_by_what_the_router_knows() -> None:
    pool = pool_of(2, KvCacheAware())
    one = asked_of_blocks("x", "y")
    pool.charge(pool.look(one, 0.0), pool.members[0])
    guessed = KvCacheAware().scores(pool.look(one, 0.0), pool.members)
    assert guessed[0] > guessed[1] == 0
    one.recorded = Recorded(3, {"e1.ns": 2})
    assert KvCacheAware().scores(pool.look(one, 0.0), pool.members) == [0, 66]


def test_the_arguments_say_how_prompts_are_cut() -> None:
    told = read_configuration(CONFIGURATION.replace("{blockSizeToHash", "{vllmTokenizerPort: 1, blockSizeToHash"))
    assert told.records == RecordFormat(block_tokens=BLOCK_SIZE)
    assert told.warnings == (
        "line 2: vllmTokenizerPort of kvcache-aware has no effect: an engine is asked to tokenize at the port that it serves at",
    )
    assert read_configuration("scheduler: {policy: kthena}").records is None


@asynccontextmanager
async def in_memory(_: RedisServer):
    kept = MemoryRecords()

    async def put(key: str, entries: dict[str, str]) -> None:
        kept.entries[key] = {k.encode(): v.encode() for k, v in entries.items()}

    yield kept, put


@asynccontextmanager
async def in_redis(redis: RedisServer):
    client = Redis.from_url(redis.url)
    await client.flushall()
    kept = RedisRecords(client)

    async def put(key: str, entries: dict[str, str]) -> None:
        await client.hset(key, mapping=entries)

    yield kept, put
    await kept.close()


Opened = Callable[[RedisServer], AbstractAsyncContextManager[tuple[Records, Callable[..., Awaitable[None]]]]]


@pytest.mark.parametrize("opened", [in_memory, in_redis])
def test_records_are_read_and_swept(opened: Opened, redis: RedisServer) -> None:
    async def story() -> None:
        async with opened(redis) as (records, put):
            keys = [f"matrix:kv:block:m@{number}" for number in range(250)]
            for key in keys:
                await put(key, {"old.ml": "10", "new.ml": "999999", "odd.ml": "soon"})
            assert await records.rows([]) == []
            assert await records.rows([keys[0], "matrix:kv:block:m@x"]) == [
                {b"old.ml": b"10", b"new.ml": b"999999", b"odd.ml": b"soon"},
                {},
            ]
            assert await records.sweep(lambda entries: stale(entries, 11 + LIFE_S)) == 250
            assert set((await records.rows([keys[7]]))[0]) == {b"new.ml", b"odd.ml"}
            assert await records.sweep(lambda entries: stale(entries, 11 + LIFE_S)) == 0

    kit.run(story())


def test_a_sweep_that_is_cut_short_is_told_and_the_next_goes_on_there(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_caches, "log", structlog.get_logger())  # one that nobody has set up before

    async def story() -> None:
        async with in_redis(redis) as (records, put):
            keys = [f"matrix:kv:block:m@{number}" for number in range(350)]
            for key in keys:
                await put(key, {"old.ml": "10"})
            caches = RecordedCaches(Tokenizing(Clients()), lambda: records, now=lambda: 0.0, wall=lambda: 11.0 + LIFE_S)
            caches.configure(RecordFormat())
            cursors: list[int] = []
            scan = records._client.scan

            async def scan_but_the_third(cursor: int, **more: Any) -> Any:
                cursors.append(cursor)
                if len(cursors) == 3:
                    raise RedisError("gone")
                return await scan(cursor, **more)

            monkeypatch.setattr(records._client, "scan", scan_but_the_third)
            with capture_logs() as logged:
                await caches.sweep()
                cut_at = len(cursors)
                await caches.sweep()
            assert cursors[cut_at] == cursors[cut_at - 1] != 0, "it went on where the first had come to"
            assert [(one["log_level"], one.get("why")) for one in logged] == [("warning", "gone"), ("info", None)]
            assert await records.rows(keys) == [{}] * len(keys)
            through = len(cursors)
            await caches.sweep()
            assert cursors[through] == 0, "after one that is through begins another"

    kit.run(story())


def test_a_key_of_another_type_says_nothing_and_harms_nobody(redis: RedisServer) -> None:
    async def story() -> None:
        async with in_redis(redis) as (records, put):
            await put("matrix:kv:block:m@1", {"a.ml": "10"})
            await records._client.set("matrix:kv:block:m@2", "x")
            assert await records.rows(["matrix:kv:block:m@2", "matrix:kv:block:m@1"]) == [{}, {b"a.ml": b"10"}]

    kit.run(story())


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is waited for, however busy the machine."""
    monkeypatch.setattr(recorded_caches, "TIMEOUT_S", 60.0)
    monkeypatch.setattr(recorded_caches, "ALONE_S", 0.0)


async def tokens(http: Any, url: str, messages: Any) -> list[int]:
    body = msgspec.json.encode({"model": "m", "messages": messages})
    answer = await http.request("POST", f"{url}/tokenize", (("content-type", "application/json"),), body)
    ids: list[int] = msgspec.json.decode(answer.body)["tokens"]
    return ids


@pytest.mark.usefixtures("patient")
def test_a_chat_goes_where_a_side_car_recorded_it(
    tmp_path: Any, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hekla.serving.router.running.records_at", lambda *_: RedisRecords(Redis.from_url(redis.url)))
    (tmp_path / "none").write_text(CONFIGURATION)

    async def story() -> None:
        client = Redis.from_url(redis.url)
        await client.flushall()
        async with routed(tmp_path, tokenizer="", publishes=False) as (router, engines, http):
            assert router.caches.is_on
            router.caches._wait_s = kit.PATIENCE_S
            for number in range(4):  # turn and turn about: dice alone would have to be right four times
                said = [{"role": "user", "content": f"{number} of lava fields and the sheep that cross them " * 30}]
                await cached(http, engines[number % 2], said)
                ids = await tokens(http, engines[0], said)
                blocks = len(ids) // BLOCK_SIZE
                await SideCar(client, f"e{number % 2}.ml").stored(range(blocks), ids[: blocks * BLOCK_SIZE])
                assert (await cached(http, f"http://127.0.0.1:{router.port}", said))[1] > 0
            page = "\n".join(router.caches.lines())
            assert 'kthena_router_kvcache_aware_match_ratio_count{model="m"} 4' in page
            assert 'kthena_router_kvcache_aware_redis_duration_seconds_count{model="m"} 4' in page
            redis.stop()
            try:
                await cached(http, f"http://127.0.0.1:{router.port}", said)
                assert 'kthena_router_kvcache_aware_errors_total{model="m",stage="redis"} 1' in "\n".join(
                    router.caches.lines()
                )
            finally:
                redis.start()
        await client.aclose()

    kit.run(story())


@pytest.mark.usefixtures("patient")
def test_an_explanation_asks_redis_as_the_request_would(
    tmp_path: Any, redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hekla.serving.router.running.records_at", lambda *_: RedisRecords(Redis.from_url(redis.url)))
    monkeypatch.setattr(recorded_caches, "EXPLAIN_S", kit.PATIENCE_S)
    (tmp_path / "none").write_text(CONFIGURATION)

    async def story() -> None:
        client = Redis.from_url(redis.url)
        await client.flushall()
        async with routed(tmp_path, tokenizer="", publishes=False) as (router, engines, http):
            said = [{"role": "user", "content": "lava fields and the sheep that cross them " * 30}]
            body = msgspec.json.encode({"model": "m", "messages": said})
            ids = await tokens(http, engines[0], said)
            blocks = len(ids) // BLOCK_SIZE
            await SideCar(client, "e1.ml").stored(range(blocks), ids[: blocks * BLOCK_SIZE])
            path, caches = "/v1/chat/completions", router.caches
            told: Any = await foretell(router.director, path, body, {}, router._now, caches.explain)
            assert (told["chosen"], told["recorded"]["held"]) == ("e1", {"e1.ml": blocks})
            scores = {one["name"]: one["scores"]["kvcache-aware"] for one in told["candidates"]}
            assert scores["e1"] > scores["e0"] == 0
            assert "match_ratio_count" not in "\n".join(caches.lines()), "it counts as no request"
        await client.aclose()

    kit.run(story())


@pytest.mark.parametrize(
    ("clients", "records", "why"),
    [
        (Clients(status=404), MemoryRecords(), "the prompt's tokens are not known: a answered /tokenize with 404"),
        (Clients(), None, "Redis or the engine's tokens are not to be had: connection refused"),
    ],
)
def test_an_explanation_says_why_it_does_not_know_the_records(clients: Clients, records: Any, why: str) -> None:
    async def story() -> None:
        caches = RecordedCaches(Tokenizing(clients), lambda: records or Gone(), now=lambda: 0.0, wall=lambda: 0.0)
        asked = question("m", "lava " * 400)
        assert await caches.explain(backend(), asked) is None, "nobody configured it"
        caches.configure(RecordFormat())
        asked.recorded = Recorded(1, {"of.another": 1})
        assert await caches.explain(backend(), asked) == why
        assert asked.recorded is None, "what another backend's engines hold says nothing of these"
        assert "errors_total{" not in "\n".join(caches.lines())
        held = caches.of_text(backend(), asked)
        assert held is not None, "requests ask on"
        await caches.close()

    kit.run(story())


@pytest.mark.usefixtures("patient")
def test_a_block_that_its_engine_dropped_is_held_no_more(redis: RedisServer) -> None:
    async def story() -> None:
        async with in_redis(redis) as (records, _):
            ids = list(range(64))
            one = SideCar(records._client, "e0.ns")
            await one.stored(range(4), ids)
            held = RecordFormat().keys("m", ids)
            assert recorded_of(await records.rows(held), [endpoint("e0")]).held == {"e0.ns": 4}
            await one.removed(2)
            assert recorded_of(await records.rows(held), [endpoint("e0")]).held == {"e0.ns": 2}
            assert recorded_of(await records.rows(held), [endpoint("e0", started_s=1_000)]).held == {}

    kit.run(story())


class Gone(MemoryRecords):
    """A server that went away."""

    async def rows(self, keys: Sequence[str]) -> Any:
        raise RecordsGoneError("connection refused")


def backend() -> Any:
    desk = director(route("r", to("s"), model="m"), server("s"), pod("a", {"app": "s"}))
    return desk.world.servers["ml/s"]


async def looked_up(caches: RecordedCaches, asked: Any) -> Any:
    held = caches.of_text(backend(), asked)
    if held is not None:
        told = asyncio.get_running_loop().create_future()
        held.when_ready(told.set_result)
        await told
    return asked.recorded


@pytest.mark.parametrize(
    ("clients", "records", "stage"),
    [
        (Clients(status=404), MemoryRecords(), "tokenize"),
        (Clients(), Gone(), "redis"),
        (Clients(), MemoryRecords(), ""),
    ],
)
def test_what_cannot_be_looked_up_goes_on_and_is_counted(clients: Clients, records: Records, stage: str) -> None:
    async def story() -> None:
        tokenizing, now = Tokenizing(clients), [0.0]
        caches = RecordedCaches(
            tokenizing, lambda: records, now=lambda: now[0], wall=lambda: 0.0, wait_s=kit.PATIENCE_S
        )
        assert await looked_up(caches, question("m", "lava " * 400)) is None, "nobody configured it"
        caches.configure(RecordFormat())
        found = await looked_up(caches, question("m", "lava " * 400))
        assert found == (None if stage else Recorded(1, {}))
        page = "\n".join(caches.lines())
        assert (f'errors_total{{model="m",stage="{stage}"}} 1' in page) == bool(stage)
        if stage == "redis":
            assert caches.of_text(backend(), question("m", "lava " * 400)) is None, "it is not asked for a while"
            now[0] = 2.0
            assert caches.of_text(backend(), question("m", "lava " * 400)) is not None
        await caches.close()

    kit.run(story())


def test_a_request_waits_a_moment_and_no_longer() -> None:
    async def story() -> None:
        caches = RecordedCaches(
            Tokenizing(Clients(hangs=True)), MemoryRecords, now=lambda: 0.0, wall=lambda: 0.0, wait_s=0.01
        )
        caches.configure(RecordFormat())
        assert await looked_up(caches, question("m", "lava " * 400)) is None
        await caches.close()

    kit.run(story())


def test_without_a_redis_the_plugin_goes_by_events_and_guesses() -> None:
    assert records_at("", "") is None
    caches = RecordedCaches(Tokenizing(Clients()), lambda: None, now=lambda: 0.0, wall=lambda: 0.0)
    caches.configure(RecordFormat())
    assert not caches.is_on


def test_an_engine_of_a_pod_with_several_is_its_pod() -> None:
    assert Recorded(2, {"a.ml": 1}).score(Endpoint("a:9000", "127.0.0.1", 9000, namespace="ml")) == 50
