"""The processes of the router's bench (`serving_proxy.py`): a raw engine, a raw load, the router as it is, and its peers.

The floor is a relay of eighty lines of C that reads nothing of what it passes on (`bare_relay.c`): what the kernel of a machine takes for
the same packets. Peers are taken where they are installed: haproxy (Debian), and in ~/.cache/hekla/peers/NAME virtual environments with
sglang-router, vllm-router and litellm[proxy] from PyPI (1.106.12, as 1.110 asks there for a package that is not to be
had), and production-stack: vLLM's router in Python, whose name on PyPI went to the one in Rust (the package `src/vllm_router` of
github.com/vllm-project/production-stack beside its requirements).
"""

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.report import percentile

ENGINES = 8
TOKEN = "You are a careful assistant. "
PEERS = Path.home() / ".cache" / "hekla" / "peers"
_PATIENCE_S = 180.0
"""LiteLLM imports for 20 s where it has a core to itself."""
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"

# ---- the upstream: a raw engine that answers at once, or streams


def upstream(port: int) -> None:
    import uvloop

    usage = {"prompt_tokens": 900, "completion_tokens": 30, "total_tokens": 930}
    choice = {"index": 0, "message": {"role": "assistant", "content": "a" * 120}, "finish_reason": "stop"}
    body = json.dumps({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}).encode()  # fmt: skip
    plain = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    delta = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [{"index": 0, "delta": {"content": " token"}, "finish_reason": None}]}  # fmt: skip
    event = b"data: " + json.dumps(delta).encode() + b"\n\n"
    piece = b"%x\r\n%b\r\n" % (len(event), event)
    end = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    models = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"x"}]}'
    listed = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(models) + models
    length = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")

    class Engine(asyncio.Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.transport, self.data, self.loop = transport, b"", asyncio.get_running_loop()

        def data_received(self, data: bytes) -> None:
            self.data = self.data + data if self.data else data
            while (at := self.data.find(b"\r\n\r\n")) >= 0:
                found = length.search(self.data, 0, at)
                whole = at + 4 + (int(found[1]) if found else 0)
                if len(self.data) < whole:
                    return
                asked, self.data = self.data[:whole], self.data[whole:]
                self.answer(asked)

        def answer(self, asked: bytes) -> None:
            tail = asked[:160] + asked[-400:]
            if told := re.search(rb'"stop": ?"(\d+)x(\d+)"', tail):
                self.transport.write(head)
                self.step(int(told[1]), int(told[2]) / 1000)
            elif asked.startswith(b"GET /v1/models"):
                self.transport.write(listed)
            else:
                self.transport.write(plain)

        def step(self, left: int, gap_s: float) -> None:
            if self.transport.is_closing():
                return
            self.transport.write(piece if left else end)
            if left and gap_s:
                self.loop.call_later(gap_s, self.step, left - 1, gap_s)
            elif left:
                self.loop.call_soon(self.step, left - 1, gap_s)

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Engine, "0.0.0.0", port, backlog=8192)
        await server.serve_forever()

    uvloop.run(serve())


# ---- the router as it is, over objects in an API server of its own process


def router(port: int, engine_port: int) -> None:
    import gc

    import uvloop

    from hekla.api.apiextensions import CustomResourceDefinition
    from hekla.api.core import Namespace, Pod
    from hekla.api.crd import CUSTOM_KINDS, crd_document
    from hekla.api.kthena import ModelRoute, ModelServer
    from hekla.kube.api_client import ApiClient
    from hekla.kube.in_process import InProcessTransport
    from hekla.kube.informer import Informers
    from hekla.serving.router.running import Router
    from hekla.serving.router.settings import RouterSettings
    from hekla.testing.server import api_server

    async def objects(client: ApiClient) -> None:
        for kind in CUSTOM_KINDS:
            if kind.__module__.startswith("hekla.api.kthena"):
                await client.create(CustomResourceDefinition, crd_document(kind))
        await client.create(Namespace, {"metadata": {"name": "ml"}})
        labels = {"app": "s"}
        spec = {"inferenceEngine": "vLLM", "workloadSelector": {"matchLabels": labels}, "workloadPort": {"port": engine_port}}  # fmt: skip
        await client.create(ModelServer, {"metadata": {"name": "s", "namespace": "ml"}, "spec": spec})
        for number in range(ENGINES):
            metadata = {"name": f"p{number}", "namespace": "ml", "labels": labels}
            await client.create(Pod, {"metadata": metadata, "spec": {"containers": [{"name": "engine", "image": "x"}]}})
            status = {"phase": "Running", "podIP": f"127.0.0.{number + 1}", "conditions": [{"type": "Ready", "status": "True"}]}  # fmt: skip
            await client.request("PATCH", f"/api/v1/namespaces/ml/pods/p{number}/status", {"status": status}, content_type="application/merge-patch+json")  # fmt: skip
        most = 2**31 - 1  # of an int32, as the API has it
        limit = {"inputTokensPerUnit": most, "outputTokensPerUnit": most, "unit": "second"}
        rules = [{"name": "all", "targetModels": [{"modelServerName": "s"}]}]
        route = {"modelName": "m", "rateLimit": limit, "rules": rules}
        await client.create(ModelRoute, {"metadata": {"name": "m", "namespace": "ml"}, "spec": route})

    async def serve() -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = RouterSettings(
                host="127.0.0.1", port=port, metrics_port=-1, debug_port=-1, configuration_file="",
                access_log_output=f"{folder}/access.log", access_log_format="json",
            )  # fmt: skip
            async with api_server() as server:
                client = ApiClient(InProcessTransport(server.handle))
                await objects(client)
                async with Informers(client) as informers:
                    it = Router(settings, informers)
                    await it.listen()
                    gc.collect()
                    gc.freeze()
                    gc.set_threshold(50_000, 20, 50)
                    await it.run()

    uvloop.run(serve())


