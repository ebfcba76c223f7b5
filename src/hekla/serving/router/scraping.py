"""Asks engines about themselves every second: how full their caches are, how many requests wait, how fast they answer.

`read_sample` reads vLLM's and SGLang's series and adds up what several ranks of one engine say; whatever makes no sense
is unknown, since an engine may lie or be broken. The loop asks a bounded number at a time.
"""

import asyncio
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from hekla.lib.digits import whole_number
from hekla.serving.router.endpoints import Endpoint, Sample, take_in
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.limits import ClientLimits

MOST_AT_ONCE: Final = 100
TIMEOUT_S: Final = 5.0
MOST_BYTES: Final = 4 * 1024 * 1024
"""A page of metrics, or a list of models; a larger one is not read. An engine's has some 100 kB."""
MOST_SERIES: Final = 4_096
"""Of a page's series that are wanted these are read: 14 of each of 256 ranks are fewer. All of a page of 8 MB kept every request waiting for
2.3 s."""
MOST_LABELS: Final = 512 * 1024
"""Characters of their labels."""
MODELS_EVERY_S: Final = 10.0
"""How often an engine with adapters is asked which it has."""

log = structlog.get_logger(__name__)

_LINE = re.compile(r"^(?:vllm|sglang):([a-z_]+)(?:\{([^\n]*)\})?[ \t]+([^\s#]+)", re.MULTILINE)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')

_KV_USE = ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage")
_WAITING = ("num_requests_waiting", "num_queue_reqs")
_RUNNING = ("num_requests_running", "num_running_reqs")
_TTFT = ("time_to_first_token_seconds",)
_TPOT = ("inter_token_latency_seconds", "time_per_output_token_seconds")
_WANTED = frozenset(
    (*_KV_USE, *_WAITING, *_RUNNING, *(f"{one}_{part}" for one in (*_TTFT, *_TPOT) for part in ("sum", "count")))
) | {"cache_config_info", "lora_requests_info", "spec_decode_num_accepted_tokens_total", "spec_decode_num_draft_tokens_total"}  # fmt: skip
MOST_COUNT: Final = 1e9


@dataclass(frozen=True)
class Totals:
    """Running sums of one scrape, to take the difference from at the next."""

    ttft: tuple[float, float] = (0.0, 0.0)
    """Sum and count."""
    tpot: tuple[float, float] = (0.0, 0.0)
    accepted: tuple[float, float] = (0.0, 0.0)
    """Tokens accepted and drafted."""


Series = dict[str, list[tuple[dict[str, str], float]]]


def read_sample(text: str, before: Totals | None, rank: int | None = None) -> tuple[Sample, Totals]:
    """What a page says, of one data-parallel rank or of all, and the sums to compare the next with."""
    series = _read(text)
    if rank is not None:
        series = _of_rank(series, str(rank))
    totals = Totals(
        ttft=_sum_and_count(series, _TTFT),
        tpot=_sum_and_count(series, _TPOT),
        accepted=(
            _added(series, ("spec_decode_num_accepted_tokens_total",)) or 0.0,
            _added(series, ("spec_decode_num_draft_tokens_total",)) or 0.0,
        ),
    )
    use = _by_rank(series, _KV_USE)
    waiting, running = _added(series, _WAITING), _added(series, _RUNNING)
    acceptance = _mean(totals.accepted, before.accepted) if before else None
    running_adapters, waiting_adapters, most = _adapters(series)
    sample = Sample(
        kv_usage=min(1.0, sum(use) / len(use)) if use else None,
        waiting=int(waiting) if waiting is not None else None,
        running=int(running) if running is not None else None,
        ttft_s=_mean(totals.ttft, before.ttft) if before else None,
        tpot_s=_mean(totals.tpot, before.tpot) if before else None,
        cache_tokens=_cache_tokens(series),
        acceptance=min(1.0, acceptance) if acceptance is not None else None,
        running_adapters=running_adapters,
        waiting_adapters=waiting_adapters,
        max_adapters=most,
    )
    return sample, totals


