"""Real vLLM servers on the CPU, and a router in front of them: what the suite of this folder stands on.

Engines are processes, two for the whole session, on two loopback addresses with one port, as two pods have. The router
and its API server live in the test's own loop. Nothing waits for a time: engines say that they are up, routers that they
know them, and every wait has a bound far above what a busy machine needs.
"""

import asyncio
import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from hekla.api.apiextensions import CustomResourceDefinition
from hekla.api.core import Pod
from hekla.api.crd import CUSTOM_KINDS, crd_document
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport
from hekla.kube.informer import Informers
from hekla.serving.router.annotations import KV_EVENTS_PORT, KV_REPLAY_PORT, RANKS
from hekla.serving.router.running import Router
from hekla.serving.router.settings import RouterSettings
from hekla.testing.server import api_server

ENVIRONMENT = Path.home() / ".cache" / "hekla" / "engines" / "vllm-0.32.0-cpu"
"""Where `make engines` installs vLLM, once for all checkouts."""
HERE = Path(__file__).parent
MODEL, ADAPTER = "tiny", "north"
HOSTS = ("127.0.0.1", "127.0.0.2")
UP_S, PATIENCE_S = 900.0, 300.0
BLOCK_TOKENS = 32
"""What vLLM's attention on the CPU needs at least."""


def why_not() -> str:
    """Why the suite cannot run here; empty: it can."""
    if not (ENVIRONMENT / "bin" / "vllm").exists():
        return f"no vLLM in {ENVIRONMENT}: make engines installs it (5 minutes, 3 GB)"
    if sys.platform != "linux":
        return "127.0.0.2 is an address of this machine on Linux only"
    return ""


def python(*words: str) -> None:
    """Run a script with vLLM's Python."""
    subprocess.run([ENVIRONMENT / "bin" / "python", *words], check=True, env=_variables(), stdout=subprocess.DEVNULL)


def _variables(*, adapters: bool = True) -> dict[str, str]:
    """vLLM's environment: nothing is fetched, one thread computes, adapters may be loaded, its log goes to its file."""
    return os.environ | {
        "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": str(adapters), "PYTHONUNBUFFERED": "1",
        "VLLM_SERVER_DEV_MODE": "1", "no_proxy": "*", "NO_PROXY": "*",
    }  # fmt: skip


def free_port(*hosts: str) -> int:
    """A port that is free on all these addresses at this moment."""
    for _ in range(100):
        with contextlib.ExitStack() as held:
            port = 0
            try:
                for host in hosts:
                    one = held.enter_context(socket.socket())
                    one.bind((host, port))
                    port = one.getsockname()[1]
            except OSError:
                continue
            return port
    raise AssertionError(f"no port is free on all of {hosts}")


def free_ports(count: int) -> int:
    """The first of so many ports in a row that are free at this moment."""
    for _ in range(100):
        first = free_port("0.0.0.0")
        with contextlib.ExitStack() as held, contextlib.suppress(OSError, OverflowError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("0.0.0.0", port))
            return first
    raise AssertionError(f"no {count} ports in a row are free")


