"""The access log: one line for each request that is over, in Kthena's fields, as JSON or as text.

Lines are made a few hundred at a time when metrics are folded, and written by a thread of their own, so that a slow disk
or pipe does not hold requests up; what a writer that lags for too long cannot take is counted and left out.
"""

import asyncio
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import msgspec
import structlog

from hekla.serving.router.exchange import Exchange
from hekla.serving.router.metrics import Row

log = structlog.get_logger(__name__)

MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Lines that wait for the writer; what comes then is left out and counted."""

Format = Callable[[Exchange, Row, str], str]


def json_line(one: Exchange, row: Row, at: str) -> str:
    """Kthena's JSON; fields without a value are left out."""
    usage, refusal = one.usage_told, one.refusal
    return (
        f'{{"timestamp":"{at}",{_fixed(row, one.path, one.head.method, one.head.is_http_1_0)}'
        f',"request_id":"{one.request_id.decode("ascii")}"'
        f"{_target(one.target_name)}{_error(refusal.reason, refusal.message) if refusal is not None else ''}"
        f',"upstream_status_code":{one.upstream_status},"upstream_attempts":{one.attempts}'
        f',"input_tokens":{usage.input_tokens if usage is not None else one.input_tokens}'
        f',"output_tokens":{usage.output_tokens if usage is not None else 0}'
        f',"duration_total":{_ms(one.ended_at, one.started_at)}'
        f',"duration_request_processing":{_ms(one.planned_at or one.ended_at, one.started_at)}'
        f',"duration_upstream_processing":{_ms(one.first_byte_at, one.planned_at)}'
        f',"duration_response_processing":{_ms(one.ended_at, one.first_byte_at)}}}\n'
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


@lru_cache(maxsize=1024)
def _error(reason: str, message: str) -> str:
    origin = "client" if reason == "client_disconnected" else "router"
    error = msgspec.json.encode({"type": reason, "message": message}).decode()
    return f',"error":{error},"error_origin":"{origin}"'


def _ms(end: float, begin: float) -> int:
    return round((end - begin) * 1000) if end > begin > 0 else 0


def text_line(one: Exchange, row: Row, at: str) -> str:
    """Kthena's text form."""
    usage, refusal = one.usage_told, one.refusal
    read = usage.input_tokens if usage is not None else one.input_tokens
    written = usage.output_tokens if usage is not None else 0
    error = f" error={refusal.reason}:{refusal.message!r}" if refusal is not None else ""
    pod = f" selected_pod={one.target_name}" if one.target_name else ""
    return (
        f"[{at}] {_fixed_text(row, one.path, one.head.method, one.head.is_http_1_0)}{error}{pod}"
        f" request_id={one.request_id.decode('ascii')} attempts={one.attempts} tokens={read}/{written}"
        f" timings={_ms(one.ended_at, one.started_at)}ms({_ms(one.planned_at or one.ended_at, one.started_at)}"
        f"+{_ms(one.first_byte_at, one.planned_at)}+{_ms(one.ended_at, one.first_byte_at)})\n"
    )


@lru_cache(maxsize=4096)
def _fixed_text(row: Row, path: str, method: bytes, is_http_1_0: bool) -> str:
    told = row.destination
    server = f" model_server={told.backend_name}" if told.backend_type == "model_server" else ""
    route = f" model_route={told.model_route}" if told.model_route != "none" else ""
    protocol = "HTTP/1.0" if is_http_1_0 else "HTTP/1.1"
    return (
        f'"{method.decode("ascii")} {path} {protocol}" {row.status} model_name={_printable(row.model)}{route}{server}'
    )


def _printable(text: str) -> str:
    return text if text.isprintable() and " " not in text else repr(text)


FORMATS: dict[str, Format] = {"json": json_line, "text": text_line}


class AccessLog:
    """Writes lines to a file, or to standard output or error."""

    def __init__(self, format_name: str, output: str) -> None:
        self._format = FORMATS[format_name]
        self._file: BinaryIO = _opened(output)
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        self.left_out = 0

    def add(self, batch: Sequence[Exchange], rows: Sequence[Row], wall_offset_s: float) -> None:
        """Lines for requests that are over; `wall_offset_s` makes wall time of the loop's time."""
        make = self._format
        lines = [make(one, row, _stamp(one.ended_at + wall_offset_s)) for one, row in zip(batch, rows, strict=True)]
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


@lru_cache(maxsize=8)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def _opened(output: str) -> BinaryIO:
    if output in ("stdout", "stderr"):
        return (sys.stdout if output == "stdout" else sys.stderr).buffer
    return Path(output).open("ab")
