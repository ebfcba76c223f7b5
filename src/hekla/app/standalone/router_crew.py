"""`hekla run router --processes N`: a parent that keeps N router processes alive, which are one router to the outside.

They share the port (the kernel hands each connection to one of them), tell one another what they sent where and what they
took from budgets over sockets in a directory of their own (over Redis where that is configured), and are drained together.
The parent routes nothing: it starts anew what died, and answers /metrics for all (`serving/router/metrics_pages.py`).
`router_child.py` is one of the processes.
"""

import asyncio
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from hekla.app.logging import configure_logging
from hekla.app.standalone.process import StandaloneError
from hekla.serving.router.metrics_pages import Pages
from hekla.serving.router.settings import RouterSettings
from hekla.wire.client import HttpClient
from hekla.wire.errors import WireError
from hekla.wire.messages import Request, Response
from hekla.wire.server import Server

log = structlog.get_logger(__name__)

FIRST_PAUSE_S: Final = 0.2
LONGEST_PAUSE_S: Final = 10.0
"""Between a process that died and the next in its place; doubled from the first while they die young."""
GROWN_UP_S: Final = 30.0
"""Who lived for so long died of something new: the pause begins anew."""
PAGE_S: Final = 2.0
"""How long a process may take for its page; then its last one counts."""
KEPT_EVERY_S: Final = 5.0
"""How often pages are read though nobody asked: what a process counted before it died is known up to there."""
_METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def run_crew(
    settings: RouterSettings, flags: Mapping[str, Any], kubeconfig: str, log_level: str, ready: Callable[[str], None]
) -> None:
    """Run until SIGINT or SIGTERM and until all processes have drained; `ready` is told where the router listens."""
    configure_logging(log_level)
    with tempfile.TemporaryDirectory(prefix="hekla-router-") as folder:
        try:
            asyncio.run(Crew(settings, flags, kubeconfig, log_level, Path(folder)).run(ready))
        except OSError as error:
            raise StandaloneError(f"router: {error.strerror or error}") from None


class Crew:
    """The processes of one router."""

    def __init__(
        self, settings: RouterSettings, flags: Mapping[str, Any], kubeconfig: str, log_level: str, folder: Path
    ) -> None:
        self._settings = settings
        self._flags = dict(flags)
        self._kubeconfig, self._log_level = kubeconfig, log_level
        self._folder = folder
        self._family = secrets.token_hex(8)
        self._members: dict[str, Member] = {}
        self._stopping = asyncio.Event()
        self._pages = Pages()
        self._client = HttpClient()
        self._metrics = Server()
        self._started = 0

    async def run(self, ready: Callable[[str], None]) -> None:
        """Keep the processes until told to stop; raises StandaloneError where the first ones cannot start."""
        told = self._settings
        self._listen_for_signals()
        with _reserved(told.host, told.port) as reserved:
            port = reserved.getsockname()[1]
            try:
                if told.metrics_port >= 0:
                    await self._metrics.start(self._answer, host=told.metrics_host, port=told.metrics_port)
                await self._keep_all(port, ready)
            finally:
                await self._metrics.stop(1.0)
                await self._client.close()

    async def _keep_all(self, port: int, ready: Callable[[str], None]) -> None:
        first = [await self._start(number, port) for number in range(self._settings.processes)]
        try:
            for member in first:
                await member.listens()
        except StandaloneError:
            await self._end(first)
            raise
        scheme = "https" if self._settings.tls_cert else "http"
        log.info("router crew listens", port=port, processes=len(first), metrics_port=self._metrics_port)
        ready(f"{scheme}://{self._settings.host}:{port}")
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read_pages())
            keeping = [group.create_task(self._keep(number, member, port)) for number, member in enumerate(first)]
            await asyncio.wait(keeping)
            reading.cancel()

    @property
    def _metrics_port(self) -> int:
        return self._metrics.port if self._settings.metrics_port >= 0 else -1

    async def _keep(self, number: int, member: "Member", port: int) -> None:
        """One process after the other in one place."""
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            began = loop.time()
            status = await member.ended()
            self._members.pop(member.name, None)
            self._pages.ended(member.name)
            if self._stopping.is_set():
                return
            pause_s = FIRST_PAUSE_S if loop.time() - began > GROWN_UP_S else min(2 * pause_s, LONGEST_PAUSE_S)
            log.warning("router process died", number=number, pid=member.pid, status=status, again_s=pause_s)
            try:
                await asyncio.wait_for(self._stopping.wait(), pause_s)
            except TimeoutError:
                member = await self._start(number, port)
            else:
                return

    async def _start(self, number: int, port: int) -> "Member":
        self._started += 1
        told = self._settings
        flags = self._flags | {
            "port": port,
            "processes": 1,
            "shares_port": True,
            "family": self._family,
            "siblings": told.processes,
            "metrics_host": "127.0.0.1",
            "metrics_port": 0 if told.metrics_port >= 0 else -1,
            "debug_port": told.debug_port if number == 0 else -1,
            "replicas_directory": told.replicas_directory or str(self._folder),
        }
        name = f"{number}-{self._started}"
        member = await Member.start(name, flags, self._kubeconfig, self._log_level)
        self._members[name] = member
        if self._stopping.is_set():
            member.stop()
        return member

    async def _end(self, members: "list[Member]") -> None:
        for member in members:
            member.kill()
        for member in members:
            await member.ended()

    # ---- metrics

    async def _answer(self, request: Request) -> Response:
        if request.path != "/metrics":
            return Response(404, b"only /metrics is here\n", "text/plain")
        await self._hear()
        own = f"# TYPE hekla_router_processes gauge\nhekla_router_processes {len(self._members)}\n"
        starts = (
            f"# TYPE hekla_router_process_starts_total counter\nhekla_router_process_starts_total {self._started}\n"
        )
        return Response(200, (self._pages.text() + own + starts).encode(), _METRICS_TYPE)

    async def _read_pages(self) -> None:
        while True:
            await asyncio.sleep(KEPT_EVERY_S)
            await self._hear()

    async def _hear(self) -> None:
        await asyncio.gather(*(self._hear_one(member) for member in tuple(self._members.values())))

    async def _hear_one(self, member: "Member") -> None:
        if member.metrics_port <= 0:
            return
        try:
            async with asyncio.timeout(PAGE_S):
                answer = await self._client.request("GET", f"http://127.0.0.1:{member.metrics_port}/metrics")
        except (WireError, OSError, TimeoutError):
            return  # it ends, or is busy: its last page counts
        if answer.status == 200 and isinstance(answer.body, bytes) and member.name in self._members:
            self._pages.heard(member.name, answer.body.decode())

    # ---- signals

    def _listen_for_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._heard_signal)

    def _heard_signal(self) -> None:
        if self._stopping.is_set():  # asked twice: clients see their streams end
            for member in self._members.values():
                member.kill()
            os._exit(130)
        self._stopping.set()
        self._metrics.give_up_port()
        for member in self._members.values():
            member.stop()


