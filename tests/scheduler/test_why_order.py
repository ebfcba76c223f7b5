"""`hekla why` about jobs that wait for their turn: behind the head of a strict queue, beside a reservation, or with one."""

import pytest
from msgspec.structs import replace

from hekla.placement.model import TaskStatus
from hekla.scheduler.explain import why
from hekla.testing.cluster import World

PLUGINS = (("gang", "reservation"), ("predicates", "binpack"))


def world_with_a_gang_that_waits() -> World:
    world = World(plugins=PLUGINS)
    world.node("n1", cpu=4)
    world.node("n2", cpu=4)
    world.tell_time(1000.0)
    task = world.running("r1", "n1", cpu=4, more={"estimate_s": 100.0})
    assert task.job is not None
    world.cluster.put_task(replace(task.spec, node="n1", status=TaskStatus.RUNNING, started=1000.0), task.job)
    world.tell_time(1001.0)
    world.job("big", tasks=8, cpu=1)
    world.schedule()
    return world


def test_a_gang_with_a_reservation_is_told_where_and_when() -> None:
    world = world_with_a_gang_that_waits()
    world.cluster.nodes.wall_s = world.session.wall_s
    found = why(world.policy, world.cluster.jobs["big"], now=world.session.now)
    told = "n1, n2 are reserved for default/big, which is to start in 98 s, when default/r1 has ended; a job that ends before may go first"
    assert found.sentence().endswith(told)


def test_a_job_that_a_reservation_keeps_back_is_told_so_and_how_to_go_first() -> None:
    world = world_with_a_gang_that_waits()
    world.job("late", tasks=1, cpu=1)
    world.schedule()
    world.cluster.nodes.wall_s = world.session.wall_s
    found = why(world.policy, world.cluster.jobs["late"], now=world.session.now)
    assert not found.fits
    assert found.refusal is not None
    assert found.refusal.code == "reserved"
    assert "hekla.dev/running-estimate" in found.sentence()


def test_a_job_of_a_strict_queue_is_told_who_is_before_it() -> None:
    world = World()
    world.node("n1", cpu=4)
    world.queue("line", is_strict=True)
    world.job("large", tasks=8, cpu=1, more={"queue": "line"})
    small = world.job("small", tasks=1, cpu=1, more={"queue": "line"})
    world.schedule()
    found = why(world.policy, small)
    assert (
        found.sentence() == 'queue "line" starts its jobs strictly in order, and "default/large" waits before this one'
    )


def test_a_gang_that_will_not_fit_is_told_that_no_room_is_kept() -> None:
    world = world_with_a_gang_that_waits()
    wide = world.job("wide", tasks=9, cpu=1)
    world.cluster.remove_job("big")
    found = why(world.policy, wide, now=world.session.now)
    assert found.sentence().endswith(
        "no room is kept for it: when all have ended of whom it is known when, it would not fit beside what others need"
    )


def test_a_gang_that_was_not_looked_at_yet_is_told_so() -> None:
    world = world_with_a_gang_that_waits()
    world.cluster.reservations.clear()
    for number in range(20):
        world.job(f"wide{number}", tasks=9 + number, cpu=1, more={"priority": 1})
    found = why(world.policy, world.cluster.jobs["big"], now=world.session.now)
    assert found.sentence().endswith(
        "when it will fit was not looked at yet: a cycle does so for 8 jobs, and each has its turn"
    )


def test_a_gang_that_another_reservation_keeps_back_is_told_of_its_own_too() -> None:
    world = World(plugins=(("gang", ("reservation", {"depth": 2})), ("predicates", "binpack")))
    for number, (used, ends) in enumerate(((4, 100.0), (0, 0.0), (4, 200.0)), start=1):
        world.node(f"n{number}", cpu=4)
        if used:
            world.running(f"r{number}", f"n{number}", cpu=used, more={"estimate_s": ends})
    world.job("big", tasks=8, cpu=1)
    world.job("own", tasks=4, cpu=1)
    world.schedule()
    assert list(world.cluster.reservations["own"].rooms) == ["n3"]
    world.cluster.nodes.wall_s = world.session.wall_s
    told = why(world.policy, world.cluster.jobs["own"], now=world.session.now).sentence()
    assert told.startswith("n1, n2 are reserved for default/big, which is to start in 100 s; ")
    assert told.endswith(
        "n3 is reserved for default/own, which is to start in 3 min, when default/r3 has ended; a job that ends before may go first"
    )


def test_who_has_said_how_long_it_runs_is_not_asked_for_it() -> None:
    world = world_with_a_gang_that_waits()
    late = world.job("late", tasks=1, cpu=1, more={"estimate_s": 9000.0})
    told = why(world.policy, late, now=world.session.now).sentence()
    assert told.endswith("but this one runs 2.5 h by its hekla.dev/running-estimate")


@pytest.mark.parametrize(("has_group", "kind"), [(True, "PodGroup"), (False, "pod")])
def test_an_estimate_that_cannot_be_read_is_told_with_whose_it_is_and_what_to_write(has_group: bool, kind: str) -> None:
    world = world_with_a_gang_that_waits()
    odd = {"hekla.dev/running-estimate": "2 hours"}
    for name in ("late", "later"):
        world.job(name, tasks=1, cpu=1, more={"traits": odd, "has_group": has_group})
    world.schedule()
    for name in ("late", "later"):
        said = f'but hekla.dev/running-estimate of {kind} "default/{name}" is "2 hours"; write a duration above 0 like 1h30m'
        assert world.why(name).endswith(said)


def test_jobs_of_other_namespaces_are_named_to_who_may_see_them_alone() -> None:
    world = world_with_a_gang_that_waits()
    world.job("late", tasks=1, cpu=1, more={"namespace": "other", "estimate_s": 900.0})
    world.schedule()
    refusal = world.session.refusals["late"]
    assert refusal.sentence.startswith("n1, n2 are reserved for a job of another namespace, which is to start in ")
    world.cluster.nodes.wall_s = world.session.wall_s
    found = why(world.policy, world.cluster.jobs["late"], now=world.session.now)
    assert "default/big" not in found.sentence(), "who reads about the job need not know others"
    assert "reserved for default/big, which" in found.sentence(lambda namespace: namespace in ("default", "other"))


def test_whose_end_a_reservation_waits_for_is_named_to_who_may_see_it_alone() -> None:
    world = world_with_a_gang_that_waits()
    world.cluster.remove_job("big")
    world.job("mine", tasks=8, cpu=1, more={"namespace": "other"})
    world.schedule()
    found = why(world.policy, world.cluster.jobs["mine"], now=world.session.now)
    assert "reserved for other/mine" in found.sentence()
    assert "when a job of another namespace has ended" in found.sentence()
    assert "when default/r1 has ended" in found.sentence(lambda _: True)


def test_the_head_of_a_strict_queue_is_named_to_who_may_see_it_alone() -> None:
    world = World()
    world.node("n1", cpu=4)
    world.queue("line", is_strict=True)
    world.job("large", tasks=8, cpu=1, more={"queue": "line", "namespace": "other"})
    small = world.job("small", tasks=1, cpu=1, more={"queue": "line"})
    world.schedule()
    before = "starts its jobs strictly in order, and "
    assert (
        world.session.refusals["small"].sentence
        == f'queue "line" {before}a job of another namespace waits before this one'
    )
    assert f'{before}"other/large" waits' in why(world.policy, small).sentence(lambda _: True)
