"""Removes Commands that nobody will carry out: their Job or Queue is gone, or is another of the same name; or they order a Queue from a
namespace whose users may not.

`job.py` and `queue.py` delete those that they carry out.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.volcano import Job, Queue
from hekla.api.volcano.bus import QUEUE_ORDERS_NAMESPACE
from hekla.api.volcano.bus import Command as Order
from hekla.kube.commands import Command, Delete, Event, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.workloads.job_status import parsed_time
from hekla.workloads.queue import may_order_queues

PATIENCE_S = 60.0
"""How long a Command waits for its target, which may be newer than what this process has seen."""

OUT_OF_PLACE = f'a Command for a Queue is heeded in namespace "{QUEUE_ORDERS_NAMESPACE}" alone, where `hekla queue operate` makes it'


@reconciler(Order, reads=(Job, Queue))
def reconcile_command(order: Order, world: World, now: datetime) -> Iterator[Command]:
    """Delete a Command whose target is not there."""
    if order.metadata.deletion_timestamp is not None or _has_target(order, world):
        return
    if _is_out_of_place(order):
        yield Event(target_of(order), "CommandRefused", OUT_OF_PLACE, "Warning")
        yield Delete(target_of(order), reason="queues are ordered from another namespace")
        return
    created = order.metadata.creation_timestamp
    left = PATIENCE_S - (now - parsed_time(created)).total_seconds() if created else 0.0
    if left > 0:
        yield RequeueAfter(left)
    else:
        yield Delete(target_of(order), reason="its target does not exist")


def _is_out_of_place(order: Order) -> bool:
    return order.target is not None and order.target.kind == "Queue" and not may_order_queues(order)


def _has_target(order: Order, world: World) -> bool:
    target = order.target
    if target is None:
        return False
    found: Job | Queue | None = None
    if target.kind == "Job":
        found = world.get(Job, order.metadata.namespace, target.name)
    elif target.kind == "Queue":
        found = world.get(Queue, "", target.name) if may_order_queues(order) else None
    return found is not None and target.uid in ("", found.metadata.uid)
