"""B1 and B2, end to end: pods from create to durably bound on `hekla up`. Whole lives of jobs: `jobs.py`.

The platform is a process of its own with SQLite on disk, TLS, RBAC, every admission rule and all default plug-ins; its
1,000 nodes are simulated. The load comes from this process as the administrator, and a watch like anybody's says when a
pod is bound. First with the scheduler alone on nodes that nobody serves, as the recorded kube-scheduler figures were
taken (kube-apiserver + etcd, no kubelets); then the whole platform, whose node agent runs what is bound.

Recorded: kube-scheduler 1.36 on these two cores, 168 to 317 pods/s (specs/performance.md 1.1).
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import msgspec
import uvloop

from bench.report import Report, percentile, run_alone
from hekla.testing.platform import PlatformProcess
from hekla.wire.client import HttpClient
from hekla.wire.limits import ClientLimits
from hekla.wire.tls import client_context

KUBE_SCHEDULER_PER_S = 317.0
RECORDED = "recorded: kube-scheduler 1.36 + kube-apiserver + etcd"

KUBE_SCHEDULER_MANY_PER_S, KUBE_SCHEDULER_APART_PER_S = 255.0, 61.0
"""5,000 nodes: plain pods, and pods with required anti-affinity by host name."""

NODES, MANY_NODES, GPUS = 1_000, 5_000, 8
CONNECTIONS = 32
PODS = "/api/v1/namespaces/bench/pods"
JSON = (("content-type", "application/json"),)
PATIENCE_S = 300.0

PodOf = Callable[[int], dict[str, Any]]
"""From a number to a pod's document."""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _State(msgspec.Struct):
    phase: str = ""


class _Status(msgspec.Struct):
    state: _State = msgspec.field(default_factory=_State)


class _Seen(msgspec.Struct):
    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Seen


_event = msgspec.json.Decoder(_Event).decode


class Costs(Protocol):
    """A process whose costs are read."""

    @property
    def cpu_s(self) -> float: ...

    @property
    def resident_bytes(self) -> int: ...


@dataclass
class Door:
    """The running platform as the administrator reaches it, and the process whose costs are told."""

    url: str
    tls: ssl.SSLContext
    process: Costs

    @asynccontextmanager
    async def client(self, connections: int = CONNECTIONS) -> AsyncIterator[HttpClient]:
        limits = ClientLimits(connections_per_origin=connections)
        async with HttpClient(ssl_context=self.tls, limits=limits, headers=(("user-agent", "bench/1"),)) as client:
            yield client

    async def send(self, client: HttpClient, method: str, target: str, document: Any = None) -> Any:
        body = b"" if document is None else msgspec.json.encode(document)
        answer = await client.request(method, self.url + target, JSON if body else (), body)
        if answer.status >= 300:
            raise RuntimeError(f"{method} {target}: {answer.status} {bytes(answer.body)[:300]!r}")
        return msgspec.json.decode(bytes(answer.body))


@contextmanager
def platform(
    folder: Path, *, is_whole: bool, schedules: bool = True, is_new: bool = True, nodes: int = NODES
) -> Iterator[Door]:
    """`hekla up` with 1,000 nodes: served by the node agent, or only written down."""
    without = () if is_whole else ("node", "workloads", "controlplane", *(() if schedules else ("scheduler",)))
    with platform_of(folder, without=without, nodes=nodes if is_whole else 0) as door:
        if is_new:
            uvloop.run(prepare(door, is_whole=is_whole, nodes=nodes))
        yield door


@contextmanager
def platform_of(folder: Path, *, without: Sequence[str], nodes: int) -> Iterator[Door]:
    """`hekla up` with so many simulated nodes and without some features."""
    flags = ("--nodes", "0", "--simulated-nodes", str(nodes), "--gpus-per-node", str(GPUS))
    with PlatformProcess(folder / "data", without=without, flags=flags) as process:
        pki = process.data_dir / "pki"
        tls = client_context(ca_file=pki / "ca.crt", cert_file=pki / "admin.crt", key_file=pki / "admin.key")
        yield Door(process.url, tls, process)


