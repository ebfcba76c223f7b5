"""The fast lane's code reads as Python reads, stays within its memory whatever comes, and gives back all that it took."""

import asyncio
import ctypes
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.lane import lane as lane_module
from hekla.serving.router.lane.layout import HUGE_COUNT, LARGE_COUNT, SMALL_COUNT, AnswerKind, EnginePhase, State
from hekla.serving.router.lane.layout import Engine as EngineRow
from hekla.serving.router.plan import Refusal
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.usage import UsageRemover, tells_usage_only, usage_of
from hekla.serving.router.reading import read
from hekla.wire.chunks import Chunks
from hekla.wire.raw_heads import RefusedHeadError, read_answer
from serving.router import lanekit
from serving.router import proxykit as kit
from serving.router.test_running import Routed, eventually


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return lanekit.compiled()


class Reader:
    """The code that reads, called by itself, over bytes that end where nobody may read."""

    def __init__(self) -> None:
        from hekla.serving.router.lane.compiled_answer import read_answer, read_usage, tells_usage_only
        from hekla.serving.router.lane.compiled_question import read_question
        from hekla.serving.router.lane.compiled_streaming import _look, _walk

        self._question, self._answer, self._usage = read_question, read_answer, read_usage
        self._only, self._look, self._walk = tells_usage_only, _look, _walk
        self.slabs = lanekit.GuardedSlabs(Bounds(), b"0" * 12)
        self._text = lanekit.GuardedSlabs._put

    def _placed(self, data: bytes) -> tuple[int, int]:
        """At the very end of the scratch."""
        scratch = self.slabs._arrays[State.SCRATCH]
        begin = int(self.slabs.words[State.SCRATCH]) + scratch.nbytes - len(data)
        ctypes.memmove(begin, data, len(data))
        return begin, begin + len(data)

    def _word(self, which: State) -> int:
        return int(self.slabs.words[which])

    def question(self, body: bytes) -> tuple[str, bytes, int, bool, bool] | None:
        if not self._question(self.slabs.state, *self._placed(body)):
            return None
        return (
            self.slabs.text(self._word(State.MODEL), self._word(State.MODEL_LENGTH)).decode(),
            self.slabs.text(self._word(State.PROMPT), self._word(State.PROMPT_LENGTH)),
            self._word(State.MOST_OUTPUT),
            bool(self._word(State.IS_STREAM)),
            bool(self._word(State.WANTS_USAGE)),
        )

    def answer(self, data: bytes) -> tuple[int, int, int, bool] | None:
        kind = self._answer(self.slabs.state, *self._placed(data))
        if kind not in (AnswerKind.WHOLE, AnswerKind.STREAM):
            return None
        is_stream = kind == AnswerKind.STREAM
        return self._word(State.STATUS), self._word(State.HEAD_END), self._word(State.BODY_LENGTH), is_stream

    def cut(self) -> tuple[int, int]:
        """The line about chunks of the head that was read last, counted from the head's end."""
        end = int(self.slabs.words[State.SCRATCH]) + self.slabs._arrays[State.SCRATCH].nbytes
        return self._word(State.CUT_AT) - end, self._word(State.CUT_END) - end

    def tells_usage_only(self, event: bytes) -> bool:
        return bool(self._only(self.slabs.state, *self._placed(event)))

    def look(self, payload: bytes) -> tuple[int, bool]:
        seen = self._look(self.slabs.state, *self._placed(payload))
        return seen >> 1, bool(seen & 1)

    def walk(self, data: bytes, *, leaves_usage_out: bool) -> tuple[int, bytes, bytes]:
        """What kind of stream this is, what of it goes on, and what waits."""
        begin, end = self._placed(data)
        self.slabs.words[State.PIECES] = self.slabs.words[State.PIECES_LENGTH] = 0
        kind = self._walk(self.slabs.state, int(leaves_usage_out), begin, end)
        walked = self._word(State.WALKED)
        return kind, self.slabs.pieces(), self.slabs.text(walked, end - walked)

    def usage(self, data: bytes) -> tuple[int, int, int] | None:
        if not self._usage(self.slabs.state, *self._placed(data)):
            return None
        return self._word(State.USAGE_INPUT), self._word(State.USAGE_OUTPUT), self._word(State.USAGE_CACHED)


@pytest.fixture(scope="module")
def reader(kernel: Kernel) -> Reader:
    return Reader()


