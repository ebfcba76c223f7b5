"""Sessions through the real gateway: keys checked, limits counted, rows on disk, objects bound by the scheduler, sandboxes isolated.

The platform is `hekla up` in a process of its own, with SQLite on disk and every component; the load comes from this process, over
HTTP, as the owners of keys. `first command` is until the last byte of its answer is here. What a sandbox costs without all that:
`agents_runtime.py`, beside bubblewrap, runc and a plain python3; the least that Python takes for one: `agents_floor.py`.
"""

import asyncio
import json
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import uvloop

from bench.report import Report, percentile, run_alone
from hekla.testing.platform import PlatformProcess
from hekla.wire.client import HttpClient
from hekla.wire.limits import ClientLimits

OWNERS = 8
"""An owner may have 100 sessions at a time."""
NODES = 7
"""A node takes 110 pods."""
ROUNDS = 100
REST_S = 0.3
"""After what was taken from a pool is replaced; the next who comes finds a platform that does nothing else."""
BURST, CLAIMS, CHILDREN, IDLE = 100, 300, 8, 500
REQUESTS, CONNECTIONS = 6_000, 32
WARM, COLD = "warm", "cold"
FIRSTS = (("program", "api/execute", {"command": ["true"]}), ("cell", "execute", {"code": "1 + 1"}))
"""What a session is asked first: its name, the daemon's path, and the body."""
AGAIN = "again: the node keeps as many warm as were missing"
OBJECTS = "/apis/runtime.agentcube.volcano.sh/v1alpha1/namespaces/default/codeinterpreters"
POOLS = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/default/sandboxwarmpools"
OBJECT = {"apiVersion": "runtime.agentcube.volcano.sh/v1alpha1", "kind": "CodeInterpreter"}
PATIENCE_S = 300.0
QUIET_CPU_S = 0.15
"""Processor time of the platform in a second in which it makes nothing."""
QUIET_S = 5
"""Such seconds in a row: on a full machine it makes sandboxes so slowly that one of them may look like rest."""