async def prepare(door: Door, *, is_whole: bool, nodes: int) -> None:
    """The namespace and the nodes."""
    async with door.client() as client:
        await door.send(client, "POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        if is_whole:
            while not await are_ready(door, client, nodes):
                await asyncio.sleep(0.2)
            return
        with contextlib.suppress(RuntimeError):  # where the controllers run, one of them makes it
            account = {"metadata": {"name": "default"}}
            await door.send(client, "POST", "/api/v1/namespaces/bench/serviceaccounts", account)
        await each(range(nodes), lambda number: make_node(door, client, number))


async def are_ready(door: Door, client: HttpClient, wanted: int) -> bool:
    """Whether the node agent has registered all nodes, and the controllers have met the namespace."""
    nodes = await door.send(client, "GET", "/api/v1/nodes")
    free = sum(1 for node in nodes["items"] if not node["spec"].get("taints"))
    accounts = await door.send(client, "GET", "/api/v1/namespaces/bench/serviceaccounts")
    return free == wanted and bool(accounts["items"])


async def make_node(door: Door, client: HttpClient, number: int) -> None:
    name = f"node-{number:05}"
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{number % 3}"}
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    await door.send(client, "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels}, "status": status})


async def each(numbers: Sequence[int], work: Any, *, at_once: int = CONNECTIONS) -> None:
    """Call `work` for every number, some at a time."""
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            await work(number)

    await asyncio.gather(*(worker() for _ in range(at_once)))


# ---- watching


@dataclass
class Sightings:
    """When each object was first seen as it should be."""

    at: dict[str, float] = field(default_factory=dict)
    whole: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def watching(
    door: Door, target: str, wanted: set[str], *, phase: str = "", revision: str = "",
    told: dict[str, float] | None = None,
) -> AsyncIterator[Sightings]:  # fmt: skip
    """Watch a collection, from now on if no revision is named, until the wanted objects have a node (or a phase).

    `told` is told when each was first seen at all.
    """
    seen = Sightings()
    async with door.client() as client:
        if not revision:
            listed = await door.send(client, "GET", f"{target}?limit=1")
            revision = listed["metadata"]["resourceVersion"]
        ready = asyncio.Event()

        async def follow() -> None:
            at = revision
            while True:  # a kube-apiserver ends the watch of who reads too slowly for it
                at = await follow_from(at)

        async def follow_from(at: str) -> str:
            query = f"?watch=true&resourceVersion={at}"
            async with client.stream("GET", door.url + target + query) as streamed:
                ready.set()
                rest = b""
                async for piece in streamed:
                    now = time.perf_counter()
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines:
                        changed = _event(line).object
                        at = changed.metadata.resource_version or at
                        if told is not None:
                            told.setdefault(changed.metadata.name, now)
                        if changed.metadata.name in wanted and _is_there(changed, phase):
                            seen.at.setdefault(changed.metadata.name, now)
                    if len(seen.at) >= len(wanted):
                        seen.whole.set()
            return at

        task = asyncio.create_task(follow())
        await ready.wait()
        try:
            yield seen
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _is_there(changed: _Seen, phase: str) -> bool:
    return changed.status.state.phase == phase if phase else bool(changed.spec.node_name)


# ---- what is created


def template(seconds: str, **resources: str) -> dict[str, Any]:
    container = {"name": "main", "image": "trainer:1", "command": ["train"], "resources": _wish(resources)}
    annotations = {"hekla.dev/simulated-duration": seconds}
    return {"metadata": {"annotations": annotations}, "spec": {"restartPolicy": "Never", "containers": [container]}}


def _wish(resources: dict[str, str]) -> dict[str, Any]:
    named = {name.replace("gpu", "nvidia.com/gpu"): value for name, value in resources.items()}
    limits = {name: value for name, value in named.items() if name == "nvidia.com/gpu"}
    return {"requests": named, **({"limits": limits} if limits else {})}


def lone_pod(number: int) -> dict[str, Any]:
    """A pod of one of sixteen shapes, as in `bench.placement`."""
    made = template("1h", cpu=f"{100 + 10 * (number % 16)}m", memory="256Mi")
    made["metadata"] |= {"name": f"pod-{number:06}", "labels": {"app": "bench"}}
    return {"apiVersion": "v1", "kind": "Pod", **made}


def lonely_pod(number: int) -> dict[str, Any]:
    """A pod that no other of its kind may share a node with: scheduler_perf's SchedulingPodAntiAffinity."""
    made = lone_pod(number)
    term = {"labelSelector": {"matchLabels": {"app": "bench"}}, "topologyKey": "kubernetes.io/hostname"}
    made["spec"]["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    return made


WAITING = (
    (6_000, NODES, lone_pod, "pods", KUBE_SCHEDULER_PER_S),
    (5_000, MANY_NODES, lone_pod, "pods", KUBE_SCHEDULER_MANY_PER_S),
    (2_000, MANY_NODES, lonely_pod, "pods, one to a node", KUBE_SCHEDULER_APART_PER_S),
)
"""How many pods, on how many nodes, made how and called what, and what kube-scheduler binds a second (recorded)."""


# ---- the cases


async def bound(door: Door, count: int, *, per_s: float = 0.0, first: int = 0) -> tuple[float, list[float], float]:
    """Create lone pods, as fast as it goes or so many a second: (seconds, create-to-bound of each, CPU seconds)."""
    began: dict[str, float] = {}
    names = {f"pod-{number:06}" for number in range(first, first + count)}
    async with watching(door, PODS, names) as seen, door.client() as client:

        async def one(number: int) -> None:
            name = f"pod-{number:06}"
            if per_s:
                await asyncio.sleep(start + (number - first) / per_s - time.perf_counter())
            began[name] = time.perf_counter()
            await door.send(client, "POST", PODS, lone_pod(number))

        cpu, start = door.process.cpu_s, time.perf_counter()
        await each(range(first, first + count), one)
        await asyncio.wait_for(seen.whole.wait(), PATIENCE_S)
        wall = max(seen.at.values()) - start
        return wall, [seen.at[name] - began[name] for name in began], door.process.cpu_s - cpu


async def create_pods(door: Door, count: int, made: PodOf) -> None:
    async with door.client() as client:
        await each(range(count), lambda number: door.send(client, "POST", PODS, made(number)))


async def bound_that_wait(door: Door, count: int) -> tuple[float, float, float]:
    """(seconds to the first binding, to the last, CPU seconds) from a platform's being ready, for pods that were there already."""
    cpu, start = door.process.cpu_s, time.perf_counter()
    async with watching(door, PODS, {f"pod-{number:06}" for number in range(count)}, revision="0") as seen:
        await asyncio.wait_for(seen.whole.wait(), PATIENCE_S)
    return min(seen.at.values()) - start, max(seen.at.values()) - start, door.process.cpu_s - cpu


def tell_bound(report: Report, door: Door, name: str, count: int, *, has_peer: bool) -> None:
    wall, taken, cpu = uvloop.run(bound(door, count))
    peer = {"baseline": KUBE_SCHEDULER_PER_S, "note": RECORDED} if has_peer else {}
    report.add(f"{name}: {count:,} pods at once, create to bound", count / wall, "pods/s", **peer)
    report.add("  latency p50, all at once", percentile(taken, 0.5) * 1e3, "ms")
    report.add("  latency p99, all at once", percentile(taken, 0.99) * 1e3, "ms")
    report.add("  pods per CPU-second of the platform", count / cpu, "/cpu-s")
    for per_s in (500, 1_000, 2_000):
        number = min(count, per_s * 2)
        _, taken, _ = uvloop.run(bound(door, number, per_s=per_s, first=count * 10 + per_s * 10))
        report.add(f"{name}: {per_s:,} pods/s, create to bound: p50", percentile(taken, 0.5) * 1e3, "ms")
        report.add("  p99", percentile(taken, 0.99) * 1e3, "ms")


def tell_waiting(report: Report, count: int, *, nodes: int, made: PodOf, what: str, recorded: float) -> None:
    """As the recorded figures were taken: the pods are there before the scheduler starts, and its own attempts are counted."""
    with report.folder() as folder:
        with platform(folder, is_whole=False, schedules=False, nodes=nodes) as door:
            uvloop.run(create_pods(door, count, made))
        with platform(folder, is_whole=False, is_new=False) as door:
            first, last, cpu = uvloop.run(bound_that_wait(door, count))
    name = f"scheduler alone: {count:,} {what} that wait, {nodes:,} nodes"
    report.add(name, count / (last - first), "pods/s", baseline=recorded, note=RECORDED)
    report.add("  from its start, imports and first list included", count / last, "pods/s")
    report.add("  until its first binding", first, "s")
    report.add("  pods per CPU-second of the platform, start included", count / cpu, "/cpu-s")


def run(report: Report) -> None:
    """B1, B2 end to end: create to durably bound, 1,000 nodes, all default plug-ins"""
    for count, nodes, made, what, recorded in WAITING:
        tell_waiting(report, report.scaled(count), nodes=nodes, made=made, what=what, recorded=recorded)
    with report.folder() as folder, platform(folder, is_whole=False) as door:
        tell_bound(report, door, "scheduler alone", report.scaled(10_000), has_peer=True)
    with report.folder() as folder, platform(folder, is_whole=True) as door:
        report.add("whole platform, idle, 1,000 nodes: memory", door.process.resident_bytes / 1e6, "MB")
        tell_bound(report, door, "whole platform", report.scaled(4_000), has_peer=True)


if __name__ == "__main__":
    run_alone("embedded", run)
