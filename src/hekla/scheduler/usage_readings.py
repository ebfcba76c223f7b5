"""What sources of measurements are asked, and how their answers are read: Prometheus, its adapter, Elasticsearch. Pure.

    prometheus            two instant queries; `instance` is the node's name, with or without a port; percent
    prometheus_adaptor    node_cpu_usage_avg and node_memory_usage_avg of the custom metrics API; shares of 1
    elasticsearch         one search over all hosts of the last ten minutes (metricbeat); shares of 1

Few questions serve all nodes (the peer asks twice for each). `usage_source.py` asks them.
"""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any
from urllib.parse import quote

import msgspec

from hekla.dialects.timestamps import seconds
from hekla.lib.quantity import QuantityError, to_float
from hekla.placement.bookkeeping.measured_usage import NodeUsage

PERIOD = "10m"
"""What measurements are averages over, as in Volcano."""

QUERIES = {
    "cpu": f'avg_over_time((100 - (avg by (instance) (rate(node_cpu_seconds_total{{mode="idle"}}[5m])) * 100))[{PERIOD}:30s])',
    "memory": f"100*avg_over_time(((1-node_memory_MemAvailable_bytes/node_memory_MemTotal_bytes))[{PERIOD}:30s])",
}
CUSTOM_METRICS = {"cpu": "node_cpu_usage_avg", "memory": "node_memory_usage_avg"}
CUSTOM_METRICS_PATH = "/apis/custom.metrics.k8s.io/v1beta1/nodes/*"
FIELDS = {"cpu": "host.cpu.usage", "memory": "system.memory.actual.used.pct"}
"""Metricbeat's, as in Volcano."""

MOST_HOSTS = 20_000
"""Of one search; with three numbers each, Elasticsearch's own bound on an answer is 65,536."""

TYPES = ("prometheus", "prometheus_adaptor", "elasticsearch")


class SourceError(Exception):
    """The source does not answer, or not so that it can be understood; the text says what came instead."""


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Where measurements come from."""

    type: str = ""
    """One of TYPES; empty asks nobody."""

    address: str = ""
    """Its url; that of the API server for `prometheus_adaptor`, which is known anyway."""

    interval_s: float = 30.0
    """How often it is asked."""

    is_insecure: bool = False
    """Whether the certificate of the source is not checked."""

    index: str = "metricbeat-*"
    username: str = ""
    password: str = ""
    hostname_field: str = "host.hostname"

    def told(self) -> str:
        """`elasticsearch at http://...`."""
        return f"{self.type} at {self.address}" if self.address else self.type


@dataclass(frozen=True)
class Question:
    """One request."""

    method: str
    url: str
    """A path of the API server where `is_of_server`."""

    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    is_of_server: bool = False


def metrics_settings(section: Mapping[str, Any], interval_s: float) -> MetricsSettings:
    """What a configuration's `metrics` section asks for; `a: {b: c}` says the same as `a.b: c`."""
    flat = dict(_flat(section))
    texts = {
        "index": flat.get("elasticsearch.index"), "hostname_field": flat.get("elasticsearch.hostnameFieldName"),
        "username": flat.get("elasticsearch.username"), "password": flat.get("elasticsearch.password"),
    }  # fmt: skip
    return MetricsSettings(
        type=str(flat.get("type", "prometheus")), address=str(flat.get("address") or "").rstrip("/"), interval_s=interval_s,
        is_insecure=str(flat.get("tls.insecureSkipVerify", "false")).lower() == "true",
        **{name: str(text) for name, text in texts.items() if text},
    )  # fmt: skip


def section_keys(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The keys of a `metrics` section in full, each with the key that has a line."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", key) for inner in value)
        else:
            yield key, key


