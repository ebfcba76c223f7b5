"""Asks a Prometheus how busy nodes are, and brings the answers to the engine: the `metrics` section of the configuration.

Two queries an interval serve all nodes (the peer asks twice for each). `instance` is the node's name, with or without
a port. A source that fails is told in the log once until it works again; what was measured before grows old by itself.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from hekla.placement.usage import NodeUsage
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.limits import ClientLimits

log = structlog.get_logger()

PERIOD = "10m"
"""What measurements are averages over, as in Volcano."""

QUERIES = {
    "cpu": f'avg_over_time((100 - (avg by (instance) (rate(node_cpu_seconds_total{{mode="idle"}}[5m])) * 100))[{PERIOD}:30s])',
    "memory": f"100*avg_over_time(((1-node_memory_MemAvailable_bytes/node_memory_MemTotal_bytes))[{PERIOD}:30s])",
}
TIMEOUT_S = 10.0
MOST_BYTES = 64 << 20
"""The largest answer that is read: about 200,000 nodes."""


class SourceError(Exception):
    """The source does not answer, or not so that it can be understood; the text says what came instead."""


@dataclass(frozen=True, kw_only=True)
class MetricsSettings:
    """Where measurements come from."""

    address: str = ""
    """A Prometheus; empty asks nobody."""

    interval_s: float = 30.0
    """How often it is asked."""


class UsageSource:
    """Follows one source; which one may change."""

    def __init__(self, put: Callable[[str, NodeUsage], None], *, now_s: Callable[[], float]) -> None:
        self._put, self._now_s = put, now_s
        self._settings = MetricsSettings()
        self._changed = asyncio.Event()
        self._has_failed = False

    def follow(self, settings: MetricsSettings) -> None:
        """Ask this one from now on."""
        if settings != self._settings:
            self._settings = settings
            self._changed.set()

    async def run(self) -> None:
        """Ask once in an interval, until cancelled."""
        async with HttpClient(limits=ClientLimits(body_bytes=MOST_BYTES)) as client:
            while True:
                self._changed.clear()
                if self._settings.address:
                    await self._ask_guarded(client)
                interval_s = self._settings.interval_s if self._settings.address else None
                try:
                    async with asyncio.timeout(interval_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue

    async def ask(self, client: HttpClient) -> dict[str, NodeUsage]:
        """What is known now, by instance; raises SourceError."""
        shares = {name: await self._query(client, query) for name, query in QUERIES.items()}
        at_s = self._now_s()
        both = shares["cpu"].keys() & shares["memory"].keys()
        return {
            name: NodeUsage(cpu=shares["cpu"][name], memory=shares["memory"][name], at_s=at_s) for name in sorted(both)
        }

    async def _ask_guarded(self, client: HttpClient) -> None:
        try:
            for name, usage in (await self.ask(client)).items():
                self._put(name, usage)
        except SourceError as error:
            if not self._has_failed:
                log.warning("node usage not read", address=self._settings.address, error=str(error))
            self._has_failed = True
        else:
            self._has_failed = False

    async def _query(self, client: HttpClient, query: str) -> dict[str, float]:
        url = f"{self._settings.address.rstrip('/')}/api/v1/query?query={quote(query)}"
        try:
            response = await client.request("GET", url, timeout_s=TIMEOUT_S)
        except (WireError, ValueError) as error:
            raise SourceError(str(error)) from error
        if response.status != 200 or not isinstance(response.body, bytes):
            raise SourceError(f"status {response.status}")
        return readings(response.body)


def readings(body: bytes) -> dict[str, float]:
    """Values by instance of an instant query's answer; what is no number is left out. Raises SourceError."""
    try:
        answer: Any = msgspec.json.decode(body)
        rows = answer["data"]["result"]
        found = {str(row["metric"]["instance"]): float(row["value"][1]) for row in rows}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise SourceError(f"the answer is none of Prometheus: {error!r}") from error
    return {_node_name(instance): value for instance, value in found.items() if isfinite(value)}


def metrics_settings(section: Mapping[str, Any], interval_s: float) -> MetricsSettings:
    """What a configuration's `metrics` section asks for; other types than prometheus are not built, and ask nobody."""
    is_ours = str(section.get("type", "prometheus")) == "prometheus"
    return MetricsSettings(address=str(section.get("address", "")) if is_ours else "", interval_s=interval_s)


def _node_name(instance: str) -> str:
    name, _, port = instance.rpartition(":")
    return name if name and port.isdecimal() else instance
