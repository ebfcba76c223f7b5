"""`hekla run router --processes 2`, by real processes: one port, one page of metrics, a dead process replaced, all drained."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml

from hekla.api.core import Namespace, Pod
from hekla.api.crd import CUSTOM_KINDS
from hekla.api.kthena import ModelRoute, ModelServer
from hekla.kube.api_client import ApiClient
from hekla.kube.in_process import InProcessTransport
from hekla.testing.server import api_server
from hekla.wire.client import HttpClient
from hekla.wire.server import Server
from serving.router import proxykit as kit

pytestmark = pytest.mark.slow
PATIENCE_S = 90.0


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await holds():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def cluster(engine_port: int, folder: Path) -> AsyncIterator[Path]:
    """An API server with a route to one engine; its kubeconfig."""
    async with api_server(
        kinds=[kind for kind in CUSTOM_KINDS if kind.__module__.startswith("hekla.api.kthena")]
    ) as server:
        client = ApiClient(InProcessTransport(server.handle))
        await client.create(Namespace, {"metadata": {"name": "ml"}})
        selector = {"matchLabels": {"app": "s"}}
        spec = {"inferenceEngine": "vLLM", "workloadSelector": selector, "workloadPort": {"port": engine_port}}
        await client.create(ModelServer, {"metadata": {"name": "s", "namespace": "ml"}, "spec": spec})
        metadata = {"name": "p", "namespace": "ml", "labels": {"app": "s"}}
        await client.create(Pod, {"metadata": metadata, "spec": {"containers": [{"name": "engine", "image": "x"}]}})
        ready = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await client.request(
            "PATCH",
            "/api/v1/namespaces/ml/pods/p/status",
            {"status": ready},
            content_type="application/merge-patch+json",
        )
        rules = [{"name": "all", "targetModels": [{"modelServerName": "s"}]}]
        route = {"metadata": {"name": "m", "namespace": "ml"}, "spec": {"modelName": "m", "rules": rules}}
        await client.create(ModelRoute, route)
        wire = Server()
        await wire.start(server.handle, host="127.0.0.1", port=0)
        file = folder / "kubeconfig"
        told = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{wire.port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        }
        file.write_text(yaml.safe_dump(told))
        try:
            yield file
        finally:
            await client.close()
            await wire.stop()


class Crew:
    """The command, as it runs."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, metrics_port: int) -> None:
        self.process, self.port, self._metrics_port = process, port, metrics_port
        self._client = HttpClient()
        self.good = 0
        """Answers with 200."""

    async def ask(self, stream: bool = False) -> tuple[kit.Client, kit.Answer | None]:
        client = kit.Client(*await asyncio.open_connection("127.0.0.1", self.port))
        await client.send(kit.chat(stream=stream))
        answer = None if stream else await client.answer()
        self.good += answer is not None and answer.status == 200
        return client, answer

    async def asks(self, count: int) -> None:
        """Each on a connection of its own, so that the kernel spreads them over the processes."""
        for _ in range(count):
            client, answer = await self.ask()
            client.leave()
            assert answer is not None
            assert answer.status == 200, answer.body

    async def metrics(self) -> dict[str, float]:
        answer = await self._client.request("GET", f"http://127.0.0.1:{self._metrics_port}/metrics")
        assert isinstance(answer.body, bytes)
        lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def answered(self) -> float:
        page = await self.metrics()
        mine = 'kthena_router_requests_total{model="m"'
        return sum(n for name, n in page.items() if name.startswith(mine) and 'status_code="200"' in name)

    def children(self) -> list[int]:
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    async def close(self) -> None:
        await self._client.close()
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def started(kubeconfig: Path, log: Path) -> Crew:
    command = ["-m", "hekla.cli.main", "run", "router", "--kubeconfig", str(kubeconfig), "--processes", "2"]
    ports = ["--port", "0", "--metrics-port", "0", "--debug-port", "-1", "--log-level", "info"]
    with log.open("wb") as file:
        environment = {**os.environ, "ACCESS_LOG_ENABLED": "false"}
        process = await asyncio.create_subprocess_exec(
            sys.executable, *command, *ports, stdout=file, stderr=asyncio.subprocess.STDOUT, env=environment
        )

    async def listens() -> bool:
        assert process.returncode is None, log.read_text()
        return "listens at" in log.read_text()

    await until(listens)
    text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text())
    port, metrics_port = (int(re.findall(rf"\b{name}\W+(\d+)", text)[-1]) for name in ("port", "metrics_port"))
    return Crew(process, port, metrics_port)


def test_a_crew_is_one_router_and_its_dead_are_replaced(tmp_path: Path) -> None:
    async def story() -> None:
        engine = kit.ScriptedEngine(kit.says(kit.whole()), "engine")
        server = await engine.serve()
        async with cluster(engine.port, tmp_path) as kubeconfig:
            crew = await started(kubeconfig, tmp_path / "log")
            try:
                await until(lambda: is_up(crew))
                await crew.asks(40)
                await until(lambda: has_counted(crew))
                first = crew.children()
                assert len(first) == 2
                os.kill(first[0], signal.SIGKILL)
                await until(lambda: has_processes(crew, 2, starts=3))
                assert await crew.answered() == crew.good  # what the dead one had counted stays
                await until(lambda: is_up(crew))
                await until(lambda: has_counted(crew))
                assert first[1] in crew.children()
                crew.process.terminate()
                assert await asyncio.wait_for(crew.process.wait(), PATIENCE_S) == 0, (tmp_path / "log").read_text()
            finally:
                await crew.close()
        server.close()

    asyncio.run(story())


def test_a_crew_drains_what_is_under_way(tmp_path: Path) -> None:
    async def story() -> None:
        may_end = asyncio.Event()

        async def holds(asked: kit.Asked, writer: asyncio.StreamWriter) -> None:
            if not json.loads(asked.body or b"{}").get("stream"):
                writer.write(kit.whole())
                return
            writer.write(kit.STREAM_HEAD + kit.chunk(kit.event("one")))
            await may_end.wait()
            writer.write(kit.chunk(kit.event("two")) + kit.LAST)

        engine = kit.ScriptedEngine(holds, "engine")
        server = await engine.serve()
        async with cluster(engine.port, tmp_path) as kubeconfig:
            crew = await started(kubeconfig, tmp_path / "log")
            try:
                await until(lambda: is_up(crew))
                client, _ = await crew.ask(stream=True)
                assert (await client.head()).status == 200
                assert b"one" in (await client.chunk() or b"")
                crew.process.terminate()
                await until(lambda: takes_no_more(crew))
                may_end.set()
                assert b"two" in (await client.chunk() or b"")
                assert await client.chunk() is None
                assert await asyncio.wait_for(crew.process.wait(), PATIENCE_S) == 0, (tmp_path / "log").read_text()
            finally:
                await crew.close()
        server.close()

    asyncio.run(story())


async def is_up(crew: Crew) -> bool:
    """Whether every process knows the route: one that has just begun says 404 for a moment."""
    for _ in range(16):
        client, answer = await crew.ask()
        client.leave()
        if answer is None or answer.status != 200:
            return False
    return True


async def has_counted(crew: Crew) -> bool:
    return await crew.answered() == crew.good


async def has_processes(crew: Crew, count: int, *, starts: int) -> bool:
    page = await crew.metrics()
    return page["hekla_router_processes"] == count and page["hekla_router_process_starts_total"] == starts


async def takes_no_more(crew: Crew) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", crew.port)
    except OSError:
        return True
    writer.transport.abort()
    return False
