"""Pods are told once, by whoever tells them first: the store before they are durable, or the informer after."""

import asyncio
from collections.abc import Callable

import pytest

from hekla.api.meta import ObjectMeta
from hekla.api.pods import Pod
from hekla.scheduler.foresight import Foresight
from hekla.testing.virtual_time import run


class Seen:
    """What `Foresight` needs of an informer: when it has seen a revision."""

    def __init__(self, resource_version: str = "") -> None:
        self.resource_version = resource_version
        self.waiting: list[tuple[int, Callable[[], None]]] = []

    def when_seen(self, revision: int, callback: Callable[[], None]) -> None:
        self.waiting.append((revision, callback))

    def advance(self, revision: int) -> None:
        for wanted, callback in self.waiting:
            if wanted <= revision:
                callback()


def pod(uid: str, revision: int) -> Pod:
    return Pod(metadata=ObjectMeta(name=uid, namespace="ml", uid=uid, resource_version=str(revision)))


class World:
    def __init__(self) -> None:
        self.changes: list[tuple[Pod | None, Pod | None]] = []
        self.unforgettable = ""
        self.foresight, self.informer = Foresight(), Seen()
        self.tell = self.foresight.in_front_of(self.heard)
        self.nodes = Seen("5")
        self.foresight.begin(self.informer, {"nodes": self.nodes})

    def heard(self, old: Pod | None, new: Pod | None) -> None:
        if new is not None and new.metadata.name == "bad":
            raise ValueError("cannot be read")
        if new is None and old is not None and old.metadata.name == self.unforgettable:
            raise ValueError("cannot be forgotten")
        self.changes.append((old, new))


def in_a_loop(story: Callable[[World], None]) -> None:
    async def told() -> None:
        story(World())

    run(told())


def test_a_pod_is_told_once():
    def story(here: World) -> None:
        first = pod("a", 7)
        here.foresight.created([first], {})
        here.tell(None, pod("a", 7))
        here.informer.advance(7)
        assert here.changes == [(None, first)]

    in_a_loop(story)


def test_a_pod_that_changed_before_the_informer_told_of_it_has_changed():
    def story(here: World) -> None:
        first, second = pod("a", 7), pod("a", 9)
        here.foresight.created([first], {})
        here.tell(None, second)
        here.tell(second, None)
        assert here.changes == [(None, first), (first, second), (second, None)]

    in_a_loop(story)


def test_a_pod_that_went_while_nobody_could_tell_is_gone():
    """An informer that has to list anew never hears of it."""

    def story(here: World) -> None:
        ghost, other = pod("ghost", 7), pod("b", 8)
        here.foresight.created([ghost, other], {})
        here.tell(None, other)
        here.informer.advance(7)
        assert here.changes[2:] == []
        here.informer.advance(8)
        assert here.changes[2:] == [(ghost, None)]

    in_a_loop(story)


def test_what_the_disk_refused_is_gone_and_may_come_again():
    def story(here: World) -> None:
        first, again = pod("a", 7), pod("c", 9)
        here.foresight.created([first], {})
        here.foresight.undone(["a", "unknown"])
        here.foresight.created([again], {})
        here.tell(None, again)
        here.informer.advance(9)
        assert here.changes == [(None, first), (first, None), (None, again)]

    in_a_loop(story)


def test_a_pod_that_cannot_be_taken_in_keeps_no_other_from_it():
    def story(here: World) -> None:
        good, bad = pod("good", 8), pod("bad", 7)
        assert here.foresight.created([bad, good], {}) is not None
        assert here.changes == [(bad, None), (None, good)], "what was taken in of it by half is taken back"
        with pytest.raises(ValueError, match="cannot be read"):
            here.tell(None, bad)

    in_a_loop(story)


def test_nobody_waits_for_a_scheduler_that_still_reads():
    async def told() -> None:
        assert Foresight().created([pod("a", 7)], {}) is None

    run(told())


def test_a_pod_is_not_told_before_what_is_older_is_known():
    def story(here: World) -> None:
        assert here.foresight.created([pod("a", 7)], {"nodes": 6}) is None
        assert here.foresight.created([pod("a", 7)], {"nodes": 5, "kinds.unknown": 1}) is None
        assert here.changes == []
        here.nodes.resource_version = "6"
        assert here.foresight.created([pod("a", 7)], {"nodes": 6}) is not None
        assert [new.metadata.uid for _, new in here.changes] == ["a"]

    in_a_loop(story)


def test_what_cannot_be_forgotten_keeps_no_other_from_it():
    def story(here: World) -> None:
        first, second = pod("a", 7), pod("b", 8)
        here.foresight.created([first, second], {})
        here.unforgettable = "a"
        here.informer.advance(8)
        assert here.changes[2:] == [(second, None)]
        assert list(here.foresight.pods) == []

    in_a_loop(story)


def test_who_waits_is_answered_a_turn_after_the_cycle_and_nobody_waits_for_two():
    async def told() -> None:
        here = World()
        answered = here.foresight.created([pod("a", 7)], {})
        assert answered is not None
        assert here.foresight.created([pod("b", 8)], {}) is None
        assert len(here.changes) == 2
        here.foresight.after_cycle()
        assert not answered.done()
        cancelled = here.foresight.created([pod("c", 9)], {})
        assert cancelled is not None
        cancelled.cancel()
        here.foresight.after_cycle()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert answered.done()

    run(told())