def _read(text: str) -> Series:
    found: Series = {}
    series = size = 0
    for name, labels, number in _LINE.findall(text):
        if name in _WANTED:
            series, size = series + 1, size + len(labels)
            if series > MOST_SERIES or size > MOST_LABELS:
                break
            try:
                value = float(number)
            except ValueError:
                continue
            if math.isfinite(value) and value >= 0:
                found.setdefault(name, []).append((dict(_LABEL.findall(labels)), value))
    return found


def _of_rank(series: Series, rank: str) -> Series:
    """One rank's; what names no rank is every rank's."""
    return {
        name: [one for one in values if rank == (one[0].get("engine") or one[0].get("dp_rank") or rank)]
        for name, values in series.items()
    }


def _by_rank(series: Series, names: Iterable[str]) -> list[float]:
    """One value for each engine of a data-parallel group; ranks of tensor parallelism repeat it."""
    for name in names:
        values: dict[tuple[str, str], float] = {}
        for labels, value in series.get(name, ()):
            rank = (labels.get("engine", ""), labels.get("dp_rank", ""))
            reasons = "reason" in labels  # newer vLLM counts those who wait by reason, beside or instead of the sum
            values[rank] = values.get(rank, 0.0) + value if reasons else max(values.get(rank, 0.0), value)
        if values:
            return list(values.values())
    return []


def _added(series: Series, names: Iterable[str]) -> float | None:
    values = _by_rank(series, names)
    return sum(values) if values and sum(values) < MOST_COUNT else None


def _sum_and_count(series: Series, names: Iterable[str]) -> tuple[float, float]:
    for name in names:
        if f"{name}_count" in series:
            return sum(_by_rank(series, (f"{name}_sum",))), sum(_by_rank(series, (f"{name}_count",)))
    return (0.0, 0.0)


def _mean(now: tuple[float, float], before: tuple[float, float]) -> float | None:
    """Of what was added since; None where nothing was, or where the engine began anew."""
    total, count = now[0] - before[0], now[1] - before[1]
    return total / count if count > 0 and total >= 0 else None


def _cache_tokens(series: Series) -> int | None:
    sizes: dict[str, int] = {}
    for labels, _ in series.get("cache_config_info", ()):
        block, blocks = (whole_number(labels.get(name, "")) or 0 for name in ("block_size", "num_gpu_blocks"))
        if 0 < block * blocks < MOST_COUNT:
            sizes[labels.get("engine", "")] = block * blocks
    return sum(sizes.values()) or None


def _adapters(series: Series) -> tuple[frozenset[str], frozenset[str], int | None]:
    """The newest word on adapters; its value is when it was said."""
    told = series.get("lora_requests_info", ())
    if not told:
        return frozenset(), frozenset(), None
    labels, _ = max(told, key=lambda one: one[1])
    most = whole_number(labels.get("max_lora", ""))
    return (
        _names(labels.get("running_lora_adapters", "")),
        _names(labels.get("waiting_lora_adapters", "")),
        most if most is not None and most < MOST_COUNT else None,
    )


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


class _Model(msgspec.Struct):
    id: str
    parent: str | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def read_adapters(body: bytes) -> frozenset[str] | None:
    """The adapters that an engine's `GET /v1/models` lists; None if it makes no sense."""
    try:
        return frozenset(one.id for one in msgspec.json.decode(body, type=_Models).data if one.parent)
    except msgspec.DecodeError:
        return None


def _by_address(engines: Iterable[Endpoint]) -> Iterable[list[Endpoint]]:
    """Ranks of one engine together, each other engine by itself."""
    found: dict[object, list[Endpoint]] = {}
    for one in engines:
        key = one if one.rank is None else (one.host, one.port, one.is_tls)
        found.setdefault(key, []).append(one)
    return found.values()


