"""Traces: a span for each request, in W3C's context and OpenTelemetry's OTLP over HTTP as JSON, where an endpoint is set.

A caller's `traceparent` is taken up and the engine gets ours, so that its spans hang below. Spans are made of what the books
know anyway, when a request is over, and sent once a second; a collector that is away costs spans, never requests.
"""

import asyncio
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError

if TYPE_CHECKING:
    from hekla.serving.router.exchange import Exchange
    from hekla.serving.router.metrics import Row

log = structlog.get_logger(__name__)

SEND_EVERY_S: Final = 1.0
MOST_WAITING: Final = 8192
"""Spans that wait for the collector; what comes then is left out and counted."""
MOST_IN_ONE: Final = 1024
TIMEOUT_S: Final = 5.0
SERVER_SPAN, ERROR = 2, 2
_TRACEPARENT = re.compile(rb"(?im)^traceparent:[ \t]*00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})[ \t]*\r$")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a request stands in its trace."""

    trace: str
    span: str
    parent: str
    is_sampled: bool

    @property
    def header(self) -> bytes:
        """What the engine is told."""
        return f"00-{self.trace}-{self.span}-{'01' if self.is_sampled else '00'}".encode()


class Tracing:
    """The traces of one router."""

    def __init__(self, endpoint: str, service: str, client: HttpClient, *, share: float = 1.0) -> None:
        """`share` is how many of the requests are traced whose callers do not say."""
        self._url = f"{endpoint.rstrip('/')}/v1/traces"
        self._service = service
        self._client = client
        self._share = share
        self._dice = random.Random()
        self._waiting: list[dict[str, Any]] = []
        self.left_out = 0

    def begin(self, lines: bytes) -> Trace:
        """A span for a request with these header lines."""
        match = _TRACEPARENT.search(lines)
        span = f"{self._dice.getrandbits(64) | 1:016x}"
        if match is None or (trace := match[1].decode()) == _NO_TRACE or (parent := match[2].decode()) == _NO_SPAN:
            return Trace(f"{self._dice.getrandbits(128) | 1:032x}", span, "", self._dice.random() < self._share)
        return Trace(trace, span, parent, bool(int(match[3], 16) & 1))

    def add(self, batch: "Sequence[Exchange]", rows: "Sequence[Row]", wall_offset_s: float) -> None:
        """Spans of requests that are over."""
        for one, row in zip(batch, rows, strict=True):
            if one.trace is None or not one.trace.is_sampled:
                continue
            if len(self._waiting) >= MOST_WAITING:
                self.left_out += 1
            else:
                self._waiting.append(_span(one, one.trace, row, wall_offset_s))

    async def run(self) -> None:
        """Send what waits, until cancelled."""
        while True:
            await asyncio.sleep(SEND_EVERY_S)
            await self.send()

    async def send(self) -> None:
        """Send what waits now."""
        while self._waiting:
            spans, self._waiting = self._waiting[:MOST_IN_ONE], self._waiting[MOST_IN_ONE:]
            resource = {"attributes": _attributes({"service.name": self._service})}
            scope = {"scope": {"name": "hekla.router"}, "spans": spans}
            body = msgspec.json.encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]})
            try:
                answer = await self._client.request(
                    "POST", self._url, (("content-type", "application/json"),), body, timeout_s=TIMEOUT_S
                )
            except WireError as error:
                self.left_out += len(spans)
                log.debug("traces not sent", url=self._url, why=str(error))
                return
            if answer.status >= 300:
                self.left_out += len(spans)
                log.debug("traces refused", url=self._url, status=answer.status)


def _span(one: "Exchange", trace: Trace, row: "Row", wall_offset_s: float) -> dict[str, Any]:
    usage, told = one.usage_told, row.destination

    def nanoseconds(at: float) -> str:
        return str(int((at + wall_offset_s) * 1e9))

    events = [
        {"name": name, "timeUnixNano": nanoseconds(at)}
        for name, at in (("planned", one.planned_at), ("first byte", one.first_byte_at))
        if at
    ]
    attributes = {
        "http.request.method": one.head.method.decode("ascii"),
        "url.path": one.path,
        "http.response.status_code": one.status,
        "gen_ai.request.model": row.model,
        "gen_ai.response.model": told.upstream_model,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage is not None else one.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens if usage is not None else 0,
        "hekla.model_route": told.model_route,
        "hekla.backend": told.backend_name,
        "hekla.pod": one.target_name,
        "hekla.attempts": one.attempts,
        "hekla.request_id": one.request_id.decode("ascii"),
    }
    status: dict[str, Any] = {}
    if one.status >= 500 or one.refusal is not None:
        status = {"code": ERROR, "message": one.refusal.for_operators if one.refusal is not None else ""}
    return {
        "traceId": trace.trace,
        "spanId": trace.span,
        "parentSpanId": trace.parent,
        "name": f"POST {row.path}",
        "kind": SERVER_SPAN,
        "startTimeUnixNano": nanoseconds(one.started_at),
        "endTimeUnixNano": nanoseconds(one.ended_at),
        "attributes": _attributes(attributes),
        "events": events,
        "status": status,
    }


def _attributes(values: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
        if value not in ("", "none")
    ]
