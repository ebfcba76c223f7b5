"""Traces: a caller's trace goes on through the router to the engine, and a collector gets the spans, whatever becomes of either."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.plan import Destination, Target
from hekla.serving.router.spans import MOST_TRIES
from hekla.serving.router.telemetry import AGAIN_S, LONGEST_AGAIN_S, Tracing
from hekla.serving.router.trace_settings import TraceSettings, read_traces
from hekla.serving.router.variables import VariableError
from hekla.wire.client import HttpClient
from serving.router import proxykit as kit
from serving.router.poolkit import endpoint
from serving.router.test_providers_on_the_wire import desk_of
from serving.router.test_running import Routed, engine_script, eventually, routed

pytestmark = pytest.mark.usefixtures("lane")

TRACE, PARENT_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARENT = f"00-{TRACE}-{PARENT_SPAN}-01"


class Collector:
    """A receiver of OTLP over HTTP that keeps what it is sent, and answers as the test has it."""

    def __init__(self) -> None:
        self.posts: list[kit.Asked] = []
        self.answers: list[bytes] = []
        """Given in turn; after the last it takes all."""
        self.hangs = False
        self.engine = kit.ScriptedEngine(self._take, "collector")

    async def _take(self, asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
        self.posts.append(asked)
        if self.hangs:
            await asyncio.Event().wait()
        writer.write(self.answers.pop(0) if self.answers else kit.whole(b"{}"))

    def settings(self, **more: Any) -> TraceSettings:
        told = {"url": f"http://127.0.0.1:{self.engine.port}/v1/traces", "delay_s": 0.01, **more}
        return TraceSettings(**told)

    def spans(self) -> list[dict[str, Any]]:
        """All that came, with attributes as a table of names."""
        return [
            {**span, "attributes": {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}}
            for post in self.posts
            for span in json.loads(post.body)["resourceSpans"][0]["scopeSpans"][0]["spans"]
        ]


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector = Collector()
    server = await collector.engine.serve()
    try:
        yield collector
    finally:
        server.close()


def tell(
    tmp_path: Path, story: Callable[[Routed, Collector], Awaitable[None]], *answers: bytes, **settings: Any
) -> list[dict[str, Any]]:
    """A story of a router whose spans are collected; the spans, once the router has ended."""
    told: list[dict[str, Any]] = []

    async def whole() -> None:
        async with collecting() as collector:
            async with routed(tmp_path, *(answers or (kit.whole(),)), traces=collector.settings(**settings)) as it:
                await story(it, collector)
            told.extend(collector.spans())

    kit.run(whole())
    return told


def asked_of(it: Routed) -> list[kit.Asked]:
    return [one for engine in it.engines for one in engine.asked if one.line.startswith("POST")]


# ---- what goes on, and what is told


def test_a_callers_trace_goes_on_to_the_engine_and_to_the_collector(tmp_path: Path) -> None:
    heads: list[kit.Asked] = []

    async def story(it: Routed, collector: Collector) -> None:
        await it.ask(kit.chat(headers=f"traceparent: {PARENT}\r\ntracestate: a=1,b=2\r\nbaggage: k=v\r\n"))
        heads.extend(asked_of(it))
        await eventually(lambda: len(collector.posts) > 0)
        assert collector.posts[0].line == "POST /v1/traces HTTP/1.1"
        assert collector.posts[0].headers["content-type"] == "application/json"
        (told,) = json.loads(collector.posts[0].body)["resourceSpans"]
        assert told["resource"]["attributes"] == [{"key": "service.name", "value": {"stringValue": "hekla-router"}}]

    request, attempt = tell(tmp_path, story)
    (asked,) = heads
    assert asked.headers["traceparent"] == f"00-{TRACE}-{attempt['spanId']}-01", (
        "the engine's spans hang below the attempt"
    )
    assert (asked.headers["tracestate"], asked.headers["baggage"]) == ("a=1,b=2", "k=v")
    assert asked.head.lower().count(b"traceparent") == 1
    assert {one["traceId"] for one in (request, attempt)} == {TRACE}
    assert {one["traceState"] for one in (request, attempt)} == {"a=1,b=2"}
    assert (request["parentSpanId"], attempt["parentSpanId"]) == (PARENT_SPAN, request["spanId"])
    assert (request["kind"], attempt["kind"]) == (2, 3)
    assert (request["name"], attempt["name"]) == ("POST /v1/chat/completions", "chat m")
    assert [one["name"] for one in request["events"]] == ["planned", "first byte"]
    assert request["status"] == attempt["status"] == {}
    for one in (request, attempt):
        assert 0 < int(one["startTimeUnixNano"]) <= int(one["endTimeUnixNano"])
        wanted = {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": "7",
            "gen_ai.usage.output_tokens": "3", "http.response.status_code": "200", "hekla.pod": "m-0-pod",
        }  # fmt: skip
        assert wanted.items() <= one["attributes"].items()
    assert request["attributes"]["http.route"] == "/v1/chat/completions"
    assert attempt["attributes"]["server.address"] == "127.0.0.1"
    assert int(attempt["attributes"]["server.port"]) > 0
    assert "http.request.resend_count" not in attempt["attributes"]


@pytest.mark.parametrize(
    ("answer", "error", "status"),
    [(b"", "closed", None), (b"no http at all\r\n\r\n", "garbage", None), (kit.whole(b"{}", status=503), "503", "503")],
    ids=["closes", "garbage", "busy"],
)
def test_an_attempt_that_failed_is_a_span_with_its_error_and_the_next_is_another(
    tmp_path: Path, answer: bytes, error: str, status: str | None
) -> None:
    parents: list[str] = []

    async def story(it: Routed, collector: Collector) -> None:
        async def fails_once(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            if not asked.line.startswith("POST"):
                await engine_script(b"")(asked, writer)
            elif len(asked_of(it)) == 1:
                writer.write(answer)
                writer.close()
            else:
                writer.write(kit.whole())

        (one,) = it.router.world.servers.values()
        beside = Endpoint("beside", "127.0.0.1", it.engines[0].port, namespace="ml")
        one.decode.join(beside)
        it.engines[0].script = fails_once
        assert (await it.ask(kit.chat(headers=f"traceparent: {PARENT}\r\n"))).status == 200
        parents.extend(one.headers["traceparent"].split("-")[2] for one in asked_of(it))
        one.decode.leave(beside)

    request, first, second = tell(tmp_path, story)
    assert parents == [first["spanId"], second["spanId"]]
    assert first["attributes"]["error.type"] == error
    assert first["attributes"].get("http.response.status_code") == status
    assert first["status"]["code"] == 2
    assert first["status"]["message"]
    assert "gen_ai.usage.output_tokens" not in first["attributes"]
    assert second["attributes"]["http.request.resend_count"] == "1"
    assert (second["status"], request["status"]) == ({}, {})
    assert request["attributes"]["hekla.attempts"] == "2"
    assert first["attributes"]["hekla.pod"] != second["attributes"]["hekla.pod"]


def test_what_the_caller_did_wrong_is_no_error_of_the_router(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        assert (await it.ask(kit.chat(model="nobody"))).status == 404
        assert (await it.ask(kit.chat())).status == 400

    unknown, request, attempt = sorted(
        tell(tmp_path, story, kit.whole(b'{"error":{}}', status=400)), key=lambda one: int(one["startTimeUnixNano"])
    )
    assert (unknown["status"], request["status"]) == ({}, {})
    assert "error.type" not in unknown["attributes"]
    assert unknown["attributes"]["http.response.status_code"] == "404"
    assert (attempt["status"]["code"], attempt["attributes"]["error.type"]) == (2, "400")


def test_a_stream_that_is_cut_short_says_so(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        async def cuts(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("a")))
            await writer.drain()
            writer.close()

        it.engines[0].script = cuts
        await (await it.connect()).send(kit.chat(stream=True))
        await eventually(lambda: len(it.router.house.ledger) > 0 or len(collector.posts) > 0)

    request, attempt = tell(tmp_path, story)
    for one in (request, attempt):
        assert (one["status"]["code"], one["attributes"]["error.type"]) == (2, "response_forwarding")


def test_nothing_that_was_asked_or_answered_is_told(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        await it.ask(kit.chat(text="my secret words", headers="Authorization: Bearer k-123\r\n"))
        it.router.keep_books()
        await eventually(lambda: len(collector.posts) > 0)
        for post in collector.posts:
            assert b"secret" not in post.body + post.head
            assert b"k-123" not in post.body + post.head

    assert len(tell(tmp_path, story, kit.whole(b'{"choices":[{"message":{"content":"my secret"}}]}'))) == 2


# ---- which are traced


def tracing(client: HttpClient, **settings: Any) -> Tracing:
    made = Tracing(TraceSettings(**{"url": "http://127.0.0.1:1/v1/traces", **settings}), client)
    made._dice = random.Random(1)
    return made


def begun(lines: str, **settings: Any) -> Any:
    found = []

    async def story() -> None:
        async with HttpClient() as client:
            found.append(tracing(client, **settings).begin(lines.encode()))

    kit.run(story())
    return found[0]


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "traceparent: x\r\n",
        f"traceparent: 00-{'0' * 32}-{PARENT_SPAN}-01\r\n",
        f"traceparent: 00-{TRACE}-{'0' * 16}-01\r\n",
        f"traceparent: {PARENT.upper()}\r\n",
        f"traceparent: {PARENT}-more\r\n",
        f"traceparent: ff-{PARENT[3:]}\r\n",
        f"traceparent: {PARENT}\r\ntraceparent: {PARENT}\r\n",
    ],
)
def test_a_trace_that_makes_no_sense_is_begun_anew_without_its_state(lines: str) -> None:
    one = begun(lines + "tracestate: a=1\r\n", share=0.0)
    assert (one.parent, one.state, one.is_sampled, len(one.trace), len(one.span)) == ("", "", False, 32, 16)
    assert one.trace != TRACE
    assert dict(one.headers)[b"tracestate"] == b""


@pytest.mark.parametrize(("length", "told"), [(510, 512), (511, 0), (60_000, 0)])
def test_a_state_that_is_longer_than_everybody_carries_goes_on_and_is_not_told(length: int, told: int) -> None:
    """A post of 512 spans could have 32 MB, which a collector refuses whole, with the spans of everybody else."""
    one = begun(f"traceparent: {PARENT}\r\ntracestate: a={'x' * length}\r\n")
    assert (one.trace, len(one.state)) == (TRACE, told)
    assert b"tracestate" not in dict(one.headers), "it goes on as it came"


@pytest.mark.parametrize("value", [PARENT, f"cc-{PARENT[3:]}", f"01-{PARENT[3:]}-what-comes-later"])
@pytest.mark.parametrize("name", ["traceparent", "Traceparent", "TRACEPARENT"])
def test_later_versions_are_read_as_far_as_they_are_known(name: str, value: str) -> None:
    one = begun(f"host: x\r\n{name}:  {value} \r\n", share=0.0)
    assert (one.trace, one.parent, one.is_sampled) == (TRACE, PARENT_SPAN, True)
    assert dict(one.headers)[b"traceparent"].startswith(b"00-")


@pytest.mark.parametrize(
    ("flags", "settings", "is_sampled"),
    [
        ("00", {"share": 1.0}, False),
        ("01", {"share": 0.0}, True),
        ("03", {"share": 0.0}, True),
        ("00", {"share": 1.0, "heeds_callers": False}, True),
        ("01", {"share": 0.0, "heeds_callers": False}, False),
    ],
)
def test_the_callers_word_decides_unless_the_sampler_says_otherwise(
    flags: str, settings: dict[str, Any], is_sampled: bool
) -> None:
    one = begun(f"traceparent: {PARENT[:-2]}{flags}\r\n", **settings)
    assert one.is_sampled is is_sampled
    assert dict(one.headers)[b"traceparent"].endswith(b"-01" if is_sampled else b"-00")


def test_a_share_is_drawn_by_the_traces_number_so_that_all_take_the_same() -> None:
    async def story() -> None:
        async with HttpClient() as client:
            one, other = tracing(client, share=0.25), tracing(client, share=0.25, heeds_callers=False)
            drawn = [one.begin(b"") for _ in range(2_000)]
            assert 400 < sum(trace.is_sampled for trace in drawn) < 600
            for trace in drawn:
                lines = b"traceparent: %b\r\n" % dict(trace.headers)[b"traceparent"]
                assert other.begin(lines).is_sampled == trace.is_sampled

    kit.run(story())


def test_who_is_not_sampled_is_passed_on_and_not_told(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        await it.ask(kit.chat(headers=f"traceparent: {PARENT[:-2]}00\r\n"))
        (asked,) = asked_of(it)
        assert asked.headers["traceparent"].split("-")[1] == TRACE
        assert asked.headers["traceparent"].endswith("-00")

    assert tell(tmp_path, story) == []


# ---- the collector


def over(made: Tracing, count: int, tries: int = 0) -> None:
    """So many requests are over."""
    row = SimpleNamespace(destination=Destination("m"), model="m", path="/v1/completions")
    target: Target = endpoint("e")
    for _ in range(count):
        trace = made.begin(b"")
        for _ in range(tries):
            made.attempt(trace, target, 1.0)
        one = SimpleNamespace(
            trace=trace, usage_told=None, refusal=None, status=200, upstream_status=200, path="/v1/completions",
            head=SimpleNamespace(method=b"POST"), target_name="e", attempts=1, request_id=b"1", input_tokens=3,
            planned_at=1.0, first_byte_at=2.0, started_at=1.0, ended_at=3.0,
        )  # fmt: skip
        made.add([one], [row], 0.0)  # type: ignore[list-item]


def posting(story: Callable[[Tracing, Collector], Awaitable[None]], **settings: Any) -> None:
    async def whole() -> None:
        async with collecting() as collector, HttpClient() as client:
            await story(Tracing(collector.settings(**settings), client), collector)

    kit.run(whole())


def test_spans_are_posted_in_batches() -> None:
    async def story(made: Tracing, collector: Collector) -> None:
        over(made, 25)
        assert await made.send() == 0.0
        sizes = [len(json.loads(one.body)["resourceSpans"][0]["scopeSpans"][0]["spans"]) for one in collector.posts]
        assert sizes == [10, 10, 5]
        assert await made.send() == 0.0
        assert len(collector.posts) == 3

    posting(story, most_in_one=10)


def test_spans_of_a_collector_that_is_away_wait_in_bounds_and_are_posted_later_each_time() -> None:
    async def story(made: Tracing, collector: Collector) -> None:
        collector.answers = [kit.whole(b"", status=503)] * 8
        over(made, 60)
        over(made, 30, tries=1)
        assert (len(made._waiting), made.left_out) == (100, 20)
        assert [await made.send() for _ in range(8)] == [*AGAIN_S, AGAIN_S[-1], AGAIN_S[-1]]
        assert (len(made._waiting), made.left_out) == (100, 20)
        collector.posts.clear()
        assert await made.send() == 0.0
        assert len(collector.spans()) == 100
        collector.answers = [kit.whole(b"", status=503)]
        over(made, 1)
        assert await made.send() == AGAIN_S[0]

    posting(story, most_waiting=100, most_in_one=64)


def test_a_collector_that_nobody_is_at_costs_nothing_but_spans() -> None:
    async def story() -> None:
        async with HttpClient() as client:
            made = tracing(client)
            over(made, 3)
            assert await made.send() == AGAIN_S[0]
            assert await made.send() == AGAIN_S[1]
            await made.close()
            assert made.left_out == 3

    kit.run(story())


@pytest.mark.parametrize(("told", "again_s"), [("7", 7.0), ("9999999", LONGEST_AGAIN_S), ("soon", 1.0), ("-1", 1.0)])
def test_a_collector_that_asks_for_time_gets_it_in_bounds(told: str, again_s: float) -> None:
    async def story(made: Tracing, collector: Collector) -> None:
        collector.answers = [b"HTTP/1.1 429 Busy\r\nretry-after: %b\r\ncontent-length: 0\r\n\r\n" % told.encode()]
        over(made, 1)
        assert await made.send() == again_s

    posting(story)


@pytest.mark.parametrize(
    ("answer", "left_out"),
    [
        (kit.whole(b"no", status=400), 5),
        (kit.whole(b'{"partialSuccess":{"rejectedSpans":"2","errorMessage":"x"}}'), 2),
        (kit.whole(b'{"partialSuccess":{}}'), 0),
        (kit.whole(b'{"partialSuccess":{"rejectedSpans":"many"}}'), 0),
        (kit.whole(b"what is this"), 0),
    ],
    ids=["all", "two", "none", "nonsense", "no json"],
)
def test_what_a_collector_refuses_is_counted_and_not_posted_again(answer: bytes, left_out: int) -> None:
    async def story(made: Tracing, collector: Collector) -> None:
        collector.answers = [answer]
        over(made, 5)
        assert await made.send() == 0.0
        assert (made.left_out, len(made._waiting)) == (left_out, 0)
        assert await made.send() == 0.0
        assert len(collector.posts) == 1

    posting(story)


def test_a_request_that_is_tried_again_and_again_is_told_in_bounds() -> None:
    async def story(made: Tracing, collector: Collector) -> None:
        over(made, 1, tries=500)
        await made.send()
        assert len(collector.spans()) == 1 + MOST_TRIES

    posting(story)


def test_no_request_waits_for_a_collector_that_never_answers_nor_does_the_end(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        collector.hangs = True
        await it.ask(kit.chat())
        it.router.keep_books()
        await eventually(lambda: len(collector.posts) == 1)
        for _ in range(20):
            assert (await it.ask(kit.chat())).status == 200

    tell(tmp_path, story, timeout_s=0.2)


def test_what_waits_at_the_end_is_sent_before_the_router_goes(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        await it.ask(kit.chat())
        assert collector.posts == []

    assert len(tell(tmp_path, story, delay_s=3600.0)) == 2


def test_spans_that_were_left_out_are_on_the_metrics_page(tmp_path: Path) -> None:
    async def story(it: Routed, collector: Collector) -> None:
        await it.ask(kit.chat())
        it.router.keep_books()
        assert "hekla_router_spans_left_out_total 2" in it.router.metrics.text(it.router.house).decode()

    assert tell(tmp_path, story, most_waiting=1, delay_s=3600.0) == []


# ---- the environment

BASE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318/"}


def test_a_router_without_an_endpoint_takes_no_traces() -> None:
    assert read_traces({}) is None
    assert read_traces({"OTEL_SERVICE_NAME": "x"}) is None
    assert read_traces(BASE | {"OTEL_SDK_DISABLED": "true"}) is None
    assert read_traces(BASE | {"OTEL_TRACES_EXPORTER": "none"}) is None


@pytest.mark.parametrize(
    ("said", "field", "value"),
    [
        ({}, "url", "http://collector:4318/v1/traces"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "https://t/as-it-is"}, "url", "https://t/as-it-is"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "api-key=k%20ey, x=1"}, "headers", (("api-key", "k ey"), ("x", "1"))),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=1", "OTEL_EXPORTER_OTLP_TRACES_HEADERS": "b=2"}, "headers", (("b", "2"),)),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "2500"}, "timeout_s", 2.5),
        ({"OTEL_EXPORTER_OTLP_TIMEOUT": "1", "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "2000"}, "timeout_s", 2.0),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "delay_s", 5.0),
        ({"OTEL_BSP_SCHEDULE_DELAY": "250"}, "delay_s", 0.25),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "9"}, "most_waiting", 9),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "3"}, "most_in_one", 3),
        ({"OTEL_TRACES_SAMPLER_ARG": "0.5"}, "share", 0.5),
        ({"OTEL_TRACES_SAMPLER": "always_off"}, "share", 0.0),
        ({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, "heeds_callers", False),
        ({"OTEL_TRACES_SAMPLER": "parentbased_always_on", "OTEL_TRACES_SAMPLER_ARG": "0.1"}, "share", 1.0),
        ({"OTEL_SERVICE_NAME": "mine"}, "resource", (("service.name", "mine"),)),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other,k8s.pod.name=p%2C1"},
            "resource",
            (("service.name", "other"), ("k8s.pod.name", "p,1")),
        ),
        (
            {"OTEL_RESOURCE_ATTRIBUTES": "service.name=other", "OTEL_SERVICE_NAME": "mine"},
            "resource",
            (("service.name", "mine"),),
        ),
    ],
)
def test_the_environment_is_read_as_opentelemetry_has_it(said: dict[str, str], field: str, value: Any) -> None:
    assert getattr(read_traces(BASE | said), field) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:many"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "unix:/x"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=a%0d%0aevil: 1"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_SDK_DISABLED", "perhaps"),
    ],
)
def test_what_is_not_served_is_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(VariableError, match=name):
        read_traces(BASE | {name: value})


def test_a_collectors_key_is_not_shown_in_what_is_refused() -> None:
    with pytest.raises(VariableError) as refused:
        read_traces(BASE | {"OTEL_EXPORTER_OTLP_HEADERS": "Bearer s3cret"})
    assert "s3cret" not in str(refused.value)


def test_a_collectors_key_goes_with_each_post() -> None:
    async def story(made: Tracing, collector: Collector) -> None:
        over(made, 1)
        await made.send()
        assert collector.posts[0].headers["api-key"] == "k"

    posting(story, headers=(("api-key", "k"),))


def test_a_providers_spans_hang_below_the_attempt_too() -> None:
    """What a stranger gets of the client's headers has the trace in it anyway."""

    async def story() -> None:
        async with kit.plane(kit.says(kit.whole()), desk=desk_of()) as it, HttpClient() as client:
            it.house.tracing = tracing(client)
            assert (await it.ask(kit.chat(headers=f"traceparent: {PARENT}\r\ntracestate: a=1\r\n"))).status == 200
            (got,) = it.engines[0].asked
            (one,) = it.house.ledger
            assert one.trace is not None
            assert got.headers["traceparent"] == f"00-{TRACE}-{one.trace.tries[0].span}-01"
            assert got.headers["tracestate"] == "a=1"
            assert got.head.lower().count(b"traceparent") == 1

    kit.run(story())
