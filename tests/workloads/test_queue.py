from collections.abc import Callable
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.api.volcano import PodGroup, Queue
from hekla.api.volcano.bus import Command as Order
from hekla.api.volcano.scheduling import QueueState
from hekla.kube.commands import Command, Delete, Event, Patch, RequeueAfter, SetStatus
from hekla.testing.job_world import NOW
from hekla.testing.reconcilers import (
    assert_converges,
    assert_heals,
    assert_touches_only_its_own,
    converge,
    decide,
    writes,
)
from hekla.testing.world import FakeWorld
from hekla.workloads.command import reconcile_command
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


def order(action: str, name: str, *, namespace: str = "default") -> Document:
    target = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "name": name, "uid": f"uid-{name}"}
    return {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": "order", "namespace": namespace},
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


def test_a_queue_is_not_closed_by_who_may_edit_some_namespace() -> None:
    """On a cluster with our roles a user of `edit` in one namespace closed the queue of all by a Command there."""
    world = FakeWorld(queue("root"), queue("ml"), order("CloseQueue", "ml", namespace="team"))
    assert settled(world)["ml"] == "Open"
    [word, gone] = decide(reconcile_command, world, "team", "order", now=NOW)
    assert isinstance(word, Event)
    assert word.reason == "CommandRefused"
    assert isinstance(gone, Delete)
    assert (
        decide(reconcile_command, FakeWorld(queue("ml"), order("CloseQueue", "ml")), "default", "order", now=NOW) == []
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


# ---- the three properties

PROPERTY_WORLDS: dict[str, Callable[[], FakeWorld]] = {
    "new": lambda: FakeWorld(queue("root", ""), queue("ml", parent="", state="")),
    "closed by order": lambda: FakeWorld(queue("root", ""), queue("ml"), group("g", "ml"), order("CloseQueue", "ml")),
    "opened by order": lambda: FakeWorld(
        queue("root", ""), queue("ml", state="Closed", mark="true"), order("OpenQueue", "ml")
    ),
    "closed with children": lambda: FakeWorld(
        queue("root", ""),
        queue("ml"),
        queue("a", "ml"),
        queue("b", "ml", "Closed"),
        queue("z"),
        order("CloseQueue", "ml"),
    ),
    "opened with children": lambda: FakeWorld(
        queue("root", ""),
        queue("ml", state="Closed"),
        queue("a", "ml", "Closed", mark="true"),
        order("OpenQueue", "ml"),
    ),
    "emptied": lambda: FakeWorld(queue("root", ""), queue("ml", state="Closing")),
}


@pytest.mark.parametrize("case", PROPERTY_WORLDS)
def test_a_queue_comes_to_rest_heals_and_touches_only_itself_its_children_and_its_orders(case: str) -> None:
    make = PROPERTY_WORLDS[case]
    world = make()

    def may_touch(command: Command) -> bool:
        assert isinstance(command, Patch | SetStatus | Delete)
        target = command.target
        if target.kind is Order:
            return isinstance(command, Delete)
        child = world.get(Queue, "", target.name)
        return target.kind is Queue and child is not None and child.spec.parent == "ml"

    assert_converges(reconcile_queue, make(), "", "ml", now=NOW)
    assert_heals(reconcile_queue, make, "", "ml", now=NOW)
    assert_touches_only_its_own(reconcile_queue, world, "", "ml", now=NOW, may_touch=may_touch)


def test_counters_come_to_rest_heal_and_touch_nothing_but_counts() -> None:
    def make() -> FakeWorld:
        return FakeWorld(
            queue("root", ""), queue("a"), queue("b"), group("g", "a"), group("h", "b", "Inqueue"), group("i", "a", "")
        )

    def is_count(command: Command) -> bool:
        counts = {"pending", "inqueue", "running", "unknown", "completed"}
        return isinstance(command, SetStatus) and command.target.kind is Queue and command.status.keys() <= counts

    assert_converges(reconcile_queue_counters, make(), "", "root", now=NOW)
    assert_heals(reconcile_queue_counters, make, "", "root", now=NOW)
    assert_touches_only_its_own(reconcile_queue_counters, make(), "", "root", now=NOW, may_touch=is_count)
    assert decide(reconcile_queue_counters, make(), "", "a", now=NOW) == []
