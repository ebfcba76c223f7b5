"""What the router counts, under Kthena's names and labels, so that its dashboards go on working; ours beside them.

Requests that are over are put on a list and folded into columns a few times a second: 1 us a request, where a counter
with labels for each takes 15. A row stands for one set of labels; gauges are taken from the world when somebody asks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hekla.serving.router.exchange import Exchange
from hekla.serving.router.house import House
from hekla.serving.router.lots import Floats, Lot, RequestKind
from hekla.serving.router.plan import UPSTREAM, Destination
from hekla.serving.router.reading import INFERENCE_PATHS

MOST_ROWS = 8192
"""Sets of labels; requests beyond it are counted under model `_other`."""

DURATION_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0)
"""Kthena's thirteen, which end at 60 s, and on to the length of long generations."""
FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
BETWEEN_TOKENS_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0)

EXACT = ".15g"
"""How a value is written: `g` alone keeps six digits, and a counter of ten million tokens stood still for the next nine."""

LIMIT_TYPES = {"input_rate_limit": "input_tokens", "output_rate_limit": "output_tokens", "rate_limit": "requests"}

Labels = tuple[tuple[str, str], ...]
Gauges = Callable[[], Iterable[tuple[str, Labels, float]]]
"""More to tell when asked: name, labels, value."""


@dataclass(frozen=True, eq=False)
class Row:
    """One set of labels; one object for each, so that it is its own key."""

    destination: Destination
    model: str
    path: str
    status: int
    error: str

    @property
    def backend(self) -> Labels:
        """Set D."""
        told = self.destination
        return (
            ("model_route", told.model_route),
            ("backend_type", told.backend_type),
            ("backend_name", told.backend_name),
            ("upstream_model", told.upstream_model),
        )


