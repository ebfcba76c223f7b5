"""B1: placement decisions per second of CPU, with all default plug-ins on, against the NumPy twin and the oracle.

The world: nodes of 64 cpus, 512 GiB and 8 GPUs in three zones, a third in use, some tainted, some cordoned, so that
every plug-in has something to say. Decided is what `allocate` decides: queue and job order, gangs, statements,
commits included; what the scheduler does before (reading objects) and after (binding) is not.

Every decision of a sample is compared with the plain pass over all nodes, by NumPy, from the same state. The recorded
figures of kube-scheduler are from specs/performance.md 1.1 and 6.1: whole scheduler, these two cores.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from bench.report import Report, run_bench
from hekla.placement import kernels
from hekla.placement.constraint import (
    Constraints,
    Effect,
    Operator,
    PodSelector,
    PodTerm,
    Requirement,
    Spread,
    Taint,
    Toleration,
)
from hekla.placement.kernels import twin
from hekla.placement.model import Task
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.testing.cluster import World

PLUGINS = (
    ("priority", "gang", "conformance"),
    ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"),
)
KUBE_SCHEDULER_PER_S, KUBE_ANTI_AFFINITY_PER_S = 317.0, 61.0
RECORDED = "recorded: kube-scheduler, whole path"

APP = PodSelector((Requirement("app", Operator.IN, ("bench",)),), frozenset({"default"}))
APART = Constraints(anti_affinity=(PodTerm("kubernetes.io/hostname", APP),))
EVEN = Constraints(spreads=(Spread("zone", 1, APP),))
CHOOSY = Constraints(selector=(("disk", "ssd"),), tolerations=(Toleration("dedicated", "Exists"),))


def world(nodes: int, *, fullness: float = 0.33) -> World:
    """A cluster with some of everything in use."""
    dice = np.random.default_rng(7)
    made = World(plugins=PLUGINS)
    for number in range(nodes):
        name = f"n{number}"
        labels = {"kubernetes.io/hostname": name, "zone": f"z{number % 3}", "disk": "ssd" if number % 2 else "hdd"}
        taints = [Taint("dedicated", "ml", Effect.NO_SCHEDULE)] if number % 20 == 0 else []
        made.node(
            name, cpu=64, memory=512, gpu=8, labels=labels, taints=taints, is_schedulable=number % 50 != 1, pods=256
        )
    for number in range(nodes // 2):
        load = dice.uniform(0, 4 * fullness)
        made.running(f"old-{number}", f"n{number}", cpu=round(32 * load, 1), memory=round(200 * load, 1))
    return made


def different(made: World, count: int) -> None:
    """Pods of which no two ask for the same."""
    dice = np.random.default_rng(11)
    for number in range(count):
        cpu, memory = int(dice.integers(1, 4000)) / 1000, int(dice.integers(1, 16000)) / 1000
        constraints = CHOOSY if number % 4 == 0 else Constraints()
        made.job(f"d{number}", cpu=cpu, memory=memory + number / 1e6, constraints=constraints)


def gangs(made: World, count: int) -> None:
    """Gangs of 8 to 512 equal pods with GPUs, until there are `count` pods."""
    sizes = (8, 16, 64, 128, 256, 512)
    placed = number = 0
    while placed < count:
        size = min(sizes[number % len(sizes)], count - placed)
        made.job(f"g{number}", tasks=size, cpu=2 + number % 3, memory=8, gpu=1)
        placed, number = placed + size, number + 1


def lone(made: World, count: int) -> None:
    """Single pods of sixteen shapes, mixed."""
    for number in range(count):
        made.job(f"l{number}", cpu=1 + number % 16, memory=2)


def apart(made: World, count: int) -> None:
    made.job("apart", tasks=count, cpu=0.1, memory=0.1, constraints=APART, labels={"app": "bench"})


def even(made: World, count: int) -> None:
    made.job("even", tasks=count, cpu=0.1, memory=0.1, constraints=EVEN, labels={"app": "bench"})


def decide(made: World) -> tuple[int, float]:
    """(decisions, seconds of CPU) of one cycle."""
    session = Session(made.policy)
    began = time.process_time()
    bound = sum(1 for name in ("enqueue", "allocate", "backfill") for _ in action_named(name)(session))
    return bound, time.process_time() - began


def rate(nodes: int, fill: Callable[[World, int], None], count: int, *, rounds: int = 3) -> float:
    """The best of some rounds, each in a fresh world: what other processes take away is not ours."""
    best = 0.0
    for _ in range(rounds):
        made = world(nodes)
        # The first pass of a scheduler's life computes masks and ranks once; a cycle later they are there.
        made.job("first", cpu=1, memory=1)
        made.job("choosy", cpu=1, memory=1, constraints=CHOOSY)
        decide(made)
        fill(made, count)
        with quiet_collector():
            bound, seconds = decide(made)
        assert bound == count, f"{bound} of {count} pods were placed: the world is too small for this bench"
        best = max(best, bound / seconds)
    return best


@contextmanager
def quiet_collector() -> Iterator[None]:
    """What the platform does at start: objects that stay are taken out of the collector's sight."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def disagreements(nodes: int, fill: Callable[[World, int], None], count: int) -> int:
    """How many of `count` decisions differ from the plain pass over all nodes from the same state."""
    made = world(nodes)
    fill(made, count)
    wrong = 0
    place, run = made.policy.placer.place, made.policy.placer.place_run
    columns = made.cluster.nodes

    def expected(task: Task) -> int:
        form = kernels.active()
        kernels.use(twin)
        row = twin.best(made.policy.placer.scores(task), columns.rank(), columns.height)
        kernels._active = form
        return row

    def checked_place(task: Task, *venue: None) -> int:
        nonlocal wrong
        plain = expected(task)
        row = place(task)
        wrong += row != plain
        return row

    def checked_run(shape: object, number: int, *venue: None) -> list[int]:
        nonlocal wrong
        task = next(t for t in made.cluster.tasks.values() if t.shape is shape and t.row < 0)
        found: list[int] = []
        for _ in range(number):
            plain = expected(task)
            rows = run(task.shape, 1)
            wrong += (rows[0] if rows else -1) != plain
            found += rows
        return found

    made.policy.placer.place, made.policy.placer.place_run = checked_place, checked_run  # type: ignore[method-assign]
    decide(made)
    return wrong