def as_python(body: bytes) -> Any:
    found = read("/v1/chat/completions", body)
    if isinstance(found, Refusal):
        return found
    return found.model, found.prompt, found.output_tokens, found.is_stream, found.wants_usage


def held(reader: Reader, body: bytes) -> bool:
    """Whether the lane takes a body; then Python takes it, too, for the same."""
    found = reader.question(body)
    if found is not None:
        assert found == as_python(body)
        json.loads(body)
    return found is not None


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["model", "messages", "stream", "max_tokens", "max_completion_tokens", "prompt", "tools", "temperature", "stream_options", "x"]
)  # fmt: skip
MESSAGES = st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": VALUES}), min_size=1, max_size=3)
BODIES = st.fixed_dictionaries(
    {"model": st.text(max_size=6) | st.just("m"), "messages": MESSAGES | VALUES},
    optional={
        "stream": VALUES | st.booleans(),
        "max_tokens": VALUES | st.integers(-2, 10**12),
        "max_completion_tokens": VALUES | st.integers(0, 99),
        "temperature": VALUES,
        "x": VALUES,
        "stream_options": VALUES
        | st.fixed_dictionaries({}, optional={"include_usage": st.booleans() | VALUES, "more": VALUES}),
    },
)


@settings(max_examples=400, deadline=None)
@given(BODIES, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_a_question_that_the_lane_reads_is_read_so_by_python(
    reader: Reader, body: Any, is_ascii: bool, indent: Any
) -> None:
    held(reader, json.dumps(body, ensure_ascii=is_ascii, indent=indent).encode("utf-8", "surrogatepass"))


@settings(max_examples=600, deadline=None)
@given(BODIES, st.integers(0, 2**31), st.binary(max_size=3), st.integers(0, 4))
def test_a_body_with_something_wrong_is_no_question_to_the_lane_that_it_is_not_to_python(
    reader: Reader, body: Any, where: int, put: bytes, cut: int
) -> None:
    text = json.dumps({"model": "m", **body}).encode()
    at = where % len(text)
    held(reader, text[:at] + put + text[at + cut :])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=6))
def test_names_that_come_twice_are_pythons(reader: Reader, fields: list[tuple[str, Any]]) -> None:
    text = ",".join(f"{json.dumps(name)}:{json.dumps(value)}" for name, value in [("model", "m"), *fields])
    held(reader, ("{" + text + ',"messages":[{"content":"x"}]}').encode())


def test_a_plain_chat_is_one_to_the_lane(reader: Reader) -> None:
    for body in (
        b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
        b' { "model" : "m" , "messages" : [{"role":"user"}] , "stream" : false , "max_tokens" : 12 , "seed" : -1.5e3 } \n',
        json.dumps(
            {"model": "m", "messages": [{"content": 'grüße 漢字 🙂 \\ " \n' * 50}]}, ensure_ascii=False
        ).encode(),
        json.dumps({"model": "m", "messages": [{"content": "a b " * 10_000}], "stop": ["x"]}).encode(),
    ):
        assert held(reader, body)
    assert not held(reader, json.dumps({"model": "m", "messages": [{"content": "A" * 40_000}]}).encode())
    assert not held(reader, b'{"model":"m","messages":[{"content":"\xed\xa0\x80"}]}')
    assert not held(reader, b'{"model":"m","messages":[{"content":"\xc0\xaf"}]}')


