"""The access log: one line for each request that is over, in Kthena's fields, as JSON or as text.

Lines are made a few hundred at a time when metrics are folded, and written by a thread of their own, so that a slow disk
or pipe does not hold requests up; what a writer that lags for too long cannot take is counted and left out. A file that has grown
too large is put aside (`edge/log_files.py`).
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import msgspec
import structlog

from hekla.edge.log_files import begin_anew, is_too_large
from hekla.serving.router.exchange import Exchange
from hekla.serving.router.lots import Floats, Lot, RequestKind, ms_between, ms_of
from hekla.serving.router.metrics import Row
from hekla.serving.router.plan import UPSTREAM

log = structlog.get_logger(__name__)

MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Lines that wait for the writer; what comes then is left out and counted."""


class Format(NamedTuple):
    """How a line is written: what many have in common once, before the request's id and behind it, and the line around that."""

    around: Callable[[Exchange | RequestKind, Row], tuple[str, str]]
    line: Callable[[str, str, str, str, int, int, int, int, int, int], str]
    """Of when, what is before the id, the id, what is behind it, the tokens read and written, and the milliseconds: of all, until it was
    planned, until the first byte, and from there to the end."""

    def of(self, one: Exchange, row: Row, at: str) -> str:
        """One request's."""
        before, behind = self.around(one, row)
        usage = one.usage_told
        return self.line(
            at,
            before,
            one.request_id.decode("ascii"),
            behind,
            usage.input_tokens if usage is not None else one.input_tokens,
            usage.output_tokens if usage is not None else 0,
            _ms(one.ended_at, one.started_at),
            _ms(one.planned_at or one.ended_at, one.started_at),
            _ms(one.first_byte_at, one.planned_at),
            _ms(one.ended_at, one.first_byte_at),
        )

    def of_lot(self, lot: Lot, rows: Sequence[Row], wall_offset_s: float) -> list[str]:
        """Those of many."""
        arounds = [self.around(kind, row) for kind, row in zip(lot.kinds, rows, strict=True)]
        prefix, line = lot.id_prefix.decode("ascii"), self.line
        return [
            line(at, arounds[kind][0], f"{prefix}-{request:x}", arounds[kind][1], read, written, took, 0, until, rest)
            for at, kind, request, read, written, took, until, rest in zip(
                _stamps(lot.ended_at + wall_offset_s),
                lot.kind.tolist(),
                lot.request.tolist(),
                lot.input_tokens.tolist(),
                lot.output_tokens.tolist(),
                ms_between(lot.started_at, lot.ended_at),
                ms_between(lot.started_at, lot.first_byte_at),
                ms_between(lot.first_byte_at, lot.ended_at),
                strict=True,
            )
        ]


def _around_json(one: Exchange | RequestKind, row: Row) -> tuple[str, str]:
    error, origin = _trouble(one)
    told = f',"error":{msgspec.json.encode(error).decode()},"error_origin":"{origin}"' if error is not None else ""
    return (
        f'{_fixed(row, one.path, one.head.method, one.head.is_http_1_0)},"request_id":"',
        f'"{_target(one.target_name)}{told}'
        f',"upstream_status_code":{one.upstream_status},"upstream_attempts":{one.attempts},"input_tokens":',
    )


def _json(
    at: str,
    before: str,
    request: str,
    behind: str,
    read: int,
    written: int,
    took: int,
    planned: int,
    until: int,
    rest: int,
) -> str:
    return (
        f'{{"timestamp":"{at}",{before}{request}{behind}{read},"output_tokens":{written},"duration_total":{took}'
        f',"duration_request_processing":{planned},"duration_upstream_processing":{until}'
        f',"duration_response_processing":{rest}}}\n'
    )


@lru_cache(maxsize=4096)
def _fixed(row: Row, path: str, method: bytes, is_http_1_0: bool) -> str:
    told = row.destination
    server = told.backend_name if told.backend_type == "model_server" else ""
    fields = {
        "method": method.decode("ascii"),
        "path": path,
        "protocol": "HTTP/1.0" if is_http_1_0 else "HTTP/1.1",
        "status_code": row.status,
        "model_name": row.model,
        "model_route": told.model_route,
        "model_server": server,
        "backend_type": told.backend_type,
        "backend_name": told.backend_name,
        "upstream_model": told.upstream_model,
        "inference_pool": told.backend_name if told.backend_type == "inference_pool" else "",
    }
    return msgspec.json.encode({name: value for name, value in fields.items() if value not in ("", "none")}).decode()[
        1:-1
    ]


@lru_cache(maxsize=4096)
def _target(name: str) -> str:
    return f',"selected_pod":{msgspec.json.encode(name).decode()}' if name else ""


def _trouble(one: Exchange | RequestKind) -> tuple[dict[str, str] | None, str]:
    """What went wrong with a request, and whose part that was: the client's, the router's, or an engine's or provider's."""
    refusal = one.refusal
    if refusal is None:
        if one.upstream_status < 400:
            return None, ""
        return {"type": UPSTREAM, "message": f"{one.target_name} answered {one.upstream_status}"}, "upstream"
    origin = {"client_disconnected": "client", "response_forwarding": "upstream"}.get(refusal.reason, "router")
    return {"type": refusal.reason, "message": refusal.for_operators}, origin


def _ms(end: float, begin: float) -> int:
    return round((end - begin) * 1000) if end > begin > 0 else 0