CASES: tuple[tuple[str, Callable[[World, int], None], int, float], ...] = (
    ("all different pods", different, 3000, KUBE_SCHEDULER_PER_S),
    ("gangs of 8 to 512", gangs, 6000, KUBE_SCHEDULER_PER_S),
    ("single pods of 16 shapes", lone, 3000, KUBE_SCHEDULER_PER_S),
    ("anti-affinity by host", apart, 400, KUBE_ANTI_AFFINITY_PER_S),
    ("spread over zones", even, 600, KUBE_SCHEDULER_PER_S),
)


def run(report: Report) -> None:
    """B1: placement decisions per second of CPU, all default plug-ins on, beside the NumPy twin."""
    assert kernels.use_compiled(), "numba is needed for this bench"
    from hekla.placement.kernels import compiled

    for nodes in (1_000, 5_000, 10_000):
        for name, fill, count, recorded in CASES:
            number = report.scaled(count)
            kernels.use(compiled)
            fast = rate(nodes, fill, number)
            wrong = disagreements(nodes, fill, min(number, 200))
            assert not wrong, f"{wrong} decisions of {name} on {nodes} nodes differ from the plain pass"
            kernels.use(twin)
            plain = rate(nodes, fill, min(number, 200), rounds=1)
            kernels.use(compiled)
            report.add(f"{name}, {nodes:,} nodes", fast, "per CPU-s", baseline=plain, note="the NumPy twin")
            report.add(f"  beside {RECORDED}", fast, "per CPU-s", baseline=recorded)


def main() -> int:
    """Run this bench alone: `python -m bench.placement`."""
    run_bench("placement", run, Report(Path.cwd()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