class Histogram:
    """Counts by row and bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = np.array(bounds)
        self.counts = np.zeros((64, len(bounds) + 1), dtype=np.int64)
        self.sums: Floats = np.zeros(64)

    def add(self, rows: npt.NDArray[np.int64], values: Floats, weights: Floats | None = None) -> None:
        """One observation each, or `weights` of them."""
        if not len(rows):
            return
        if rows.max() >= len(self.sums):
            self._grow(int(rows.max()) + 1)
        buckets = self.bounds.searchsorted(values, side="left")
        if weights is None:
            np.add.at(self.counts, (rows, buckets), 1)
            np.add.at(self.sums, rows, values)
        else:
            np.add.at(self.counts, (rows, buckets), weights.astype(np.int64))
            np.add.at(self.sums, rows, values * weights)

    def _grow(self, size: int) -> None:
        more = max(size, 2 * len(self.sums)) - len(self.sums)
        self.counts = np.concatenate((self.counts, np.zeros((more, self.counts.shape[1]), dtype=np.int64)))
        self.sums = np.concatenate((self.sums, np.zeros(more)))


@dataclass
class _Amounts:
    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    attempts: int = 0


@dataclass
class Metrics:
    """Everything counted since the process began."""

    rows: list[Row] = field(default_factory=list)
    gauges: list[Gauges] = field(default_factory=list)
    more: list[Callable[[], Iterable[str]]] = field(default_factory=list)
    """Lines that somebody else writes."""

    def __post_init__(self) -> None:
        """Empty columns."""
        self._ids: dict[tuple[int, str, int, str, str], int] = {}
        self._kept: list[Destination] = []
        """Destinations whose identity is a key: they must not be freed."""
        self._amounts: list[_Amounts] = []
        self.durations = Histogram(DURATION_S)
        self.prefills, self.decodes = Histogram(DURATION_S), Histogram(DURATION_S)
        self.first_tokens, self.between_tokens = Histogram(FIRST_TOKEN_S), Histogram(BETWEEN_TOKENS_S)

    def fold(self, batch: Sequence[Exchange], known_models: Callable[[], Iterable[str]]) -> list[int]:
        """Count requests that are over; returns the row of each."""
        known: set[str] | None = None
        rows = []
        for one in batch:
            model = ""
            if one.destination.backend_type == "none" and one.model:
                known = known if known is not None else set(known_models())
                model = one.model if one.model in known else ""
            row = self._row(one, model)
            rows.append(row)
            amounts = self._amounts[row]
            amounts.requests += 1
            amounts.attempts += one.attempts
            if (usage := one.usage_told) is not None:
                amounts.input_tokens += usage.input_tokens
                amounts.output_tokens += usage.output_tokens
        times = [(one.started_at, one.planned_at, one.first_byte_at, one.ended_at, one.events) for one in batch]
        self._fold_times(np.array(rows, dtype=np.int64), np.array(times))
        return rows

    def fold_lot(self, lot: Lot) -> list[int]:
        """The same of many at once; returns the row of each kind."""
        rows = [self._row(kind, "") for kind in lot.kinds]
        every = np.array(rows)[lot.kind]
        counts = np.bincount(every)
        read = np.bincount(every, np.where(lot.is_counted, lot.input_tokens, 0))
        written = np.bincount(every, lot.output_tokens)
        for row in np.flatnonzero(counts).tolist():
            amounts = self._amounts[row]
            amounts.requests += int(counts[row])
            amounts.attempts += int(counts[row])
            amounts.input_tokens += int(read[row])
            amounts.output_tokens += int(written[row])
        times: Floats = np.column_stack((lot.started_at, lot.started_at, lot.first_byte_at, lot.ended_at, lot.events))
        self._fold_times(every, times)
        return rows

    def _row(self, one: Exchange | RequestKind, model: str) -> int:
        own = UPSTREAM if one.upstream_status >= 400 else ""  # an engine's own refusal, which went on to the client
        error = one.refusal.reason if one.refusal is not None else own
        key = (id(one.destination), one.path, one.status, error, model)
        row = self._ids.get(key)
        return self._new_row(key, one, error, model) if row is None else row

    def _new_row(self, key: tuple[int, str, int, str, str], one: Exchange | RequestKind, error: str, model: str) -> int:
        path = one.path if one.path in INFERENCE_PATHS else "other"
        destination = one.destination
        if len(self.rows) >= MOST_ROWS:
            destination, model, path = Destination("_other"), "_other", "other"
            key = (0, path, one.status, error, model)
            if key in self._ids:
                return self._ids[key]
        if len(self._ids) < 4 * MOST_ROWS:
            row = Row(destination, model or destination.model, path, one.status, error)
            self._kept.append(one.destination)
            self.rows.append(row)
            self._amounts.append(_Amounts())
            self._ids[key] = len(self.rows) - 1
            return len(self.rows) - 1
        return 0

    def _fold_times(self, every: npt.NDArray[np.int64], times: Floats) -> None:
        """Rows, and when each was started, planned, began to be answered and ended, and how many events it had."""
        self.durations.add(every, times[:, 3] - times[:, 0])
        begun = times[:, 2] > 0
        if not begun.any():
            return
        every, times = every[begun], times[begun]
        self.prefills.add(every, times[:, 2] - times[:, 1])
        self.decodes.add(every, times[:, 3] - times[:, 2])
        streams = times[:, 4] > 1
        every, times = every[streams], times[streams]
        gaps = times[:, 4] - 1
        self.first_tokens.add(every, times[:, 2] - times[:, 0])
        self.between_tokens.add(every, (times[:, 3] - times[:, 2]) / gaps, gaps)

    def text(self, house: House) -> bytes:
        """All of it, as Prometheus reads it."""
        lines = [*self._counters(), *self._histograms(), *_active(house)]
        for gauges in self.gauges:
            lines += _gauge_lines(gauges())
        for more in self.more:
            lines += more()
        return ("\n".join(lines) + "\n").encode()

    def _counters(self) -> Iterator[str]:
        requests: dict[Labels, float] = {}
        tokens: dict[Labels, float] = {}
        limited: dict[Labels, float] = {}
        attempts = 0
        for row, amounts in zip(self.rows, self._amounts, strict=True):
            base: Labels = (("model", row.model), ("path", row.path))
            status: Labels = (("status_code", str(row.status)), ("error_type", row.error))
            _add(requests, base + status + row.backend, amounts.requests)
            _add(tokens, (*base, ("token_type", "input"), *row.backend), amounts.input_tokens)
            _add(tokens, (*base, ("token_type", "output"), *row.backend), amounts.output_tokens)
            if row.status == 429 and (kind := LIMIT_TYPES.get(row.error)):
                _add(limited, (base[0], ("limit_type", kind), base[1]), amounts.requests)
            attempts += amounts.attempts
        yield from _family("kthena_router_requests_total", "counter", "Requests that are over", requests)
        yield from _family("kthena_router_tokens_total", "counter", "Tokens as engines counted them", tokens)
        yield from _family("kthena_router_rate_limit_exceeded_total", "counter", "Requests over a limit", limited)
        yield from _family("hekla_router_attempts_total", "counter", "Requests sent to engines", {(): attempts})

    def _histograms(self) -> Iterator[str]:
        def short(row: Row) -> Labels:
            return (("model", row.model), ("path", row.path), ("status_code", str(row.status)))

        def long(row: Row) -> Labels:
            return short(row) + row.backend

        def by_model(row: Row) -> Labels:
            return (("model", row.model), *row.backend)

        for name, told, histogram, labels in (
            (
                "kthena_router_request_duration_seconds",
                "From the request to the end of its answer",
                self.durations,
                long,
            ),
            ("kthena_router_request_prefill_duration_seconds", "Until the first byte", self.prefills, short),
            ("kthena_router_request_decode_duration_seconds", "From the first byte to the end", self.decodes, short),
            ("hekla_router_time_to_first_token_seconds", "Of streams, at the router", self.first_tokens, by_model),
            (
                "hekla_router_inter_token_latency_seconds",
                "Of streams: each stream's mean, counted once for each of its gaps",
                self.between_tokens,
                by_model,
            ),
        ):
            yield from self._histogram(name, told, histogram, labels)

    def _histogram(self, name: str, told: str, histogram: Histogram, labels: Callable[[Row], Labels]) -> Iterator[str]:
        merged: dict[Labels, tuple[npt.NDArray[np.int64], float]] = {}
        for number, row in enumerate(self.rows[: len(histogram.sums)]):
            if not (counts := histogram.counts[number]).any():
                continue
            key = labels(row)
            if key in merged:
                counts, total = merged[key][0] + counts, merged[key][1] + histogram.sums[number]
            else:
                total = histogram.sums[number]
            merged[key] = (counts, float(total))
        yield f"# HELP {name} {told}"
        yield f"# TYPE {name} histogram"
        for key, (counts, total) in merged.items():
            text = _label_text(key)
            comma = "," if text else ""
            seen = counts.cumsum()
            for bound, count in zip((*map(float, histogram.bounds), None), seen, strict=True):
                le = "+Inf" if bound is None else f"{bound:g}"
                yield f'{name}_bucket{{{text}{comma}le="{le}"}} {count}'
            yield f"{name}_sum{{{text}}} {total:{EXACT}}"
            yield f"{name}_count{{{text}}} {seen[-1]}"


def _active(house: House) -> Iterator[str]:
    """What is under way, counted when asked."""
    down: dict[Labels, float] = {}
    up: dict[Labels, float] = {}
    for one in house.under_way:
        told = one.destination
        _add(down, (("model", told.model),), 1)
        if one.engine is not None:
            server = told.backend_name if told.backend_type == "model_server" else "none"
            row = Row(told, told.model, one.path, 0, "")
            _add(up, (("model_server", server), *row.backend), 1)
    beside = 0
    for told, path, count in house.beside():
        beside += count
        _add(down, (("model", told.model),), count)
        server = told.backend_name if told.backend_type == "model_server" else "none"
        _add(up, (("model_server", server), *Row(told, told.model, path, 0, "").backend), count)
    yield from _family("kthena_router_active_requests", "gauge", "Under way", {(): len(house.under_way) + beside})
    yield from _family("kthena_router_active_downstream_requests", "gauge", "Under way, by model", down)
    yield from _family("kthena_router_active_upstream_requests", "gauge", "At an engine", up)
    yield from _family(
        "hekla_router_unreadable_requests_total",
        "counter",
        "Refused before a request could be read",
        {(): house.refused_early},
    )


def _gauge_lines(told: Iterable[tuple[str, Labels, float]]) -> Iterator[str]:
    families: dict[str, dict[Labels, float]] = {}
    for name, labels, value in told:
        families.setdefault(name, {})[labels] = value
    for name, values in families.items():
        yield from _family(name, "counter" if name.endswith("_total") else "gauge", "", values)


def _family(name: str, kind: str, told: str, values: Mapping[Labels, float]) -> Iterator[str]:
    if told:
        yield f"# HELP {name} {told}"
    yield f"# TYPE {name} {kind}"
    for labels, value in values.items():
        text = _label_text(labels)
        yield f"{name}{{{text}}} {value:{EXACT}}" if text else f"{name} {value:{EXACT}}"


def _add(table: dict[Labels, float], labels: Labels, amount: float) -> None:
    table[labels] = table.get(labels, 0) + amount


def _label_text(labels: Labels) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
