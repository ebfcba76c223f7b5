"""Traces: a span for each request and each attempt, in W3C's context and OpenTelemetry's OTLP over HTTP as JSON, where an endpoint is set.

A caller's `traceparent` is taken up and the engine gets ours, so that its spans hang below. Spans are made of what the books know
anyway, when a request is over (`spans.py`), and sent every few seconds (`trace_settings.py`). A collector that is away costs spans,
never requests: they wait in a bounded list, are posted again as OTLP has it, later each time, and what finds no room is left out and counted.
"""

import asyncio
import random
import re
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog

from hekla.serving.router.plan import Target
from hekla.serving.router.spans import MOST_TRIES, Trace, Try, as_attributes, spans_of
from hekla.serving.router.trace_settings import TraceSettings
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.messages import Response

if TYPE_CHECKING:
    from hekla.serving.router.exchange import Exchange
    from hekla.serving.router.metrics import Row

log = structlog.get_logger(__name__)

AGAIN_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""How long after the first, second, ... post in a row that failed comes the next."""
LONGEST_AGAIN_S: Final = 300.0
"""A collector that asks for more patience is asked again after so long."""
MOST_STATE: Final = 512
"""Characters of a caller's `tracestate` that spans tell, as many as W3C has everybody carry; of a longer one they tell nothing."""
_AGAIN_LATER: Final = frozenset({429, 502, 503, 504})
"""Answers after which OTLP has a post made again; after another it would be refused again."""
_TRACEPARENT = re.compile(
    rb"(?m)^(?i:traceparent):[ \t]*(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[^\r\n]*)?[ \t]*\r$"
)
_TRACESTATE = re.compile(rb"(?im)^tracestate:[ \t]*([^\r\n]*?)[ \t]*\r$")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_WORD = 1 << 64


class Tracing:
    """The traces of one router."""

    def __init__(self, settings: TraceSettings, client: HttpClient) -> None:
        """`client` posts the spans; it is closed with this."""
        self._settings = settings
        self._headers = (("content-type", "application/json"), *settings.headers)
        self._resource = {"attributes": as_attributes(dict(settings.resource))}
        self._client = client
        self._dice = random.Random()
        self._waiting: deque[dict[str, Any]] = deque()
        self._failures = 0
        """In a row."""
        self.left_out = 0

    # ---- where a request stands

    def begin(self, lines: bytes) -> Trace:
        """A span for a request with these header lines."""
        matches, span = _TRACEPARENT.findall(lines), self._new_span()
        if len(matches) != 1:  # two of them are none: nobody knows which is right
            return self._root(span, lines)
        version, trace, parent, flags, more = (part.decode("latin-1") for part in matches[0])
        if trace == _NO_TRACE or parent == _NO_SPAN or (version == "00" and more):
            return self._root(span, lines)
        is_sampled = bool(int(flags, 16) & 1) if self._settings.heeds_callers else self._is_drawn(trace)
        state = ",".join(one.decode("latin-1") for one in _TRACESTATE.findall(lines) if one)
        return Trace(trace, span, parent, is_sampled, state if len(state) <= MOST_STATE else "")

    def attempt(self, trace: Trace, target: Target, now: float) -> None:
        """The request of a trace is sent to an engine or provider."""
        if trace.is_sampled:
            trace.tried(now)
            if len(trace.tries) == MOST_TRIES:
                del trace.tries[-1]
            trace.tries.append(Try(self._new_span(), target, now))

    def _root(self, span: str, lines: bytes) -> Trace:
        """A trace that begins here; what came of another's state makes no sense in it."""
        trace = f"{self._dice.getrandbits(128) | 1:032x}"
        return Trace(trace, span, "", self._is_drawn(trace), drops_state=_TRACESTATE.search(lines) is not None)

    def _new_span(self) -> str:
        return f"{self._dice.getrandbits(64) | 1:016x}"

    def _is_drawn(self, trace: str) -> bool:
        """By the trace's number: all who see the trace and take the same share take the same traces."""
        return int(trace[16:], 16) < self._settings.share * _WORD

    # ---- on to the collector

    def add(self, batch: "Sequence[Exchange]", rows: "Sequence[Row]", wall_offset_s: float) -> None:
        """Spans of requests that are over."""
        waiting, most = self._waiting, self._settings.most_waiting
        for one, row in zip(batch, rows, strict=True):
            if one.trace is None or not one.trace.is_sampled:
                continue
            room = most - len(waiting)
            if room <= len(one.trace.tries):
                self.left_out += 1 + len(one.trace.tries)
            else:
                waiting.extend(spans_of(one, one.trace, row, wall_offset_s))

    async def run(self) -> None:
        """Send what waits, until cancelled."""
        wait_s = self._settings.delay_s
        while True:
            await asyncio.sleep(wait_s)
            wait_s = await self.send() or self._settings.delay_s

    async def send(self) -> float:
        """Send what waits now; where it is to be sent again, after how long, in seconds."""
        while self._waiting:
            count = min(len(self._waiting), self._settings.most_in_one)
            body = self._body(list(islice(self._waiting, count)))
            try:
                answer = await self._client.request(
                    "POST", self._settings.url, self._headers, body, timeout_s=self._settings.timeout_s
                )
            except WireError as error:
                return self._put_off(str(error))
            if answer.status in _AGAIN_LATER:
                return self._put_off(f"it answered {answer.status}", answer.header("retry-after"))
            for _ in range(count):
                self._waiting.popleft()
            self._take_answer(answer, count)
        return 0.0

    async def close(self) -> None:
        """Send what waits once more, within one post's time, and nothing after that."""
        try:
            await asyncio.wait_for(self.send(), self._settings.timeout_s)
        except TimeoutError:
            log.warning("traces not sent at the end", url=self._settings.url, spans=len(self._waiting))
        self.left_out += len(self._waiting)
        self._waiting.clear()
        await self._client.close()

    def _body(self, spans: list[dict[str, Any]]) -> bytes:
        scope = {"scope": {"name": "hekla.router"}, "spans": spans}
        return msgspec.json.encode({"resourceSpans": [{"resource": self._resource, "scopeSpans": [scope]}]})

    def _take_answer(self, answer: Response, count: int) -> None:
        if self._failures:
            log.info("traces are taken again", url=self._settings.url)
        self._failures = 0
        refused = count if answer.status >= 300 else _refused(answer.body if isinstance(answer.body, bytes) else b"")
        if refused:
            self.left_out += refused
            log.warning("traces refused", url=self._settings.url, status=answer.status, spans=refused)

    def _put_off(self, why: str, retry_after: str = "") -> float:
        if not self._failures:
            log.warning("traces not sent; they are sent later", url=self._settings.url, why=why)
        again_s = AGAIN_S[min(self._failures, len(AGAIN_S) - 1)]
        self._failures += 1
        if retry_after.isdecimal():
            again_s = max(again_s, min(float(retry_after), LONGEST_AGAIN_S))
        return again_s


class _Partly(msgspec.Struct, rename="camel"):
    rejected_spans: int | str = 0


class _Taken(msgspec.Struct, rename="camel"):
    partial_success: _Partly | None = None


def _refused(body: bytes) -> int:
    """How many spans of a post that was taken were not."""
    try:
        told = msgspec.json.decode(body, type=_Taken).partial_success
        return max(0, int(told.rejected_spans)) if told is not None else 0
    except (msgspec.DecodeError, ValueError):  # it was taken, whatever else it says
        return 0
