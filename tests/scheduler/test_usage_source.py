"""Measurements of nodes: what three sources are asked over HTTP and answer, what the configuration may say, and what nodes carry."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest

from hekla.api.nodes import Node
from hekla.dialects.traits import USAGE_KEY, node_usage
from hekla.kube.errors import NotFoundError
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.plugins.usage import Usage
from hekla.scheduler.configuration import ConfigurationError, check_text, parse_configuration, without_secrets
from hekla.scheduler.usage_readings import MetricsSettings, SourceError, measured, of_prometheus, questions
from hekla.scheduler.usage_source import UsageSource
from hekla.wire.client import HttpClient

HEAD = 'actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: usage\n'


def prometheus(**values: str) -> bytes:
    rows = [{"metric": {"instance": name.replace("_", ":")}, "value": [1.0, value]} for name, value in values.items()]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()


def metric_values(at: str | None = "1970-01-01T00:01:00Z", **values: str) -> bytes:
    items = [
        {"describedObject": {"kind": "Node", "name": name}, "timestamp": at, "value": value}
        for name, value in values.items()
    ]
    return json.dumps({"kind": "MetricValueList", "items": items}).encode()


def hosts(*rows: tuple[str, float | None, float | None]) -> bytes:
    buckets = [
        {"key": name, "cpu": {"value": cpu}, "memory": {"value": memory}, "latest": {"value": 60_000.0}}
        for name, cpu, memory in rows
    ]
    return json.dumps({"aggregations": {"hosts": {"buckets": buckets}}}).encode()


class Handler(BaseHTTPRequestHandler):
    """Answers as Prometheus and Elasticsearch do, and keeps what it was asked."""

    heard: ClassVar[list[tuple[str, str, dict[str, str], bytes]]] = []
    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}
    """By a part of the question, decoded."""

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.heard.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        parts = urlsplit(self.path)
        asked = parts.path + "?" + " ".join(parse_qs(parts.query).get("query", []))
        status, answer = next((told for part, told in self.answers.items() if part in asked), (404, b""))
        self.send_response(status)
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, format: str, *arguments: object) -> None:
        """Silence on stderr."""


@pytest.fixture
def url() -> Iterator[str]:
    Handler.heard.clear()
    Handler.answers.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


async def _asked(settings: MetricsSettings, of_server: Any = None) -> dict[str, NodeUsage]:
    source = UsageSource(lambda name, usage: None, now_s=lambda: 100.0, of_server=of_server)
    source.follow(settings)
    async with HttpClient() as client:
        return await source.ask(client)


def test_two_questions_to_prometheus_serve_all_nodes(url: str) -> None:
    Handler.answers = {"cpu_seconds": (200, prometheus(n1="40", n2="50")), "MemTotal": (200, prometheus(n1_9100="10"))}
    found = asyncio.run(_asked(MetricsSettings(type="prometheus", address=url)))
    assert found == {"n1": NodeUsage(cpu=40, memory=10, at_s=100.0)}
    assert [path.partition("=")[0] for _, path, _, _ in Handler.heard] == ["/api/v1/query?query"] * 2


def test_one_search_of_elasticsearch_serves_all_hosts_with_its_own_times(url: str) -> None:
    Handler.answers = {"/beat-*/_search": (200, hosts(("n1", 0.5, 0.25), ("n2", None, 0.1)))}
    settings = MetricsSettings(
        type="elasticsearch", address=url, index="beat-*", username="u", password="p", hostname_field="agent.name"
    )
    assert asyncio.run(_asked(settings)) == {"n1": NodeUsage(cpu=50.0, memory=25.0, at_s=60.0)}
    ((method, _, headers, body),) = Handler.heard
    assert (method, headers["authorization"]) == ("POST", "Basic " + base64.b64encode(b"u:p").decode())
    search = json.loads(body)
    assert search["aggs"]["hosts"]["terms"]["field"] == "agent.name"
    assert search["query"]["range"]["@timestamp"]["gte"] == "now-10m"
    assert search["aggs"]["hosts"]["aggs"]["memory"] == {"avg": {"field": "system.memory.actual.used.pct"}}


def test_the_adapter_is_asked_by_way_of_the_api_server_and_tells_shares() -> None:
    paths: list[str] = []

    async def of_server(path: str) -> str:
        paths.append(path)
        return (metric_values(n1="532m", n2="1") if "cpu" in path else metric_values(n1="250m")).decode()

    found = asyncio.run(_asked(MetricsSettings(type="prometheus_adaptor"), of_server))
    assert found == {"n1": NodeUsage(cpu=53.2, memory=25.0, at_s=60.0)}
    assert paths == [
        "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/node_cpu_usage_avg",
        "/apis/custom.metrics.k8s.io/v1beta1/nodes/*/node_memory_usage_avg",
    ]


def test_an_adapter_that_is_not_there_is_told_with_a_hint() -> None:
    async def of_server(path: str) -> str:
        raise NotFoundError(404, "NotFound", "the server could not find the requested resource")

    with pytest.raises(SourceError, match="is the adapter installed"):
        asyncio.run(_asked(MetricsSettings(type="prometheus_adaptor"), of_server))


def test_a_source_that_fails_or_is_not_there_is_told(url: str) -> None:
    Handler.answers = {"query": (503, b"")}
    with pytest.raises(SourceError, match="status 503"):
        asyncio.run(_asked(MetricsSettings(type="prometheus", address=url)))
    with pytest.raises(SourceError):
        asyncio.run(_asked(MetricsSettings(type="prometheus", address="http://127.0.0.1:1")))


def test_nobody_is_asked_without_a_source() -> None:
    assert questions(MetricsSettings()) == []


@asynccontextmanager
async def following(
    settings: MetricsSettings, put: Callable[[str, NodeUsage], None], now: list[float]
) -> AsyncIterator[UsageSource]:
    source = UsageSource(put, now_s=lambda: now[0])
    source.follow(settings)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_what_is_missing_or_old_is_said_and_so_is_a_source_that_stops(url: str) -> None:
    asyncio.run(say_what_is_missing(url))


async def say_what_is_missing(url: str) -> None:
    Handler.answers = {"_search": (200, hosts(("n1", 0.5, 0.25)))}
    got, now = dict[str, NodeUsage](), [100.0]
    settings = MetricsSettings(type="elasticsearch", address=url, interval_s=3600.0)
    async with following(settings, got.__setitem__, now) as source:
        assert source.sentences(["n1"]) == [f"node usage: elasticsearch at {url} is being asked for the first time"]
        async with asyncio.timeout(60):
            while not got:
                await asyncio.sleep(0.005)
        assert source.sentences(["n1", "n2"]) == [
            f"node usage: elasticsearch at {url} tells of 1 of 2 nodes",
            "node usage: not measured: n2; is it called so there?",
        ]
        now[0] = 1000.0
        assert source.sentences(["n1"])[1] == "node usage: not measured for more than 5 min: n1; not believed"
        Handler.answers = {"_search": (500, b"")}
        source.follow(replace(settings, interval_s=1800.0))
        async with asyncio.timeout(60):
            while not source.fault:
                await asyncio.sleep(0.005)
        assert source.sentences(["n1"]) == [f"node usage: elasticsearch at {url} says nothing: status 500"]
        assert (source.asked, source.failed) == (2, 1)


def test_values_are_read_by_name_of_the_node_with_or_without_a_port() -> None:
    assert of_prometheus(prometheus(n1="43.5", n2_9100="7", n3="NaN"), 1.0) == {"n1": (43.5, 1.0), "n2": (7.0, 1.0)}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"data": {}}', b'{"data": {"result": [{"value": [1, "x"]}]}}', b"null", b"1"]
)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("prometheus", "none of Prometheus"),
        ("prometheus_adaptor", "no MetricValueList"),
        ("elasticsearch", "none of Elasticsearch"),
    ],
)
def test_an_answer_of_somebody_else_is_told(kind: str, words: str, body: bytes) -> None:
    with pytest.raises(SourceError, match=words):
        measured(MetricsSettings(type=kind), [body, body], 1.0)


def test_the_configuration_names_the_source_and_usage_takes_its_interval() -> None:
    told = "metrics:\n  type: prometheus\n  address: http://prometheus:9090/\n  interval: 45s\n"
    configuration = parse_configuration(HEAD + told)
    assert configuration.metrics == MetricsSettings(
        type="prometheus", address="http://prometheus:9090", interval_s=45.0
    )
    plugin = configuration.tiers[0][1]
    assert isinstance(plugin, Usage)
    assert plugin.arrivals_s == 45.0


@pytest.mark.parametrize(
    "told",
    [
        "metrics: {type: elasticsearch, address: 'http://es', elasticsearch.index: m, elasticsearch.password: s3cret, "
        "tls.insecureSkipVerify: 'true'}",
        "metrics: {type: elasticsearch, address: 'http://es', elasticsearch: {index: m, password: s3cret}, "
        "tls: {insecureSkipVerify: 'true'}}",
    ],
    ids=["flat", "nested"],
)
def test_both_ways_to_write_the_section_say_the_same_and_hide_the_password(told: str) -> None:
    configuration = parse_configuration(HEAD + told)
    assert not configuration.findings
    assert configuration.metrics == MetricsSettings(
        type="elasticsearch", address="http://es", index="m", password="s3cret", is_insecure=True
    )
    shown = without_secrets(configuration.text)
    assert "s3cret" not in shown
    assert parse_configuration(shown).actions == configuration.actions


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("metrics: {type: influx}", "metrics.type is 'influx'; one of prometheus, prometheus_adaptor, elasticsearch is expected"),
        ("metrics: {type: prometheus}", "metrics.address is ''; a url like http://prometheus:9090 is expected"),
        ("metrics: {type: elasticsearch}", "metrics.address is ''; a url like http://elasticsearch:9200 is expected"),
        ("metrics: {type: prometheus, address: 'http://p', interval: 0s}", "metrics.interval should be above 0"),
        ("metrics: {type: prometheus, address: 'http://p', interval: often}", "metrics.interval: "),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(told: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse_configuration(HEAD + told)


def test_what_has_no_effect_is_told() -> None:
    sentences = [
        str(one) for one in check_text(HEAD + "metrics: {type: prometheus_adaptor, address: 'http://p', wrong: 1}")
    ]
    assert any("metrics has no wrong" in sentence for sentence in sentences)
    assert any("metrics.address has no effect" in sentence for sentence in sentences)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"cpu": 43.5, "memory": 70, "time": "1970-01-01T00:01:00Z"}', NodeUsage(cpu=43.5, memory=70, at_s=60.0)),
        ('{"cpu": 43.5, "memory": 70}', None),
        ('{"cpu": "much", "memory": 70, "time": "1970-01-01T00:01:00Z"}', None),
        ("43.5", None),
        ("", None),
    ],
)
def test_nodes_may_carry_a_measurement(text: str, expected: NodeUsage | None) -> None:
    node = msgspec.convert({"metadata": {"name": "n1", "annotations": {USAGE_KEY: text}}}, Node)
    assert node_usage(node) == expected
