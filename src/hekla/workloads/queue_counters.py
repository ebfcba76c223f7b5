"""Counts the gangs of every queue by phase, once a second for all queues together.

A count per change would read all gangs for each of them; Volcano gave up counting for that reason. One pass a second costs
the same for one queue as for a thousand, and hangs on the `root` queue, which every cluster has.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from hekla.api.volcano import PodGroup, Queue
from hekla.kube.commands import Command, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler

EVERY_S = 1.0
_FIELDS = ("Pending", "Inqueue", "Running", "Unknown", "Completed")


@reconciler(Queue, reads=(PodGroup,), name="queue-counters")
def reconcile_queue_counters(queue: Queue, world: World, now: datetime) -> Iterator[Command]:
    """For the root queue: bring the counts of all queues up to date."""
    if queue.metadata.name != "root":
        return
    there = Counter((group.spec.queue, group.status.phase or "Pending") for group in world.list(PodGroup))
    for one in world.list(Queue):
        counted = {phase: there[one.metadata.name, phase] for phase in _FIELDS}
        changed = {
            phase.lower(): count for phase, count in counted.items() if count != getattr(one.status, phase.lower())
        }
        if changed:
            yield SetStatus(target_of(one), changed)
    yield RequeueAfter(EVERY_S)
