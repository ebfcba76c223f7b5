"""B1, stage by stage: a pod from create to durably bound on `hekla up`, at a pace, and where the time goes.

As `embedded.py`, whose platform and pods it uses: SQLite on disk, TLS, RBAC, every admission rule, all default plug-ins,
1,000 nodes that nobody serves. Of each pod three moments are kept: its create is answered (it is on disk), an
administrator's watch tells it, that watch tells its node (the binding is on disk). What the disk takes by itself stands in
the bench's head; what a cycle takes is the platform's own figure.
All paces take half a minute on two quiet cores; with `--all` the target's pace is kept for 20 s, in which the garbage
collector has looked at everything once.
"""

import asyncio
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import uvloop

from bench.embedded import CONNECTIONS, PATIENCE_S, PODS, Door, each, lone_pod, platform, watching
from bench.report import Report, percentile, run_alone

TARGET_P99_MS = 20.0
PACES = ((250, 3), (500, 3), (1_000, 3), (2_000, 3))
"""Pods a second, and for how many seconds."""
LONG_PACE = (2_000, 20)
WARM_UP = 2_000
_CYCLES = re.compile(r"volcano_e2e_scheduling_latency_milliseconds_(sum|count) ([\d.e+]+)")


@dataclass
class Lives:
    """When what happened to each pod."""

    began: dict[str, float] = field(default_factory=dict)
    answered: dict[str, float] = field(default_factory=dict)
    told: dict[str, float] = field(default_factory=dict)
    bound: dict[str, float] = field(default_factory=dict)

    def ms(self, since: dict[str, float], until: dict[str, float]) -> list[float]:
        return [(until[name] - since[name]) * 1e3 for name in since]


async def live(door: Door, first: int, count: int, per_s: float) -> Lives:
    """Create so many lone pods a second, over connections that are open as a controller's are, and see them bound."""
    lives = Lives()
    names = {f"pod-{number:06}" for number in range(first, first + count)}
    async with watching(door, PODS, names, told=lives.told) as seen, door.client() as client:
        # 32 handshakes at once take 0.1 s, in which the first of 250 a second would wait for what is not theirs
        await each(range(CONNECTIONS), lambda _: door.send(client, "GET", f"{PODS}?limit=1"))
        start = time.perf_counter()

        async def one(number: int) -> None:
            name = f"pod-{number:06}"
            await asyncio.sleep(start + (number - first) / per_s - time.perf_counter())
            lives.began[name] = time.perf_counter()
            await door.send(client, "POST", PODS, lone_pod(number))
            lives.answered[name] = time.perf_counter()

        await each(range(first, first + count), one)
        await asyncio.wait_for(seen.whole.wait(), PATIENCE_S)
        lives.bound = dict(seen.at)
    return lives


def cycles(door: Door) -> tuple[float, float]:
    """(milliseconds, number) of the scheduler's cycles so far."""
    text = door.process.ask("GET", "/metrics").body.decode()
    told = {name: float(value) for name, value in _CYCLES.findall(text)}
    return told.get("sum", 0.0), told.get("count", 0.0)


def tell(report: Report, door: Door, per_s: int, for_s: int, first: int) -> None:
    count = report.scaled(per_s * for_s)
    before, cpu = cycles(door), door.process.cpu_s
    lives = uvloop.run(live(door, first, count, per_s))
    cpu, after = door.process.cpu_s - cpu, cycles(door)
    stages: tuple[tuple[str, Callable[[], list[float]]], ...] = (
        ("create to bound", lambda: lives.ms(lives.began, lives.bound)),
        ("  create to its answer: decided, checked, on disk", lambda: lives.ms(lives.began, lives.answered)),
        ("  told by a watch to told as bound: cycle, bind, on disk", lambda: lives.ms(lives.told, lives.bound)),
    )
    for name, of in stages:
        taken = of()
        is_whole = not name.startswith(" ")
        label = f"{per_s:,} pods/s for {count / per_s:.2g} s, {name}" if is_whole else name
        report.add(f"{label}: p50", percentile(taken, 0.5), "ms")
        report.add(f"{label}: p99", percentile(taken, 0.99), "ms", baseline=TARGET_P99_MS if is_whole else None)
        report.add(f"{label}: p99.9", percentile(taken, 0.999), "ms", note=f"longest {max(taken):.3g} ms")
    number = max(after[1] - before[1], 1.0)
    report.add("  a cycle of the scheduler, mean", (after[0] - before[0]) / number, "ms", note=f"{number:,.0f} cycles")
    report.add("  CPU of the platform", cpu / count * 1e6, "us/pod")


def run(report: Report) -> None:
    """B1: create to durably bound at a pace, stage by stage, 1,000 nodes, all default plug-ins"""
    with report.folder() as folder, platform(folder, is_whole=False) as door:
        uvloop.run(live(door, 900_000, WARM_UP, 500))
        for number, (per_s, for_s) in enumerate((*PACES, LONG_PACE) if report.is_full else PACES):
            tell(report, door, per_s, for_s, number * 100_000)


if __name__ == "__main__":
    run_alone("latency", run)