def _around_text(one: Exchange | RequestKind, row: Row) -> tuple[str, str]:
    error, origin = _trouble(one)
    told = f" error={error['type']}:{_escaped(error['message'], _BREAKS_A_MESSAGE)}" if error is not None else ""
    pod = f" selected_pod={one.target_name}" if one.target_name else ""
    upstream = f" upstream_status_code={one.upstream_status}" if one.upstream_status else ""
    upstream += f" upstream_attempts={one.attempts}" if one.attempts else ""
    before, names, backend = _fixed_text(row, one.path, one.head.method, one.head.is_http_1_0)
    return (
        f"{before}{told}{names}{pod} request_id=",
        f"{backend}{upstream}{f' error_origin={origin}' if origin else ''}{_pool(row)} tokens=",
    )


def _pool(row: Row) -> str:
    told = row.destination
    return f" inference_pool={told.backend_name}" if told.backend_type == "inference_pool" else ""


def _text(
    at: str,
    before: str,
    request: str,
    behind: str,
    read: int,
    written: int,
    took: int,
    planned: int,
    until: int,
    rest: int,
) -> str:
    return f"[{at}] {before}{request}{behind}{read}/{written} timings={took}ms({planned}+{until}+{rest})\n"


@lru_cache(maxsize=4096)
def _fixed_text(row: Row, path: str, method: bytes, is_http_1_0: bool) -> tuple[str, str, str]:
    """Before an error, between it and the pod, behind the request's id."""
    told = row.destination
    protocol = "HTTP/1.0" if is_http_1_0 else "HTTP/1.1"
    server = told.backend_name if told.backend_type == "model_server" else ""
    names = {"model_name": row.model, "model_route": told.model_route, "model_server": server}
    backend = {
        "backend_type": told.backend_type,
        "backend_name": told.backend_name,
        "upstream_model": told.upstream_model,
    }
    asked = f"{method.decode('ascii')} {_escaped(path, _BREAKS_A_WORD)} {protocol}"
    return f'"{asked}" {row.status}', _words(names), _words(backend)


def _words(told: Mapping[str, str]) -> str:
    return "".join(
        f" {name}={_escaped(value, _BREAKS_A_WORD)}" for name, value in told.items() if value not in ("", "none")
    )


_BREAKS_A_WORD: Final = frozenset(' ="\\')
_BREAKS_A_MESSAGE: Final = frozenset("=\\")
"""A message has spaces and quotes, as Kthena's has, and goes to the next ` name=`: who asks for a model of that name made fields."""


def _escaped(text: str, breaking: frozenset[str]) -> str:
    if text.isprintable() and breaking.isdisjoint(text):
        return text
    return "".join(_code(one) if one in breaking or not one.isprintable() else one for one in text)


def _code(one: str) -> str:
    number = ord(one)
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


FORMATS: Final = {"json": Format(_around_json, _json), "text": Format(_around_text, _text)}
"""Kthena's two; of JSON fields without a value are left out."""
json_line, text_line = FORMATS["json"].of, FORMATS["text"].of


_STANDARD: Final = ("stdout", "stderr")


class AccessLog:
    """Writes lines to a file, or to standard output or error."""

    def __init__(self, format_name: str, output: str) -> None:
        self._format = FORMATS[format_name]
        self._file: BinaryIO = _opened(output)
        self._path = None if output in _STANDARD else Path(output)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        self._is_stuck = False
        self.left_out = 0

    def add(self, batch: Sequence[Exchange], rows: Sequence[Row], wall_offset_s: float) -> None:
        """Lines for requests that are over; `wall_offset_s` makes wall time of the loop's time."""
        make = self._format.of
        self._take([make(one, row, _stamp(one.ended_at + wall_offset_s)) for one, row in zip(batch, rows, strict=True)])

    def add_lot(self, lot: Lot, rows: Sequence[Row], wall_offset_s: float) -> None:
        """The same of many at once; `rows` are those of their kinds."""
        self._take(self._format.of_lot(lot, rows, wall_offset_s))

    def _take(self, lines: Sequence[str]) -> None:
        data = "".join(lines).encode("utf-8", "replace")
        if self._waiting_bytes + len(data) > MOST_WAITING_BYTES:
            self.left_out += len(lines)
            return
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        self._write()

    def _write(self) -> None:
        if self._writing is not None or not self._waiting:
            return
        data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(None, self._put, data)
        self._writing.add_done_callback(self._written)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        if self._path is not None and not self._is_stuck and is_too_large(self._file.fileno()):
            self._begin_anew(self._path)

    def _begin_anew(self, path: Path) -> None:
        try:
            fresh = os.fdopen(begin_anew(path, self._file.fileno()), "ab")
        except OSError as error:  # a file that is mounted by itself, or in a directory that is not ours to change
            self._is_stuck = True
            log.warning("access log cannot be put aside and grows on", file=str(path), error=str(error))
            return
        self._file.close()
        self._file = fresh

    def _written(self, done: "asyncio.Future[None]") -> None:
        self._writing = None
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("access log cannot be written", error=str(error))
        self._write()

    async def flushed(self) -> None:
        """Until everything is written."""
        while self._writing is not None:
            await asyncio.wait({self._writing})
            await asyncio.sleep(0)


def _stamp(wall_s: float) -> str:
    second = int(wall_s)
    return f"{_second(second)}.{int((wall_s - second) * 1000):03d}Z"


def _stamps(wall_s: Floats) -> list[str]:
    told = ms_of(wall_s)
    names = {ms: f"{_second(ms // 1000)}.{ms % 1000:03d}Z" for ms in set(told)}
    return [names[ms] for ms in told]


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _opened(output: str) -> BinaryIO:
    if output in _STANDARD:
        return (sys.stdout if output == "stdout" else sys.stderr).buffer
    return Path(output).open("ab")
