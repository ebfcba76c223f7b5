"""Hekla's scheduler and Kubernetes' own on one real control plane, in turns: who binds how many pods, how soon, for how much CPU.

kube-apiserver, etcd (without fsync) and kube-controller-manager 1.36, 1,000 nodes without kubelets, pods of sixteen shapes. One
scheduler runs at a time; each has its default plug-ins and an identity of its own (kube-scheduler's certificate, the token of
`hekla-scheduler`). kube-scheduler's own limit of 50 requests a second is lifted, or it alone would be measured. In the same turns
the whole embedded path: API server, store and scheduler of `hekla up`, on disk, with nodes that nobody serves. It needs the
programs of a control plane and kube-scheduler (`HEKLA_KUBE_BIN`) and kubectl; elsewhere it says so and measures nothing.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bench.embedded import JSON, NODES, PODS, Costs, Door, each, lone_pod, make_node, platform, watching
from bench.report import Report, percentile, run_alone
from hekla.testing.components import Cluster
from hekla.testing.kubernetes import PROGRAMS, ControlPlane, missing
from hekla.wire.tls import client_context

ROUNDS, AT_ONCE, PACE_PER_S, PACED_S = 2, 3_000, 40, 8
WARM_UP = 500
"""Kernels are loaded meanwhile."""
PATIENCE_S = 120.0
LIFTED = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: PATH, qps: 5000, burst: 5000}
leaderElection: {leaderElect: false}
"""


@dataclass(frozen=True)
class Spender:
    """A process whose CPU time is read."""

    pid: int

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Subject:
    """A scheduler: how it is called, by what name pods choose it, and what it costs."""

    called: str
    scheduler_name: str
    per_s: list[float]
    cpu_ms: list[float]
    paced: list[float]
    memory: float = 0.0


@contextmanager
def kube_scheduler(plane: ControlPlane) -> Iterator[Spender]:
    """Kubernetes' own, its limit of requests lifted."""
    configuration = plane.directory / "kube-scheduler.yaml"
    configuration.write_text(LIFTED.replace("PATH", str(plane.kubeconfig_of("kube-scheduler"))))
    plane.start_scheduler(f"--config={configuration}")
    try:
        yield Spender(plane.pid("kube-scheduler"))
    finally:
        plane.stop("kube-scheduler")


@contextmanager
def ours(cluster: Cluster) -> Iterator[Spender]:
    """Hekla's, for lone pods without PodGroups."""
    with cluster.running("scheduler", "--groups-for-gangs-only", "--log-level=info") as scheduler:
        scheduler.wait_for("event=leads", timeout_s=60)
        yield Spender(scheduler.process.pid)
        scheduler.stop()


async def turn(door: Door, subject: Subject, spender: Costs) -> None:
    """Warm up, then pods at once, then pods at a pace; all are deleted after."""
    await bound(door, subject, WARM_UP)
    await asyncio.sleep(2.0)
    wall, _, cpu = await bound(door, subject, AT_ONCE)
    subject.per_s.append(AT_ONCE / wall)
    subject.cpu_ms.append(cpu / AT_ONCE * 1e3)
    _, taken, _ = await bound(door, subject, PACE_PER_S * PACED_S, per_s=PACE_PER_S)
    subject.paced += taken
    subject.memory = spender.resident_bytes / 1e6


async def bound(door: Door, subject: Subject, count: int, *, per_s: float = 0.0) -> tuple[float, list[float], float]:
    """Create pods, at once or at a pace: (seconds, create-to-bound of each, CPU seconds of the scheduler)."""
    began: dict[str, float] = {}
    names = {f"pod-{number:06}" for number in range(count)}
    async with watching(door, PODS, names) as seen, door.client() as client:

        async def one(number: int) -> None:
            pod = lone_pod(number)
            pod["spec"]["schedulerName"] = subject.scheduler_name
            if per_s:
                await asyncio.sleep(start + number / per_s - time.perf_counter())
            began[pod["metadata"]["name"]] = time.perf_counter()
            await door.send(client, "POST", PODS, pod)

        cpu, start = door.process.cpu_s, time.perf_counter()
        await each(range(count), one)
        await asyncio.wait_for(seen.whole.wait(), PATIENCE_S)
        wall, cost = max(seen.at.values()) - start, door.process.cpu_s - cpu
        await clear(door, client)
        return wall, [seen.at[name] - began[name] for name in began], cost


