"""Measurements of nodes: what a Prometheus answers, what the configuration may say of it, and what nodes carry."""

import asyncio
import json

import msgspec
import pytest

from hekla.api.nodes import Node
from hekla.dialects.traits import USAGE_KEY, node_usage
from hekla.placement.plugins.usage import Usage
from hekla.placement.usage import NodeUsage
from hekla.scheduler.configuration import ConfigurationError, check_text, parse_configuration
from hekla.scheduler.usage_source import QUERIES, MetricsSettings, SourceError, UsageSource, readings
from hekla.wire.client import HttpClient
from hekla.wire.messages import Response

HEAD = 'actions: "allocate"\ntiers:\n- plugins:\n  - name: gang\n  - name: usage\n'


def answer(**values: str) -> bytes:
    rows = [{"metric": {"instance": name.replace("_", ":")}, "value": [1.0, value]} for name, value in values.items()]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": rows}}).encode()


def test_values_are_read_by_name_of_the_node_with_or_without_a_port() -> None:
    assert readings(answer(n1="43.5", n2_9100="7", n3="NaN")) == {"n1": 43.5, "n2": 7.0}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"data": {}}', b'{"data": {"result": [{"value": [1, "x"]}]}}'])
def test_an_answer_of_somebody_else_is_told(body: bytes) -> None:
    with pytest.raises(SourceError, match="none of Prometheus"):
        readings(body)


class FakeClient(HttpClient):
    """Answers with what was put in, by part of the query."""

    def __init__(self, cpu: Response, memory: Response) -> None:
        super().__init__()
        self.answers = {"node_cpu_seconds_total": cpu, "node_memory_MemTotal_bytes": memory}
        self.urls: list[str] = []

    async def request(self, method, url, headers=(), body=b"", timeout_s=60.0):  # type: ignore[no-untyped-def]  # as above
        self.urls.append(url)
        return next(response for part, response in self.answers.items() if part in url)


def test_two_queries_serve_all_nodes() -> None:
    source = UsageSource(lambda name, usage: None, now_s=lambda: 100.0)
    source.follow(MetricsSettings(address="http://prometheus:9090/"))
    client = FakeClient(Response(body=answer(n1="40", n2="50")), Response(body=answer(n1="10")))
    assert asyncio.run(source.ask(client)) == {"n1": NodeUsage(cpu=40, memory=10, at_s=100.0)}
    assert len(client.urls) == len(QUERIES) == 2
    assert client.urls[0].startswith("http://prometheus:9090/api/v1/query?query=avg_over_time%28")


def test_a_source_that_fails_is_told() -> None:
    source = UsageSource(lambda name, usage: None, now_s=lambda: 100.0)
    source.follow(MetricsSettings(address="http://prometheus:9090"))
    with pytest.raises(SourceError, match="status 503"):
        asyncio.run(source.ask(FakeClient(Response(status=503), Response())))


def test_the_configuration_names_the_source_and_usage_takes_its_interval() -> None:
    told = "metrics:\n  type: prometheus\n  address: http://prometheus:9090\n  interval: 45s\n"
    configuration = parse_configuration(HEAD + told)
    assert configuration.metrics == MetricsSettings(address="http://prometheus:9090", interval_s=45.0)
    plugin = configuration.tiers[0][1]
    assert isinstance(plugin, Usage)
    assert plugin.arrivals_s == 45.0


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("metrics: {type: influx}", "metrics.type is 'influx'; one of prometheus, prometheus_adaptor, elasticsearch is expected"),
        ("metrics: {type: prometheus}", "metrics.address is ''; a url like http://prometheus:9090 is expected"),
        ("metrics: {type: prometheus, address: 'http://p', interval: 0s}", "metrics.interval should be above 0"),
        ("metrics: {type: prometheus, address: 'http://p', interval: often}", "metrics.interval: "),
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_refused(told: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        parse_configuration(HEAD + told)


def test_other_sources_are_noted_and_ask_nobody() -> None:
    text = HEAD + "metrics: {type: elasticsearch, address: 'http://es', elasticsearch.index: m, wrong: 1}"
    sentences = [str(finding) for finding in check_text(text)]
    assert any("metrics of type elasticsearch are not built yet" in sentence for sentence in sentences)
    assert any("metrics has no wrong" in sentence for sentence in sentences)
    assert parse_configuration(text).metrics.address == ""


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