@dataclass
class Engine:
    """One vLLM server."""

    name: str
    host: str
    port: int
    directory: Path
    events_port: int
    replay_port: int
    ranks: int = 1
    """Data-parallel ranks, each with a cache of its own."""
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    def start(self) -> None:
        events = {
            "enable_kv_cache_events": True, "publisher": "zmq", "topic": "kv", "endpoint": f"tcp://*:{self.events_port}",
            "replay_endpoint": f"tcp://*:{self.replay_port}",
        }  # fmt: skip
        words = [
            "serve", str(self.directory / "model"), "--served-model-name", MODEL, "--load-format", "dummy", "--dtype", "float32",
            "--enforce-eager", "--max-model-len", "2048", "--host", self.host, "--port", str(self.port), "--block-size",
            str(BLOCK_TOKENS), "--num-gpu-blocks-override", "1024", "--max-num-seqs", "16",
            "--kv-events-config", json.dumps(events),
        ]  # fmt: skip
        one, several = (
            ["--enable-lora", "--max-lora-rank", "8", "--max-loras", "2"],
            ["--data-parallel-size", str(self.ranks)],
        )
        words += one if self.ranks == 1 else several  # as many API servers, which cannot be told of adapters
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [ENVIRONMENT / "bin" / "vllm", *words],
                env=_variables(adapters=self.ranks == 1),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_until_up(self) -> None:
        """Until /health answers; what it wrote last is shown where it ends or takes too long."""
        assert self.process is not None
        until = time.monotonic() + UP_S
        pause = threading.Event()  # nobody sets it: it only lets other processes go on
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self.process.returncode}:\n{self._last_words()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.ask("GET", "/health")[0] == 200:
                    return
            pause.wait(0.25)
        raise AssertionError(f"{self.name} is not up after {UP_S:g} s:\n{self._last_words()}")

    def ask(
        self, method: str, path: str, document: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, str]:
        """Ask the engine itself, past any router."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        with contextlib.closing(connection):
            body = None if document is None else json.dumps(document)
            connection.request(
                method, path, body, {**({"content-type": "application/json"} if body else {}), **(headers or {})}
            )
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def figure(self, name: str, rank: int | None = None) -> float:
        """A figure of /metrics, summed over its labels, or one rank's."""
        lines = [
            line for line in self.ask("GET", "/metrics")[1].splitlines() if line.startswith((f"{name}{{", f"{name} "))
        ]
        own = [line for line in lines if rank is None or f'engine="{rank}"' in line]
        return sum(float(line.rsplit(" ", 1)[1]) for line in own)

    def halt(self, *, is_halted: bool = True) -> None:
        """Let all its processes stand still, or go on: what is under way stays under way, however busy the machine is."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGSTOP if is_halted else signal.SIGCONT)

    def kill(self) -> None:
        """At once, with all its processes, as when a machine dies."""
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(UP_S)

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextlib.contextmanager
def running_engines(directory: Path, count: int = len(HOSTS), *, ranks: int = 1) -> Iterator[list[Engine]]:
    """So many engines of one model, up."""
    python(str(HERE / "make_tiny_model.py"), str(directory / "model"))
    python(str(HERE / "make_tiny_lora.py"), str(directory / "lora"))
    port = free_port(*HOSTS)
    engines = [
        Engine(f"engine-{number}", host, port, directory, free_ports(ranks), free_ports(ranks), ranks)
        for number, host in enumerate(HOSTS[:count])
    ]
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            engine.wait_until_up()
        yield engines
    finally:
        for engine in engines:
            engine.kill()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass
class House:
    """A router in front of the engines, a client of it, and the API server that tells it what there is."""

    router: Router
    running: "asyncio.Task[None]"
    api: ApiClient
    client: AsyncOpenAI
    engines: list[Engine]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.router.port}"

    def served_by(self, name: str) -> int:
        """Requests that the router has under way at an engine."""
        return sum(one.in_flight for pool in self.router.world.pools() for one in pool.members if one.name == name)

    async def knows(self, count: int) -> None:
        """Until the router would send to so many engines."""
        await until(lambda: sum(len(pool.members) for pool in self.router.world.pools()) == count)


@contextlib.asynccontextmanager
async def house(engines: list[Engine], *, adapters: tuple[str, ...] = ()) -> AsyncIterator[House]:
    """A router over these engines, which are pods with addresses."""
    settings = RouterSettings(
        host="127.0.0.1", port=0, metrics_port=-1, debug_port=-1, configuration_file="", access_log_enabled=False
    )
    async with api_server() as server:
        api = ApiClient(InProcessTransport(server.handle))
        for kind in CUSTOM_KINDS:
            if "volcano.sh" in kind.kind_info.group:
                await api.create(CustomResourceDefinition, crd_document(kind))
        await _describe(api, engines, adapters)
        async with Informers(ApiClient(InProcessTransport(server.handle)), dice=random.Random(1)) as informers:
            router = Router(settings, informers)
            await router.listen()
            running = asyncio.create_task(router.run())
            async with AsyncOpenAI(
                base_url=f"http://127.0.0.1:{router.port}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S,
                http_client=DefaultAsyncHttpxClient(trust_env=False),
            ) as client:  # fmt: skip
                made = House(router, running, api, client, engines)
                try:
                    await made.knows(sum(engine.ranks for engine in engines))
                    yield made
                finally:
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)


async def _describe(api: ApiClient, engines: list[Engine], adapters: tuple[str, ...]) -> None:
    """One ModelServer with the engines as its pods, one ModelRoute to it."""
    spec = {
        "inferenceEngine": "vLLM", "model": MODEL, "workloadPort": {"port": engines[0].port, "protocol": "http"},
        "workloadSelector": {"matchLabels": {"app": MODEL}},
    }  # fmt: skip
    await api.create(ModelServer, {"metadata": {"name": MODEL}, "spec": spec}, "default")
    rules = [{"name": "all", "targetModels": [{"modelServerName": MODEL}]}]
    route = {"modelName": MODEL, "rules": rules, **({"loraAdapters": list(adapters)} if adapters else {})}
    await api.create(ModelRoute, {"metadata": {"name": MODEL}, "spec": route}, "default")
    for engine in engines:
        await _create_pod(api, engine)


async def _create_pod(api: ApiClient, engine: Engine) -> None:
    container = {"name": "vllm", "image": "vllm", "ports": [{"containerPort": engine.port}]}
    ports = {KV_EVENTS_PORT: str(engine.events_port), KV_REPLAY_PORT: str(engine.replay_port)}
    if engine.ranks > 1:
        ports[RANKS] = str(engine.ranks)
    metadata = {"name": engine.name, "labels": {"app": MODEL}, "annotations": ports}
    await api.create(Pod, {"metadata": metadata, "spec": {"nodeName": "here", "containers": [container]}}, "default")
    ready = [{"type": "Ready", "status": "True"}]
    status = {"phase": "Running", "podIP": engine.host, "podIPs": [{"ip": engine.host}], "conditions": ready}
    await api.patch(Pod, engine.name, {"status": status}, "default", subresource="status")


async def until(condition: Callable[[], object]) -> None:
    """Until something is so; other tasks go on meanwhile."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


async def figure(engine: Engine, name: str) -> float:
    """A figure of an engine, without stopping the loop."""
    return await asyncio.to_thread(engine.figure, name)
