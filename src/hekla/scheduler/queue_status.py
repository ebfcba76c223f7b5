"""What queues hold, told in their status: the leaf's own pods, and for queues above, those of all below.

`hekla.workloads.queue` keeps the rest of a queue's status; each writes its own fields.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from hekla.api.volcano import scheduling
from hekla.dialects.volcano import PAST_USE, past_use, past_use_text
from hekla.kube.commands import Patch, SetStatus, target_of
from hekla.placement.amounts import all_told
from hekla.placement.cluster import Cluster

PAST_PAUSE_S = 300.0
"""The same for what it had in the past, which a restart needs and nobody else."""

PAUSE_S = 1.0
"""Shortest time between two writes: Volcano tells once per session of a second."""


def allocated(cluster: Cluster) -> dict[str, Counter[str]]:
    """What each queue holds, all queues below it included; queues in a ring count for nobody above."""
    if cluster.ledger.parents:  # the ledger posts to those above already
        return {name: cluster.ledger.of(name).held for name in cluster.queues}
    totals: dict[str, Counter[str]] = {name: Counter() for name in cluster.queues}
    for name, held in cluster.held.items():
        for queue in _upwards(cluster, name):
            totals[queue].update(held)
    return totals


def queue_commands(cluster: Cluster, queues: Mapping[str, scheduling.Queue]) -> Iterator[SetStatus]:
    """The writes that make queues say what they hold."""
    for name, held in sorted(allocated(cluster).items()):
        queue = queues.get(name)
        if queue is None:
            continue
        before = {key: str(value) for key, value in queue.status.allocated.items()}
        after = all_told(held)
        if before != after:
            gone: dict[str, str | None] = dict.fromkeys(before.keys() - after.keys())
            yield SetStatus(target_of(queue), {"allocated": {**gone, **after}})


def past_commands(cluster: Cluster, queues: Mapping[str, scheduling.Queue]) -> Iterator[Patch]:
    """The writes by which queues remember what they had, where somebody asks for it: not more often than every few minutes."""
    clock = cluster.ledger.clock
    for name, queue in sorted(queues.items()) if clock is not None else ():
        had = cluster.ledger.of(name).had_by(clock.now_us) if clock is not None else {}
        _, at_us = past_use(queue)
        if clock is not None and any(had.values()) and clock.now_us - at_us >= PAST_PAUSE_S * 1e6:
            text = past_use_text(had, clock.now_us)
            yield Patch(target_of(queue), {"metadata": {"annotations": {PAST_USE: text}}})


def _upwards(cluster: Cluster, name: str) -> Iterator[str]:
    seen: set[str] = set()
    while name in cluster.queues and name not in seen:
        yield name
        seen.add(name)
        name = cluster.queues[name].parent
