"""The clusters and the waiting work that placement is measured on.

Nodes of 64 cpus, 512 GiB and 8 GPUs in three zones, racks of 16 in blocks of 16 racks, a third in use, some tainted, some
of them softly, some cordoned, with images on some; pods with images, selectors, tolerations and preferred nodes: every
default plug-in and every part of `nodeorder` has something to say, which `evidence.py` counts.
"""

from collections.abc import Sequence

import numpy as np

from hekla.placement.constraint import (
    Constraints,
    Effect,
    NodeTerm,
    Operator,
    PodSelector,
    PodTerm,
    PreferredPodTerm,
    PreferredTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
)
from hekla.placement.model import JobPhase
from hekla.placement.topology.topology import DomainSpec, Members
from hekla.placement.topology.wish import Closeness
from hekla.testing.cluster import World, amounts

PLUGINS = (
    ("priority", "gang", "conformance"),
    ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack"),
)
NEAR_PLUGINS = (*PLUGINS[:1], (*PLUGINS[1], "network-topology-aware"))
CRITICAL = 2_000_000_000
"""The priority of system-cluster-critical."""

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)

APP = PodSelector((Requirement("app", Operator.IN, ("bench",)),), frozenset({"default"}))
IMAGES = {"train": 700 << 20, "serve": 900 << 20, "tools": 300 << 20}
"""Bytes by name."""

CACHE = PodSelector((Requirement("app", Operator.IN, ("cache",)),), frozenset({"default"}))
APART = Constraints(images=("train", "serve"), anti_affinity=(PodTerm("kubernetes.io/hostname", APP),))
EVEN = Constraints(images=("train", "serve"), spreads=(TopologySpread("zone", 1, APP),))
CHOOSY = Constraints(selector=(("disk", "ssd"),), tolerations=(Toleration("dedicated", "Exists"),), images=("tools",))
WISHES = (
    Constraints(images=("train",)),
    Constraints(images=("serve", "tools"), preferred_nodes=(
        PreferredTerm(60, NodeTerm((Requirement("class", Operator.IN, ("gold",)),))),
        PreferredTerm(20, NodeTerm((Requirement("zone", Operator.NOT_IN, ("z1",)),))),
    )),
    Constraints(images=("train",), tolerations=(Toleration("noisy", "Exists"),)),
    CHOOSY,
)  # fmt: skip
"""What pods demand and like, in turn: all that node facts decide."""

COMPANY = Constraints(
    images=("serve",),
    preferred_pods=(
        PreferredPodTerm(10, PodTerm("rack", CACHE)), PreferredPodTerm(-4, PodTerm("kubernetes.io/hostname", APP)),
    ),
    spreads=(TopologySpread("zone", 1, APP, is_hard=False),),
)  # fmt: skip
"""Likes that depend on who runs where."""


