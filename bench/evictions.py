"""A storm: a thousand urgent pods come to a full cluster, and each is to get the room of somebody less urgent.

For each of them the nodes where room can be made are found by running sums over all who may go, the plug-ins are asked
on the best, and who goes and what is promised is decided; nothing is written. All default plug-ins, priorities and fair
shares at work; the same with two queues of which one has borrowed all.
"""

import time
from collections import Counter
from itertools import count

from bench.report import Report
from hekla.placement.model import JobSpec, TaskSpec, TaskStatus
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.testing.cluster import World, amounts, check

PLUGINS = (("priority", "gang", "conformance"), ("drf", "predicates", "proportion", "nodeorder", "binpack"))
GPUS = 8


def run(report: Report) -> None:
    """preempt and reclaim: as many urgent pods as there are nodes, on a cluster whose GPUs are all in use."""
    number = report.scaled(1000)
    for action, queue in (("preempt", "low"), ("reclaim", "high")):
        world = full_cluster(number, urgent=number, queue=queue)
        took_s, decided = timed(world, action)
        check(world.cluster)
        assert decided["Nominate"] == number, "every urgent pod is promised room"
        assert decided["Evict"] == number, "nobody goes in vain"
        report.add(f"{action}, {number:,} urgent pods on {number:,} nodes, {number * GPUS:,} candidates", took_s, "s")
        report.add("  per urgent pod", took_s * 1000 / number, "ms")


def full_cluster(nodes: int, *, urgent: int, queue: str) -> World:
    """Every GPU held by a pod that may go, spread over the nodes; and urgent pods that wait, in this queue."""
    world = World(plugins=PLUGINS)
    world.queue("low")
    world.queue("high")
    for number in range(nodes):
        world.node(f"n{number}", cpu=64, memory=256, gpu=GPUS)
    places = count()
    for number in range(nodes):
        job = world.cluster.put_job(JobSpec(uid=f"low{number}", name=f"low{number}", queue="low", min_available=0))
        for _ in range(GPUS):
            place = next(places)
            world.cluster.put_task(_task(f"low{number}-{place}", node=f"n{place % nodes}", started=float(place)), job)
    for number in range(urgent):
        spec = JobSpec(uid=f"high{number}", name=f"high{number}", queue=queue, priority=10, created=float(number))
        world.cluster.put_task(_task(f"high{number}-0"), world.cluster.put_job(spec))
    return world


def timed(world: World, action: str) -> tuple[float, Counter[str]]:
    """One cycle of one action; how long it took, and its decisions by kind."""
    session = Session(world.policy, now=0.0, wall_s=1e6)
    begun = time.perf_counter()
    decided = Counter(type(decision).__name__ for decision in action_named(action)(session))
    return time.perf_counter() - begun, decided


def _task(name: str, *, node: str = "", started: float | None = None) -> TaskSpec:
    status = TaskStatus.RUNNING if node else TaskStatus.PENDING
    request = amounts(cpu=8, memory=32, gpu=1)
    return TaskSpec(uid=name, name=name, request=request, node=node, status=status, started=started)
