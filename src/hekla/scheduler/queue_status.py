"""What queues hold, told in their status: the leaf's own pods, and for queues above, those of all below.

`hekla.workloads.queue` keeps the rest of a queue's status; each writes its own fields.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from hekla.api.volcano import scheduling
from hekla.kube.commands import SetStatus, target_of
from hekla.placement.amounts import all_told
from hekla.placement.cluster import Cluster

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


def _upwards(cluster: Cluster, name: str) -> Iterator[str]:
    seen: set[str] = set()
    while name in cluster.queues and name not in seen:
        yield name
        seen.add(name)
        name = cluster.queues[name].parent
