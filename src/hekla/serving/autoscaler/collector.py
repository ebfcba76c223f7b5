"""Asks pods and Prometheus servers for metrics: all at once, each with little patience, so that one slow pod delays nobody.

Earlier looks at histograms are kept for five minutes; `measuring.py` says what they are for.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlencode

import msgspec
import structlog

from hekla.api.kthena.autoscaling import PrometheusSource
from hekla.serving.autoscaler.algorithms.histogram import Histogram
from hekla.serving.autoscaler.exposition import MOST_BYTES, Reading, nearest, read
from hekla.serving.autoscaler.measuring import Look, last_change
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError

log = structlog.get_logger(__name__)

PATIENCE_S = 3.0
AT_ONCE = 64
OLD_ENOUGH_S, TOO_OLD_S = 60.0, 300.0
"""A histogram is compared with a look that is at least a minute old; older than five minutes none is kept."""

Place = tuple[str, str]
"""A pod, by its uid or name, and where it was asked."""


class Collector:
    """Asks, and remembers what it saw."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._seen: dict[Place, list[tuple[float, Reading]]] = {}

    async def ask(self, looks: Sequence[Look], now_s: float) -> "Seen":
        """What pods answer; one that does not is left out, and why is told."""
        answers = await asyncio.gather(*(self._look(look) for look in looks))
        seen, young = Seen(), {}  # type: Seen, dict[str, str]
        for look, page in zip(looks, answers, strict=True):
            if isinstance(page, str):
                for metric in look.metrics:
                    seen.whys.setdefault(metric, page)
                continue
            reading = read(page.text, list(look.metrics.values()))
            before = self._remember((look.pod, look.url), reading, now_s)
            for metric, name in look.metrics.items():
                value = last_change(before, reading, name)
                if value is not None:
                    seen.answers[look.pod, metric] = value
                else:
                    whys = young if name in reading.histograms else seen.whys
                    whys.setdefault(metric, _why_not(look.url, name, page.text, reading))
        told = {metric for _, metric in seen.answers}
        # a pod that is in its first minute keeps nobody from reading the others
        return Seen(seen.answers, {**{metric: why for metric, why in young.items() if metric not in told}, **seen.whys})

    async def ask_prometheus(self, sources: Mapping[str, PrometheusSource]) -> tuple[dict[str, float], dict[str, str]]:
        """What servers answer, by metric; and why others have no number."""
        answers = await asyncio.gather(*(self._query(source) for source in sources.values()))
        found, whys = {}, {}
        for name, value in zip(sources, answers, strict=True):
            if isinstance(value, str):
                whys[name] = value
            else:
                found[name] = value
        return found, whys

    def forget_old(self, now_s: float) -> None:
        """Drop looks that nobody will compare with; pods that are gone go with theirs."""
        for place in list(self._seen):
            kept = [one for one in self._seen[place] if now_s - one[0] <= TOO_OLD_S]
            if kept:
                self._seen[place] = kept
            else:
                del self._seen[place]

    def _remember(self, place: Place, reading: Reading, now_s: float) -> Reading | None:
        """Keep this look; the youngest of those that are old enough to compare with."""
        if not reading.histograms:
            return None
        seen = self._seen.setdefault(place, [])
        old = [one for at_s, one in seen if OLD_ENOUGH_S <= now_s - at_s <= TOO_OLD_S]
        seen.append((now_s, reading))
        return old[-1] if old else None

    async def _look(self, look: Look) -> "_Page | str":
        body = await self._get(look.url)
        return body if isinstance(body, str) else _Page(body.decode("utf-8", "replace"))

    async def _query(self, source: PrometheusSource) -> float | str:
        url = f"{source.server_url.rstrip('/')}/api/v1/query?{urlencode({'query': source.query})}"
        body = await self._get(url)
        if isinstance(body, str):
            return body
        try:
            return first_sample(body)
        except (msgspec.DecodeError, ValueError, KeyError, IndexError, TypeError) as error:
            log.info("answer of prometheus cannot be read", url=source.server_url, query=source.query, why=str(error))
            return f"{source.server_url} gives no number for {source.query}"

    async def _get(self, url: str) -> bytes | str:
        """The body, or why there is none."""
        async with self._turns:
            try:
                async with asyncio.timeout(PATIENCE_S):
                    answer = await self._client.request("GET", url)
            except (WireError, OSError, TimeoutError) as error:
                why = str(error) or f"nothing came within {PATIENCE_S:g} s"
                log.info("metrics cannot be read", url=url, why=why)
                return f"{url} does not answer ({why}); is that the engine's port?"
        if answer.status != 200 or not isinstance(answer.body, bytes) or len(answer.body) > MOST_BYTES:
            log.info("metrics cannot be read", url=url, status=answer.status)
            return (
                f"{url} answers {answer.status}" if answer.status != 200 else f"{url} is larger than {MOST_BYTES} bytes"
            )
        return answer.body


@dataclass(frozen=True)
class Seen:
    """What came of one look at pods."""

    answers: dict[tuple[str, str], float | Histogram] = field(default_factory=dict)
    """By pod and metric."""
    whys: dict[str, str] = field(default_factory=dict)
    """By metric, why a pod did not tell it; the first pod's."""


@dataclass(frozen=True)
class _Page:
    text: str


def _why_not(url: str, name: str, text: str, reading: Reading) -> str:
    if name in reading.histograms:
        return f"{name} is a histogram, and its first minute is being counted"
    near = " or ".join(nearest(text, name))
    return f"{url} shows no {name}" + (f"; did you mean {near}?" if near else "")


def first_sample(body: bytes) -> float:
    """The one number of an instant query: a scalar, or the first of a vector."""
    data = msgspec.json.decode(body)["data"]
    result = data["result"]
    sample = result if data["resultType"] == "scalar" else result[0]["value"]
    value = float(sample[1])
    if not math.isfinite(value):
        raise ValueError("it is not a number")
    return value
