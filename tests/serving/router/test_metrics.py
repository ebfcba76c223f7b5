"""Books without a socket: what is counted and logged of requests that are over, and the bounds of both."""

import asyncio
import errno
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hekla.serving.router import access_log, metrics
from hekla.serving.router.access_log import AccessLog, json_line, text_line
from hekla.serving.router.metrics import Metrics
from hekla.serving.router.metrics_pages import read_page, text_of
from hekla.serving.router.plan import Destination, Refusal, Usage

DESTINATION = Destination("m", "ml/m", "model_server", "ml/s", "up")


def over(**fields: Any) -> Any:
    """A request that is over, as the books see it."""
    told = {
        "destination": DESTINATION, "model": "m", "path": "/v1/completions", "status": 200, "refusal": None, "attempts": 1,
        "usage_told": Usage(10, 20), "input_tokens": 9, "events": 0, "started_at": 100.0, "planned_at": 100.001,
        "first_byte_at": 100.101, "ended_at": 100.301, "request_id": b"id-1", "target_name": "pod-1",
        "upstream_status": 200, "head": SimpleNamespace(method=b"POST", is_http_1_0=False),
    }  # fmt: skip
    return SimpleNamespace(**{**told, **fields})


def house() -> Any:
    return SimpleNamespace(under_way=(), refused_early=0, beside=tuple)


def text(books: Metrics) -> str:
    return books.text(house()).decode()


def test_long_generations_have_buckets_of_their_own() -> None:
    books = Metrics()
    books.fold([over(ended_at=100.0 + 400.0)], list)
    told = text(books)
    name = 'kthena_router_request_duration_seconds_bucket{model="m",path="/v1/completions",status_code="200"'
    where = 'model_route="ml/m",backend_type="model_server",backend_name="ml/s",upstream_model="up"'
    assert f'{name},{where},le="300"}} 0' in told
    assert f'{name},{where},le="600"}} 1' in told


def test_large_counters_are_told_to_the_last_one() -> None:
    books = Metrics()
    books.fold([over(usage_told=Usage(10_000_001, 123_456_789_012))], list)
    told = text(books)
    for kind, tokens in (("input", 10_000_001), ("output", 123_456_789_012)):
        assert any(f'token_type="{kind}"' in line and line.endswith(f" {tokens}") for line in told.splitlines())
        merged = text_of(read_page(told))
        assert any(f'token_type="{kind}"' in line and line.endswith(f" {tokens}") for line in merged.splitlines())


def test_a_limit_that_was_met_is_counted_by_its_kind() -> None:
    books = Metrics()
    refusal = Refusal(429, "input_rate_limit", "input token rate limit exceeded")
    books.fold([over(destination=Destination("unknown"), status=429, refusal=refusal)], lambda: ["m"])
    wanted = 'kthena_router_rate_limit_exceeded_total{model="m",limit_type="input_tokens",path="/v1/completions"} 1'
    assert wanted in text(books)


def test_names_that_clients_make_up_make_no_labels() -> None:
    books = Metrics()
    refusal = Refusal(404, "route_not_found", "route not found")
    batch = [
        over(destination=Destination("unknown"), model=f"made-up-{n}", path=f"/p/{n}", status=404, refusal=refusal)
        for n in range(50)
    ]
    books.fold(batch, lambda: ["m"])
    told = text(books)
    assert "made-up" not in told
    assert "/p/" not in told
    assert told.count("kthena_router_requests_total{") == 1


def test_sets_of_labels_have_a_bound(monkeypatch: Any) -> None:
    monkeypatch.setattr(metrics, "MOST_ROWS", 10)
    books = Metrics()
    rows = books.fold([over(destination=Destination(f"m{n}", "r", "model_server", "s", "u")) for n in range(500)], list)
    assert len(rows) == 500
    assert len(books.rows) <= 11
    total = sum(
        float(line.rpartition(" ")[2])
        for line in text(books).splitlines()
        if line.startswith("kthena_router_requests_total{")
    )
    assert total == 500


def test_a_line_of_text_is_kthenas() -> None:
    books = Metrics()
    [row] = books.fold([over()], list)
    line = text_line(over(), books.rows[row], "2026-01-01T00:00:00.000Z")
    assert line == (
        '[2026-01-01T00:00:00.000Z] "POST /v1/completions HTTP/1.1" 200 model_name=m model_route=ml/m model_server=ml/s'
        " selected_pod=pod-1 request_id=id-1 backend_type=model_server backend_name=ml/s upstream_model=up"
        " upstream_status_code=200 upstream_attempts=1 tokens=10/20 timings=301ms(1+100+200)\n"
    )