def world(
    nodes: int, *, fullness: float = 0.33, plugins: Sequence[Sequence[str]] = PLUGINS, has_network: bool = False,
    is_shy: bool = False,
) -> World:  # fmt: skip
    """A cluster with some of everything in use; in a shy one, nodes differ in how much they would rather be left alone."""
    dice = np.random.default_rng(7)
    made = World(plugins=plugins)
    for number in range(nodes):
        name = f"n{number}"
        labels = {
            "kubernetes.io/hostname": name, "zone": f"z{number % 3}", "rack": f"r{number // 16}",
            "disk": "ssd" if number % 2 else "hdd", "class": "gold" if number % 4 == 3 else "silver",
        }  # fmt: skip
        made.node(
            name, cpu=64, memory=512, gpu=8, labels=labels, taints=_taints(number, is_shy=is_shy), images=_images(number, dice),
            is_schedulable=number % 50 != 1, pods=256,
        )  # fmt: skip
    for number in range(nodes // 2):
        load = dice.uniform(0, 4 * fullness)
        app = {"app": "cache"} if number % 7 == 0 else {}
        made.running(f"old-{number}", f"n{number}", cpu=round(32 * load, 1), memory=round(200 * load, 1), labels=app)
    if has_network:
        network(made)
    return made


def _taints(number: int, *, is_shy: bool) -> list[Taint]:
    """The shyest nodes are the dedicated ones, so that for most pods the worst that can be had is not the worst there is."""
    is_dedicated = number % 20 == 0
    soft = ["noisy"] * (number % 5 == 2)
    if is_shy:
        soft = ["noisy", "old", "slow"] if is_dedicated else soft + ["old"] * (number % 3 == 0)
    hard = [Taint("dedicated", "ml", Effect.NO_SCHEDULE)] * is_dedicated
    return hard + [Taint(name, "", Effect.PREFER_NO_SCHEDULE) for name in soft]


def _images(number: int, dice: np.random.Generator) -> dict[str, int]:
    """Each image is on a third of the nodes, as a registry's cache leaves them."""
    return {name: size for name, size in IMAGES.items() if dice.random() < 1 / 3}


def different(made: World, count: int) -> None:
    """Pods of which no two ask for the same."""
    dice = np.random.default_rng(11)
    for number in range(count):
        cpu, memory = int(dice.integers(1, 4000)) / 1000, int(dice.integers(1, 16000)) / 1000
        made.job(f"d{number}", cpu=cpu, memory=memory + number / 1e6, constraints=WISHES[number % 4])


def gangs(made: World, count: int) -> None:
    """Gangs of 8 to 512 equal pods with GPUs, until there are `count` pods."""
    sizes = (8, 16, 64, 128, 256, 512)
    placed = number = 0
    while placed < count:
        size = min(sizes[number % len(sizes)], count - placed)
        made.job(f"g{number}", tasks=size, cpu=2 + number % 3, memory=8, gpu=1, constraints=WISHES[number % 4])
        placed, number = placed + size, number + 1


def lone(made: World, count: int) -> None:
    """Single pods of sixteen shapes, mixed."""
    for number in range(count):
        made.job(f"l{number}", cpu=1 + number % 16, memory=2, constraints=WISHES[number % 4])


def apart(made: World, count: int) -> None:
    made.job("apart", tasks=count, cpu=0.1, memory=0.1, constraints=APART, labels={"app": "bench"})


def even(made: World, count: int) -> None:
    made.job("even", tasks=count, cpu=0.1, memory=0.1, constraints=EVEN, labels={"app": "bench"})


def company(made: World, count: int) -> None:
    """Pods that like to be near caches, away from one another, and even over zones."""
    made.job("company", tasks=count, cpu=0.5, memory=1, constraints=COMPANY, labels={"app": "bench"})


def mixed(made: World, count: int) -> None:
    """Gangs of 1 to 512 equal pods, all sizes in turn."""
    placed = number = 0
    while placed < count:
        size = min(SIZES[number % len(SIZES)], count - placed)
        wishes = WISHES[number % 4]
        made.job(
            f"m{number}", tasks=size, cpu=1 + number % 3, memory=4, constraints=wishes, more={"priority": number % 2}
        )
        placed, number = placed + size, number + 1


def queued(made: World, count: int) -> None:
    """Single pods of four shapes in four queues of different weight and priority, each turn to the neediest."""
    for number in range(4):
        made.queue(f"q{number}", weight=1 + number, priority=number // 3)
    for number in range(count):
        more = {"queue": f"q{number % 4}", "priority": number % 2}
        made.job(f"u{number}", cpu=1 + number % 4, memory=2, constraints=WISHES[number // 4 % 4], more=more)


def close(made: World, count: int) -> None:
    """Gangs that must stay within a rack, that rather would within a block and do not fit in a rack, and pods that do not mind."""
    placed = number = 0
    while placed < count:
        size = min((4, 8, 16, 144, 1, 6)[number % 6], count - placed)
        wish = Closeness(is_hard=size <= 8, highest_tier=1 if size <= 8 else 2)
        more = {"closeness": wish} if size not in (1, 6) else {}
        made.job(
            f"c{number}", tasks=size, cpu=2, memory=8, gpu=1, constraints=WISHES[(number + number // 6) % 4], more=more
        )
        placed, number = placed + size, number + 1


def network(made: World) -> None:
    """Racks of 16 nodes in blocks of 16 racks."""
    nodes = len(made.cluster.nodes)
    racks = [f"rack-{number}" for number in range((nodes + 15) // 16)]
    for number, rack in enumerate(racks):
        members = tuple(Members(name=f"n{row}") for row in range(number * 16, min(nodes, number * 16 + 16)))
        made.cluster.put_domain(DomainSpec(name=rack, tier=1, members=members))
    for number in range(0, len(racks), 16):
        members = tuple(Members(name=rack, are_domains=True) for rack in racks[number : number + 16])
        made.cluster.put_domain(DomainSpec(name=f"block-{number // 16}", tier=2, members=members))


def fill_up(made: World, *, leave: int = 0, has_guards: bool = False) -> None:
    """Have low-priority pods take all that is left of every node, but `leave` nodes; with guards, those of every second node are
    critical.
    """
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
                task_priority=CRITICAL if has_guards and row % 2 else 1,
                min_available=0,
                more=more,
            )


def contended(made: World, count: int) -> None:
    """More than fits, in queues of other weights: jobs that ask to enter before those that are in, gangs that do not fit whole,
    and a queue of jobs that started small and grow side by side.
    """
    for number in range(4):
        made.queue(f"w{number}", weight=1 + 2 * number)
    for number in range(count):
        size, is_in = 4 + number % 5, number % 3 > 0
        needs = amounts(cpu=4 * size, memory=8 * size)
        more = {"queue": f"w{number % 3}", "priority": number % 2 if is_in else 5, "min_resources": needs}
        phase = JobPhase.INQUEUE if is_in else JobPhase.PENDING
        made.job(f"k{number}", tasks=size, cpu=4, memory=8, constraints=WISHES[number // 3 % 4], more=more, phase=phase)
    for number in range(8):
        made.job(f"grows-{number}", tasks=count, min_available=1 + number, cpu=4, memory=8, more={"queue": "w3"})


def guarded(made: World, count: int) -> None:
    """A full cluster, the pods on every second node of which must not be evicted, and urgent pods."""
    fill_up(made, has_guards=True)
    urgent(made, count)


def urgent(made: World, count: int) -> None:
    """Gangs of higher priority than all that runs."""
    for number in range(count):
        made.job(f"h{number}", tasks=8, cpu=4, memory=8, gpu=1, task_priority=100, more={"priority": 100})
