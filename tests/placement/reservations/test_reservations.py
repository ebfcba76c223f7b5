"""Reservations beside pods that are leaving: these are counted on, and what they leave is not given away past a reservation."""

from typing import Any

import pytest

from hekla.placement.constraint import Constraints, HostPort
from hekla.placement.model import Job, JobPhase, TaskStatus
from hekla.placement.reservations import book
from hekla.placement.reservations.forecast import expected_start
from hekla.placement.reservations.forecast_equal_pods import Expected
from hekla.placement.reservations.planning_budget import AGAIN_S, MOST_PLANS
from hekla.placement.session import Session
from hekla.testing.cluster import World, amounts

PLUGINS = (("priority", "gang", "reservation"), ("predicates", "nodeorder"))


def world_in_which_somebody_leaves() -> World:
    """On n1 a pod runs that ends in 100 s; on n2 one was told to go."""
    world = World(plugins=PLUGINS)
    for name in ("n1", "n2"):
        world.node(name, cpu=4)
    world.running("r1", "n1", cpu=4, more={"estimate_s": 100.0})
    gone = world.running("r2", "n2", cpu=2)
    world.cluster.put_state(gone, TaskStatus.RELEASING, "n2")
    return world


def test_a_pod_that_was_told_to_go_is_expected_to_be_gone_though_nobody_said_how_long_it_runs() -> None:
    world = world_in_which_somebody_leaves()
    world.job("big", tasks=8, cpu=1)
    world.schedule()
    assert sorted(world.cluster.reservations["big"].rooms) == ["n1", "n2"]


def test_what_somebody_leaves_is_not_promised_past_a_reservation() -> None:
    world = world_in_which_somebody_leaves()
    world.job("big", tasks=8, cpu=1, more={"priority": 1})
    world.schedule()
    late = world.job("late", tasks=3, cpu=1, more={"estimate_s": 900.0})
    world.schedule()
    assert late.statuses[TaskStatus.PIPELINED] == 0


