"""Cycles of the pure engine, and the CPU they take."""

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from bench.placement.worlds import WISHES, world
from hekla.app.serving import COLLECT_AFTER
from hekla.placement.constraint import NO_CONSTRAINTS
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.statement import Bind
from hekla.testing.cluster import World

Fill = Callable[[World, int], None]
USUAL = ("enqueue", "allocate", "backfill")


def decisions(made: World, actions: Sequence[str] = USUAL) -> list[tuple[str, str]]:
    """(kind and pod, node) of everything that one cycle decides, in order."""
    session = Session(made.policy)
    return [
        (f"{type(decision).__name__} {decision.task.uid}", decision.node)
        for name in actions
        for decision in action_named(name)(session)
    ]


def decide(made: World, actions: Sequence[str] = USUAL) -> tuple[int, float]:
    """(decisions, seconds of CPU) of one cycle."""
    session = Session(made.policy)
    began = time.process_time()
    decided = sum(1 for name in actions for _ in action_named(name)(session))
    return decided, time.process_time() - began


def warmed(nodes: int, **details: Any) -> World:
    """A world after its first pass, which computes masks, ranks and the tree of domains once in a scheduler's life."""
    made = world(nodes, **details)
    for number, wishes in enumerate((NO_CONSTRAINTS, *WISHES)):
        made.job(f"first-{number}", cpu=1, memory=1, constraints=wishes)
    decide(made)
    return made


def rate(nodes: int, fill: Fill, count: int, *, rounds: int = 3, **details: Any) -> float:
    """Decisions per second of CPU: the best of some rounds, each in a fresh world; what others take away is not ours."""
    best = 0.0
    for _ in range(rounds):
        made = warmed(nodes, **details)
        fill(made, count)
        with quiet_collector():
            bound, seconds = decide(made)
        assert bound == count, f"{bound} of {count} pods were placed: the world is too small for this bench"
        best = max(best, bound / seconds)
    return best


def cycles(made: World, arrivals: int, number: int) -> list[float]:
    """Milliseconds of CPU of each of some cycles, between which pods of four shapes come and the oldest go."""
    taken, running = list[float](), list[str]()
    for cycle in range(number):
        for pod in range(arrivals):
            made.job(f"y{cycle}-{pod}", cpu=1 + pod % 4, memory=2)
        session = Session(made.policy)
        began = time.process_time()
        binds = [b for name in USUAL for b in action_named(name)(session) if isinstance(b, Bind)]
        taken.append((time.process_time() - began) * 1e3)
        running += [bind.task.uid for bind in binds]
        for uid in running[: max(0, len(running) - 4 * arrivals)]:
            made.cluster.remove_task(uid)
        del running[: max(0, len(running) - 4 * arrivals)]
    return taken


@contextmanager
def quiet_collector() -> Iterator[None]:
    """What the platform does at start: objects that stay are taken out of the collector's sight, which looks seldom."""
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