# ---- the load


def load(port: int, connections: int, seconds: float, body: bytes) -> None:
    """Raw connections that ask again as soon as they were answered; prints requests, errors, and latencies to the first and last byte."""
    import uvloop

    request = HEAD % len(body) + body
    taken: list[float] = []
    begun: list[float] = []
    errors = 0

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self.transport = transport
            self.ask()

        def ask(self) -> None:
            self.data, self.need, self.since = b"", -1, time.perf_counter()
            self.transport.write(request)

        def data_received(self, data: bytes) -> None:
            nonlocal errors
            if self.need < 0:
                self.data += data
                at = self.data.find(b"\r\n\r\n")
                if at < 0 or len(self.data) == at + 4:  # a head alone tells a reader nothing
                    return
                begun.append(time.perf_counter() - self.since)
                errors += not self.data.startswith(b"HTTP/1.1 200")
                found = re.search(rb"(?i)content-length: *(\d+)", self.data[:at])
                self.need = at + 4 + int(found[1]) if found else 0
            elif not self.need:
                self.data = self.data[-8:] + data
            else:
                self.data += data
            if (self.need and len(self.data) >= self.need) or (not self.need and self.data.endswith(b"0\r\n\r\n")):
                taken.append(time.perf_counter() - self.since)
                if not stopping:
                    self.ask()

    stopping = False

    async def run() -> None:
        nonlocal stopping
        loop = asyncio.get_running_loop()
        made = [await loop.create_connection(Connection, "127.0.0.1", port) for _ in range(connections)]
        await asyncio.sleep(seconds)
        stopping = True
        for transport, _ in made:
            transport.abort()

    uvloop.run(run())
    taken, begun = taken or [0.0], begun or [0.0]
    found = {"count": len(taken) if taken[0] else 0, "errors": errors}
    for name, values in (("", taken), ("first_", begun)):
        found |= {f"{name}p50": percentile(values, 0.5), f"{name}p99": percentile(values, 0.99)}
    print(json.dumps(found))


# ---- processes


def pinned(core: int, command: list[str], **more: object) -> "subprocess.Popen[bytes]":
    cores = sorted(os.sched_getaffinity(0))
    on = str(cores[core % len(cores)])
    return subprocess.Popen(
        ["taskset", "-c", on, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, **more  # type: ignore[call-overload]
    )  # fmt: skip


def tree(pid: int) -> Iterator[int]:
    yield pid
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
            if parent == pid:
                yield from tree(int(folder.name))


def cpu_s(pid: int) -> float:
    ticks = 0
    for one in tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    pages = 0
    for one in tree(pid):
        try:
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_up(port: int, process: "subprocess.Popen[bytes]", patience_s: float) -> bool:
    """Whether it answers a chat within a while."""
    body = chat(1)
    until = time.monotonic() + patience_s
    while time.monotonic() < until and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), 5) as one:
                one.settimeout(10)
                one.sendall(HEAD % len(body) + body)
                if one.recv(15).startswith(b"HTTP/1.1 200"):
                    return True
        except OSError:
            pass
        time.sleep(0.2)
    return False


def chat(repeats: int, stop: str = "") -> bytes:
    asked = {
        "model": "m",
        "messages": [{"role": "system", "content": TOKEN * repeats}, {"role": "user", "content": "hello"}],
    }
    return json.dumps(asked | ({"stop": stop, "stream": True} if stop else {})).encode()


@dataclass
class Subject:
    name: str
    start: Callable[[int, int, Path], list[str] | None]
    """Its command for a port, the engine's port and a folder; None: it is not installed."""
    environment: dict[str, str]
    connections: int = 32
    most_connections: int = 1_000
    """More than it can answer within a round say nothing."""
    most_streams: int = 5_000
    """More than it can begin within the minute a client waits say nothing either."""


def _own(port: int, engine: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "bench.proxy_subjects", "router", str(port), str(engine)]


