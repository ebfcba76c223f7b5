"""B6: the whole API server over TLS with RBAC and admission: requests per CPU-second of the server's process.

The server is `hekla up` in a process of its own; the load comes from this one over `hekla.wire.client`, as a service
account whose rights come from a ClusterRole. Only answers of 2xx count: a server that refuses looks fast. Figures of
kube-apiserver 1.36 with etcd are recorded ones, of these two cores and the same 2.2 kB pods
(specs/performance.md section 5); ours are all admission rules on, durable, TLS with TLS. Plain HTTP stands apart.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.report import Report, percentile
from hekla.testing.platform import PlatformProcess
from hekla.wire.client import HttpClient
from hekla.wire.limits import ClientLimits
from hekla.wire.tls import client_context

KUBE_CREATE_US, KUBE_GET_US, KUBE_BIND_US = 2_420.0, 722.0, 2_600.0
KUBE_START_S, KUBE_IDLE_MB = 2.9, 283.0
RECORDED = "recorded: kube-apiserver 1.36 + etcd"

CONNECTIONS = 64
PODS = "/api/v1/namespaces/bench/pods"
JSON = ("content-type", "application/json")
MERGE = ("content-type", "application/merge-patch+json")


def pod(number: int) -> bytes:
    """A pod of 2.2 kB, as the recorded figures were taken with."""
    env = [{"name": f"VARIABLE_{i:02}", "value": "x" * 40} for i in range(20)]
    resources = {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "2Gi"}}
    containers = [{"name": "main", "image": "trainer:1", "command": ["train"], "env": env, "resources": resources}]
    labels = {"app": "training", "job": f"job-{number % 1000}"}
    metadata = {"name": f"pod-{number:07}", "labels": labels, "annotations": {"note": "y" * 300}}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}
    return json.dumps(document, separators=(",", ":")).encode()


@dataclass
class Door:
    """A running server: where it is, how to reach it as the service account, and what it has used."""

    url: str
    tls: ssl.SSLContext | None
    token: str
    pid: int

    @property
    def cpu_s(self) -> float:
        # /proc/PID/schedstat counts nanoseconds of the main thread alone; `stat` counts all threads, in 10 ms
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_mb(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    @asynccontextmanager
    async def client(self, connections: int = CONNECTIONS) -> AsyncIterator[HttpClient]:
        limits = ClientLimits(connections_per_origin=connections)
        headers = (("authorization", f"Bearer {self.token}"), ("accept", "application/json"), ("user-agent", "bench/1"))
        async with HttpClient(ssl_context=self.tls, limits=limits, headers=headers) as client:
            yield client


@dataclass
class Spent:
    """One case: what it took the server."""

    count: int
    wall_s: float
    cpu_s: float
    taken_s: list[float]

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.count * 1e6


Make = Callable[[int], tuple[str, str, tuple[tuple[str, str], ...], bytes]]
"""From a request's number to (method, target, headers, body)."""


async def load(door: Door, count: int, make: Make, *, connections: int = CONNECTIONS, first: int = 0) -> Spent:
    """Send `count` requests over some connections; an answer that is no 2xx ends the bench."""
    numbers = iter(range(first, first + count))
    taken: list[float] = []
    async with door.client(connections) as client:

        async def worker() -> None:
            for number in numbers:
                method, target, headers, body = make(number)
                start = time.perf_counter()
                answer = await client.request(method, door.url + target, headers, body)
                taken.append(time.perf_counter() - start)
                if answer.status >= 300:
                    raise RuntimeError(f"{method} {target}: {answer.status} {bytes(answer.body)[:300]!r}")

        await asyncio.gather(*(client.request("GET", door.url + "/version") for _ in range(connections)))
        cpu, start = door.cpu_s, time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(connections)))
        wall = time.perf_counter() - start
        return Spent(count, wall, door.cpu_s - cpu, taken)


def creating(number: int) -> tuple[str, str, tuple[tuple[str, str], ...], bytes]:
    return "POST", PODS, (JSON,), pod(number)


def scattered(number: int, among: int) -> str:
    return f"{PODS}/pod-{(number * 7919) % among:07}"


def getting(among: int) -> Make:
    return lambda number: ("GET", scattered(number, among), (), b"")


def patching(among: int) -> Make:
    def make(number: int) -> tuple[str, str, tuple[tuple[str, str], ...], bytes]:
        return "PATCH", scattered(number, among), (MERGE,), b'{"metadata":{"annotations":{"step":"%d"}}}' % number

    return make


def binding(number: int) -> tuple[str, str, tuple[tuple[str, str], ...], bytes]:
    name, node = f"pod-{number:07}", f"node-{number % 100}"
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    document = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
    return "POST", f"{PODS}/{name}/binding", (JSON,), json.dumps(document).encode()


# ---- servers


