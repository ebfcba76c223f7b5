"""The side-car in front of an engine that the test plays, over real sockets."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from hekla.serving.runtime import Runtime, _parser, with_shared_words
from hekla.wire.client import HttpClient
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server

METRICS = """\
# HELP vllm:num_requests_waiting Waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 3.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{le="0.1"} 1
vllm:time_to_first_token_seconds_count 1
vllm:num_requests_waiting_by_reason 9
other 1
"""


class Engine:
    def __init__(self) -> None:
        self.told: list[tuple[str, bytes]] = []
        self.status = 200

    async def answer(self, request: Request) -> Response:
        if request.path == "/metrics":
            return Response(self.status, METRICS.encode(), content_type="text/plain")
        self.told.append((request.path, request.body))
        return Response(self.status, b"Success", content_type="text/plain")


@asynccontextmanager
async def side_car() -> AsyncIterator[tuple[Runtime, Engine]]:
    engine, server, client = Engine(), Server(), HttpClient()
    await server.start(engine.answer)
    told = _parser().parse_args(
        ["--engine", "vLLM", "--pod", "p.ns", "--model", "m", "--engine-base-url", f"http://127.0.0.1:{server.port}"]
    )
    try:
        yield Runtime(told, client), engine
    finally:
        await client.close()
        await server.stop()


def post(path: str, body: object) -> Request:
    return Request("POST", path, body=msgspec.json.encode(body))


def test_metrics_are_shown_in_words_that_engines_share() -> None:
    shown = with_shared_words(METRICS, "vllm")
    assert shown.startswith(METRICS)
    assert shown.removeprefix(METRICS).splitlines() == [
        "# HELP kthena:num_requests_waiting Waiting.",
        "# TYPE kthena:num_requests_waiting gauge",
        'kthena:num_requests_waiting{model_name="m"} 3.0',
        "# TYPE kthena:time_to_first_token_seconds histogram",
        'kthena:time_to_first_token_seconds_bucket{le="0.1"} 1',
        "kthena:time_to_first_token_seconds_count 1",
    ]


@pytest.mark.parametrize("old", [False, True])
def test_the_time_between_tokens_is_found_by_its_older_and_its_newer_name(old: bool) -> None:
    text = "vllm:inter_token_latency_seconds_count 1\n" + old * "vllm:time_per_output_token_seconds_count 2\n"
    shown = with_shared_words(text, "vllm").removeprefix(text)
    assert shown == f"kthena:time_per_output_token_seconds_count {1 + old}\n"


def test_health_and_metrics_are_answered() -> None:
    async def scenario() -> None:
        async with side_car() as (runtime, engine):
            assert (await runtime.answer(Request("GET", "/health"))).status == 200
            answer = await runtime.answer(Request("GET", "/metrics"))
            assert b"kthena:num_requests_waiting" in answer.body  # type: ignore[operator]
            engine.status = 503
            assert (await runtime.answer(Request("GET", "/metrics"))).status == 502
            assert (await runtime.answer(Request("GET", "/other"))).status == 404

    asyncio.run(scenario())


def test_an_adapter_is_fetched_then_the_engine_is_told(tmp_path: Path) -> None:
    source, target = tmp_path / "adapter", tmp_path / "loaded"
    source.mkdir()
    (source / "w").write_bytes(b"1")
    body = {"lora_name": "sql", "source": f"pvc://{source}", "output_dir": str(target)}

    async def scenario() -> None:
        async with side_car() as (runtime, engine):
            answer = await runtime.answer(post("/v1/load_lora_adapter", body))
            assert (answer.status, answer.body) == (200, b'{"message":"Success"}')
            [(path, told)] = engine.told
            assert path == "/v1/load_lora_adapter"
            assert msgspec.json.decode(told) == {"lora_name": "sql", "lora_path": str(target)}
            engine.status = 404
            unloaded = await runtime.answer(post("/v1/unload_lora_adapter", {"lora_name": "x"}))
            assert (unloaded.status, unloaded.body) == (404, b'{"detail":"HTTP 404: Success"}')

    asyncio.run(scenario())
    assert (target / "w").read_bytes() == b"1"


def test_a_model_is_fetched_on_demand(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    (source / "w").write_bytes(b"1")
    body = {"source": f"pvc://{source}", "output_dir": str(tmp_path / "out")}

    async def scenario() -> None:
        async with side_car() as (runtime, _):
            done = await runtime.answer(post("/v1/download_model", body))
            assert (done.status, told(done)) == (200, {"status": "completed", "source": body["source"]})
            later = await runtime.answer(post("/v1/download_model", {**body, "async_download": True}))
            assert (later.status, told(later)) == (202, {"status": "started", "source": body["source"]})
            failed = await runtime.answer(post("/v1/download_model", {**body, "source": "pvc:///nowhere/x"}))
            assert failed.status == 502

    asyncio.run(scenario())


def told(answer: Response) -> dict[str, object]:
    document: dict[str, object] = msgspec.json.decode(answer.body)  # type: ignore[arg-type]
    assert document.keys() == {"status", "message", "source", "output_dir"}
    return {name: document[name] for name in ("status", "source")}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_workers": "many"}, 'max_workers is "many"; write a number from 1 to 64'),
        ({"max_workers": -1}, "max_workers is -1; write a number from 1 to 64"),
        ({"max_workers": 10**9}, "max_workers is 1000000000; write a number from 1 to 64"),
        ({"config": "hf_token"}, 'config is no object; write it like {"hf_token": "..."}'),
    ],
)
def test_what_is_wrong_in_a_wish_is_told(wrong: dict[str, object], said: str) -> None:
    async def scenario() -> None:
        async with side_car() as (runtime, _):
            answer = await runtime.answer(
                post("/v1/download_model", {"source": "pvc://x", "output_dir": "/t", **wrong})
            )
            assert (answer.status, msgspec.json.decode(answer.body)) == (400, {"detail": said})  # type: ignore[arg-type]

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [[], {}, {"source": "pvc://x"}, {"source": "pvc://x", "output_dir": "/tmp/x"}])
def test_what_is_missing_is_told(body: object) -> None:
    async def scenario() -> None:
        async with side_car() as (runtime, _):
            assert (await runtime.answer(post("/v1/load_lora_adapter", body))).status == 400

    asyncio.run(scenario())