def test_a_line_of_trouble_says_whose_it_was_as_kthenas_do() -> None:
    books = Metrics()
    lost = Refusal(404, "route_not_found", 'route not found: no route has "m"')
    cut = Refusal(502, "response_forwarding", "the engine's answer was cut short")
    batch = [
        over(
            destination=Destination("unknown"), status=404, refusal=lost, attempts=0, target_name="", upstream_status=0
        ),
        over(refusal=cut),
        over(status=429, upstream_status=429),
    ]
    rows = [books.rows[row] for row in books.fold(batch, list)]
    lines = [text_line(one, row, "now") for one, row in zip(batch, rows, strict=True)]
    assert lines[0].startswith(
        '[now] "POST /v1/completions HTTP/1.1" 404 error=route_not_found:route not found: no route has "m" model_name='
    )
    assert "request_id=id-1 error_origin=router tokens=" in lines[0]
    assert " 200 error=response_forwarding:the engine's answer was cut short model_name=m" in lines[1]
    assert " upstream_attempts=1 error_origin=upstream tokens=" in lines[1]
    assert " 429 error=upstream_response:pod-1 answered 429 model_name=m" in lines[2]
    told = [json.loads(json_line(one, row, "now")) for one, row in zip(batch, rows, strict=True)]
    assert [one["error_origin"] for one in told] == ["router", "upstream", "upstream"]
    assert told[2]["error"] == {"type": "upstream_response", "message": "pod-1 answered 429"}


def test_what_clients_write_cannot_break_a_line() -> None:
    books = Metrics()
    nasty = over(
        model='m"\n{}', destination=Destination('m"\n{}'), refusal=Refusal(400, "request_parsing", 'bad "x"\n')
    )
    [row] = books.fold([nasty], list)
    assert json_line(nasty, books.rows[row], "now").count("\n") == 1
    assert text_line(nasty, books.rows[row], "now").count("\n") == 1


def test_what_clients_write_makes_no_fields_of_a_line_of_text() -> None:
    books = Metrics()
    model = 'x" model_name=llama request_id=forged upstream_status_code=500\u2028\\ tokens=9/9'
    lost = Refusal(404, "route_not_found", f'no route takes model "{model}"')
    asked = over(
        model=model, destination=Destination(model), refusal=lost, status=404, path='/v1/x"=', attempts=0,
        target_name="", upstream_status=0,
    )  # fmt: skip
    [row] = books.fold([asked], list)
    line = text_line(asked, books.rows[row], "now")
    fields = ["error", "model_name", "request_id", "error_origin", "tokens", "timings"]
    assert re.findall(r"(\w+)=", line) == fields
    assert "request_id=id-1 " in line
    assert line.startswith(r'[now] "POST /v1/x\x22\x3d HTTP/1.1" 404 error=route_not_found:no route takes model "x" ')
    assert r" model_name=x\x22\x20model_name\x3dllama\x20request_id\x3dforged\x20" in line
    assert r"\x3d500\u2028\x5c\x20tokens\x3d9/9 request_id=" in line


def test_a_log_that_nobody_takes_is_left_out_and_counted(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(access_log, "MOST_WAITING_BYTES", 1_000)

    async def story() -> None:
        books, log = Metrics(), AccessLog("json", str(tmp_path / "log"))
        rows = [books.rows[row] for row in books.fold([over()] * 100, list)]
        log.add([over()] * 100, rows, 0.0)
        log.add([over()], rows[:1], 0.0)
        await log.flushed()
        assert log.left_out == 100
        assert len((tmp_path / "log").read_text().splitlines()) == 1

    asyncio.run(story())


def test_a_file_that_cannot_be_put_aside_grows_on_and_that_is_told_once(tmp_path: Path, monkeypatch: Any) -> None:
    """One that is mounted by itself, say: of every batch it was said that it could not be written, and each had been."""
    told = []

    def refuse(path: Path, descriptor: int) -> int:
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(access_log, "is_too_large", lambda descriptor: True)
    monkeypatch.setattr(access_log, "begin_anew", refuse)
    monkeypatch.setattr(access_log.log, "warning", lambda event, **more: told.append(event))

    async def story() -> None:
        books, log = Metrics(), AccessLog("json", str(tmp_path / "log"))
        rows = [books.rows[row] for row in books.fold([over()] * 4, list)]
        for _ in range(3):
            log.add([over()] * 4, rows, 0.0)
            await log.flushed()
        assert len((tmp_path / "log").read_text().splitlines()) == 12
        assert told == ["access log cannot be put aside and grows on"]

    asyncio.run(story())


def test_a_file_that_has_grown_too_large_is_put_aside_and_no_line_is_lost(tmp_path: Path, monkeypatch: Any) -> None:
    """It grew until the disk was full."""
    monkeypatch.setattr(access_log, "is_too_large", lambda descriptor: os.fstat(descriptor).st_size > 2_000)

    async def story() -> None:
        books, log = Metrics(), AccessLog("json", str(tmp_path / "log"))
        rows = [books.rows[row] for row in books.fold([over()] * 4, list)]
        for _ in range(3):
            log.add([over()] * 4, rows, 0.0)
            await log.flushed()
        found = {one.name: len(one.read_text().splitlines()) for one in tmp_path.iterdir()}
        assert sum(found.values()) == 12
        assert found.keys() >= {"log", "log.1"}

    asyncio.run(story())