class Member:
    """One router process."""

    def __init__(
        self, name: str, process: asyncio.subprocess.Process, told: asyncio.StreamReader, lifeline: int
    ) -> None:
        self.name = name
        self._process = process
        self._told = told
        self._lifeline = lifeline
        """While this end of a pipe is open the process lives; it drains when its parent is gone."""
        self.metrics_port = -1

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @classmethod
    async def start(cls, name: str, flags: Mapping[str, Any], kubeconfig: str, log_level: str) -> "Member":
        """Begin one; `listens` waits for it."""
        ours, theirs = os.pipe()
        ends_with, lifeline = os.pipe()
        try:
            command = [
                sys.executable,
                "-m",
                "hekla.app.standalone.router_child",
                json.dumps(flags),
                kubeconfig,
                log_level,
            ]
            process = await asyncio.create_subprocess_exec(
                *command,
                str(theirs),
                str(ends_with),
                pass_fds=(theirs, ends_with),
                start_new_session=True,  # a terminal's Ctrl-C is the parent's to pass on
            )
        except BaseException:
            os.close(ours)
            os.close(lifeline)
            raise
        finally:
            os.close(theirs)
            os.close(ends_with)
        told = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(told), os.fdopen(ours, "rb", 0)
        )
        member = cls(name, process, told, lifeline)
        member._listening = asyncio.create_task(member._hear_ports())
        return member

    async def _hear_ports(self) -> bool:
        line = await self._told.readline()
        if line:
            self.metrics_port = int(json.loads(line)["metrics_port"])
        return bool(line)

    async def listens(self) -> None:
        """Until it takes requests; raises StandaloneError if it ends before."""
        if not await self._listening:
            status = await self._process.wait()
            raise StandaloneError(f"router: process {self.name} ended with status {status} before it listened")

    async def ended(self) -> int:
        """Its exit status, when there is one."""
        status = await self._process.wait()
        self._listening.cancel()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        return status

    def stop(self) -> None:
        """Drain it."""
        if self._process.returncode is None:
            self._process.terminate()

    def kill(self) -> None:
        """End it at once."""
        if self._process.returncode is None:
            self._process.kill()

    _listening: "asyncio.Task[bool]"


def _reserved(host: str, port: int) -> socket.socket:
    """The address, held for as long as the crew lives: a port that was picked stays ours while a process is started anew.

    It does not listen, so that the kernel hands it no connection.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    held = socket.socket(family, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        held.bind((host, port))
    except OSError:
        held.close()
        raise
    return held
