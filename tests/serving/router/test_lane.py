"""The fast lane does what the router does without it: the same bytes to engines and clients, the same log lines, counts and limits."""

import asyncio
import json
import os
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hekla.api.kthena import ModelRoute
from hekla.serving.router import endpoints
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import lane as lane_module
from hekla.serving.router.lane import layout, ways
from hekla.serving.router.lane.lane import Lane
from hekla.serving.router.proxy.bounds import Bounds
from hekla.wire.raw_heads import Memo, read_request
from serving.router import lanekit
from serving.router import proxykit as kit
from serving.router.lanekit import both, maker, shown
from serving.router.test_running import Routed, eventually


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lanekit.compiled()


FOUR = kit.says(kit.whole())
ENTERING = 1
"""Of the four requests by which a connection enters the lane, those that the lane took."""


def then(*answers: bytes) -> Any:
    """Four plain answers, then these, the last again and again."""
    return maker(lambda: kit.says(*[kit.whole()] * 4, *answers))


def test_a_chat_through_the_lane_is_a_chat(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        return [
            shown(await client.ask(kit.chat(text="x" * size, max_tokens=5))) for size in (1, 300, 3000, 9000, 20000)
        ]

    both(tmp_path, kernel, story, FOUR, taken=ENTERING + 4)


@pytest.mark.parametrize(
    "answer",
    [
        kit.whole(b'{"error":"no such thing"}', 404),
        kit.whole(b'{"error":"broken"}', 500),
        kit.whole(b"", 200),
        kit.whole(b"x" * 100_000),
        kit.whole(b"x" * 1_000_000),
        kit.whole(extra="date: Thu, 26 Nov 2026 10:00:00 GMT\r\nserver: uvicorn\r\n"),
        kit.whole(extra="connection: close\r\n"),
        kit.whole(extra="content-encoding: gzip\r\n"),
        kit.whole(json.dumps({"usage": {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 3}}}).encode()),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + kit.chunk(kit.DOCUMENT) + kit.LAST,
        b"HTTP/1.1 100 Continue\r\n\r\n" + kit.whole(),
        kit.stream(kit.event("a"), kit.USAGE_EVENT, kit.DONE),
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
    ids=["404", "500", "empty", "100k", "1M", "date", "close", "gzip", "cached", "chunked", "interim", "stream", "204"],
)  # fmt: skip
def test_whatever_an_engine_answers_goes_on_as_without_the_lane(tmp_path: Path, kernel: Kernel, answer: bytes) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        first = await client.ask(kit.chat())
        return shown(first), shown(await client.ask(kit.chat()))

    both(tmp_path, kernel, story, then(answer, kit.whole()))


@pytest.mark.parametrize("size", [1, 7, 60])
def test_an_answer_in_pieces_is_one_answer(tmp_path: Path, kernel: Kernel, size: int) -> None:
    async def pieces(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        data = kit.whole()
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            await writer.drain()
            await asyncio.sleep(0)

    async def story(it: Routed, client: kit.Client) -> Any:
        return shown(await client.ask(kit.chat()))

    both(tmp_path, kernel, story, pieces, taken=ENTERING + 1)


@pytest.mark.parametrize("size", [1, 40, 5000])
def test_a_request_in_pieces_is_one_request(tmp_path: Path, kernel: Kernel, size: int) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        data = kit.chat(text="y" * (200 if size < 100 else 60_000))
        for at in range(0, len(data), size):
            await client.send(data[at : at + size])
            await asyncio.sleep(0)
        return shown(await client.answer())

    both(tmp_path, kernel, story, FOUR)


WORDS = "a prompt of words "


@pytest.mark.parametrize("step", [1 << 22, 100_000, 7_000])
@pytest.mark.parametrize("size", [9_000, 140_000, 300_000, 900_000])
def test_a_long_request_is_one_request(tmp_path: Path, kernel: Kernel, size: int, step: int) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        data = kit.chat(text=(WORDS * size)[:size])
        for at in range(0, len(data), step):
            await client.send(data[at : at + step])
            await asyncio.sleep(0)
        return shown(await client.answer()), shown(await client.ask(kit.chat()))

    both(tmp_path, kernel, story, FOUR, taken=ENTERING + 2)


def test_a_request_longer_than_any_buffer_is_pythons(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        return shown(await client.ask(kit.chat(text=WORDS * 100_000)))

    both(tmp_path, kernel, story, FOUR, taken=ENTERING)


@pytest.mark.parametrize("reading", [layout.FIRST_BYTES, layout.SCRATCH_BYTES])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_what_stands_behind_a_request_as_long_as_one_reading_is_the_next(
    tmp_path: Path, kernel: Kernel, beyond: int, reading: int
) -> None:
    """All of it is there before the lane looks, and is told of once."""

    async def story(it: Routed, client: kit.Client) -> Any:
        size = reading + beyond - len(kit.chat(text="")) - len(str(reading)) + len("56")
        first = kit.chat(text=(WORDS * size)[:size])
        assert len(first) == reading + beyond
        lane = it.router.lane
        if lane is not None:
            lane._loop.remove_reader(lane._epoll.fileno())
            (number,) = lane._clients
            with socket.socket(fileno=os.dup(int(lane.slabs.clients[number, layout.Client.FD]))) as its:
                its.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        await client.send(first + kit.chat(text="the next"))
        await eventually(lambda: not client.writer.transport.get_write_buffer_size())
        if lane is not None:
            lane._loop.add_reader(lane._epoll.fileno(), lane._ready)
        return shown(await client.answer()), shown(await client.answer())

    both(tmp_path, kernel, story, FOUR)


def narrow(lane: Lane | None) -> None:
    """Connections to engines take little at once."""
    if lane is not None:
        for row in lane.slabs.engines[: int(lane.slabs.words[layout.State.ENGINE_HIGH])]:
            if row[layout.Engine.PHASE]:
                with socket.socket(fileno=os.dup(int(row[layout.Engine.FD]))) as its:
                    its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


def test_an_engine_that_takes_slowly_gets_all_of_it(tmp_path: Path, kernel: Kernel) -> None:
    asked = kit.chat(text=WORDS * 30_000)

    async def story(it: Routed, client: kit.Client) -> Any:
        narrow(it.router.lane)
        return shown(await client.ask(asked)), shown(await client.ask(kit.chat()))

    _, got, _, _ = both(tmp_path, kernel, story, FOUR, taken=ENTERING + 2)
    assert [body for *_, body in got].count(asked.partition(b"\r\n\r\n")[2]) == 1


@pytest.mark.parametrize(
    "said", [kit.whole(b'{"error":"too long"}', 413), kit.whole(b"{}", 503), b"HTTP/1.1 4", b""], ids=["413", "503", "some", "nothing"]
)  # fmt: skip
def test_an_engine_that_answers_before_it_was_asked_all_is_heard(tmp_path: Path, kernel: Kernel, said: bytes) -> None:
    asked = kit.chat(text=WORDS * 50_000)

    async def story(it: Routed, client: kit.Client) -> Any:
        heard = asyncio.Event()

        async def early(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(said)
            await writer.drain()
            await heard.wait()

        narrow(it.router.lane)
        it.engines[0].early = early
        await client.send(asked)
        if not said.endswith(b"}"):
            heard.set()  # it ends the connection; what answers waits with that, as unread bytes would end it at once
        answer = shown(await client.answer())
        heard.set()
        return answer

    both(tmp_path, kernel, story, FOUR)


@pytest.mark.parametrize(
    "asked",
    [
        kit.chat(stream=True),
        kit.chat(tools=[{"type": "function"}]),
        kit.chat(headers="X-More: 1\r\n"),
        kit.chat(close=True),
        kit.chat(text="z" * 300_000),
        kit.chat(max_tokens=-1),
        kit.chat(max_tokens="five"),
        kit.request(b'{"model":"nobody","messages":[{"role":"user","content":"x"}]}'),
        kit.request(b'{"model":"m","messages":[{"role":"user","content":"x"}],"model":"nobody"}'),
        kit.request(b'{"mod\\u0065l":"m","messages":[{"role":"user","content":"x"}]}'),
        kit.request(b'{"model":"m"'),
        kit.request(b"\xff"),
        kit.request(b""),
        kit.chat() + kit.chat(text="second"),
        b"GET /v1/models HTTP/1.1\r\nHost: router\r\n\r\n",
        b"\r\n" + kit.chat(),
        b"nonsense\r\n\r\n",
        kit.chat().replace(b"Content-Length: ", b"Content-Length: +"),
        kit.chat().replace(b"Content-Length: ", b"Content-Length: 0"),
    ],
    ids=["stream", "tools", "header", "close", "300k", "negative", "text", "unknown", "twice", "escaped", "cut", "bytes", "empty", "pipelined", "get", "line", "nonsense", "plus", "zero"],
)  # fmt: skip
def test_what_is_not_plain_is_answered_as_without_the_lane(tmp_path: Path, kernel: Kernel, asked: bytes) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        answer = await client.ask(asked)
        return re.sub(rb'"created":[0-9]+', b"", b"%d %b" % shown(answer))

    both(tmp_path, kernel, story, FOUR)


@pytest.mark.parametrize(
    "trouble",
    [
        kit.says_and_closes(b"HTTP/1.1 200 OK\r\ncontent-le"),
        kit.says(b"garbage\r\n\r\n"),
        kit.says(kit.whole(b"{}", 503)),
        kit.says(kit.whole(b"{}", 429)),
    ],
    ids=["in its head", "garbage", "503", "429"],
)
def test_after_a_failure_another_engine_is_asked(tmp_path: Path, kernel: Kernel, trouble: kit.Script) -> None:
    """Whichever is asked first fails each time until it is known; the client is told of none."""
    failures: list[str] = []

    def once(name: str) -> Any:
        def make() -> kit.Script:
            count = 0

            async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
                nonlocal count
                count += 1
                if b"trouble" in asked.body and not failures:
                    failures.append(name)
                    await trouble(asked, writer)
                else:
                    await kit.says(kit.whole())(asked, writer)

            return script

        return maker(make)

    async def story(it: Routed, client: kit.Client) -> Any:
        failures.clear()
        first = shown(await client.ask(kit.chat(text="trouble")))
        assert failures
        return first, shown(await client.ask(kit.chat()))

    _, _, log, _ = both(tmp_path, kernel, story, once("a"), once("b"))
    assert sorted(line["upstream_attempts"] for line in log)[-1] == 2


def test_an_answer_that_is_cut_short_in_its_body_is_not_tried_again(tmp_path: Path, kernel: Kernel) -> None:
    async def cuts(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.whole() if b"cut" not in asked.body else kit.whole()[:-5])
        if b"cut" in asked.body:
            await writer.drain()
            writer.close()

    async def story(it: Routed, client: kit.Client) -> Any:
        await client.send(kit.chat(text="cut"))
        return kit.unnamed(await client.closed())

    _, asked, _, _ = both(tmp_path, kernel, story, cuts, cuts)
    assert sum(b"cut" in body for *_, body in asked) == 1


def test_a_kept_connection_that_was_closed_costs_no_attempt(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        it.engines[0].script = lanekit._scraped(kit.says_and_closes(kit.whole()))
        return [shown(await client.ask(kit.chat())) for _ in range(5)]

    _, _, log, _ = both(tmp_path, kernel, story, FOUR)
    assert {line["upstream_attempts"] for line in log} == {1}


def test_an_engine_that_takes_no_connection_is_one_that_failed(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoints, "BENCH_S", (3600.0,))  # a busy machine takes longer over the rest than half a second

    async def story(it: Routed, client: kit.Client) -> Any:
        dead, alive = it.router.fleet.by_name.values()
        dead.host = "127.0.0.77"  # nobody listens there
        alive.assigned += 1e9  # so that the other is chosen
        it.router.fleet.changes += 1
        lane = it.router.lane
        if lane is not None:
            lane.ways.refresh(it.router._now())
            lane._drop_moved()
        it.router.pools.sweep(float("inf"))
        return [shown(await client.ask(kit.chat(text=f"{number}"))) for number in range(3)]

    said, _, log, _ = both(tmp_path, kernel, story, FOUR, FOUR)
    assert {status for status, _ in said} == {200}
    assert [line["upstream_attempts"] for line in log].count(2) == 1


def test_a_connection_that_python_takes_over_leads_where_it_was_opened(tmp_path: Path, kernel: Kernel) -> None:
    """Its engine's pod was made anew meanwhile under its name and at another address: it was kept as one to there, and counted there."""

    async def tell() -> None:
        async with lanekit.laned(tmp_path, kernel, FOUR) as it:
            client = await it.connect()
            await lanekit.entered(it, client)
            asked, go = asyncio.Event(), asyncio.Event()

            async def late(_: kit.Asked, writer: asyncio.StreamWriter) -> None:
                asked.set()
                await go.wait()
                writer.write(
                    b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + kit.chunk(kit.DOCUMENT) + kit.LAST
                )

            it.engines[0].script = lanekit._scraped(late)
            await client.send(kit.chat())
            await asked.wait()
            fleet, pools = it.router.fleet, it.router.house.pools
            (one,) = fleet.by_name.values()
            old = pools.open_to(one.host, one.port)
            before = old.count
            one.host = "127.0.0.77"
            fleet.changes += 1
            go.set()
            assert (await client.answer()).status == 200
            assert not pools.of(one).idle
            assert (old.count, pools.open_to(one.host, one.port).count) == (before, 0)

    kit.run(tell())


def test_an_engine_that_moved_is_forgotten_where_it_was_and_known_where_it_is(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was known of its latest place went with the first; the lane broke at the next change."""

    async def tell() -> None:
        async with lanekit.laned(tmp_path, kernel, FOUR) as it:
            client = await it.connect()
            await lanekit.entered(it, client)
            lane, fleet = it.router.lane, it.router.fleet
            assert lane is not None
            (one,) = fleet.by_name.values()
            it.router.house.pools.close()
            monkeypatch.setattr(ways, "ENDPOINTS", 1)
            for number in range(2, 6):
                one.host = f"127.0.1.{number}"
                lane._refresh(lane._clock())
            assert [known.host for known in lane.ways.addresses.values()][-1] == one.host
            assert len(lane.ways.engines) <= 3

    kit.run(tell())


def test_of_more_heads_than_the_lane_keeps_the_oldest_unused_goes_and_none_for_one_that_is_not_plain(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ways, "TEMPLATES", 2)

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, FOUR) as it:
            assert it.router.lane is not None
            known, bounds = it.router.lane.ways, it.router.house.bounds

            def made(headers: str) -> ways.Template | None:
                asked = kit.chat(headers=headers)
                head = read_request(asked, bounds)
                assert head is not None
                template = known.template(Memo(head, asked))
                if template is not None:
                    known.know(template, "m", 0.0)
                return template

            first, second = made("X-Who: 1\r\n"), made("X-Who: 2\r\n")
            assert made("X-Request-Id: mine\r\n") is None
            assert made("X-Who: 1\r\n") is first
            third = made("X-Who: 3\r\n")
            assert first is not None
            assert third is not None
            assert third.number == first.number
            assert made("X-Who: 2\r\n") is second
            (pool,) = known._plain.values()
            assert sorted(pool.numbers) == pool.rows.tolist() == [0, 1]

    kit.run(story())


@pytest.mark.parametrize("is_revoked", [False, True])
def test_a_key_opens_the_lane_as_long_as_it_is_one(tmp_path: Path, kernel: Kernel, is_revoked: bool) -> None:
    keys = tmp_path / "keys"
    keys.write_text("ann: 0123456789abcdef\n")
    with_key = kit.chat(headers="Authorization: Bearer 0123456789abcdef\r\n")

    async def story(it: Routed, client: kit.Client) -> Any:
        assert it.router.doors.authentication is not None
        await client.ask(with_key)
        if is_revoked:
            it.router.doors.authentication.set_api_keys({})
        answers = [(await client.ask(with_key)).status, (await client.ask(kit.chat())).status]
        return [*answers, any(b"0123456789" in one.head for engine in it.engines for one in engine.asked)]

    said, *_ = both(tmp_path, kernel, story, FOUR, ask=with_key, api_keys_file=str(keys))
    assert said == [401 if is_revoked else 200, 401, False]


def test_when_the_client_leaves_its_engine_is_cut_off(tmp_path: Path, kernel: Kernel) -> None:
    async def waits(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        if b"wait" not in asked.body:
            writer.write(kit.whole())

    async def story(it: Routed, client: kit.Client) -> Any:
        engine = it.engines[0]
        before = len(engine.asked)
        engine.gone.clear()
        await client.send(kit.chat(text="wait"))
        await eventually(lambda: sum(b"wait" in one.body for one in engine.asked[before:]) == 1)
        client.leave()
        await engine.gone.wait()

    _, _, log, _ = both(tmp_path, kernel, story, waits, taken=ENTERING + 1)
    assert [line["status_code"] for line in log].count(499) == 1


def test_a_client_who_closes_his_half_has_left(tmp_path: Path, kernel: Kernel) -> None:
    async def waits(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        if b"wait" not in asked.body:
            writer.write(kit.whole())

    async def story(it: Routed, client: kit.Client) -> Any:
        await client.send(kit.chat(text="wait"))
        client.writer.write_eof()
        return await client.closed()

    both(tmp_path, kernel, story, waits)


def test_an_answer_that_takes_long_is_waited_for_by_python(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        go = asyncio.Event()
        if (lane := it.router.lane) is not None:  # only now: what opened it may have taken long, too
            lane.slabs.ways.view(np.float64)[:, layout.Way.PATIENCE] = 0.0

        async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            writer.write(kit.whole())

        it.engines[0].script = lanekit._scraped(slow)
        await client.send(kit.chat(text="slow"))
        await eventually(lambda: bool(it.router.house.under_way))  # the lane's sweep has given it away
        counts = next(iter(it.router.fleet.by_name.values()))
        assert counts.in_flight == 1
        go.set()
        return shown(await client.answer()), shown(await client.ask(kit.chat()))

    both(tmp_path, kernel, story, FOUR)


def test_a_client_who_takes_slowly_gets_all_of_it(tmp_path: Path, kernel: Kernel) -> None:
    asks_much = kit.chat(text="much")
    much = kit.whole(b"y" * 120_000)

    async def answers(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(much if b"much" in asked.body else kit.whole())

    def holds(taking: socket.socket, giving: Iterable[socket.socket], size: int) -> None:
        taking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        for one in giving:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    async def story(it: Routed, client: kit.Client) -> Any:
        taking, giving, lane = client.writer.get_extra_info("socket"), list[socket.socket](), it.router.lane
        if lane is not None:
            (number,) = lane._clients
            giving.append(socket.socket(fileno=os.dup(int(lane.slabs.clients[number, layout.Client.FD]))))
        holds(taking, giving, 2048)
        client.reader._limit = 1  # the stream stops reading when more than two bytes wait
        await client.send(asks_much)
        if lane is not None:
            await eventually(lambda: lane.slabs.clients[number, layout.Client.PHASE] == layout.Phase.SENDING)
        holds(taking, giving, 1 << 20)  # it need not be 2 kB at a time, which took 7 s
        client.reader._limit = 1 << 20
        answer = shown(await client.answer())
        for one in giving:
            one.close()
        return answer, shown(await client.ask(kit.chat()))

    said, *_ = both(tmp_path, kernel, story, answers, taken=ENTERING + 2)
    assert said[0][1].endswith(b"y" * 120_000)


def test_a_limit_that_is_reached_is_told_in_the_lane_as_without(tmp_path: Path, kernel: Kernel) -> None:
    limit = {"inputTokensPerUnit": 100, "outputTokensPerUnit": 1_000, "unit": "month"}

    async def story(it: Routed, client: kit.Client) -> Any:
        await it.client.patch(ModelRoute, "m", {"spec": {"rateLimit": limit}}, namespace="ml")
        await eventually(lambda: it.router.doors.limits._routes.get("m") is not None)
        answers = [await client.ask(kit.chat(text="x" * 200)) for _ in range(12)]
        levels = it.router.doors.limits._routes["m"]
        assert levels.input is not None
        assert levels.output is not None
        return [one.status for one in answers], round(levels.input.level), round(levels.output.level)

    said, *_ = both(tmp_path, kernel, story, FOUR)
    assert 429 in said[0]


def test_a_budget_that_other_processes_share_from_now_on_is_taken_from_aloud(tmp_path: Path, kernel: Kernel) -> None:
    limit = {"inputTokensPerUnit": 1_000_000, "unit": "month"}

    async def story(it: Routed, client: kit.Client) -> Any:
        await it.client.patch(ModelRoute, "m", {"spec": {"rateLimit": limit}}, namespace="ml")
        await eventually(lambda: it.router.doors.limits._routes.get("m") is not None)
        await client.ask(kit.chat())
        it.router.doors.limits.tell()
        await client.ask(kit.chat())
        return list(it.router.doors.limits.tell())

    said, *_ = both(tmp_path, kernel, story, FOUR)
    assert said == ["route m"]


def test_a_connection_that_was_let_in_is_not_turned_away_when_there_are_too_many_later(
    tmp_path: Path, kernel: Kernel
) -> None:
    """It was: the lane gave it back, and it was counted as one that came."""

    async def story(it: Routed, client: kit.Client) -> Any:
        late = await it.connect()
        turned_away = await late.ask(kit.chat())
        return turned_away.status, shown(await client.ask(kit.chat(headers="X-More: 1\r\n")))[0]

    said, *_ = both(tmp_path, kernel, story, FOUR, bounds=Bounds(connections=1))
    assert said == (503, 200)


def test_a_connection_for_which_the_lane_has_no_descriptor_goes_on_in_python(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was read from it any more."""

    def none_left(_: int) -> int:
        raise OSError(24, "Too many open files")

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, FOUR) as it:
            client = await it.connect()
            with monkeypatch.context() as patched:
                patched.setattr("hekla.serving.router.lane.lane.os.dup", none_left)
                for _ in range(6):
                    assert (await client.ask(kit.chat())).status == 200
            assert it.router.lane is not None
            assert it.router.lane.connections == 0

    kit.run(story())


def test_a_route_that_goes_leads_nowhere_from_the_next_request_on(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        assert (await client.ask(kit.chat())).status == 200
        version = it.router.world.version
        await it.client.delete(ModelRoute, "m", namespace="ml")
        await eventually(lambda: it.router.world.version != version)
        return (await client.ask(kit.chat())).status

    said, *_ = both(tmp_path, kernel, story, FOUR)
    assert said == 404


@pytest.mark.parametrize("asked", [kit.chat(stream=True), kit.chat(text="x" * 300_000)], ids=["streamed", "long"])
def test_what_is_on_its_way_to_python_gets_there_if_the_lane_is_closed(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, asked: bytes
) -> None:
    """The lane breaks in the moment in which it has given a connection back, before the loop has turned."""
    given_back = Lane._hand_over

    def and_break(lane: Lane, number: int, now: float) -> None:
        given_back(lane, number, now)
        raise ZeroDivisionError

    async def story(it: Routed, client: kit.Client) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(Lane, "_hand_over", and_break)
            async with asyncio.timeout(10):
                return shown(await client.ask(asked))

    both(tmp_path, kernel, story, FOUR)


def test_a_drain_lets_what_is_in_the_lane_end(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        go = asyncio.Event()

        async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            writer.write(kit.whole())

        idle = await it.connect()
        await lanekit.entered(it, idle)
        it.engines[0].script = lanekit._scraped(slow)
        before = len(it.engines[0].asked)
        await client.send(kit.chat(text="slow"))
        await eventually(lambda: any(b"slow" in one.body for one in it.engines[0].asked[before:]))
        it.router.stop()
        assert await idle.closed() == b""
        go.set()
        answer = await client.answer()
        assert await client.closed() == b""
        await it.running
        return answer.status

    both(tmp_path, kernel, story, FOUR)


def test_many_clients_at_once_are_answered_each_his_own(tmp_path: Path, kernel: Kernel) -> None:
    async def echo(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(kit.whole(asked.body))

    async def one(it: Routed, number: int) -> None:
        client = await it.connect()
        for turn in range(12):
            asked = kit.chat(text=f"{number} {turn} " + "x" * (number * 37 % 900))
            assert (await client.ask(asked)).body == asked.partition(b"\r\n\r\n")[2]

    async def story(it: Routed, client: kit.Client) -> Any:
        await asyncio.gather(*(one(it, number) for number in range(40)))

    both(tmp_path, kernel, story, echo, echo, echo)


def test_a_new_connection_begins_in_the_lane_where_those_before_it_were_plain(tmp_path: Path, kernel: Kernel) -> None:
    """The first requests of 32 clients who came at once took ten times what the others took."""

    async def story(it: Routed, client: kit.Client) -> Any:
        other = await it.connect()
        return [shown(await other.ask(kit.chat(text=f"to a friend, {number}"))) for number in range(3)]

    both(tmp_path, kernel, story, FOUR, taken=ENTERING + 3)


def test_a_head_that_another_client_has_sent_before_is_known(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        second, known = await it.connect(), kit.chat(headers="x-team: red\r\n")
        await lanekit.entered(it, second, known)
        third = await it.connect()
        asked = (known, kit.chat(), known, kit.chat(text="plain again"))
        return [shown(await third.ask(one)) for one in asked]

    both(tmp_path, kernel, story, FOUR, taken=2 * ENTERING + 4)


def test_new_connections_that_are_not_plain_are_let_in_unheard_no_more(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        statuses = []
        for _ in range(4):
            probe = await it.connect()
            statuses.append((await probe.ask(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).status)
        if (lane := it.router.lane) is not None:
            assert lane._trust == 0
            assert not lane._unheard
        return statuses

    both(tmp_path, kernel, story, FOUR, taken=ENTERING)


def test_connections_that_say_nothing_do_not_fill_the_lane(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One plain client had any number of silent ones let in, and those that are heard count no more."""
    monkeypatch.setattr(lane_module, "_MOST_UNHEARD", 3)

    async def story(it: Routed, client: kit.Client) -> Any:
        lane = it.router.lane
        statuses = []
        for _ in range(5):  # let in unheard, and heard
            other = await it.connect()
            statuses.append((await other.ask(kit.chat())).status)
            if lane is not None:
                lane.sweep(lane._clock())
                assert not lane._unheard
        before = len(it.router.listener.doorway.connections)
        for _ in range(5):
            await it.connect()
        await eventually(lambda: len(it.router.listener.doorway.connections) == before + 5)
        if lane is not None:
            assert len(lane._unheard) == 3
        last = await it.connect()
        return [*statuses, (await last.ask(kit.chat())).status]

    both(tmp_path, kernel, story, FOUR, taken=ENTERING + 5)


def test_an_operator_does_without_the_lane(tmp_path: Path, kernel: Kernel) -> None:
    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, FOUR, fast_lane=False) as it:
            assert it.router.lane is None
            assert (await it.ask(kit.chat())).status == 200

    kit.run(story())
