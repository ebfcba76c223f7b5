"""The plug-in tdm: budgets, hours across clock changes, and the pace at which pods leave."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from hekla.placement.model import Job, TaskStatus
from hekla.placement.plugins.tdm import LABEL, MAX_KEY, MIN_KEY, Hours, Tdm, most_evictions
from hekla.placement.registry import ArgumentError, build_plugin
from hekla.testing.cluster import World

ZONE = {"tdm.revocable-zone.rz1": "10:00-21:00"}
HOUR = 3600.0


def job_with(world: World, traits: dict[str, str], statuses: list[TaskStatus], node: str = "n1") -> Job:
    job = world.job("training", tasks=len(statuses), cpu=1, more={"traits": traits})
    for task, status in zip(list(job.tasks.values()), statuses, strict=True):
        world.cluster.put_task(replace(task.spec, node=node, status=status), job)
    return job


RUNNING, PENDING, SUCCEEDED = TaskStatus.RUNNING, TaskStatus.PENDING, TaskStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("traits", "statuses", "expected"),
    [
        ({}, [RUNNING] * 5, 1),
        ({MIN_KEY: "3"}, [RUNNING] * 5, 2),
        ({MIN_KEY: "50%"}, [RUNNING] * 5, 2),
        ({MIN_KEY: "6"}, [RUNNING] * 5, 0),
        ({MAX_KEY: "2"}, [RUNNING] * 5, 2),
        ({MAX_KEY: "30%"}, [RUNNING] * 5, 2),
        ({MAX_KEY: "2"}, [RUNNING] * 3 + [PENDING] * 2, 0),
        ({MAX_KEY: "2"}, [RUNNING] * 3 + [SUCCEEDED, PENDING], 1),
        ({MIN_KEY: "4", MAX_KEY: "5"}, [RUNNING] * 5, 1),
        ({MAX_KEY: "many"}, [RUNNING] * 5, 0),
    ],
)
def test_a_jobs_budget_bounds_how_many_leave(traits: dict[str, str], statuses: list[TaskStatus], expected: int) -> None:
    world = World()
    world.node("n1", cpu=10)
    assert most_evictions(job_with(world, traits, statuses)) == expected


def test_shuffle_keeps_within_the_budget_and_goes_on_after_a_period() -> None:
    world = World(plugins=(("gang",), (("tdm", ZONE),)))
    world.node("n1", cpu=10, labels={LABEL: "rz1"})
    job_with(world, {MAX_KEY: "2"}, [RUNNING] * 5)
    world.tell_time(21 * HOUR)
    world.schedule(("shuffle",))
    assert list(world.evicted) == ["training-0", "training-1"]
    assert world.session.look_again_at == 21 * HOUR + 60
    world.tell_time(21 * HOUR + 59)
    world.schedule(("shuffle",))
    assert world.evicted == {}
    for name in ("training-0", "training-1"):
        world.cluster.remove_task(name)
    world.tell_time(21 * HOUR + 60)
    world.schedule(("shuffle",))
    assert list(world.evicted) == ["training-2", "training-3"]


def test_a_cycle_is_asked_for_when_the_hours_begin_and_end() -> None:
    world = World(plugins=((("tdm", ZONE),),))
    for now, expected in ((9 * HOUR, 10 * HOUR), (10 * HOUR, 21 * HOUR), (21 * HOUR, 34 * HOUR)):
        world.tell_time(now)
        world.schedule()
        assert world.session.look_again_at == expected


def test_a_pod_that_may_not_be_evicted_drives_off_others_from_nodes_that_are_always_ours() -> None:
    world = World(plugins=((("tdm", ZONE),),))
    world.node("n1", cpu=10)
    world.node("n2", cpu=10, labels={LABEL: "rz1"})
    here, there = world.running("here", "n1", cpu=1), world.running("there", "n2", cpu=1)
    (asks,) = world.job("asks", cpu=1).tasks.values()
    (plugin,) = world.policy.plugins
    assert isinstance(plugin, Tdm)
    assert plugin.preemptable(world.session, asks, [here, there]) == []
    assert asks.job is not None
    firm = world.cluster.put_task(replace(asks.spec, is_preemptable=False), asks.job)
    assert plugin.preemptable(world.session, firm, [here, there]) == [here]


def test_equal_times_are_the_whole_day() -> None:
    assert all(Hours(600, 600, "").contains(minute) for minute in range(24 * 60))


@pytest.mark.parametrize(
    ("at", "is_open"),
    [
        (datetime(2026, 3, 28, 1, 30, tzinfo=UTC), True),  # 02:30 in Berlin, winter time
        (datetime(2026, 3, 29, 1, 30, tzinfo=UTC), False),  # 03:30: the clock jumped from 2 to 3
        (datetime(2026, 10, 25, 0, 30, tzinfo=UTC), True),  # 02:30, the first time
        (datetime(2026, 10, 25, 1, 30, tzinfo=UTC), True),  # 02:30, the second time
    ],
)
def test_hours_follow_the_clock_on_the_wall(at: datetime, is_open: bool) -> None:
    world = World(plugins=((("tdm", {"tdm.revocable-zone.rz1": "02:00-03:00", "tdm.time-zone": "Europe/Berlin"}),),))
    world.tell_time(at.timestamp())
    world.schedule()
    (plugin,) = world.policy.plugins
    assert isinstance(plugin, Tdm)
    assert plugin.time_zone == ZoneInfo("Europe/Berlin")
    assert plugin.outlook(world.session) == (("rz1",) if is_open else ())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"tdm.revocable-zone.a": "25:00-26:00"}, "argument tdm.revocable-zone.a is '25:00-26:00'; hours like 10:00-21:00 are expected"),
        ({"tdm.revocable-zone.a": "0 8 * * *"}, "argument tdm.revocable-zone.a is '0 8 * * *'; hours like 10:00-21:00 are expected"),
        ({"tdm.evict.period": "0s"}, "argument tdm.evict.period is '0s'; a duration above 0 is expected"),
        ({"tdm.time-zone": "Mars/Base"}, "argument tdm.time-zone is 'Mars/Base'; a name like Europe/Berlin is expected"),
    ],
)  # fmt: skip
def test_bad_arguments_are_told(arguments: dict[str, str], sentence: str) -> None:
    with pytest.raises(ArgumentError, match="^" + sentence.replace("*", r"\*")):
        build_plugin("tdm", arguments)
