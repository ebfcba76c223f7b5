"""Starting again with a full cluster: `hekla up` on 5,000 nodes with 150,000 running pods, and one that waits.

The data directory is written by this process through the store, with bodies as the API server stores them; the time
counts from the start of the new process to the moment when an administrator's watch sees the waiting pod bound. Then
the same with 10,000 nodes and 200,000 pods, for the memory of the whole process: API server, scheduler, workloads and
controllers (no node agent: on a cluster of this size it is elsewhere).

Recorded: kube-scheduler needs 8 minutes for 5,000 nodes and 150,000 pods (issue 3); the target is 15 s, and 2 GiB.
"""

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from bench.embedded import Door, lone_pod, platform_of
from bench.report import Report, run_alone
from hekla.apiserver.bodies import render_of, tail_of
from hekla.apiserver.sqlite_store import SqliteStore
from hekla.apiserver.store import Key
from hekla.testing.platform import PlatformProcess
from hekla.wire.tls import client_context

KUBE_S = 480.0
TARGET_BYTES = 2 << 30
NAMESPACES = 20
WRITTEN_TOGETHER = 2_000
WAITING = "waiting"
SETTLES_S = 20.0
WITHOUT = ("node",)
STARTED_PER_S = 50
"""How many of the running pods say that they started in the same second."""


