"""Reconciles Queue: opens and closes it with its children, and puts it below `root`.

`queue_counters.py` counts what is in the queues; the scheduler writes what they hold.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.volcano import PodGroup, Queue
from hekla.api.volcano.bus import QUEUE_ORDERS_NAMESPACE, Action
from hekla.api.volcano.bus import Command as Order
from hekla.api.volcano.scheduling import QueueState as State
from hekla.kube.commands import Command, Delete, Event, Patch, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.workloads import keys
from hekla.workloads.queue_lifecycle import SHUT, Trigger, after, read

ROOT = "root"
DEFAULT_QUEUES: tuple[Document, ...] = tuple(
    {
        "apiVersion": Queue.kind_info.api_version,
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": {"weight": 1, "reclaimable": reclaimable},
    }
    for name, reclaimable in ((ROOT, False), ("default", True))
)
"""The queues that every cluster has; whoever starts the platform creates them."""

LOOK_AGAIN_S = 1.0
"""How often a queue that is closing looks whether it is empty."""


def _queue_of_order(order: Order) -> Iterator[tuple[str, str]]:
    if order.target is not None and order.target.kind == "Queue" and may_order_queues(order):
        yield "", order.target.name


def _parent_of(queue: Queue) -> Iterator[tuple[str, str]]:
    if queue.spec.parent:
        yield "", queue.spec.parent


@reconciler(Queue, reads=(PodGroup,), wakes={Order: _queue_of_order, Queue: _parent_of})
def reconcile_queue(queue: Queue, world: World, now: datetime) -> Iterator[Command]:
    """Bring one queue into the state that its orders, its parent and its gangs call for."""
    if queue.metadata.deletion_timestamp is not None:
        return
    if queue.metadata.name != ROOT and not queue.spec.parent:
        yield Patch(target_of(queue), {"spec": {"parent": ROOT}})
    order = next((one for one in world.list(Order) if _is_for(one, queue)), None)
    action = order.action if order is not None else ""
    state = _next_state(queue, world, action)
    if state != queue.status.state:
        yield SetStatus(target_of(queue), {"state": state})
    yield from _tell(queue, world, action)
    yield from _own_mark(queue, world, action)
    yield from _children(queue, state, world)
    if order is not None:
        # Last, unlike a job's: to open or close a queue twice is to do it once, and an order that fails midway is not lost.
        yield Delete(target_of(order), reason="taken")
    if state is State.CLOSING:
        yield RequeueAfter(LOOK_AGAIN_S)


def _next_state(queue: Queue, world: World, action: str) -> State:
    state = read(queue.status.state)
    if action == Action.CLOSE_QUEUE and queue.metadata.name != ROOT:
        return after(state, Trigger.CLOSE_EMPTY if _is_empty(queue, world) else Trigger.CLOSE_BUSY)
    if action == Action.OPEN_QUEUE and not _parent_is_shut(queue, world):
        return after(state, Trigger.OPEN)
    if state is State.CLOSING and _is_empty(queue, world):
        return after(state, Trigger.EMPTIED)
    return state


def _tell(queue: Queue, world: World, action: str) -> Iterator[Command]:
    """Say what became of an order."""
    name, target = queue.metadata.name, target_of(queue)
    if action == Action.CLOSE_QUEUE and name == ROOT:
        yield Event(target, "CloseQueue", "Root queue cannot be closed", "Warning")
    elif action == Action.CLOSE_QUEUE:
        yield Event(target, "CloseQueue", "Close queue succeed")
    elif action == Action.OPEN_QUEUE and _parent_is_shut(queue, world):
        told = (
            f"Failed to open queue {name} because its parent queue {queue.spec.parent} is closing or closed. "
            "Open the parent queue first."
        )
        yield Event(target, "OpenQueue", told, "Warning")


def _own_mark(queue: Queue, world: World, action: str) -> Iterator[Command]:
    """A queue that somebody closed or opened by hand no longer follows its parent.

    Volcano keeps the mark when a child is closed by hand, and so opens it with its parent against its user's will.
    """
    by_hand = action == Action.CLOSE_QUEUE or (action == Action.OPEN_QUEUE and not _parent_is_shut(queue, world))
    if by_hand and queue.metadata.annotations.get(keys.CLOSED_BY_PARENT) == "true":
        yield Patch(target_of(queue), {"metadata": {"annotations": {keys.CLOSED_BY_PARENT: "false"}}})


def _children(queue: Queue, state: State, world: World) -> Iterator[Command]:
    """Close open children with their parent, and open again exactly those."""
    for child in world.list(Queue):
        if child.spec.parent != queue.metadata.name or child.metadata.deletion_timestamp is not None:
            continue
        theirs = read(child.status.state)
        is_marked = child.metadata.annotations.get(keys.CLOSED_BY_PARENT) == "true"
        if state in SHUT and theirs not in SHUT:
            trigger = Trigger.CLOSE_EMPTY if _is_empty(child, world) else Trigger.CLOSE_BUSY
            # The mark goes first: a child that is shut without it would stay shut.
            yield _marked(child, "true")
            yield SetStatus(target_of(child), {"state": after(theirs, trigger)})
        elif state is State.OPEN and is_marked:
            # The mark goes last: a child that lost it and is still shut would stay shut.
            if theirs in SHUT:
                yield SetStatus(target_of(child), {"state": after(theirs, Trigger.OPEN)})
            yield _marked(child, "false")


def _marked(child: Queue, mark: str) -> Patch:
    return Patch(target_of(child), {"metadata": {"annotations": {keys.CLOSED_BY_PARENT: mark}}})


def may_order_queues(order: Order) -> bool:
    """Whether a Command lies where only those may make one who may order queues about."""
    return order.metadata.namespace == QUEUE_ORDERS_NAMESPACE


def _is_for(order: Order, queue: Queue) -> bool:
    target = order.target
    if target is None or not may_order_queues(order) or (target.kind, target.name) != ("Queue", queue.metadata.name):
        return False
    return target.uid in ("", queue.metadata.uid)


def _is_empty(queue: Queue, world: World) -> bool:
    return all(group.spec.queue != queue.metadata.name for group in world.list(PodGroup))


def _parent_is_shut(queue: Queue, world: World) -> bool:
    parent = world.get(Queue, "", queue.spec.parent) if queue.spec.parent else None
    return parent is not None and parent.metadata.name != ROOT and read(parent.status.state) in SHUT
