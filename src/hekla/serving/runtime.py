"""The side-car of an engine: `python3 -m hekla.serving.runtime --engine vllm --pod P --model M`.

    GET  /health                     it runs
    GET  /metrics                    the engine's, and five of them in words that all engines share (`kthena:...`)
    POST /v1/load_lora_adapter       fetches an adapter, then tells the engine
    POST /v1/unload_lora_adapter     tells the engine
    POST /v1/download_model          fetches a model

Arguments and answers are those of Kthena's runtime. It is told by the router's own subscription what engines cache, so
nothing goes to Redis from here (`router/kv_feed.py`).
"""

import argparse
import asyncio
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from hekla.serving.downloader import DownloadError, configuration, download
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server

log = structlog.get_logger(__name__)

WORDS: Mapping[str, Mapping[str, str]] = {
    "vllm": {
        "vllm:generation_tokens_total": "kthena:generation_tokens_total",
        "vllm:num_requests_waiting": "kthena:num_requests_waiting",
        "vllm:time_to_first_token_seconds": "kthena:time_to_first_token_seconds",
        "vllm:time_per_output_token_seconds": "kthena:time_per_output_token_seconds",
        "vllm:e2e_request_latency_seconds": "kthena:e2e_request_latency_seconds",
    },
    "sglang": {
        "sglang:generation_tokens_total": "kthena:generation_tokens_total",
        "sglang:num_queue_reqs": "kthena:num_requests_waiting",
        "sglang:time_to_first_token_seconds": "kthena:time_to_first_token_seconds",
        "sglang:inter_token_latency_seconds": "kthena:time_per_output_token_seconds",
        "sglang:e2e_request_latency_seconds": "kthena:e2e_request_latency_seconds",
    },
}
ENGINES = {"vllm": "vllm", "vllmdisaggregated": "vllm", "sglang": "sglang"}
NEWER = {"vllm:time_per_output_token_seconds": "vllm:inter_token_latency_seconds"}
"""What newer engines call it: vLLM wrote both for a time, then the newer name alone."""
SUFFIXES = ("", "_bucket", "_sum", "_count", "_created")
PATIENCE_S = 30.0
MOST_WORKERS = 64
TEXT = "text/plain; charset=utf-8"


def with_shared_words(text: str, engine: str) -> str:
    """The metrics, and those that all engines have once more under names that they share."""
    words = {NEWER[known] if known in NEWER and known not in text else known: to for known, to in WORDS[engine].items()}
    return "\n".join([text.rstrip("\n"), *_renamed(text, words)]) + "\n"


def _renamed(text: str, words: Mapping[str, str]) -> Iterator[str]:
    for line in text.splitlines():
        name = line.split(" ", 3)[2] if line.startswith(("# HELP ", "# TYPE ")) and line.count(" ") >= 2 else line
        metric = name.partition("{")[0].partition(" ")[0]
        for known, shared in words.items():
            suffix = metric.removeprefix(known)
            if metric.startswith(known) and suffix in SUFFIXES:
                yield line.replace(known, shared, 1)


