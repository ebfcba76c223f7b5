"""Asks a source how busy nodes are, and brings the answers to the engine: the `metrics` section of the configuration.

What is asked and how answers are read stands in `usage_readings.py`. A source that fails is told in the log once until it
works again, and as long as it fails in `hekla scheduler config`, as are nodes that it says nothing of, or nothing new; what
was measured before grows old by itself.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from hekla.kube.errors import KubeError
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.plugins.usage import VALID_S
from hekla.scheduler.usage_readings import MetricsSettings, Question, SourceError, measured, questions
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.limits import ClientLimits

log = structlog.get_logger()

TIMEOUT_S = 10.0
MOST_BYTES = 64 << 20
"""The largest answer that is read: about 200,000 nodes."""

MOST_NAMED = 3


class UsageSource:
    """Follows one source; which one may change."""

    def __init__(
        self, put: Callable[[str, NodeUsage], None], *, now_s: Callable[[], float],
        of_server: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:  # fmt: skip
        """`of_server` asks the API server for a path, where the metrics of a cluster's adapter are."""
        self._put, self._now_s, self._of_server = put, now_s, of_server
        self._settings = MetricsSettings()
        self._changed = asyncio.Event()
        self.fault = ""
        """Why the source said nothing when it was last asked; empty if it did."""

        self.asked, self.failed = 0, 0
        self._known: dict[str, float] = {}
        """When each node was measured that the source has named."""

    def follow(self, settings: MetricsSettings) -> None:
        """Ask this one from now on."""
        if settings != self._settings:
            self._settings, self.fault = settings, ""
            self._known.clear()
            self._changed.set()

    async def run(self) -> None:
        """Ask once in an interval, until cancelled."""
        while True:
            self._changed.clear()
            settings = self._settings
            async with HttpClient(ssl_context=_tls(settings), limits=ClientLimits(body_bytes=MOST_BYTES)) as client:
                while settings == self._settings:
                    if questions(settings):
                        await self._ask_guarded(client)
                    await self._pause(settings)

    def sentences(self, nodes: Iterable[str]) -> list[str]:
        """What has to be said of the source, and of these nodes; nothing where nobody is asked."""
        settings, now_s = self._settings, self._now_s()
        if not questions(settings):
            return []
        if self.fault:
            return [f"node usage: {settings.told()} says nothing: {self.fault}"]
        if not self.asked:
            return [f"node usage: {settings.told()} is being asked for the first time"]
        names = sorted(nodes)
        missing = [name for name in names if name not in self._known]
        old = [name for name in names if now_s - self._known.get(name, now_s) > VALID_S]
        told = [f"node usage: {settings.told()} tells of {len(names) - len(missing)} of {len(names)} nodes"]
        if missing:
            told.append(f"node usage: not measured: {_some(missing)}; is it called so there?")
        if old:
            told.append(f"node usage: not measured for more than {VALID_S / 60:.0f} min: {_some(old)}; not believed")
        return told

    async def ask(self, client: HttpClient) -> dict[str, NodeUsage]:
        """What is known now, by node; raises SourceError."""
        bodies = [await self._answer(client, question) for question in questions(self._settings)]
        return measured(self._settings, bodies, self._now_s())

    async def _ask_guarded(self, client: HttpClient) -> None:
        before, self.asked = self.fault, self.asked + 1
        try:
            found = await self.ask(client)
        except SourceError as error:
            self.failed, self.fault = self.failed + 1, str(error)
            if not before:
                log.warning("node usage not read", source=self._settings.told(), error=self.fault)
            return
        self.fault = ""
        for name, usage in found.items():
            self._known[name] = usage.at_s
            self._put(name, usage)

    async def _pause(self, settings: MetricsSettings) -> None:
        try:
            async with asyncio.timeout(settings.interval_s if questions(settings) else None):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _answer(self, client: HttpClient, question: Question) -> bytes:
        if question.is_of_server:
            return await self._answer_of_server(question)
        try:
            response = await client.request(
                question.method, question.url, question.headers, question.body, timeout_s=TIMEOUT_S
            )
        except (WireError, ValueError, OSError) as error:
            raise SourceError(str(error)) from error
        if response.status != 200 or not isinstance(response.body, bytes):
            raise SourceError(f"status {response.status}")
        return response.body

    async def _answer_of_server(self, question: Question) -> bytes:
        if self._of_server is None:
            raise SourceError("there is no API server to ask for custom metrics")
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return (await self._of_server(question.url)).encode()
        except TimeoutError as error:
            raise SourceError(f"the API server did not answer within {TIMEOUT_S:g} s") from error
        except KubeError as error:
            raise SourceError(f"{error}; is the adapter installed, which serves custom.metrics.k8s.io?") from error


def _tls(settings: MetricsSettings) -> ssl.SSLContext | None:
    """None checks certificates as usual."""
    if not settings.is_insecure:
        return None
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