def questions(settings: MetricsSettings) -> Sequence[Question]:
    """What to ask, once in an interval; nothing without a source."""
    if settings.type == "prometheus" and settings.address:
        return [Question("GET", f"{settings.address}/api/v1/query?query={quote(query)}") for query in QUERIES.values()]
    if settings.type == "prometheus_adaptor":
        return [Question("GET", f"{CUSTOM_METRICS_PATH}/{name}", is_of_server=True) for name in CUSTOM_METRICS.values()]
    if settings.type == "elasticsearch" and settings.address:
        headers = [("content-type", "application/json")]
        if settings.username:
            pair = f"{settings.username}:{settings.password}".encode()
            headers.append(("authorization", f"Basic {b64encode(pair).decode()}"))
        body = msgspec.json.encode(_search(settings))
        return [
            Question("POST", f"{settings.address}/{quote(settings.index, safe='*,-.')}/_search", body, tuple(headers))
        ]
    return []


def measured(settings: MetricsSettings, bodies: Sequence[bytes], now_s: float) -> dict[str, NodeUsage]:
    """What nodes use by these answers; SourceError if one cannot be understood."""
    if settings.type == "elasticsearch":
        return _of_search(bodies[0], now_s)
    read = of_prometheus if settings.type == "prometheus" else _of_custom_metrics
    cpu, memory = (read(body, now_s) for body in bodies)
    return {
        name: NodeUsage(cpu=cpu[name][0], memory=memory[name][0], at_s=min(cpu[name][1], memory[name][1]))
        for name in sorted(cpu.keys() & memory.keys())
    }


Readings = dict[str, tuple[float, float]]
"""By node, a value and when it was measured."""


def of_prometheus(body: bytes, now_s: float) -> Readings:
    """Values by instance of an instant query's answer; what is no number is left out. Raises SourceError."""
    try:
        rows = msgspec.json.decode(body)["data"]["result"]
        found = {str(row["metric"]["instance"]): float(row["value"][1]) for row in rows}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise SourceError(f"the answer is none of Prometheus: {error!r}") from error
    return {_node_name(instance): (value, now_s) for instance, value in found.items() if isfinite(value)}


def _of_custom_metrics(body: bytes, now_s: float) -> Readings:
    """A MetricValueList: quantities that are shares, each with its own time."""
    try:
        items = msgspec.json.decode(body)["items"]
        rows = [(str(one["describedObject"]["name"]), one["value"], one.get("timestamp")) for one in items]
        values = {name: (to_float(value) * 100, seconds(at) or now_s) for name, value, at in rows}
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError, QuantityError) as error:
        raise SourceError(f"the answer is no MetricValueList: {error!r}") from error
    return {name: reading for name, reading in values.items() if isfinite(reading[0])}


def _of_search(body: bytes, now_s: float) -> dict[str, NodeUsage]:
    """One bucket for each host; one without a value was not measured."""
    try:
        buckets = msgspec.json.decode(body)["aggregations"]["hosts"]["buckets"]
        rows = [(str(b["key"]), b["cpu"]["value"], b["memory"]["value"], b["latest"]["value"]) for b in buckets]
        return {
            name: NodeUsage(cpu=cpu * 100, memory=memory * 100, at_s=at / 1000 if at else now_s)
            for name, cpu, memory, at in sorted(rows) if cpu is not None and memory is not None
        }  # fmt: skip
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise SourceError(f"the answer is none of Elasticsearch: {error!r}") from error


def _search(settings: MetricsSettings) -> dict[str, Any]:
    averages = {name: {"avg": {"field": field}} for name, field in FIELDS.items()}
    return {
        "size": 0,
        "query": {"range": {"@timestamp": {"gte": f"now-{PERIOD}", "lt": "now"}}},
        "aggs": {
            "hosts": {
                "terms": {"field": settings.hostname_field, "size": MOST_HOSTS},
                "aggs": {**averages, "latest": {"max": {"field": "@timestamp"}}},
            }
        },
    }


def _flat(section: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}.{inner}", one) for inner, one in value.items())
        else:
            yield key, value


def _node_name(instance: str) -> str:
    name, _, port = instance.rpartition(":")
    return name if name and port.isdecimal() else instance
