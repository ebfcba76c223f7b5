"""The clusters and the waiting work that placement is measured on.

Nodes of 64 cpus, 512 GiB and 8 GPUs in three zones, racks of 16 in blocks of 16 racks, a third in use, some tainted,
some cordoned, so that every plug-in has something to say.
"""

from collections.abc import Sequence

import numpy as np

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
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.wish import Closeness
from hekla.testing.cluster import World

PLUGINS = (
    ("priority", "gang", "conformance"),
    ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"),
)
NEAR_PLUGINS = (*PLUGINS[:1], (*PLUGINS[1], "network-topology-aware"))
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

APP = PodSelector((Requirement("app", Operator.IN, ("bench",)),), frozenset({"default"}))
APART = Constraints(anti_affinity=(PodTerm("kubernetes.io/hostname", APP),))
EVEN = Constraints(spreads=(Spread("zone", 1, APP),))
CHOOSY = Constraints(selector=(("disk", "ssd"),), tolerations=(Toleration("dedicated", "Exists"),))


def world(nodes: int, *, fullness: float = 0.33, plugins: Sequence[Sequence[str]] = PLUGINS) -> World:
    """A cluster with some of everything in use."""
    dice = np.random.default_rng(7)
    made = World(plugins=plugins)
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


def mixed(made: World, count: int) -> None:
    """Gangs of 1 to 512 equal pods, all sizes in turn."""
    placed = number = 0
    while placed < count:
        size = min(SIZES[number % len(SIZES)], count - placed)
        made.job(f"m{number}", tasks=size, cpu=1 + number % 3, memory=4)
        placed, number = placed + size, number + 1


def queued(made: World, count: int) -> None:
    """Single pods of four shapes in four queues of different weight and priority, each turn to the neediest."""
    for number in range(4):
        made.queue(f"q{number}", weight=1 + number, priority=number // 3)
    for number in range(count):
        made.job(f"u{number}", cpu=1 + number % 4, memory=2, more={"queue": f"q{number % 4}", "priority": number % 2})


def close(made: World, count: int) -> None:
    """Gangs of 8 GPUs by pod that must stay within a rack, or rather would within a block."""
    nodes = len(made.cluster.nodes)
    racks = [f"rack-{number}" for number in range((nodes + 15) // 16)]
    for number, rack in enumerate(racks):
        members = tuple(Members(name=f"n{row}") for row in range(number * 16, min(nodes, number * 16 + 16)))
        made.cluster.put_domain(DomainSpec(name=rack, tier=1, members=members))
    for number in range(0, len(racks), 16):
        members = tuple(Members(name=rack, are_domains=True) for rack in racks[number : number + 16])
        made.cluster.put_domain(DomainSpec(name=f"block-{number // 16}", tier=2, members=members))
    placed = number = 0
    while placed < count:
        size = min((4, 8, 16, 32)[number % 4], count - placed)
        wish = Closeness(is_hard=size <= 8, highest_tier=1 if size <= 8 else 2)
        made.job(f"c{number}", tasks=size, cpu=2, memory=8, gpu=1, more={"closeness": wish})
        placed, number = placed + size, number + 1


def fill_up(made: World, *, leave: int = 0) -> None:
    """Have low-priority pods take all that is left of every node, but `leave` nodes."""
    nodes = made.cluster.nodes
    for name, row in list(nodes.row_of.items())[leave:]:
        cpu, memory = int(nodes.idle[0, row]) / 1000, int(nodes.idle[1, row]) / (1 << 30)
        for part in range(4):
            more = {"priority": 1}
            made.running(
                f"low-{name}-{part}",
                name,
                cpu=cpu / 4,
                memory=memory / 4,
                gpu=2,
                task_priority=1,
                min_available=0,
                more=more,
            )


def urgent(made: World, count: int) -> None:
    """Gangs of higher priority than all that runs."""
    for number in range(count):
        made.job(f"h{number}", tasks=8, cpu=4, memory=8, gpu=1, task_priority=100, more={"priority": 100})
