"""What spans say: one of the request that came in, and below it one of each attempt, that is each request to an engine or provider. Pure.

Names are those of OpenTelemetry's conventions: HTTP's for what came in (https://opentelemetry.io/docs/specs/semconv/http/http-spans/),
those of generative AI for what engines were asked (.../semconv/gen-ai/gen-ai-spans/), `hekla.` before what is the router's own. Neither
prompts nor answers are told, as whoever may read traces may not read chats. `telemetry.py` takes and sends them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hekla.serving.router.plan import Target

if TYPE_CHECKING:
    from hekla.serving.router.exchange import Exchange
    from hekla.serving.router.metrics import Row

SERVER, CLIENT, ERROR = 2, 3, 2
"""Kinds of spans, and the status of one that went wrong, by OTLP's numbers."""
MOST_TRIES: Final = 16
"""Attempts of one request that are told; a request that waits for engines to come back may make more."""
_OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_SERVER_FAILS = 500
"""From this status on a request that came in has gone wrong; below it the caller was told what is wrong with it."""
_CLIENT_FAILS = 400


@dataclass(slots=True)
class Try:
    """One attempt."""

    span: str
    target: Target
    began_at: float
    ended_at: float = 0.0
    """0: it is under way, or ended with its request."""
    status: int = 0
    """What the engine answered; 0: nothing."""
    error: str = ""
    """How it failed, a stable code."""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """Where a request stands in its trace."""

    trace: str
    span: str
    parent: str
    is_sampled: bool
    state: str = ""
    """The caller's `tracestate`, which goes on as it came; empty where it is too long to be told."""
    drops_state: bool = False
    """Whether he sent one that belongs to no trace."""
    tries: list[Try] = field(default_factory=list)

    @property
    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        """What the engine is told: its spans hang below the attempt, or the request where attempts are not told."""
        span = self.tries[-1].span if self.tries else self.span
        parent = f"00-{self.trace}-{span}-{'01' if self.is_sampled else '00'}".encode()
        return ((b"traceparent", parent), (b"tracestate", b"")) if self.drops_state else ((b"traceparent", parent),)

    def tried(self, now: float, *, status: int = 0, error: str = "", why: str = "") -> None:
        """The attempt under way is over, and another may follow."""
        if self.tries and not self.tries[-1].ended_at:
            one = self.tries[-1]
            one.ended_at, one.status, one.error, one.why = now, status, error, why


def spans_of(one: "Exchange", trace: Trace, row: "Row", wall_offset_s: float) -> Iterator[dict[str, Any]]:
    """The spans of a request that is over."""
    yield _of_request(one, trace, row, wall_offset_s)
    for number, tried in enumerate(trace.tries):
        yield _of_try(one, trace, row, tried, number, wall_offset_s)


def _of_request(one: "Exchange", trace: Trace, row: "Row", wall_offset_s: float) -> dict[str, Any]:
    told, refusal = row.destination, one.refusal
    events = [
        {"name": name, "timeUnixNano": _nanoseconds(at, wall_offset_s)}
        for name, at in (("planned", one.planned_at), ("first byte", one.first_byte_at))
        if at
    ]
    has_failed = one.status >= _SERVER_FAILS or (refusal is not None and refusal.status >= _SERVER_FAILS)
    attributes = {
        "http.request.method": one.head.method.decode("ascii"),
        "http.route": row.path,
        "url.path": one.path,
        "http.response.status_code": one.status,
        "error.type": (refusal.reason if refusal is not None else str(one.status)) if has_failed else "",
        **_of_model(one, row),
        "hekla.model_route": told.model_route,
        "hekla.backend": told.backend_name,
        "hekla.pod": one.target_name,
        "hekla.attempts": one.attempts,
        "hekla.request_id": one.request_id.decode("ascii"),
    }
    return {
        "traceId": trace.trace,
        "spanId": trace.span,
        "parentSpanId": trace.parent,
        "traceState": trace.state,
        "name": f"POST {row.path}",
        "kind": SERVER,
        "startTimeUnixNano": _nanoseconds(one.started_at, wall_offset_s),
        "endTimeUnixNano": _nanoseconds(one.ended_at, wall_offset_s),
        "attributes": as_attributes(attributes),
        "events": events,
        "status": {"code": ERROR, "message": refusal.for_operators if refusal is not None else ""}
        if has_failed
        else {},
    }


def _of_try(one: "Exchange", trace: Trace, row: "Row", tried: Try, number: int, wall_offset_s: float) -> dict[str, Any]:
    status, error, why = tried.status, tried.error, tried.why
    is_last = not tried.ended_at
    if is_last:  # it ended with the request
        status = one.upstream_status
        if one.refusal is not None:
            error, why = one.refusal.reason, one.refusal.for_operators
        elif status >= _CLIENT_FAILS:
            error = str(status)
    attributes = {
        **(_of_model(one, row) if is_last else _asked(one, row)),
        "server.address": tried.target.host,
        "server.port": tried.target.port,
        "http.response.status_code": status or "",
        "http.request.resend_count": number or "",
        "error.type": error,
        "hekla.pod": tried.target.name,
    }
    operation = _OPERATIONS.get(one.path, "")
    return {
        "traceId": trace.trace,
        "spanId": tried.span,
        "parentSpanId": trace.span,
        "traceState": trace.state,
        "name": f"{operation} {row.model}" if operation else f"POST {row.path}",
        "kind": CLIENT,
        "startTimeUnixNano": _nanoseconds(tried.began_at, wall_offset_s),
        "endTimeUnixNano": _nanoseconds(tried.ended_at or one.ended_at, wall_offset_s),
        "attributes": as_attributes(attributes),
        "status": {"code": ERROR, "message": why} if error else {},
    }


def _asked(one: "Exchange", row: "Row") -> dict[str, Any]:
    return {
        "gen_ai.operation.name": _OPERATIONS.get(one.path, ""),
        "gen_ai.provider.name": row.destination.maker,
        "gen_ai.request.model": row.model,
    }


def _of_model(one: "Exchange", row: "Row") -> dict[str, Any]:
    usage = one.usage_told
    return {
        **_asked(one, row),
        "gen_ai.response.model": row.destination.upstream_model,
        "gen_ai.usage.input_tokens": usage.input_tokens if usage is not None else one.input_tokens or "",
        "gen_ai.usage.output_tokens": usage.output_tokens if usage is not None else "",
        "gen_ai.usage.cache_read.input_tokens": (usage.cached_tokens if usage is not None else 0) or "",
    }


def _nanoseconds(at: float, wall_offset_s: float) -> str:
    return str(int((at + wall_offset_s) * 1e9))


def as_attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Names and values as OTLP writes them, without what is empty."""
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
        if value not in ("", "none")
    ]
