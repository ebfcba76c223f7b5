"""Streams through the fast lane are what they are without it: the same events to clients, the same counts, however an engine writes them."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from hekla.api.kthena import ModelRoute
from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import layout
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


HELLO = [kit.event(one) for one in ("a", "b", 'say "usage" and\n\n"usage":', "ü")]
ENDS = (kit.USAGE_EVENT, kit.DONE)
AS_ASKED = {"stream_options": {"include_usage": True}}


def streams(*answers: bytes, step: int = 1 << 20) -> kit.Script:
    """Whole answers to plain requests, these to the others, one after the other, in pieces."""
    left = list(answers)

    async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        if b'"stream": true' not in asked.body:
            writer.write(kit.whole())
            return
        answer = left.pop(0) if len(left) > 1 else left[0]
        for at in range(0, len(answer), step):
            writer.write(answer[at : at + step])
            await writer.drain()
            await asyncio.sleep(0)

    return script


def a_stream(*answers: bytes, step: int = 1 << 20) -> Any:
    return maker(lambda: streams(*answers, step=step))


@pytest.mark.parametrize("fields", [{}, AS_ASKED], ids=["usage left out", "usage asked for"])
@pytest.mark.parametrize(
    "events",
    [[*HELLO, *ENDS], [*HELLO, kit.DONE], [kit.USAGE_EVENT], [kit.DONE]],
    ids=["all", "untold", "usage", "done"],
)
@pytest.mark.parametrize("step", [1 << 20, 61, 7, 1])
def test_a_stream_through_the_lane_is_a_stream(
    tmp_path: Path, kernel: Kernel, events: list[bytes], fields: dict[str, Any], step: int
) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        asked = kit.chat(stream=True, max_tokens=9, **fields)
        return shown(await client.ask(asked)), shown(await client.ask(asked)), shown(await client.ask(kit.chat()))

    said, *_ = both(tmp_path, kernel, story, a_stream(kit.stream(*events), step=step), taken=ENTERING + 3)
    whole = b"".join(events)
    assert said[0][1].endswith(whole if fields else whole.replace(kit.USAGE_EVENT, b""))


def test_a_stream_may_be_cut_anywhere(tmp_path: Path, kernel: Kernel) -> None:
    whole = kit.stream(kit.event("a"), *ENDS)

    async def story(it: Routed, client: kit.Client) -> Any:
        answers = []
        for at in range(1, len(whole)):

            async def in_two(asked: kit.Asked, writer: asyncio.StreamWriter, at: int = at) -> None:
                writer.write(whole[:at])
                for _ in range(3):
                    await asyncio.sleep(0)
                writer.write(whole[at:])

            it.engines[0].script = lanekit._scraped(in_two)
            answers.append(shown(await client.ask(kit.chat(stream=True))))
        assert len(set(answers)) == 1
        return answers[0]

    both(tmp_path, kernel, story, FOUR, taken=ENTERING + len(whole) - 1)


def headed(*lines: bytes, status: bytes = b"200 OK") -> bytes:
    """A stream under a head of these lines."""
    framed = kit.stream(*HELLO, *ENDS).partition(b"\r\n\r\n")[2]
    return b"HTTP/1.1 %b\r\n%b\r\n\r\n%b" % (status, b"\r\n".join(lines), framed)


EVENTS, CHUNKED = b"content-type: text/event-stream", b"transfer-encoding: chunked"


@pytest.mark.parametrize(
    "answer",
    [
        headed(EVENTS, CHUNKED, b"x-more: 1"),
        headed(b"Transfer-Encoding: chunked", b"server: u", b"Content-Type: text/event-stream; charset=utf-8"),
        headed(CHUNKED, EVENTS, status=b"201 Made"),
        headed(CHUNKED, EVENTS, status=b"400 No"),
        headed(CHUNKED, EVENTS, status=b"503 No"),
        headed(CHUNKED, EVENTS, b"connection: close"),
        headed(CHUNKED, CHUNKED, EVENTS),
        headed(b"transfer-encoding: gzip, chunked", EVENTS),
        headed(CHUNKED, b"content-type: application/json"),
        headed(CHUNKED, EVENTS, b"content-encoding: gzip"),
        headed(CHUNKED, EVENTS, b"content-length: 5"),
        kit.whole(b'{"error":"no such thing"}', 404),
        kit.whole(),
    ],
    ids=["more", "upper", "201", "400", "503", "close", "twice", "gzip", "json", "encoded", "length", "404", "whole"],
)  # fmt: skip
@pytest.mark.parametrize("fields", [{}, AS_ASKED], ids=["usage left out", "usage asked for"])
def test_whatever_the_head_of_a_stream_says_it_goes_on_as_without_the_lane(
    tmp_path: Path, kernel: Kernel, answer: bytes, fields: dict[str, Any]
) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        return shown(await client.ask(kit.chat(stream=True, **fields)))

    both(tmp_path, kernel, story, a_stream(answer))


def framed(*chunks: bytes) -> bytes:
    return kit.STREAM_HEAD + b"".join(chunks)


ONE = kit.chunk(kit.event("a"))


@pytest.mark.parametrize(
    "answer",
    [
        framed(ONE, b"%X\r\n%b\r\n" % (len(HELLO[3]), HELLO[3]), kit.LAST),
        framed(ONE, b"000%x\r\n%b\r\n" % (len(HELLO[0]), HELLO[0]), kit.LAST),
        framed(ONE, b"%x;a=b\r\n%b\r\n" % (len(HELLO[0]), HELLO[0]), kit.LAST),
        framed(ONE, b"0\r\nx-trailer: 1\r\n\r\n"),
        framed(ONE, b"00\r\n\r\n"),
        framed(ONE, kit.chunk(b"data: half"), kit.chunk(b" and half\n\n"), ONE, kit.LAST),
        framed(ONE, kit.chunk(b"data: x\r\n\r\n"), ONE, kit.LAST),
        framed(ONE, kit.chunk(HELLO[0] + HELLO[1] + HELLO[3]), kit.LAST),
        framed(ONE, kit.chunk(kit.USAGE_EVENT + kit.DONE), kit.LAST),
        framed(ONE, kit.chunk(kit.event("usage") + kit.USAGE_EVENT), kit.chunk(kit.DONE), kit.LAST),
        framed(ONE, kit.chunk(b'data: {"choices":[{"delta":{}}],"usage":null}\n\n'), kit.chunk(kit.DONE), kit.LAST),
        framed(ONE, kit.chunk(b'data: {"choices":[{}],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n'), kit.LAST),
        framed(ONE, kit.chunk(b'data: {"choices" : [ ],"usage" : {"prompt_tokens":4,"completion_tokens":2}}\n\n'), kit.LAST),
        framed(*[kit.chunk(kit.USAGE_EVENT), ONE] * 40, kit.LAST),
        framed(ONE, kit.chunk(b"data: " + b"y" * 300_000 + b"\n\n"), ONE, kit.LAST),
        framed(*[ONE] * 9_000, kit.LAST),
        framed(ONE, b"data: [DONE]\n\n"),
        framed(ONE, b"-5\r\nhello\r\n", kit.LAST),
        framed(ONE, b"5\r\nhello!!!", kit.LAST),
        framed(ONE, b"fffffffffff\r\nhello"),
        framed(ONE, kit.LAST, b"more"),
    ],
    ids=["upper", "zeros", "extended", "trailer", "two zeros", "half", "crlf", "several", "usage and done", "last is usage", "null",
         "usage and choices", "blanks", "many holes", "long", "many", "no size", "minus", "longer", "huge", "behind"],
)  # fmt: skip
@pytest.mark.parametrize("fields", [{}, AS_ASKED], ids=["usage left out", "usage asked for"])
def test_however_a_stream_is_written_it_goes_on_as_without_the_lane(
    tmp_path: Path, kernel: Kernel, answer: bytes, fields: dict[str, Any]
) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        engine = it.engines[0]

        async def says(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(answer)
            await writer.drain()
            writer.close()

        engine.script = lanekit._scraped(says)
        await client.send(kit.chat(stream=True, **fields, headers=""))
        first = await client.head()
        said = b""
        if "content-length" in first.headers:
            return first.status, await client.reader.readexactly(int(first.headers["content-length"])), "refused"
        try:
            while (piece := await client.chunk()) is not None:
                said += piece
        except (asyncio.IncompleteReadError, ValueError, ConnectionError):
            return first.status, said, "broken"
        return first.status, said, "whole"

    both(tmp_path, kernel, story, FOUR)


@pytest.mark.parametrize(
    "options",
    [{}, {"include_usage": False}, {"include_usage": None}, {"include_usage": True, "more": 1}, {"continuous_usage_stats": True}, None, "text", {"include_usage": "yes"}],
)  # fmt: skip
def test_whatever_is_wished_of_a_stream_is_asked_of_the_engine(tmp_path: Path, kernel: Kernel, options: Any) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        asked = kit.chat(stream=True, stream_options=options)
        return shown(await client.ask(asked))

    both(tmp_path, kernel, story, a_stream(kit.stream(*HELLO, *ENDS)))


@pytest.mark.parametrize("body", [b'{"model":"m","messages":[{"content":"x"}],"stream": true}', b' \n{ \t"stream": true,"model":"m","messages":[{"a":"\\"stream_options\\""}]}', b"{" + b" " * 300 + b'"model":"m","messages":[{"content":"x"}],"stream": true}'], ids=["dense", "loose", "blank"])  # fmt: skip
def test_a_wish_for_the_usage_is_put_before_the_first_field(tmp_path: Path, kernel: Kernel, body: bytes) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        return shown(await client.ask(kit.request(body)))

    _, got, _, _ = both(tmp_path, kernel, story, a_stream(kit.stream(*HELLO, *ENDS)))
    assert sum(b'"stream_options":{"include_usage":true},' in body for *_, body in got) == 1


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
def test_streams_of_other_paths_go_on_as_without_the_lane(tmp_path: Path, kernel: Kernel, path: str) -> None:
    body = b'{"model":"m","messages":[{"content":"x"}],"stream": true}'
    asked = kit.request(body, path=path)

    async def story(it: Routed, client: kit.Client) -> Any:
        return shown(await client.ask(asked)), shown(await client.ask(asked))

    answer = kit.stream(*HELLO, *ENDS)
    both(
        tmp_path,
        kernel,
        story,
        a_stream(answer),
        taken=ENTERING + 2,
        ask=kit.request(body.replace(b"true", b"false"), path=path),
    )


def test_a_client_who_only_asks_for_streams_comes_into_the_lane(tmp_path: Path, kernel: Kernel) -> None:
    asked = kit.chat(stream=True)

    async def story(it: Routed, client: kit.Client) -> Any:
        return [shown(await client.ask(asked)) for _ in range(3)]

    both(tmp_path, kernel, story, a_stream(kit.stream(*HELLO, *ENDS)), taken=ENTERING + 3, ask=asked)


@pytest.mark.parametrize("fields", [{}, AS_ASKED], ids=["usage left out", "usage asked for"])
@pytest.mark.parametrize("cut", [0, 1, 9, len(ONE) - 3, len(ONE) - 1])
def test_an_engine_that_dies_in_a_stream_is_told_of_and_the_stream_is_not_begun_again(
    tmp_path: Path, kernel: Kernel, cut: int, fields: dict[str, Any]
) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        async def dies(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(framed(ONE))
            for _ in range(5):
                await asyncio.sleep(0)
            writer.write(ONE[:cut])
            await writer.drain()
            writer.close()

        for one in it.engines:
            one.script = lanekit._scraped(dies)
        await client.send(kit.chat(stream=True, text="dies", **fields))
        await client.head()
        first = await client.chunk()
        return first, (await client.closed()).partition(b"\r\n")[2][:80]

    said, asked, *_ = both(tmp_path, kernel, story, FOUR, FOUR)
    assert said[0] == kit.event("a")
    assert sum(b"dies" in body for *_, body in asked) == 1


@pytest.mark.parametrize("is_begun", [False, True])
def test_when_the_client_leaves_a_stream_its_engine_is_cut_off(tmp_path: Path, kernel: Kernel, is_begun: bool) -> None:
    async def waits(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        if b'"stream": true' not in asked.body:
            writer.write(kit.whole())
        elif is_begun:
            writer.write(framed(ONE, ONE))

    async def story(it: Routed, client: kit.Client) -> Any:
        engine = it.engines[0]
        engine.gone.clear()
        await client.send(kit.chat(stream=True, text="wait"))
        await eventually(lambda: any(b"wait" in one.body for one in engine.asked))
        if is_begun:
            await client.head()
            assert [await client.chunk(), await client.chunk()] == [kit.event("a")] * 2
        client.leave()
        await engine.gone.wait()

    _, _, log, _ = both(tmp_path, kernel, story, waits, taken=ENTERING + 1)
    assert log[0]["status_code"] == 200
    assert [line["status_code"] for line in log].count(499) == (0 if is_begun else 1)


def hold_back(it: Routed, client: kit.Client) -> int:
    """The client takes a few bytes and no more; its number in the lane, -1 where there is none."""
    taking = client.writer.get_extra_info("socket")
    taking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    lane, number = it.router.lane, -1
    if lane is not None:
        (number,) = lane._clients
        descriptor = int(lane.slabs.clients[number, layout.Client.FD])
        with socket.socket(fileno=os.dup(descriptor)) as its:
            its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
    client.reader._limit = 1  # the stream stops reading when more than two bytes wait
    return number


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("fields", [{}, AS_ASKED], ids=["usage left out", "usage asked for"])
def test_a_client_who_takes_a_stream_slowly_gets_all_of_it(
    tmp_path: Path, kernel: Kernel, is_last: bool, fields: dict[str, Any]
) -> None:
    """What it does not take of the last piece waits in the lane; before that, Python slows the engine."""
    many = [kit.event(f"{number}" * 40) for number in range(400)]
    whole = kit.stream(*many, *ENDS)

    async def story(it: Routed, client: kit.Client) -> Any:
        go = asyncio.Event()

        async def says(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            if b'"stream": true' not in asked.body:
                writer.write(kit.whole())
                return
            cut = len(whole) if is_last else len(whole) // 2
            writer.write(whole[:cut])
            await go.wait()
            writer.write(whole[cut:])

        it.engines[0].script = lanekit._scraped(says)
        number, lane = hold_back(it, client), it.router.lane
        await client.send(kit.chat(stream=True, **fields))
        if lane is not None:
            rows = lane.slabs.clients
            await eventually(lambda: not lane.connections or rows[number, layout.Client.PHASE] == layout.Phase.SENDING)
        go.set()
        client.reader._limit = 1 << 20
        return shown(await client.answer()), shown(await client.ask(kit.chat()))

    said, *_ = both(tmp_path, kernel, story, FOUR)
    assert b"".join(many) in said[0][1]


def test_a_stream_that_falls_silent_is_waited_for_by_python(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        go = asyncio.Event()

        async def stalls(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(framed(ONE, ONE[:20]))
            await go.wait()
            writer.write(ONE[20:] + kit.chunk(kit.USAGE_EVENT) + kit.chunk(kit.DONE) + kit.LAST)

        lane = it.router.lane
        if lane is not None:
            lane.slabs.doubles[layout.State.SILENCE_S] = 0.01
        before = it.engines[0].script
        it.engines[0].script = lanekit._scraped(stalls)
        await client.send(kit.chat(stream=True))
        await client.head()
        assert await client.chunk() == kit.event("a")
        await eventually(lambda: bool(it.router.house.under_way))  # the lane's sweep has given it away
        counts = next(iter(it.router.fleet.by_name.values()))
        assert (counts.in_flight, counts.unanswered, counts.prefill_tokens) == (1, 0, 0)
        go.set()
        it.engines[0].script = before
        said = b""
        while (piece := await client.chunk()) is not None:
            said += piece
        return said, shown(await client.ask(kit.chat()))

    said, _, log, _ = both(tmp_path, kernel, story, FOUR)
    assert said[0] == kit.event("a") + kit.DONE
    assert {line["output_tokens"] for line in log} == {3}


@pytest.mark.parametrize("events", [[*HELLO, *ENDS], HELLO], ids=["told", "untold"])
def test_what_a_stream_made_is_taken_from_budgets(tmp_path: Path, kernel: Kernel, events: list[bytes]) -> None:
    limit = {"inputTokensPerUnit": 10_000, "outputTokensPerUnit": 10_000, "unit": "month"}

    async def story(it: Routed, client: kit.Client) -> Any:
        await it.client.patch(ModelRoute, "m", {"spec": {"rateLimit": limit}}, namespace="ml")
        await eventually(lambda: it.router.doors.limits._routes.get("m") is not None)
        for _ in range(5):
            await client.ask(kit.chat(stream=True))
        budget = it.router.doors.limits._routes["m"]
        assert budget.input is not None
        assert budget.output is not None
        return round(budget.input.level), round(budget.output.level)

    said, *_ = both(tmp_path, kernel, story, a_stream(kit.stream(*events)))
    assert said[1] == 10_000 - 5 * (3 if len(events) > len(HELLO) else len(HELLO))


def test_a_drain_lets_a_stream_in_the_lane_end(tmp_path: Path, kernel: Kernel) -> None:
    async def story(it: Routed, client: kit.Client) -> Any:
        go = asyncio.Event()

        async def slow(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(framed(ONE))
            await go.wait()
            writer.write(ONE + kit.LAST)

        it.engines[0].script = lanekit._scraped(slow)
        await client.send(kit.chat(stream=True))
        await client.head()
        assert await client.chunk() == kit.event("a")
        it.router.stop()
        go.set()
        said = [await client.chunk(), await client.chunk()]
        assert await client.closed() == b""
        await it.running
        return said

    said, *_ = both(tmp_path, kernel, story, FOUR)
    assert said == [kit.event("a"), None]


def test_streams_of_many_clients_are_each_his_own(tmp_path: Path, kernel: Kernel) -> None:
    async def echo(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        if b'"stream": true' not in asked.body:
            writer.write(kit.whole())
            return
        text = asked.json()["messages"][0]["content"]
        writer.write(kit.STREAM_HEAD)
        for word in text.split():
            writer.write(kit.chunk(kit.event(word)))
            await asyncio.sleep(0)
        writer.write(kit.chunk(kit.USAGE_EVENT) + kit.chunk(kit.DONE) + kit.LAST)

    async def one(it: Routed, number: int) -> None:
        client = await it.connect()
        for turn in range(8):
            words = [f"{number}", f"{turn}", *["x" * (number * 37 % 900)] * (turn % 4)]
            answer = await client.ask(kit.chat(stream=turn != 2, text=" ".join(words)))
            assert turn == 2 or answer.body == b"".join(kit.event(word) for word in words if word) + kit.DONE

    async def story(it: Routed, client: kit.Client) -> Any:
        await asyncio.gather(*(one(it, number) for number in range(30)))

    both(tmp_path, kernel, story, echo, echo, echo)