def test_who_is_gone_before_may_be_promised_it() -> None:
    world = world_in_which_somebody_leaves()
    world.job("big", tasks=8, cpu=1, more={"priority": 1})
    world.schedule()
    soon = world.job("soon", tasks=3, cpu=1, more={"estimate_s": 5.0})
    world.schedule()
    assert soon.statuses[TaskStatus.PIPELINED] == 3


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were planned, one entry each time."""
    names: list[str] = []

    def noted(session: Session, job: Job, *more: Any) -> Expected | None:
        names.append(job.uid)
        return expected_start(session, job, *more)

    monkeypatch.setattr(book, "expected_start", noted)
    return names


def test_gangs_alike_that_never_fit_are_planned_once_in_a_cycle(planned: list[str]) -> None:
    world = world_in_which_somebody_leaves()
    for number in range(5):
        world.job(f"wide{number}", tasks=20, cpu=1)
    world.schedule()
    assert len(planned) == 1
    world.job("other", tasks=19, cpu=1)
    world.schedule()
    assert planned == ["wide0", "other"], "nothing has changed for the others"


def test_gangs_alike_at_the_door_are_planned_once_too(planned: list[str]) -> None:
    world = World(plugins=(("gang", "reservation"), ("overcommit", "predicates")))
    world.node("n1", cpu=4)
    world.running("r1", "n1", cpu=4, more={"estimate_s": 100.0})
    outside: dict[str, Any] = {"phase": JobPhase.PENDING, "min_available": 20}
    for number in range(5):
        world.job(f"wide{number}", tasks=0, more={"min_resources": amounts(cpu=20)}, **outside)
    world.schedule()
    assert len(planned) == 1


def test_gangs_that_differ_in_their_roles_are_planned_each(planned: list[str]) -> None:
    world = world_in_which_somebody_leaves()
    for name, leaders in (("one", 1), ("two", 2)):
        job = world.job(name, tasks=0, min_available=20, more={"role_minimums": {"leader": leaders}})
        world.tasks(job, leaders, role="leader", cpu=2)
        world.tasks(job, 20 - leaders, role="worker", cpu=1)
    world.schedule()
    assert sorted(planned) == ["one", "two"]


def asks_for_another_cycle(world: World) -> bool:
    again = world.session.look_again_at
    return again is not None and again <= world.session.wall_s + AGAIN_S


def test_of_gangs_that_all_differ_a_few_are_planned_in_a_cycle_and_each_in_turn(planned: list[str]) -> None:
    world = world_in_which_somebody_leaves()
    for number in range(30):
        world.job(f"wide{number:02}", tasks=20 + number, cpu=1)
    counts = []
    while not counts or asks_for_another_cycle(world):
        before = len(planned)
        world.schedule()
        counts.append(len(planned) - before)
    assert max(counts) == MOST_PLANS
    assert len(set(planned)) == 30
    planned.clear()
    for _ in range(15):
        world.schedule()
    assert planned == [], "there would not be room for them when all have ended"


def test_of_gangs_that_would_have_the_room_but_do_not_fit_some_are_planned_again_in_each_cycle(
    planned: list[str],
) -> None:
    world = world_in_which_somebody_leaves()
    for number in range(10):
        one_a_node = Constraints(ports=(HostPort("TCP", 80 + number),))
        world.job(f"apart{number}", tasks=3, cpu=1 + number / 1000, constraints=one_a_node)
    for _ in range(4):
        world.schedule()
    planned.clear()
    for _ in range(5):
        world.schedule()
    assert sorted(planned) == sorted(world.cluster.jobs.keys() - {"r1", "r2"}), "once each in five cycles"


def test_who_fits_once_a_node_has_joined_has_room_kept_in_the_next_cycle() -> None:
    world = world_in_which_somebody_leaves()
    for number in range(60):
        world.job(f"wide{number:02}", tasks=20 + number, cpu=1)
    world.job("tall", tasks=8, cpu=1.5)
    for _ in range(12):
        world.schedule()
    assert world.cluster.reservations == {}
    assert "tall" in world.cluster.out_of_reach
    world.node("n3", cpu=6)
    world.running("r3", "n3", cpu=6, more={"estimate_s": 100.0})
    world.schedule()
    assert world.cluster.reservations.keys() == {"tall"}


def test_a_gang_that_may_fit_by_now_has_room_kept_though_many_never_will() -> None:
    world = world_in_which_somebody_leaves()
    for number in range(30):
        world.job(f"wide{number:02}", tasks=20 + number, cpu=1)
    world.job("big", tasks=8, cpu=1, more={"priority": -1})
    world.running("r3", "n2", cpu=2)  # who knows for how long
    for _ in range(10):
        world.schedule()
    assert "big" in world.cluster.out_of_reach
    world.finish("r3-0")
    world.schedule()
    assert world.cluster.reservations.keys() == {"big"}


def test_the_heads_of_strict_queues_have_their_turns_too(planned: list[str]) -> None:
    world = world_in_which_somebody_leaves()
    for number in range(12):
        world.queue(f"line{number}", is_strict=True)
        world.job(f"wide{number:02}", tasks=20 + number, cpu=1, more={"queue": f"line{number}"})
    for number in range(12, 24):
        world.job(f"wide{number:02}", tasks=20 + number, cpu=1)
    for _ in range(10):
        world.cluster.gains += 1
        world.schedule()
    assert len(set(planned)) == 24


def test_a_reservation_moves_when_somebody_is_late_though_nothing_else_happens() -> None:
    world = World(plugins=PLUGINS)
    for name in ("n1", "n2"):
        world.node(name, cpu=4)
    world.running("r1", "n1", cpu=4, more={"estimate_s": 100.0})
    world.job("big", tasks=8, cpu=1)
    world.schedule()
    start_s = world.cluster.reservations["big"].start_s
    world.tell_time(start_s + 1)
    world.schedule()
    moved_to_s = world.cluster.reservations["big"].start_s
    assert moved_to_s > start_s + 60
    assert world.session.look_again_at == moved_to_s


def test_a_gang_with_roles_that_is_late_waits_where_it_was_to_start() -> None:
    world = World(plugins=PLUGINS)
    for name in ("n1", "n2"):
        world.node(name, cpu=4)
    world.running("r1", "n1", cpu=2, more={"estimate_s": 100.0})
    world.running("r2", "n1", cpu=2, more={"estimate_s": 100.0})
    world.running("other", "n2", cpu=4, more={"estimate_s": 150.0})
    job = world.job("big", tasks=0, min_available=2, more={"role_minimums": {"leader": 1, "worker": 1}})
    world.tasks(job, 1, role="leader", cpu=2)
    world.tasks(job, 1, role="worker", cpu=1.5)
    world.schedule()
    told_s = world.cluster.reservations["big"].start_s
    world.tell_time(told_s + 1)
    world.finish("r1-0")
    world.job("short", tasks=2, cpu=1, more={"estimate_s": 1.0})
    assert world.schedule() == {}, "nobody is let in where it is late"
    late = world.cluster.reservations["big"]
    assert (sorted(late.rooms), late.told_s) == (["n1"], told_s)
    assert late.start_s > told_s, "though on n2 somebody is said to end sooner"
    world.finish("r2-0")
    assert world.schedule().keys() == {"big-leader-0", "big-worker-0"}