def _bare(port: int, engine: int, folder: Path) -> list[str] | None:
    compiler, program = shutil.which("cc"), folder / "bare_relay"
    if compiler is None:
        return None
    subprocess.run([compiler, "-O2", "-o", str(program), str(Path(__file__).with_name("bare_relay.c"))], check=True)
    return [str(program), str(port), str(engine)]


def _haproxy(port: int, engine: int, folder: Path) -> list[str] | None:
    program = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    file = folder / "haproxy.cfg"
    file.write_text(
        f"global\n nbthread 1\n maxconn 9000\ndefaults\n mode http\n option http-no-delay\n timeout connect 5s\n timeout client 600s\n timeout server 600s\n"
        f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n http-reuse always\n server s 127.0.0.1:{engine}\n"
    )
    return [program, "-f", str(file)] if program else None


def _sglang(port: int, engine: int, folder: Path) -> list[str] | None:
    python = PEERS / "sglang-router" / "bin" / "python"
    command = [str(python), "-m", "sglang_router.launch_router", "--worker-urls", f"http://127.0.0.1:{engine}", "--port", str(port), "--prometheus-port", str(free_port()), "--log-level", "error"]  # fmt: skip
    return command if python.exists() else None


def _vllm(port: int, engine: int, folder: Path) -> list[str] | None:
    program = PEERS / "vllm-router" / "bin" / "vllm-router"
    command = [str(program), "--port", str(port), "--worker-urls", f"http://127.0.0.1:{engine}", "--policy", "cache_aware", "--prometheus-port", str(free_port()), "--log-level", "error"]  # fmt: skip
    return command if program.exists() else None


def _production_stack(port: int, engine: int, folder: Path) -> list[str] | None:
    python = PEERS / "production-stack" / "bin" / "python"
    # round robin is the cheapest of its policies
    command = [str(python), "-m", "vllm_router.app", "--host", "127.0.0.1", "--port", str(port), "--service-discovery", "static", "--static-backends", f"http://127.0.0.1:{engine}", "--static-models", "m", "--routing-logic", "roundrobin", "--log-level", "error"]  # fmt: skip
    return command if python.exists() else None


def _litellm(port: int, engine: int, folder: Path) -> list[str] | None:
    program = PEERS / "litellm" / "bin" / "litellm"
    file = folder / "litellm.yaml"
    file.write_text(f'model_list: [{{model_name: m, litellm_params: {{model: "openai/m", api_base: "http://127.0.0.1:{engine}/v1", api_key: x}}}}]\n')  # fmt: skip
    return [str(program), "--config", str(file), "--port", str(port)] if program.exists() else None


_LITELLM = {
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # or it asks GitHub for prices, three times, before it listens
}
HEKLA = Subject("hekla", _own, {})
SUBJECTS = (
    HEKLA,
    Subject("bare relay", _bare, {}),
    Subject("haproxy", _haproxy, {}),
    Subject("sglang-router", _sglang, {}),
    Subject("vllm-router", _vllm, {}),
    Subject("production-stack", _production_stack, {}),
    Subject("litellm", _litellm, _LITELLM, connections=8, most_connections=20, most_streams=1_000),
)


@contextmanager
def running(subject: Subject, engine: int, folder: Path) -> Iterator[tuple[int, int] | None]:
    """Its port and process id, or None where it is not installed or does not come up."""
    port = free_port()
    command = subject.start(port, engine, folder)
    if command is None:
        yield None
        return
    process = pinned(1, command, env={**os.environ, **subject.environment})
    try:
        yield (port, process.pid) if is_up(port, process, _PATIENCE_S) else None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Run:
    """What came of one load."""

    count: int
    errors: int
    p50_us: float
    p99_us: float
    first_p50_us: float
    first_p99_us: float
    """To the first bytes of an answer's body: of a stream its first piece."""
    cpu_us: float
    """Of the subject, per request."""


def measured(port: int, pid: int, connections: int, seconds: float, body: bytes) -> Run:
    with tempfile.NamedTemporaryFile() as file:
        file.write(body)
        file.flush()
        before = cpu_s(pid)
        cores = sorted(os.sched_getaffinity(0))
        told = subprocess.run(
            ["taskset", "-c", str(cores[0]), sys.executable, "-m", "bench.proxy_subjects", "load", str(port), str(connections), str(seconds), file.name],
            capture_output=True, check=True,
        )  # fmt: skip
        spent = cpu_s(pid) - before
    found = json.loads(told.stdout)
    told_us = (found[name] * 1e6 for name in ("p50", "p99", "first_p50", "first_p99"))
    return Run(found["count"], found["errors"], *told_us, spent / max(1, found["count"]) * 1e6)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["upstream", port]:
            upstream(int(port))
        case ["router", port, engine_port]:
            router(int(port), int(engine_port))
        case ["load", port, connections, seconds, file]:
            load(int(port), int(connections), float(seconds), Path(file).read_bytes())
