"""Many gangs wait that will not fit, with plug-in `reservation`: what a cycle costs that finds so, once they are alike, once all
differ.
"""  # fmt: skip

import time

from bench.report import Report
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.testing.cluster import DEFAULT_ACTIONS, World

PLUGINS = (("priority", "gang", "reservation"), ("predicates", "binpack"))
GANGS, PODS = 300, 12


def run(report: Report) -> None:
    """A cycle beside 10,000 running pods that say how long they run."""
    nodes = report.scaled(10_000)
    for title, kinds in (("alike", 1), ("that all differ", GANGS)):
        world = full_cluster(nodes, kinds)
        spent_s = [cycle_s(world) for _ in range(3)]
        report.add(f"a cycle with {GANGS} gangs {title} that never fit, {nodes:,} nodes", max(spent_s), "CPU-s")


def full_cluster(nodes: int, kinds: int) -> World:
    """A pod on every node, and gangs of pods that are each larger than a node."""
    world = World(plugins=PLUGINS)
    for number in range(nodes):
        world.node(f"n{number:05}", cpu=8, memory=64)
    for number in range(nodes):
        world.running(f"r{number}", f"n{number:05}", cpu=6, more={"estimate_s": 1000.0 + number % 97})
    for number in range(GANGS):
        world.job(f"g{number}", tasks=PODS, cpu=9 + number % kinds / 1000, memory=1)
    return world


def cycle_s(world: World) -> float:
    """One cycle in which every gang is tried."""
    world.cluster.gains += 1
    world.tell_time(vars(world)["_clock"] + 1.0)
    began = time.process_time()
    session = Session(world.policy, now=vars(world)["_clock"])
    for name in DEFAULT_ACTIONS:
        assert not list(action_named(name)(session)), "nothing fits"
    return time.process_time() - began
