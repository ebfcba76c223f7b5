from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.api.volcano import PodGroup, Queue
from hekla.api.volcano.bus import Command as Order
from hekla.api.volcano.scheduling import QueueState
from hekla.kube.commands import RequeueAfter
from hekla.testing.job_world import NOW
from hekla.testing.reconcilers import assert_converges, converge, decide, writes
from hekla.testing.world import FakeWorld
from hekla.workloads.queue import DEFAULT_QUEUES, reconcile_queue
from hekla.workloads.queue_counters import reconcile_queue_counters
from hekla.workloads.queue_lifecycle import TRANSITIONS, Trigger, after, diagram, read

MARK = "volcano.sh/closed-by-parent"


def queue(name: str, parent: str = "root", state: str = "Open", mark: str = "") -> Document:
    document: Document = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": name, **({"annotations": {MARK: mark}} if mark else {})},
        "spec": {"parent": parent} if parent else {},
    }
    return {**document, "status": {"state": state}} if state else document


def group(name: str, queue_name: str, phase: str = "Running") -> Document:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {"queue": queue_name},
        "status": {"phase": phase},
    }


def order(action: str, name: str) -> Document:
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": name, "uid": f"uid-{name}"}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": "order", "namespace": "ml"},
        "action": action,
        "target": {**target, "uid": ""},
    }


def settled(world: FakeWorld) -> dict[str, str]:
    """Every queue's state when all queues have been looked at until nothing changes."""
    for _ in range(4):
        for one in world.list(Queue):
            converge(reconcile_queue, world, "", one.metadata.name, now=NOW)
    return {one.metadata.name: one.status.state for one in world.list(Queue)}


def test_a_new_queue_is_open_and_hangs_below_root() -> None:
    world = FakeWorld(*DEFAULT_QUEUES, queue("ml", parent="", state=""))
    assert settled(world) == {"root": "Open", "default": "Open", "ml": "Open"}
    assert {one.metadata.name: one.spec.parent for one in world.list(Queue)} == {
        "root": "", "default": "root", "ml": "root",
    }  # fmt: skip


def test_a_queue_that_is_closed_empties_first() -> None:
    world = FakeWorld(queue("root", ""), queue("ml"), group("g", "ml"), order("CloseQueue", "ml"))
    assert settled(world)["ml"] == "Closing"
    assert world.list(Order) == []
    assert RequeueAfter(1.0) in decide(reconcile_queue, world, "", "ml", now=NOW)
    world.remove(PodGroup, "ml", "g")
    assert settled(world)["ml"] == "Closed"


def test_closing_a_parent_closes_its_children_and_opening_it_opens_exactly_those() -> None:
    tree = [queue("root", ""), queue("org"), queue("a", "org"), queue("b", "org", "Closed"), queue("aa", "a")]
    world = FakeWorld(*tree, order("CloseQueue", "org"))
    assert settled(world) == {"root": "Open", "org": "Closed", "a": "Closed", "b": "Closed", "aa": "Closed"}
    assert world.get(Queue, "", "a").metadata.annotations == {MARK: "true"}  # type: ignore[union-attr]  # it exists
    world.put(order("OpenQueue", "org"))
    assert settled(world) == {"root": "Open", "org": "Open", "a": "Open", "b": "Closed", "aa": "Open"}


def test_a_child_that_was_closed_by_hand_stays_closed_when_its_parent_opens() -> None:
    world = FakeWorld(
        queue("root", ""), queue("org", state="Closed"), queue("a", "org", "Closed", "true"), order("CloseQueue", "a")
    )
    settled(world)
    world.put(order("OpenQueue", "org"))
    assert settled(world)["a"] == "Closed"


def test_a_child_cannot_be_opened_below_a_closed_parent() -> None:
    world = FakeWorld(
        queue("root", ""), queue("org", state="Closed"), queue("a", "org", "Closed", "true"), order("OpenQueue", "a")
    )
    assert settled(world)["a"] == "Closed"
    assert world.events[-1].message == (
        "Failed to open queue a because its parent queue org is closing or closed. Open the parent queue first."
    )


def test_the_root_queue_cannot_be_closed() -> None:
    world = FakeWorld(queue("root", ""), order("CloseQueue", "root"))
    assert settled(world) == {"root": "Open"}
    assert world.events[-1].message == "Root queue cannot be closed"


def test_a_state_that_nobody_knows_is_unknown_and_can_be_left() -> None:
    world = FakeWorld(queue("root", ""), queue("ml", state="Ajar"))
    assert settled(world)["ml"] == "Unknown"
    world.put(order("OpenQueue", "ml"))
    assert settled(world)["ml"] == "Open"


def test_gangs_are_counted_by_queue_and_phase_in_one_pass() -> None:
    gangs = [group("a", "ml"), group("b", "ml", "Pending"), group("c", "ml", "Inqueue"), group("d", "default", "")]
    world = FakeWorld(queue("root", ""), queue("ml"), queue("default"), *gangs)
    converge(reconcile_queue_counters, world, "", "root", now=NOW)
    ml, default = world.get(Queue, "", "ml"), world.get(Queue, "", "default")
    assert ml is not None
    assert default is not None
    assert (ml.status.running, ml.status.pending, ml.status.inqueue, ml.status.completed) == (1, 1, 1, 0)
    assert default.status.pending == 1
    world.remove(PodGroup, "ml", "a")
    converge(reconcile_queue_counters, world, "", "root", now=NOW)
    assert world.get(Queue, "", "ml").status.running == 0  # type: ignore[union-attr]  # it exists
    assert decide(reconcile_queue_counters, world, "", "ml", now=NOW) == []


@pytest.mark.parametrize("state", ["Open", "Closed", "Closing", "Unknown", ""])
@pytest.mark.parametrize("action", ["OpenQueue", "CloseQueue", ""])
@pytest.mark.parametrize("gangs", [0, 1])
def test_every_state_comes_to_rest_after_every_order(state: str, action: str, gangs: int) -> None:
    objects: list[Any] = [queue("root", ""), queue("ml", state=state)]
    objects += [group("g", "ml")] * gangs + ([order(action, "ml")] if action else [])
    world = FakeWorld(*objects)
    assert_converges(reconcile_queue, world, "", "ml", now=NOW)
    shut = "Closing" if gangs else "Closed"
    expected = {"OpenQueue": "Open", "CloseQueue": shut, "": state or "Open"}[action]
    if state in ("Closed", "Closing") and action != "OpenQueue":
        expected = "Closed" if state == "Closed" else shut
    assert world.get(Queue, "", "ml").status.state == expected  # type: ignore[union-attr]  # it exists


def test_the_table_knows_every_state() -> None:
    assert set(TRANSITIONS) == set(QueueState)
    assert after(QueueState.CLOSED, Trigger.EMPTIED) is QueueState.CLOSED
    assert read("") is QueueState.OPEN
    assert "Closing --> Closed: its last gang leaves" in diagram()


def test_a_settled_tree_needs_nothing() -> None:
    world = FakeWorld(queue("root", ""), queue("org"), queue("a", "org"))
    settled(world)
    assert not any(writes(decide(reconcile_queue, world, "", name, now=NOW)) for name in ("root", "org", "a"))