def node_document(number: int) -> dict[str, Any]:
    name = f"node-{number:05}"
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": f"z{number % 3}"}
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    conditions = [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is ready"}]
    status = {"capacity": room, "allocatable": room, "conditions": conditions}
    return {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": status}


class Filler:
    """Writes objects as the API server would have stored them."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._running: list[Any] = []

    async def put(self, key: Key, head: bytes, document: dict[str, Any], fields: dict[str, str]) -> None:
        document["metadata"] |= {
            "uid": f"00000000-0000-4000-8000-{self._store.revision + len(self._running):012}",
            "creationTimestamp": "2026-11-21T20:00:00Z",
        }
        render = render_of(head, tail_of(document), b" " + MANAGED)
        named = {"metadata.name": key.name, "metadata.namespace": key.namespace, **fields}
        labels = document["metadata"].get("labels") or {}
        self._running.append(
            asyncio.ensure_future(self._store.put(key, render, expected=0, labels=labels, fields=named))
        )
        if len(self._running) >= WRITTEN_TOGETHER:
            await self.flush()

    async def flush(self) -> None:
        await asyncio.gather(*self._running)
        self._running.clear()


MANAGED = msgspec.json.encode(
    [{"manager": "bench", "operation": "Update", "apiVersion": "v1", "time": "2026-11-21T20:00:00Z"}]
)
NODE_HEAD = b'{"kind":"Node","apiVersion":"v1",'
POD_HEAD = b'{"kind":"Pod","apiVersion":"v1",'


LEASES = "leases.coordination.k8s.io", "kube-node-lease"
LEASE_HEAD = b'{"kind":"Lease","apiVersion":"coordination.k8s.io/v1",'
RENEWED = "2099-01-01T00:00:00.000000Z"


def lease_document(node: str) -> dict[str, Any]:
    """The lease of a node that is alive, and stays so for as long as the bench lasts."""
    spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": RENEWED}
    return {"metadata": {"name": node, "namespace": LEASES[1]}, "spec": spec}


async def fill(state: Path, pattern: dict[str, Any], nodes: int, pods: int) -> None:
    """Nodes, and pods that run on them; `pattern` is a pod as the API server stores it."""
    store = SqliteStore(state)
    filler = Filler(store)
    for number in range(nodes):
        document = node_document(number)
        name = document["metadata"]["name"]
        await filler.put(Key("nodes", "", name), NODE_HEAD, document, {})
        await filler.put(Key(*LEASES, name), LEASE_HEAD, lease_document(name), {})
    raw = msgspec.json.encode({key: pattern[key] for key in ("spec", "status", "metadata")})
    for number in range(pods):
        pod = msgspec.json.decode(raw)
        name, node = f"pod-{number:06}", f"node-{number % nodes:05}"
        namespace = f"bench-{number % NAMESPACES}"
        labels = {"app": f"app-{number % 500}"}
        second = number // STARTED_PER_S
        moment = f"2026-11-21T{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}Z"
        pod["metadata"] = {"name": name, "namespace": namespace, "labels": labels, "annotations": {}}
        pod["spec"] = {"nodeName": node, **pod["spec"]}
        pod["status"] = {
            **pod["status"], "phase": "Running", "podIP": f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",
            "conditions": [
                {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": moment}
                for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
            ],
        }  # fmt: skip
        fields = {"spec.nodeName": node, "status.phase": "Running"}
        await filler.put(Key("pods", namespace, name), POD_HEAD, pod, fields)
    await filler.flush()
    await store.close()


async def prepare(door: Door) -> dict[str, Any]:
    """The namespaces, and one pod that waits because there is no node; it is the pattern of all others."""
    async with door.client() as client:
        for number in range(NAMESPACES):
            namespace = f"bench-{number}"
            await door.send(client, "POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
            account = {"metadata": {"name": "default"}}
            await door.send(client, "POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", account)
        waiting = lone_pod(0)
        waiting["metadata"]["name"] = WAITING
        made: dict[str, Any] = await door.send(client, "POST", "/api/v1/namespaces/bench-0/pods", waiting)
        return made


async def wait_until_bound(door: Door) -> None:
    async with door.client() as client:
        while True:
            pod = await door.send(client, "GET", f"/api/v1/namespaces/bench-0/pods/{WAITING}")
            if pod["spec"].get("nodeName"):
                return
            await asyncio.sleep(0.02)


def make_directory(folder: Path, nodes: int, pods: int) -> None:
    with platform_of(folder, without=("node", "scheduler", "workloads", "controlplane"), nodes=0) as door:
        pattern = uvloop.run(prepare(door))
    uvloop.run(fill(folder / "data" / "state", pattern, nodes, pods))


def tell(report: Report, nodes: int, pods: int, *, has_peer: bool) -> None:
    with report.folder() as folder:
        make_directory(folder, nodes, pods)
        process = PlatformProcess(folder / "data", without=WITHOUT)
        began = time.perf_counter()
        with process:
            ready_s = time.perf_counter() - began
            door = Door(process.url, _tls(process), process)
            uvloop.run(wait_until_bound(door))
            bound_s, cpu_s = time.perf_counter() - began, process.cpu_s
            name = f"{nodes:,} nodes, {pods:,} pods"
            report.add(f"{name}: start to ready", ready_s, "s")
            peer = {"baseline": KUBE_S, "note": "kube-scheduler, recorded"} if has_peer else {}
            report.add(f"{name}: start to first bind", bound_s, "s", **peer)
            report.add("  CPU seconds until then", cpu_s, "cpu-s")
            time.sleep(SETTLES_S)
            report.add("  memory, settled", process.resident_bytes / 2**20, "MiB", baseline=TARGET_BYTES / 2**20)
            report.add("  memory, peak", peak_bytes(process) / 2**20, "MiB", baseline=TARGET_BYTES / 2**20)
            report.add("  memory per pod", process.resident_bytes / pods / 1e3, "kB")


def _tls(process: PlatformProcess) -> ssl.SSLContext:
    pki = process.data_dir / "pki"
    return client_context(ca_file=pki / "ca.crt", cert_file=pki / "admin.crt", key_file=pki / "admin.key")


def peak_bytes(process: PlatformProcess) -> int:
    """The most memory that the process ever held."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def run(report: Report) -> None:
    """Starting with 5,000 nodes and 150,000 pods: time to the first bind; and memory with 10,000 nodes and 200,000 pods"""
    tell(report, report.scaled(5_000), report.scaled(150_000), has_peer=True)
    tell(report, report.scaled(10_000), report.scaled(200_000), has_peer=False)


def run_time(report: Report) -> None:
    """Starting with 5,000 nodes and 150,000 pods: time to the first bind, without the memory of the larger one"""
    tell(report, 5_000, 150_000, has_peer=True)


if __name__ == "__main__":
    run_alone("restart", run, time=run_time)  # in half the time, what has a target