class Door:
    """The gateway and the API server as their clients reach them."""

    def __init__(self, process: PlatformProcess, keys: list[str], client: HttpClient) -> None:
        self.process, self._keys, self._client = process, keys, client
        self.url = (process.data_dir / "agents.url").read_text().strip() + "/hekla/v1/"

    async def ask(self, method: str, path: str, body: Any = None, *, owner: int = 0) -> Any:
        """One request below the sessions' API; its answer must be a good one."""
        return await self._asked(method, self.url + path, body, owner=owner)

    async def health(self) -> None:
        """Is the gateway there?"""
        await self._asked("GET", urljoin(self.url, "/health"))

    async def _asked(self, method: str, url: str, body: Any = None, *, owner: int = 0) -> Any:
        headers = (("x-api-key", self._keys[owner % OWNERS]), ("content-type", "application/json"))
        data = b"" if body is None else json.dumps(body).encode()
        answer = await self._client.request(method, url, headers, data)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {url}: {answer.status} {bytes(answer.body)[:300]!r}")
        return bytes(answer.body)

    async def create(self, template: str, owner: int = 0) -> str:
        """A session, answered when it runs."""
        return str(json.loads(await self.ask("POST", "sessions", {"name": template}, owner=owner))["id"])

    async def command(self, session: str, owner: int = 0) -> None:
        """A program in it."""
        answer = await self.ask("POST", f"sessions/{session}/daemon/api/execute", {"command": ["true"]}, owner=owner)
        assert json.loads(answer)["exit_code"] == 0, answer

    async def cell(self, session: str, code: str = "1 + 1", owner: int = 0) -> None:
        """A line in its interpreter."""
        answer = await self.ask("POST", f"sessions/{session}/daemon/execute", {"code": code}, owner=owner)
        assert b'"end_of_execution"' in answer, answer
        assert b'"error"' not in answer, answer

    async def end(self, session: str, owner: int = 0) -> None:
        """Its end, answered when it is gone."""
        await self.ask("DELETE", f"sessions/{session}", owner=owner)

    def objects(self, method: str, target: str, body: Any = None) -> Any:
        """The API server, as the administrator."""
        reply = self.process.ask(method, target, body)
        if reply.status >= 300:
            raise RuntimeError(f"{method} {target}: {reply.status} {reply.body[:300]!r}")
        return reply.document

    async def until_warm(self, wanted: int) -> None:
        """Until so many wait in the pool, and nothing else is being made."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            reply = await asyncio.to_thread(self.process.ask, "GET", f"{POOLS}/{WARM}")
            status = reply.document.get("status", {}) if reply.status == 200 else {}
            if status.get("readyReplicas", 0) == wanted == status.get("replicas"):
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"{wanted} sandboxes did not get ready within {PATIENCE_S:g} s")

    async def until_quiet(self) -> None:
        """Until the platform makes nothing any more: what was taken is replaced."""
        deadline, quiet_s = time.monotonic() + PATIENCE_S, 0
        while time.monotonic() < deadline:
            before = self.process.cpu_s
            await asyncio.sleep(1.0)
            quiet_s = quiet_s + 1 if self.process.cpu_s - before < QUIET_CPU_S else 0
            if quiet_s == QUIET_S:
                return
        raise RuntimeError(f"the platform was still at work after {PATIENCE_S:g} s")

    async def resize(self, wanted: int) -> None:
        """Another size for the pool."""
        there = await asyncio.to_thread(self.objects, "GET", f"{OBJECTS}/{WARM}")
        there["spec"]["warmPoolSize"] = wanted
        await asyncio.to_thread(self.objects, "PUT", f"{OBJECTS}/{WARM}", there)
        await self.until_warm(wanted)


@contextmanager
def platform(folder: Path, nodes: int = NODES) -> Iterator[PlatformProcess]:
    """`hekla up` with several nodes, and keys of several owners."""
    data = folder / "data"
    data.mkdir(mode=0o700)
    (data / "agents.key").write_text("".join(f"owner{one}: {key_of(one)}\n" for one in range(OWNERS)))
    flags = ("--nodes", f"{nodes}", "--agents-port", "0", "--log-level", "warning")
    with PlatformProcess(data, without=("serving", "router"), flags=flags) as process:
        yield process


def key_of(owner: int) -> str:
    return f"e2b_{owner:040x}"


@asynccontextmanager
async def doors(process: PlatformProcess) -> AsyncIterator[Door]:
    deadline = time.monotonic() + PATIENCE_S
    while not (process.data_dir / "agents.url").exists():
        assert time.monotonic() < deadline, "the gateway did not come up"
        await asyncio.sleep(0.05)
    async with HttpClient(limits=ClientLimits(connections_per_origin=CLAIMS)) as client:
        yield Door(process, [key_of(one) for one in range(OWNERS)], client)


async def timed(act: Callable[[], Awaitable[Any]]) -> tuple[float, Any]:
    began = time.perf_counter()
    result = await act()
    return (time.perf_counter() - began) * 1e3, result


def told(report: Report, name: str, taken: list[float], note: str = "") -> None:
    report.add(f"{name}, p50", percentile(taken, 0.5), "ms", note=note)
    report.add(f"{name}, p90", percentile(taken, 0.9), "ms")
    report.add(f"{name}, p99", percentile(taken, 0.99), "ms")


class PlainClient:
    """One connection that blocks, and requests that are put together before: what it takes itself is small."""

    def __init__(self, door: Door) -> None:
        address = urlsplit(door.url)
        self._path, self._host = address.path, address.netloc
        self._socket = socket.create_connection((address.hostname, address.port or 80))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, path: str, owner: int, body: Any) -> bytes:
        """The bytes of a POST."""
        data = json.dumps(body).encode()
        head = f"POST {self._path}{path} HTTP/1.1\r\nhost: {self._host}\r\nx-api-key: {key_of(owner % OWNERS)}\r\n"
        return f"{head}content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data

    def ask(self, request: bytes) -> bytes:
        """The body of a good answer."""
        self._socket.sendall(request)
        answer = self._socket.recv(65536)
        while (end := answer.find(b"\r\n\r\n")) < 0:
            answer += self._socket.recv(65536)
        if not answer.startswith(b"HTTP/1.1 20"):
            raise RuntimeError(repr(answer[:300]))
        length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", answer[:end])
        while (len(answer) < end + 4 + int(length[1])) if length else not answer.endswith(b"\r\n0\r\n\r\n"):
            answer += self._socket.recv(65536)
        return answer[end + 4 :]

    def close(self) -> None:
        self._socket.close()


def first_asked(client: PlainClient, template: str, path: str, body: Any, owner: int = 0) -> tuple[float, float, str]:
    """Milliseconds to create a session, and to the end of what it was asked first; the session."""
    asked = client.request("sessions", owner, {"name": template})
    began = time.perf_counter()
    answer = client.ask(asked)
    created_s = time.perf_counter() - began
    session = str(json.loads(answer)["id"])
    first = client.request(f"sessions/{session}/daemon/{path}", owner, body)
    began = time.perf_counter()
    client.ask(first)
    return created_s * 1e3, (created_s + time.perf_counter() - began) * 1e3, session


async def one_after_the_other(report: Report, door: Door, template: str, *, pool: int, rest_s: float) -> None:
    """Create, then a program or a line of Python: each in a session of its own; after a rest, or as soon as the pool is full again."""
    how = f"{template}, by itself" if rest_s else f"{template}, in a row"
    creates: list[float] = []
    with closing(PlainClient(door)) as client:
        for what, path, body in FIRSTS:
            wholes = []
            for _ in range(report.scaled(ROUNDS)):
                created, whole, session = first_asked(client, template, path, body)
                creates.append(created)
                wholes.append(whole)
                await door.end(session)
                await door.until_warm(pool)
                await asyncio.sleep(rest_s)
            told(report, f"create to first {what}, {how}", wholes)
    told(report, f"create, {how}", creates)


async def behind_each_other(report: Report, door: Door) -> None:
    """Sessions of a pool that holds them all, each begun as soon as the one before was answered its first; ended when all are through."""
    for what, path, body in FIRSTS:
        with closing(PlainClient(door)) as client:
            ran = [first_asked(client, WARM, path, body, owner) for owner in range(report.scaled(ROUNDS))]
        told(report, f"create to first {what}, {WARM}, one behind the other", [whole for _, whole, _ in ran])
        told(report, f"create, {WARM}, one behind the other ({what})", [created for created, _, _ in ran])
        await asyncio.gather(*(door.end(session, owner) for owner, (_, _, session) in enumerate(ran)))
        await door.until_warm(CLAIMS)
        await door.until_quiet()


async def at_once(report: Report, door: Door, template: str, count: int, note: str = "", *, runs: bool) -> None:
    """Many at the same moment, each with its first command or without. As many in a quick run: fewer would be another question."""
    what = f"{count} at once, {template}" + (", each with a program" if runs else "")

    async def one(number: int) -> tuple[str, float, float]:
        session = await door.create(template, number)
        created = time.perf_counter() - began
        if runs:
            await door.command(session, number)
        return session, created * 1e3, (time.perf_counter() - began) * 1e3

    cpu, began = door.process.cpu_s, time.perf_counter()
    done = await asyncio.gather(*(one(number) for number in range(count)))
    cpu = door.process.cpu_s - cpu
    creates, firsts = [each[1] for each in done], [each[2] for each in done]
    report.add(f"{what}: create, p90", percentile(creates, 0.9), "ms", note=note)
    report.add(f"{what}: the last is created", max(creates), "ms")
    if runs:
        report.add(f"{what}: first program, p90", percentile(firsts, 0.9), "ms")
        report.add(f"{what}: the last has run its program", max(firsts), "ms")
    report.add("  processor time of the platform, each", cpu / count * 1e3, "ms")
    await asyncio.gather(*(door.end(each[0], number) for number, each in enumerate(done)))


async def asleep(report: Report, door: Door) -> None:
    session = await door.create(COLD)
    freezes: list[float] = []
    wakes: list[float] = []
    for _ in range(report.scaled(ROUNDS)):
        freezes.append((await timed(lambda: door.ask("POST", f"sessions/{session}/freeze", {})))[0])
        wakes.append((await timed(lambda: door.ask("POST", f"sessions/{session}/resume", {})))[0])
    told(report, "freeze, row on disk", freezes)
    told(report, "thaw, row on disk", wakes)
    await door.end(session)


async def forked(report: Report, door: Door, template: str, *, pool: int, note: str) -> None:
    """Forks of one session, each when the pool is full again."""
    session = await door.create(template)
    await door.cell(session, "x = list(range(100_000))")

    async def all_know(copies: list[str]) -> None:
        await asyncio.gather(*(door.cell(one, "assert len(x) == 100_000") for one in copies))

    forks: list[float] = []
    firsts: list[float] = []
    for _ in range(report.scaled(20)):
        await door.until_warm(pool)
        await asyncio.sleep(REST_S)
        took, answer = await timed(lambda: door.ask("POST", f"sessions/{session}/fork", {"count": CHILDREN}))
        children = [one["id"] for one in json.loads(answer)["sessions"]]
        first, _ = await timed(partial(all_know, children))
        forks.append(took)
        firsts.append(took + first)
        await asyncio.gather(*(door.end(one) for one in children))
    told(report, f"fork 1 to {CHILDREN}, an interpreter of 100,000 numbers, {note}", forks)
    told(report, f"fork 1 to {CHILDREN}, and a cell in each, {note}", firsts)
    await door.end(session)


async def passing_through(report: Report, door: Door) -> None:
    """Requests to daemons that are answered at once: what the gateway adds, and how many it passes on."""
    sessions = [await door.create(COLD) for _ in range(CHILDREN)]

    async def health(number: int) -> None:
        await door.ask("GET", f"sessions/{sessions[number % CHILDREN]}/daemon/health")

    taken = [(await timed(lambda: health(0)))[0] for _ in range(report.scaled(1_000))]
    told(report, "a request through the gateway, one at a time", taken, note="client and daemon included")
    count, waiting = report.scaled(REQUESTS), iter(range(report.scaled(REQUESTS)))

    async def worker() -> None:
        for number in waiting:
            await health(number)

    cpu, began = door.process.cpu_s, time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    report.add(f"requests through the gateway, {CONNECTIONS} connections", count / (time.perf_counter() - began), "/s")
    report.add("  per CPU-second of the platform", count / max(0.01, door.process.cpu_s - cpu), "/cpu-s")
    for one in sessions:
        await door.end(one)


async def standing_idle(report: Report, door: Door) -> None:
    """What the machine has less for each sandbox that waits: pages, page tables and the kernel's own."""
    await door.resize(1)
    before, count = available_bytes(), report.scaled(IDLE)
    began = time.perf_counter()
    await door.resize(count)
    report.add(f"making {count} warm sandboxes", count / (time.perf_counter() - began), "/s")
    report.add(
        f"memory of the machine per idle sandbox, of {count}", (before - available_bytes()) / count / 2**20, "MiB"
    )