class Runtime:
    """Answers for one engine."""

    def __init__(self, told: argparse.Namespace, client: HttpClient) -> None:
        self._engine = ENGINES[told.engine.lower()]
        self._base = told.engine_base_url.rstrip("/")
        self._metrics = self._base + told.engine_metrics_path
        self._client = client
        self._tasks: set[asyncio.Task[None]] = set()

    async def answer(self, request: Request) -> Response:
        """One request."""
        match request.method, request.path:
            case "GET", "/health":
                return _json(200, {"status": "healthy", "service": "runtime"})
            case "GET", "/metrics":
                return await self._show_metrics()
            case "POST", "/v1/load_lora_adapter":
                return await self._with_body(request, self._load)
            case "POST", "/v1/unload_lora_adapter":
                return await self._tell_engine("/v1/unload_lora_adapter", request.body)
            case "POST", "/v1/download_model":
                return await self._with_body(request, self._download)
        return _refusal(404, f"{request.method} {request.path} is not known here")

    async def _show_metrics(self) -> Response:
        try:
            answer = await self._client.request("GET", self._metrics, timeout_s=PATIENCE_S)
        except WireError as error:
            return _refusal(502, f"Failed to fetch metrics from engine: {error}")
        if answer.status != 200 or not isinstance(answer.body, bytes):
            return _refusal(502, f"Failed to fetch metrics from engine: it answers {answer.status}")
        shown = with_shared_words(answer.body.decode("utf-8", "replace"), self._engine)
        return Response(200, shown.encode(), content_type=TEXT)

    async def _with_body(self, request: Request, act: Any) -> Response:
        try:
            body = msgspec.json.decode(request.body, type=dict[str, Any])
        except msgspec.DecodeError as error:
            return _refusal(400, f"the body is no JSON object ({error})")
        missing = [key for key in ("source", "output_dir") if not isinstance(body.get(key), str) or not body[key]]
        if missing:
            return _refusal(400, f"{missing[0]} is missing")
        workers = body.get("max_workers", 8)
        if type(workers) is not int or not 1 <= workers <= MOST_WORKERS:
            shown = msgspec.json.encode(workers).decode()[:60]
            return _refusal(400, f"max_workers is {shown}; write a number from 1 to {MOST_WORKERS}")
        if not isinstance(body.get("config") or {}, dict):
            return _refusal(400, 'config is no object; write it like {"hf_token": "..."}')
        answer: Response = await act(body)
        return answer

    async def _load(self, body: dict[str, Any]) -> Response:
        name = body.get("lora_name")
        if not isinstance(name, str) or not name:
            return _refusal(400, "lora_name is missing")
        if body.get("async_download"):
            self._later(self._fetch_and_load(body))
            return _json(202, {**_begun(body, "LoRA adapter download and load"), "lora_name": name})
        try:
            await self._fetch(body)
        except DownloadError as error:
            return _refusal(502, f"{body['source']} cannot be fetched: {error}")
        return await self._tell_of(body)

    async def _download(self, body: dict[str, Any]) -> Response:
        if body.get("async_download"):
            self._later(self._fetch_or_log(body))
            return _json(202, _begun(body, "Model download"))
        try:
            await self._fetch(body)
        except DownloadError as error:
            return _refusal(502, f"{body['source']} cannot be fetched: {error}")
        return _json(200, _told(body, "completed", "Model download completed successfully"))

    async def _fetch(self, body: dict[str, Any]) -> None:
        told = configuration(msgspec.json.encode(body.get("config") or {}).decode(), os.environ)
        workers = body.get("max_workers", 8)
        await asyncio.to_thread(download, body["source"], Path(body["output_dir"]), told, workers=workers)

    async def _fetch_and_load(self, body: dict[str, Any]) -> None:
        if await self._fetch_or_log(body):
            answer = await self._tell_of(body)
            log.info("adapter loaded", adapter=body["lora_name"], status=answer.status)

    async def _fetch_or_log(self, body: dict[str, Any]) -> bool:
        try:
            await self._fetch(body)
        except DownloadError as error:
            log.warning("cannot be fetched", source=body["source"], why=str(error))
            return False
        return True

    async def _tell_of(self, body: dict[str, Any]) -> Response:
        told = {"lora_name": body["lora_name"], "lora_path": body["output_dir"]}
        return await self._tell_engine("/v1/load_lora_adapter", msgspec.json.encode(told))

    async def _tell_engine(self, path: str, body: bytes) -> Response:
        """The engine's answer, as JSON: vLLM says in plain text that it did."""
        headers = (("content-type", "application/json"),)
        try:
            answer = await self._client.request("POST", self._base + path, headers, body, timeout_s=PATIENCE_S)
        except WireError as error:
            return _refusal(502, f"the engine does not answer: {error}")
        said = answer.body.decode("utf-8", "replace") if isinstance(answer.body, bytes) else ""
        if answer.status >= 400:
            return _refusal(answer.status, f"HTTP {answer.status}: {said}")
        try:
            return _json(answer.status, msgspec.json.decode(said))
        except msgspec.DecodeError:
            return _json(answer.status, {"message": said})

    def _later(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _begun(body: Mapping[str, Any], what: str) -> dict[str, Any]:
    return _told(body, "started", f"{what} started in background")


def _told(body: Mapping[str, Any], status: str, message: str) -> dict[str, Any]:
    return {"status": status, "message": message, "source": body["source"], "output_dir": body["output_dir"]}


def _json(status: int, body: Mapping[str, Any]) -> Response:
    return Response(status, msgspec.json.encode(body))


def _refusal(status: int, sentence: str) -> Response:
    return _json(status, {"detail": sentence})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="hekla.serving.runtime", description="The side-car of an engine.")
    parser.add_argument("-E", "--engine", required=True, type=str.lower, choices=sorted(ENGINES), help="the engine")
    parser.add_argument("-H", "--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("-P", "--port", type=int, default=9000, help="port to listen on")
    parser.add_argument("-B", "--engine-base-url", default="http://localhost:8000", help="where the engine is")
    parser.add_argument("-M", "--engine-metrics-path", default="/metrics", help="where its metrics are")
    parser.add_argument("-I", "--pod", required=True, help="the pod's name")
    parser.add_argument("-N", "--model", required=True, help="the model's name")
    return parser


async def serve(told: argparse.Namespace) -> None:
    """Answer until told to end."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    client, server = HttpClient(), Server()
    await server.start(Runtime(told, client).answer, host=told.host, port=told.port)
    log.info("runtime listens", host=told.host, port=server.port, engine=told.engine, pod=told.pod, model=told.model)
    try:
        await ended.wait()
    finally:
        await server.stop()
        await client.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the side-car."""
    uvloop.run(serve(_parser().parse_args(arguments)))


if __name__ == "__main__":
    main()
