"""B3, end to end: whole lives of Volcano Jobs on `hekla up`, from create to completed, on 1,000 simulated nodes.

10,000 jobs of one pod, then one job of 10,000 tasks, then a gang of 4,000 that fills the cluster: created over TLS by this
process as the administrator, admitted, made into groups and pods, placed, bound, run by the node agent for as long as
their annotation says, counted and completed. A job is done when a watch like anybody's sees its phase.

Recorded: Volcano's own figures for 10,000 one-pod jobs on kwok nodes, 8 cores, with webhooks: 40 to 56 jobs/s
(docs/user-guide/how_to_tune_volcano_performance.md). Ours are on the cores that the bench names, nodes and load included.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from bench.embedded import Door, each, platform, template, watching
from bench.report import Report, percentile, run_alone

VOLCANO_JOBS_PER_S = 56.0
RECORDED = "recorded: Volcano, kwok nodes, 8 cores, the better of its figures"
JOBS = "/apis/batch.volcano.sh/v1alpha1/namespaces/bench/jobs"
GET_EVERY_S = 0.02
PATIENCE_S = 3600.0
_WRITES = re.compile(r'apiserver_request_total\{verb="(CREATE|PATCH|UPDATE|DELETE)",resource="([^"]+)".*\} ([\d.e+]+)')


def job(name: str, replicas: int, *, seconds: str = "5s", **resources: str) -> dict[str, Any]:
    """A Volcano Job of one task."""
    task = {"name": "worker", "replicas": replicas, "template": template(seconds, **resources)}
    spec = {"minAvailable": replicas, "schedulerName": "volcano", "queue": "default", "tasks": [task]}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


@asynccontextmanager
async def asking(door: Door, target: str) -> AsyncIterator[list[float]]:
    """Ask for one object again and again meanwhile: how long each answer took."""
    taken: list[float] = []

    async def ask() -> None:
        async with door.client(1) as client:
            while True:
                start = time.perf_counter()
                await door.send(client, "GET", target)
                taken.append(time.perf_counter() - start)
                await asyncio.sleep(GET_EVERY_S)

    task = asyncio.create_task(ask())
    try:
        yield taken
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled() and (problem := task.exception()) is not None:
            raise problem


async def completed(door: Door, jobs: Sequence[dict[str, Any]]) -> tuple[float, list[float]]:
    """Create Volcano Jobs and wait until all have completed: (seconds, how long GETs took meanwhile)."""
    first = jobs[0]["metadata"]["name"]
    names = {made["metadata"]["name"] for made in jobs}
    async with watching(door, JOBS, names, phase="Completed") as seen, door.client() as client:
        start = time.perf_counter()
        await door.send(client, "POST", JOBS, jobs[0])
        async with asking(door, f"{JOBS}/{first}") as taken:
            await each(range(1, len(jobs)), lambda number: door.send(client, "POST", JOBS, jobs[number]))
            await asyncio.wait_for(seen.whole.wait(), PATIENCE_S)
            return max(seen.at.values()) - start, taken


def writes(door: Door) -> dict[str, float]:
    """How often each resource was written so far, leases of nodes aside."""
    told: dict[str, float] = {}
    for line in door.process.ask("GET", "/metrics").body.decode().splitlines():
        if (found := _WRITES.match(line)) and not found[2].startswith("leases."):
            told[found[2]] = told.get(found[2], 0.0) + float(found[3])
    return told


def tell_completed(
    report: Report, door: Door, name: str, jobs: Sequence[dict[str, Any]], pods: int, *, has_peer: bool
) -> None:
    before, cpu = writes(door), door.process.cpu_s
    wall, taken = uvloop.run(completed(door, jobs))
    cpu, after = door.process.cpu_s - cpu, writes(door)
    peer = {"baseline": VOLCANO_JOBS_PER_S, "note": RECORDED} if has_peer else {}
    report.add(f"{name}: created to completed", wall, "s")
    report.add("  pods per second, whole life", pods / wall, "pods/s", **peer)
    report.add("  CPU of the platform, its 1,000 nodes included", cpu / pods * 1e3, "ms/pod")
    made = sum(after.values()) - sum(before.values())
    most = sorted(after, key=lambda name: before.get(name, 0.0) - after[name])[:4]
    shares = ", ".join(f"{name.partition('.')[0]} {(after[name] - before.get(name, 0.0)) / pods:.2f}" for name in most)
    report.add("  writes to the API server", made / pods, "per pod", note=shares)
    report.add("  GET of a job meanwhile, p50", percentile(taken, 0.5) * 1e3, "ms")
    report.add("  GET of a job meanwhile, p99", percentile(taken, 0.99) * 1e3, "ms")
    report.add("  memory of the platform", door.process.resident_bytes / 1e6, "MB")


def run(report: Report) -> None:
    """B3: whole lives of jobs, create to completed, 1,000 simulated nodes on this machine, all default plug-ins"""
    small, large, gang = report.scaled(10_000), report.scaled(10_000), report.scaled(4_000)
    with report.folder() as folder, platform(folder, is_whole=True) as door:
        jobs = [job(f"one-{number:05}", 1, seconds="1s", cpu="100m") for number in range(small)]
        tell_completed(report, door, f"{small:,} jobs of one pod", jobs, small, has_peer=True)
    with report.folder() as folder, platform(folder, is_whole=True) as door:
        many = [job("large", large, seconds="60s", cpu="500m")]
        tell_completed(report, door, f"one job of {large:,} tasks, each 60 s", many, large, has_peer=False)
    with report.folder() as folder, platform(folder, is_whole=True) as door:
        full = [job("gang", gang, gpu="2")]
        tell_completed(report, door, f"gang of {gang:,} that fills the cluster", full, gang, has_peer=False)


if __name__ == "__main__":
    run_alone("jobs", run)