@contextmanager
def embedded(folder: Path) -> Iterator[Door]:
    """`hekla up` with the API server alone, over TLS; the load may go to the other core."""
    with PlatformProcess(folder / "data") as platform:
        spread(platform.pid)
        pki = platform.data_dir / "pki"
        admin = client_context(ca_file=pki / "ca.crt", cert_file=pki / "admin.crt", key_file=pki / "admin.key")
        token = uvloop.run(prepared(Door(platform.url, admin, "", platform.pid)))
        yield Door(platform.url, client_context(ca_file=pki / "ca.crt"), token, platform.pid)


async def prepared(door: Door) -> str:
    """The namespace, the service account and its rights; returns its token."""
    rules = [{"apiGroups": [""], "resources": ["pods", "pods/binding", "configmaps"], "verbs": ["*"]}]
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "bench"}
    subjects = [{"kind": "ServiceAccount", "name": "bench", "namespace": "bench"}]
    wanted = [
        ("/api/v1/namespaces", {"metadata": {"name": "bench"}}),
        ("/api/v1/namespaces/bench/serviceaccounts", {"metadata": {"name": "default"}}),
        ("/api/v1/namespaces/bench/serviceaccounts", {"metadata": {"name": "bench"}}),
        (f"{rbac}/clusterroles", {"metadata": {"name": "bench"}, "rules": rules}),
        (f"{rbac}/clusterrolebindings", {"metadata": {"name": "bench"}, "roleRef": role_ref, "subjects": subjects}),
    ]
    async with HttpClient(ssl_context=door.tls) as client:
        for path, document in wanted:
            answer = await client.request("POST", door.url + path, (JSON,), json.dumps(document).encode())
            assert answer.status == 201, answer.body
        path = "/api/v1/namespaces/bench/serviceaccounts/bench/token"
        answer = await client.request("POST", door.url + path, (JSON,), b'{"spec":{"expirationSeconds":36000}}')
        assert answer.status == 201, answer.body
        return str(json.loads(bytes(answer.body))["status"]["token"])


def serve_plain(pipe, folder: str) -> None:
    """The same API server without TLS, in a child process; the local administrator makes the token."""
    from hekla.apiserver.auth.pki import ensure_pki, utc_now
    from hekla.apiserver.sqlite_store import SqliteStore
    from hekla.app.data_directory import DataDirectory
    from hekla.app.embedded import create_first_objects, make_api_server
    from hekla.app.features import Features
    from hekla.app.settings import Settings
    from hekla.kube.api_client import ApiClient
    from hekla.kube.in_process import InProcessTransport
    from hekla.wire.server import Server
    from hekla.wire.tls import server_context

    async def run() -> None:
        settings = Settings(data_dir=Path(folder), without=frozenset({"workloads"}))
        directory = DataDirectory(settings.data_dir)
        pki = ensure_pki(directory.pki, utc_now())
        api = make_api_server(SqliteStore(directory.state), pki, Features(settings, directory, pki))
        await api.start()
        await create_first_objects(ApiClient(InProcessTransport(api.handle)))
        plain, secure = Server(), Server()
        await plain.start(api.handle)
        context = server_context(pki.server.certificate, pki.server.key, pki.authority.certificate)
        await secure.start(api.handle, ssl_context=context)  # for the administrator, who has a certificate
        pipe.send((plain.port, secure.port))
        await asyncio.Event().wait()

    uvloop.run(run())


@contextmanager
def plain(folder: Path) -> Iterator[Door]:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve_plain, args=(theirs, str(folder)), daemon=True)
    child.start()
    try:
        port, secure = ours.recv()
        assert child.pid is not None
        spread(child.pid)
        pki = folder / "pki"
        admin = client_context(ca_file=pki / "ca.crt", cert_file=pki / "admin.crt", key_file=pki / "admin.key")
        token = uvloop.run(prepared(Door(f"https://127.0.0.1:{secure}", admin, "", child.pid)))
        yield Door(f"http://127.0.0.1:{port}", None, token, child.pid)
    finally:
        child.kill()
        child.join()