async def clear(door: Door, client: Any) -> None:
    """Delete every pod at once, and wait until the server has none."""
    while True:
        await client.request("DELETE", door.url + PODS, JSON, b'{"gracePeriodSeconds": 0}')
        if not (await door.send(client, "GET", f"{PODS}?limit=1"))["items"]:
            break
    await asyncio.sleep(1.0)


async def prepare(door: Door) -> None:
    """The namespace and the nodes, free of the taint that new ones have."""
    async with door.client() as client:
        await door.send(client, "POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        await each(range(NODES), lambda number: make_node(door, client, number))
        while True:
            nodes = await door.send(client, "GET", "/api/v1/nodes")
            accounts = await door.send(client, "GET", "/api/v1/namespaces/bench/serviceaccounts")
            if accounts["items"] and not any(node["spec"].get("taints") for node in nodes["items"]):
                return
            await asyncio.sleep(0.5)


def run(report: Report) -> None:
    """Hekla's scheduler beside kube-scheduler on a real control plane, in turns"""
    if why := missing(*PROGRAMS, "kube-scheduler"):
        print(f"  nothing is measured: {why}")
        return
    with report.folder() as folder, contextlib.ExitStack() as stack:
        patient = ("--node-monitor-grace-period=24h", "--kube-api-qps=2000", "--kube-api-burst=2000")
        plane = stack.enter_context(ControlPlane(folder, controller_args=patient))
        cluster = Cluster(plane.kubeconfig, folder)
        cluster.install()
        cluster.kubectl("delete", "validatingwebhookconfiguration,mutatingwebhookconfiguration", "hekla-webhooks")
        pki = folder / "pki"
        tls = client_context(ca_file=pki / "ca.crt", cert_file=pki / "admin.crt", key_file=pki / "admin.key")
        uvloop.run(prepare(Door(plane.url, tls, Spender(os.getpid()))))
        theirs = Subject("kube-scheduler 1.36", "default-scheduler", [], [], [])
        hekla = Subject("Hekla's scheduler there", "volcano", [], [], [])
        whole = Subject("Hekla, embedded, API server included", "volcano", [], [], [])
        for number in range(1 if report.is_quick else ROUNDS):
            with kube_scheduler(plane) as spender:
                uvloop.run(turn(Door(plane.url, tls, spender), theirs, spender))
            with ours(cluster) as spender:
                uvloop.run(turn(Door(plane.url, tls, spender), hekla, spender))
            own = folder / f"embedded-{number}"
            own.mkdir()
            with platform(own, is_whole=False) as door:
                uvloop.run(turn(door, whole, door.process))
    for subject in (theirs, hekla, whole):
        is_ours = subject is not theirs
        rate, cost = _mean(subject.per_s), _mean(subject.cpu_ms)
        report.add(f"{subject.called}: {AT_ONCE:,} pods at once, create to bound", rate, "pods/s",
                   baseline=_mean(theirs.per_s) if is_ours else None)  # fmt: skip
        report.add("  CPU of it, a pod", cost, "ms", baseline=_mean(theirs.cpu_ms) if is_ours else None)
        for share in (0.5, 0.99):
            said = percentile(subject.paced, share) * 1e3
            other = percentile(theirs.paced, share) * 1e3 if is_ours else None
            report.add(f"  {PACE_PER_S} pods/s: p{share * 100:.0f}", said, "ms", baseline=other)
        report.add("  memory of it", subject.memory, "MB", baseline=theirs.memory if is_ours else None)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


if __name__ == "__main__":
    run_alone("beside_kube_scheduler", run)