class Scraper:
    """Asks the engines of a router, again and again."""

    def __init__(
        self,
        engines: Callable[[], Iterable[Endpoint]],
        wants_adapters: Callable[[], bool],
        *,
        interval_s: float,
        now: Callable[[], float],
        make_client: Callable[[bool], HttpClient],
    ) -> None:
        """`make_client` makes the client for engines with TLS (True) or without."""
        self._engines = engines
        self._wants_adapters = wants_adapters
        self._interval_s = interval_s
        self._now = now
        self._clients = {is_tls: make_client(is_tls) for is_tls in (False, True)}
        self._totals: dict[Endpoint, tuple[str, Totals]] = {}
        self._models_at: dict[Endpoint, float] = {}
        self._busy: set[Endpoint] = set()
        self.failures = 0

    async def run(self) -> None:
        """Until cancelled; one engine's trouble is its own."""
        room = asyncio.Semaphore(MOST_AT_ONCE)
        async with asyncio.TaskGroup() as group:
            while True:
                engines = list(self._engines())
                self._forget_all_but(engines)
                for endpoint, *ranks in _by_address(engines):
                    if endpoint not in self._busy:  # the one that is slow to tell is not asked again meanwhile
                        self._busy.add(endpoint)
                        group.create_task(self._ask_in(room, endpoint, *ranks))
                await asyncio.sleep(self._interval_s)

    async def close(self) -> None:
        """Drop the connections."""
        for client in self._clients.values():
            await client.close()

    def _forget_all_but(self, engines: list[Endpoint]) -> None:
        kept = set(engines)
        for table in (self._totals, self._models_at):
            for endpoint in [one for one in table if one not in kept]:
                del table[endpoint]

    async def _ask_in(self, room: asyncio.Semaphore, endpoint: Endpoint, *ranks: Endpoint) -> None:
        try:
            async with room:
                await self.ask(endpoint, *ranks)
        except Exception:  # a mistake of ours about one engine
            log.exception("an engine's metrics met a mistake of the router", engine=endpoint.name)
        finally:
            self._busy.discard(endpoint)

    async def ask(self, endpoint: Endpoint, *ranks: Endpoint) -> None:
        """One engine, once; its other ranks are on the same page."""
        body = await self._get(endpoint, "/metrics")
        if body is None:
            self.failures += 1
            return
        text = body.decode("utf-8", "replace")
        sample = self._take_in(endpoint, text)
        for one in ranks:
            self._take_in(one, text)
        if (sample.max_adapters or self._wants_adapters()) and self._is_time_for_models(endpoint):
            self._models_at[endpoint] = self._now()
            listed = await self._get(endpoint, "/v1/models")
            if listed is not None and (adapters := read_adapters(listed)) is not None:
                for one in (endpoint, *ranks):
                    one.adapters = adapters

    def _take_in(self, endpoint: Endpoint, text: str) -> Sample:
        known = self._totals.get(endpoint)
        before = known[1] if known is not None and known[0] == endpoint.incarnation else None
        sample, totals = read_sample(text, before, endpoint.rank)
        self._totals[endpoint] = (endpoint.incarnation, totals)
        take_in(endpoint, sample)
        return sample

    def _is_time_for_models(self, endpoint: Endpoint) -> bool:
        return self._now() - self._models_at.get(endpoint, float("-inf")) >= MODELS_EVERY_S

    async def _get(self, endpoint: Endpoint, path: str) -> bytes | None:
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        url = f"{'https' if endpoint.is_tls else 'http'}://{host}:{endpoint.port}{path}"
        try:
            answer = await self._clients[endpoint.is_tls].request("GET", url, timeout_s=TIMEOUT_S)
        except WireError as error:
            log.debug("engine not scraped", engine=endpoint.name, why=str(error))
            return None
        assert isinstance(answer.body, bytes)  # `request` answers whole
        return answer.body if answer.status == 200 else None


SCRAPE_LIMITS: Final = ClientLimits(connections_per_origin=2, body_bytes=MOST_BYTES)