def spread(pid: int) -> None:
    """The server on one core and the load on the other, as the recorded figures were not: theirs had both."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {cores[0]})


# ---- the cases


def run(report: Report) -> None:
    """B6: the API server over TLS with RBAC and admission, durable, against recorded kube-apiserver + etcd"""
    starts(report)
    count = report.scaled(20_000)
    with report.folder() as folder, embedded(folder) as door:
        verbs(report, door, count, "TLS", has_peer=True)
    with report.folder() as folder, plain(folder) as door:
        verbs(report, door, count, "plain HTTP", has_peer=False)
    with report.folder() as folder, embedded(folder) as door:
        before = door.resident_mb
        total = report.scaled(100_000)
        uvloop.run(load(door, total // 2, creating))
        lists(report, door, total // 2)
        uvloop.run(load(door, total - total // 2, creating, first=total // 2))
        report.add(f"memory for {total:,} pods of 2.2 kB", door.resident_mb - before, "MB")
        for watchers in (100, 1000):
            uvloop.run(fan_out(report, door, watchers, report.scaled(400_000 // watchers), total + watchers * 1000))


def starts(report: Report) -> None:
    """From the command to the answer that it is ready, on a fresh directory and on a used one."""
    fresh, used, idle = [], [], []
    for _ in range(5):
        with report.folder() as folder:
            platform = PlatformProcess(folder / "data")
            for taken in (fresh, used):
                start = time.perf_counter()
                platform.start()
                taken.append(time.perf_counter() - start)
                idle.append(platform.resident_bytes / 1e6)
                platform.stop()
    for name, taken in (("fresh", fresh), ("used", used)):
        report.add(
            f"`hekla up` to ready, {name} data directory", percentile(taken, 0.5), "s",
            baseline=KUBE_START_S, note=RECORDED,
        )  # fmt: skip
    report.add("idle memory", percentile(idle, 0.5), "MB", baseline=KUBE_IDLE_MB, note=RECORDED)


def verbs(report: Report, door: Door, count: int, name: str, *, has_peer: bool) -> None:
    """Creates, gets, patches, binds."""
    some = min(count, 5_000)  # each read once, which works out managedFields, then eight times more
    cases = [
        ("create", creating, count, KUBE_CREATE_US),
        ("first get", getting(some), some, None),
        ("get", getting(some), some * 8, KUBE_GET_US),
        ("merge patch", patching(count), count // 2, None),
        ("bind", binding, count // 2, KUBE_BIND_US),
    ]
    for verb, make, total, peer_us in cases:
        spent = uvloop.run(load(door, total, make))
        report.add(f"{name}: {verb}, {CONNECTIONS} connections", total / spent.wall_s, "/s")
        report.add(f"  latency p50, {verb}", percentile(spent.taken_s, 0.5) * 1e3, "ms")
        report.add(f"  latency p99, {verb}", percentile(spent.taken_s, 0.99) * 1e3, "ms")
        report.add(f"  CPU of the server per {verb}", spent.cpu_us, "us")
        if peer_us and has_peer:
            per_cpu_s = total / spent.cpu_s
            report.add(f"  {verb}s per CPU-second", per_cpu_s, "/cpu-s", baseline=1e6 / peer_us, note=RECORDED)
    spent = uvloop.run(load(door, report.scaled(2_000), creating, connections=1, first=count))
    report.add(f"{name}: create, 1 connection: latency p50", percentile(spent.taken_s, 0.5) * 1e3, "ms")


def lists(report: Report, door: Door, count: int) -> None:
    """One list of everything: the whole of it, then in pages of 500."""

    async def once(target: str) -> tuple[float, float, bytes]:
        async with door.client() as client:
            cpu, start = door.cpu_s, time.perf_counter()
            answer = await client.request("GET", door.url + target)
            assert answer.status == 200, answer.status
            return time.perf_counter() - start, door.cpu_s - cpu, bytes(answer.body)

    for attempt in ("first", "again"):
        wall, cpu, body = uvloop.run(once(PODS))
        report.add(f"list of {count:,} pods, {len(body) / 1e6:.0f} MB, {attempt}", wall * 1e3, "ms")
        report.add("  CPU of the server", cpu * 1e3, "ms")
    wall, _, body = uvloop.run(once(f"{PODS}?limit=500"))
    report.add(f"  the first page of 500, {len(body) / 1e6:.1f} MB", wall * 1e3, "ms")
    wall, _, body = uvloop.run(once(f"{PODS}?labelSelector=job%3Djob-7"))
    report.add(f"  by label, {len(json.loads(body)['items'])} of them", wall * 1e3, "ms")


async def fan_out(report: Report, door: Door, watchers: int, writes: int, first: int) -> None:
    """Every write to every watcher over TLS; ends when all have seen the last one."""
    total = 0
    last = f'"name":"pod-{first + writes - 1:07}"'.encode()
    async with door.client(watchers + 1) as client:
        ready = asyncio.Semaphore(0)

        async def watch() -> int:
            seen = 0
            target = f"{PODS}?watch=true&resourceVersion={revision}"
            async with client.stream("GET", door.url + target) as streamed:
                assert streamed.status == 200, streamed.status
                ready.release()
                tail = b""
                async for piece in streamed:
                    seen += piece.count(b"\n")
                    if last in tail + piece:
                        return seen
                    tail = piece[-64:]
            return seen

        head = await client.request("GET", door.url + f"{PODS}?limit=1")
        revision = json.loads(bytes(head.body))["metadata"]["resourceVersion"]
        tasks = [asyncio.create_task(watch()) for _ in range(watchers)]
        for _ in tasks:
            await ready.acquire()
        idle_mb, cpu, start = door.resident_mb, door.cpu_s, time.perf_counter()
        await load(door, writes, creating, connections=16, first=first)
        total = sum(await asyncio.gather(*tasks))
        wall, used = time.perf_counter() - start, door.cpu_s - cpu
    report.add(f"fan-out over TLS to {watchers:,} watchers: events delivered", total / wall, "events/s")
    report.add("  CPU of the server per event delivered", used / total * 1e6, "us")
    report.add("  creates meanwhile", writes / wall, "/s")
    report.add(f"  memory with {watchers:,} watchers", idle_mb, "MB")