def available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


async def whole(report: Report, process: PlatformProcess) -> None:
    async with doors(process) as door:
        door.objects("POST", OBJECTS, {**OBJECT, "metadata": {"name": COLD}, "spec": {"template": {}}})
        door.objects(
            "POST", OBJECTS, {**OBJECT, "metadata": {"name": WARM}, "spec": {"template": {}, "warmPoolSize": 8}}
        )
        await door.until_warm(8)
        for rest_s in (REST_S, 0.0):
            await one_after_the_other(report, door, COLD, pool=8, rest_s=rest_s)
            await one_after_the_other(report, door, WARM, pool=8, rest_s=rest_s)
        await passing_through(report, door)
        await asleep(report, door)
        await forked(report, door, COLD, pool=8, note="no pool")
        for runs, note in ((False, "the first time"), (False, AGAIN), (True, AGAIN)):
            await at_once(report, door, COLD, BURST, note, runs=runs)
            await door.until_quiet()
        await door.resize(CLAIMS)
        await door.until_quiet()
        await behind_each_other(report, door)
        for runs in (False, True):
            await door.until_warm(CLAIMS)
            await door.until_quiet()
            await at_once(report, door, WARM, CLAIMS, runs=runs)
        await forked(report, door, WARM, pool=CLAIMS, note="out of the pool")
        await standing_idle(report, door)


def run(report: Report) -> None:
    """Sessions through the real gateway, from the request to the first command."""
    with report.folder() as folder, platform(folder) as process:
        uvloop.run(whole(report, process))


if __name__ == "__main__":
    run_alone("agents", run)
