"""A million pods of one shape: what a cycle does is counted, not timed, and does not grow with who waits in vain."""

import sys
from types import FrameType
from typing import Any

import pytest

from hekla.testing.cluster import World

FEW, MANY = 500, 4000


class Calls:
    """Counts the calls of functions of the engine within a block."""

    def __enter__(self) -> "Calls":
        self.count = 0
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        self.count += event == "call" and frame.f_globals.get("__name__", "").startswith("hekla.placement")


def world(pods: int, least: int) -> World:
    made = World()
    made.node("n1", cpu=4)
    made.node("n2", cpu=4)
    made.job("many", tasks=pods, min_available=least, cpu=1)
    return made


def decide(made: World) -> int:
    from hekla.placement.registry import action_named
    from hekla.placement.session import Session

    with Calls() as calls:
        session = Session(made.policy)
        for name in ("enqueue", "allocate", "backfill"):
            for _ in action_named(name)(session):
                pass
    return calls.count


@pytest.mark.parametrize("least", [1, 20], ids=["elastic", "gang that does not fit"])
def test_a_cycle_in_which_nothing_has_changed_does_not_look_at_each_pod(least: int) -> None:
    few, many = world(FEW, least), world(MANY, least)
    decide(few), decide(many)
    assert decide(many) <= decide(few) + 10


@pytest.mark.parametrize("least", [1, 20], ids=["elastic", "gang that does not fit"])
def test_the_first_cycle_asks_the_kernels_no_more_often(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from hekla.placement.kernels import twin

    asked = dict[int, int]()
    for pods in (FEW, MANY):
        asked[pods] = 0
        for name in ("place_one", "score", "build", "repair", "place_run", "place_stream"):
            monkeypatch.setattr(twin, name, counted(asked, pods, getattr(twin, name)))
        made = world(pods, least)
        decide(made)
        monkeypatch.undo()
    assert 0 < asked[MANY] == asked[FEW]


def counted(asked: dict[int, int], pods: int, kernel: Any) -> Any:
    def call(*arguments: Any) -> Any:
        asked[pods] += 1
        return kernel(*arguments)

    return call


def test_who_waits_has_one_reason_however_many_they_are() -> None:
    made = world(MANY, MANY)
    assert made.schedule() == {}
    assert made.why("many") == "0/2 nodes are available: 2 Insufficient cpu."
