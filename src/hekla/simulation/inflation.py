"""How many GPUs can a cluster give away? Pods arrive until more is asked for than there is; none of them ends.

The experiment of the FGD paper: the trace's pods in random order, then pods drawn from it again, each of which is
placed at once or never. What is allocated, and lost to fragmentation, is told for each percent of the cluster's GPUs
that has been asked for.

Nodes that are equals are taken in an order that is drawn per run, as the authors' simulator does by putting a random number
in front of their names. In the order of the trace, where like nodes stand together, FGD allocates up to 1.7 points less.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from hekla.placement.cluster import DEFAULT_QUEUE, Cluster
from hekla.placement.columns import NodeSpec
from hekla.placement.devices.shares import GPU_MILLI
from hekla.placement.model import JobSpec, TaskSpec
from hekla.placement.plugins.fgd import Fgd, PodKind
from hekla.placement.policy import Policy, Tiers
from hekla.placement.queue import Queue
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.simulation.openb import MODEL_LABEL


@dataclass(frozen=True)
class Curve:
    """By percent asked for: percent of the GPUs allocated, and percent that is free and of no use to the mix."""

    allocated: tuple[float, ...]
    lost: tuple[float, ...]
    pods: int
    """How many pods came."""


def inflate(
    nodes: Sequence[NodeSpec], pods: Sequence[TaskSpec], tiers: Tiers, mix: tuple[PodKind, ...], *,
    seed: int, until: float = 1.3,
) -> Curve:  # fmt: skip
    """Let pods arrive until `until` times the cluster's GPUs are asked for; the same seed brings the same pods and ties."""
    total = sum(spec.allocatable.get(GPU_MILLI, 0) for spec in nodes)
    return fill(nodes, arrivals(pods, total, seed=seed, until=until), tiers, mix, ties=seed + 1)


def fill(
    nodes: Sequence[NodeSpec], arriving: Iterator[TaskSpec], tiers: Tiers, mix: tuple[PodKind, ...], *, ties: int = 0
) -> Curve:
    """Let these pods arrive. Of nodes that are equals the first by name is taken, or as `ties` draws if it is not 0."""
    cluster = Cluster(seed=ties)
    cluster.put_queue(Queue(name=DEFAULT_QUEUE))
    for spec in nodes:
        cluster.put_node(spec)
    policy, judge = Policy(cluster, tiers), Fgd(workload=mix, model_label=MODEL_LABEL)
    total = cluster.nodes.total(GPU_MILLI)
    allocated, lost, number = [0.0], [judge.lost(cluster.nodes)], 0
    for percent in _by_percent(arriving, total):
        _place(policy, percent, number)
        number += len(percent)
        allocated.append(100.0 * cluster.nodes.total_used(GPU_MILLI) / total)
        lost.append(judge.lost(cluster.nodes))
    return Curve(tuple(allocated), tuple(100.0 * part / total for part in lost), number)


def arrivals(pods: Sequence[TaskSpec], total: int, *, seed: int, until: float) -> Iterator[TaskSpec]:
    """The trace's pods in random order, then some of them again, as long as they ask for no more than `until` totals."""
    dice, asked = np.random.default_rng(seed), 0
    for index in dice.permutation(len(pods)).tolist():
        asked += pods[index].request.get(GPU_MILLI, 0)
        yield pods[index]
    while True:
        pod = pods[int(dice.integers(len(pods)))]
        asked += pod.request.get(GPU_MILLI, 0)
        if asked > until * total:
            return
        yield pod


def _by_percent(pods: Iterator[TaskSpec], total: int) -> Iterator[list[TaskSpec]]:
    """Pods in runs, each of which brings what has been asked for to one percent more of the total."""
    run, asked, percent = list[TaskSpec](), 0, 1
    for pod in pods:
        run.append(pod)
        asked += pod.request.get(GPU_MILLI, 0)
        while asked * 100 >= percent * total:
            yield run
            run, percent = [], percent + 1


def _place(policy: Policy, pods: Sequence[TaskSpec], number: int) -> None:
    """Place pods one after the other; those that find no node go."""
    cluster = policy.cluster
    for place, pod in enumerate(pods, start=number):
        uid = f"p{place}"
        job = cluster.put_job(JobSpec(uid=uid, name=uid, created=float(place), has_group=False))
        cluster.put_task(replace(pod, uid=uid, name=uid), job)
    for _ in action_named("allocate")(Session(policy)):
        pass
    for place in range(number, number + len(pods)):
        if cluster.tasks[f"p{place}"].row < 0:
            cluster.remove_job(f"p{place}")