LINES = st.sampled_from(
    [b"date: today", b"content-length: 5", b"Content-Length:7", b"content-length: 5x", b"content-length:", b"server: u",
     b"connection: close", b"transfer-encoding: chunked", b"content-type: application/json", b"content-type: Text/Event-Stream; x",
     b"content-encoding: identity", b"x y: z", b": z", b"bad", b"x:\x00", b"x: \n", b"keep-alive: 5", b"trailer: x", b"x-a:  b  "]
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(
    st.sampled_from([b"HTTP/1.1 200 OK", b"HTTP/1.1 404", b"HTTP/1.0 200 OK", b"HTTP/1.1 99 x", b"HTTP/1.1 204 No", b"HTTP/1.1 200\tx", b"HTTP/2 200", b"HTTP/1.1 600 x"]),
    st.lists(LINES, max_size=5),
    st.binary(max_size=8),
    st.integers(0, 200),
)  # fmt: skip
def test_the_head_of_an_answer_that_the_lane_takes_is_read_so_by_python(
    reader: Reader, first: bytes, lines: list[bytes], body: bytes, cut: int
) -> None:
    data = b"\r\n".join([first, *lines, b"", body])[: 400 - cut]
    found = reader.answer(data)
    if found is None:
        return
    try:
        head = read_answer(data, Bounds())
    except RefusedHeadError:
        head = None
    assert head is not None
    is_stream = found[3]
    assert (head.status, head.end, head.body_length) == found[:3]
    assert head.is_plain
    assert head.keeps_alive
    assert (head.is_chunked, head.is_event_stream, head.is_encoded) == (is_stream, is_stream, False)
    if is_stream:
        begin, end = (len(data) + at for at in reader.cut())
        opened = data[: data.index(b"\r\n") + 2]
        assert opened + head.lines == data[:begin] + data[end : head.end - 2]


PIECES = st.sampled_from(
    ['"usage"', ":", " ", "{", "}", '"prompt_tokens"', '"completion_tokens"', '"input_tokens"', '"output_tokens"', '"cached_tokens"',
     '"cache_read_input_tokens"', "12", "0", "345678901234567890", ",", '"x"', "null", "\n", '"total_tokens"']
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(PIECES, max_size=24))
def test_the_usage_is_found_as_by_python(reader: Reader, pieces: list[str]) -> None:
    data = "".join(pieces).encode()
    usage = usage_of(data)
    found = reader.usage(data)
    assert found == (None if usage is None else (usage.input_tokens, usage.output_tokens, usage.cached_tokens))


EVENT_PIECES = st.sampled_from(
    [b'"choices"', b'"usage"', b":", b" ", b"[", b"]", b"{", b"}", b"null", b"\n", b'"us', b"x" * 40, b',"model":"m"', b'"usage":{"completion_tokens":3}', b'"choices":[]']
)  # fmt: skip


@settings(max_examples=600, deadline=None)
@given(st.lists(EVENT_PIECES, max_size=24))
def test_events_and_usages_are_seen_as_by_python(reader: Reader, pieces: list[bytes]) -> None:
    payload = b"".join(pieces)
    assert reader.look(payload) == (payload.count(b"\n\n"), b'"usage"' in payload)
    assert reader.tells_usage_only(payload) == tells_usage_only(payload)


PAYLOADS = st.lists(st.lists(EVENT_PIECES, max_size=6).map(b"".join), min_size=1, max_size=8)


@settings(max_examples=600, deadline=None)
@given(PAYLOADS, st.integers(0, 2_000), st.booleans(), st.binary(max_size=2))
def test_of_a_stream_whole_events_go_on_and_nothing_is_lost(
    reader: Reader, payloads: list[bytes], cut: int, leaves_usage_out: bool, put: bytes
) -> None:
    """Whatever goes on is what Python would write of it, without the usage; what waits is the rest, from between two chunks on."""
    data = b"".join(kit.chunk(one + b"\n\n") for one in payloads) + kit.LAST
    data = data[:cut] + put + data[cut:] if put else data[: max(cut, 1)]
    kind, passed, waits = reader.walk(data, leaves_usage_out=leaves_usage_out)
    if kind < 0:
        return
    whole: list[bytes] = []
    ended = Chunks().feed(data[: len(data) - len(waits)], whole)
    assert (kind == 1) == (ended >= 0)
    written: list[bytes] = []
    assert (Chunks().feed(passed, written) >= 0) == (ended >= 0)
    remover = UsageRemover(1 << 20)
    expected = remover.feed(b"".join(whole)) if leaves_usage_out else b"".join(whole)
    assert b"".join(written) == expected
    assert remover.is_clear


# ---- all of it, in memory that nobody may leave


ANSWERS = (
    kit.whole(), kit.whole(b"x" * 9_000), kit.whole(b"x" * 120_000), kit.whole(b"x" * 200_000), kit.whole(b"{}", 503), kit.whole(b"{}", 400),
    kit.stream(kit.event("a"), kit.DONE), b"garbage\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nabcdefgh", kit.whole()[:-3],
    kit.stream(*[kit.event("a b")] * 300, kit.USAGE_EVENT, kit.DONE), kit.stream(kit.event("x" * 290_000)), kit.stream(kit.USAGE_EVENT, kit.event("a"))[:-9],
    kit.STREAM_HEAD + b"5\r\na\n\n", kit.STREAM_HEAD + b"ffffff\r\n" + b"x" * 9_000, kit.stream(b"data: x\r\n\r\n", kit.event("b")),
    b"HTTP/1.1 200 OK\r\n\r\n", b"\x00" * 300, b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\n", b"x" * 300_000,
)  # fmt: skip


def engine(dice: random.Random) -> kit.Script:
    """Mostly answers; now and then in pieces, wrong, twice, or not at all."""

    async def script(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        answer = kit.whole()
        if b'"stream": true' in asked.body:
            answer = kit.stream(
                *[kit.event("a" * dice.choice([1, 30, 5_000]))] * dice.choice([1, 5, 60]), kit.USAGE_EVENT, kit.DONE
            )
        plain = answer
        if dice.random() < 0.08:
            answer = dice.choice(ANSWERS)
        if dice.random() < 0.05:
            answer *= 2
        step = dice.choice([1 << 20, 1 << 20, 3_000, 50])
        if step < 100:
            answer = answer[:2_000]
        for at in range(0, len(answer), step):
            if writer.transport.is_closing():  # its client left, and the router with him
                return
            writer.write(answer[at : at + step])
            await asyncio.sleep(0)
        if answer not in (plain, kit.whole(b"{}", 400)) or dice.random() < 0.05:
            writer.close()

    return script


def asked(dice: random.Random) -> bytes:
    """Mostly a plain chat; now and then another, or with something wrong in it."""
    text = ("x" * dice.choice([1, 50, 900, 7_000, 30_000])) if dice.random() < 0.97 else "a word " * 60_000
    data = kit.chat(text=text, max_tokens=dice.choice([1, 5, 100]))
    if dice.random() < 0.4:
        data = kit.chat(stream=True, **({"stream_options": {"include_usage": True}} if dice.random() < 0.3 else {}))
    if dice.random() < 0.1:
        at = dice.randrange(len(data))
        data = data[:at] + dice.randbytes(dice.randrange(3)) + data[at + dice.randrange(3) :]
    if dice.random() < 0.1:
        data += kit.chat()
    return data


async def hostile(it: Routed, dice: random.Random) -> None:
    """One client: a few good requests into the lane, then whatever."""
    client = await it.connect()
    try:
        for _ in range(dice.randrange(2, 5)):
            await client.ask(kit.chat())
        for _ in range(dice.randrange(1, 6)):
            data, step = asked(dice), dice.choice([1 << 20, 1 << 20, 400, 30])
            for at in range(0, min(len(data), 200 * step), step):
                await client.send(data[at : at + step])
                if step < 1_000:
                    await asyncio.sleep(0)
            if dice.random() < 0.2:
                break
            if dice.random() < 0.1:
                client.writer.write_eof()
                break
            async with asyncio.timeout(0.3):
                await client.answer()
    except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, asyncio.LimitOverrunError):
        pass
    client.leave()


@pytest.mark.parametrize("seed", range(4))
def test_whatever_clients_and_engines_do_the_lane_keeps_to_its_memory_and_gives_all_of_it_back(
    tmp_path: Path, kernel: Kernel, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(lane_module, "Slabs", lanekit.GuardedSlabs)
    dice = random.Random(seed)

    async def story() -> None:
        async with lanekit.laned(tmp_path, kernel, engine(dice), engine(dice), engine(dice)) as it:
            for _ in range(8):
                await asyncio.gather(*(hostile(it, dice) for _ in range(16)))
            lane = it.router.lane
            assert lane is not None
            assert it.router.listener.doorway.lane is lane, "it broke, and was closed"
            await eventually(
                lambda: (
                    not it.router.house.under_way
                    and not lane.connections
                    and not lane._connecting
                    and not lane._given_back
                )
            )
            lane.fold()
            assert lane.taken
            words = lane.slabs.words
            phases = lane.slabs.engines[: int(words[State.ENGINE_HIGH]), EngineRow.PHASE]
            assert not np.any(phases == EnginePhase.BUSY)
            counts = [words[one] for one in (State.SMALL_COUNT, State.LARGE_COUNT, State.HUGE_COUNT)]
            assert counts == [SMALL_COUNT, LARGE_COUNT, HUGE_COUNT]
            assert words[State.CLIENTS_HERE] == 0
            for one in it.router.fleet.by_name.values():
                for pool in it.router.world.pools():
                    pool._keep_up(it.router._now() + 3600)
                assert (one.in_flight, one.unanswered, one.prefill_tokens, one.context_tokens) == (0, 0, 0, 0)
            assert not list(lane.under_way())

    kit.run(story())
