"""What counting costs: the share of a busy cycle that goes into the scheduler's metrics, and the cost of a scrape.

A cycle of gangs is the hard case: nothing is decided faster. What is counted when a bind is durable is told per pod, to
be held against the 100 us and more that a bind takes.
"""

import gc
import time
from typing import Any, cast

from prometheus_client import CollectorRegistry, generate_latest

from bench.report import Report, run_alone
from hekla.placement import kernels
from hekla.placement.model import Job
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.statement import Bind
from hekla.scheduler.metrics import SchedulerMetrics
from hekla.testing.cluster import World

ALLOWED_SHARE = 2.0
PLUGINS = (
    ("priority", "gang", "conformance"),
    ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"),
)


class Stage:
    """What metrics read of a scheduler."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def now_s(self) -> float:
        return 0.0

    def wall_s(self) -> float:
        return time.time()


def world(nodes: int) -> World:
    made = World(plugins=PLUGINS)
    for number in range(nodes):
        made.node(f"n{number}", cpu=64, memory=512, gpu=8, pods=256)
    return made


def gangs(made: World, count: int) -> None:
    """Gangs of 100 equal pods with GPUs."""
    for number in range(count // 100):
        made.job(f"g{number}", tasks=100, cpu=2 + number % 3, memory=8, gpu=1)


def lone(made: World, count: int) -> None:
    """Single pods of sixteen shapes, mixed."""
    for number in range(count):
        made.job(f"l{number}", cpu=1 + number % 16, memory=2)


def cycle(nodes: int, fill: Any, count: int) -> tuple[float, float, float, float]:
    """(CPU seconds of deciding, of counting in the cycle, of counting binds, of a scrape) for one cycle."""
    made = world(nodes)
    fill(made, count)
    metrics = SchedulerMetrics(cast(Any, Stage(made.policy)))
    clock = time.process_time
    gc.collect()
    gc.disable()
    try:
        began = clock()
        session = Session(made.policy)
        binds = [d for name in ("enqueue", "allocate", "backfill") for d in action_named(name)(session)]
        decided_s = clock() - began
        placed: dict[str, Job] = {}
        for bind in binds:  # who was placed is known anyway: they are told so
            assert isinstance(bind, Bind)
            assert bind.task.job is not None
            placed[bind.task.job.uid] = bind.task.job
        began = clock()
        for name in ("enqueue", "allocate", "backfill"):
            metrics.on_action(name, 0.001)
        metrics.on_placed(placed, 0.0, 1.0)
        metrics.on_cycle(session, 0.01)
        counted_s = clock() - began
        began = clock()
        for bind in binds:
            metrics.on_settled(bind.task, 0.1, 1.0, is_bound=True)
        settled_s = clock() - began
    finally:
        gc.enable()
    assert len(binds) == count
    registry = CollectorRegistry()
    registry.register(cast(Any, metrics))
    began = clock()
    generate_latest(registry)
    return decided_s, counted_s, settled_s, clock() - began


def run(report: Report) -> None:
    """What the scheduler's metrics cost: the share of a cycle, of a bind, and a scrape. No more than 2 % is allowed."""
    assert kernels.use_compiled(), "numba is needed for this bench: without it a cycle is slower, and the share smaller"
    for name, fill, nodes, pods in (
        ("gangs of 100", gangs, 1000, 4000),
        ("single pods, 16 shapes", lone, 1000, 3000),
    ):
        count = report.scaled(pods)
        best = min((cycle(nodes, fill, count) for _ in range(3)), key=lambda times: times[1] / times[0])
        decided_s, counted_s, settled_s, scrape_s = best
        report.add(f"{name}: counting, share of a cycle", 100 * counted_s / decided_s, "%", baseline=ALLOWED_SHARE)
        report.add(f"{name}: counting a durable bind", 1e6 * settled_s / count, "us/pod")
        report.add(f"{name}: a scrape", 1e3 * scrape_s, "ms")


if __name__ == "__main__":
    run_alone("metrics", run)
