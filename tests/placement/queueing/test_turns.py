from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from hekla.placement.model import JobPhase, Task
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.testing.cluster import World


def test_a_job_that_vanishes_with_its_queue_harms_nobody() -> None:
    world = World()
    world.node("n1", cpu=4)
    world.queue("gone")
    world.job("a", cpu=1, more={"queue": "gone"})
    world.job("b", cpu=1)
    world.cluster.remove_queue("gone")
    assert world.schedule() == {"b-0": "n1"}


def test_a_cycle_that_runs_out_of_time_goes_on_where_it_stopped() -> None:
    from hekla.placement.registry import action_named
    from hekla.placement.session import Session

    world = World()
    world.node("n1", cpu=100, pods=100)
    for number in range(90):
        world.job(f"j{number:02}", cpu=1)
    bound: list[str] = []
    cycles = 0
    while len(bound) < 90:
        turns = iter([True, True, True, False])
        session = Session(world.policy, has_time=lambda turns=turns: next(turns))
        bound += [bind.task.spec.name for bind in action_named("allocate")(session)]
        assert session.is_cut_short or len(bound) == 90
        cycles += 1
    assert bound == [f"j{number:02}-0" for number in range(90)]
    assert 1 < cycles <= 4


def test_many_tasks_that_start_one_by_one_are_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_tasks = 0
    in_task_order = Session.in_task_order

    def counted(self: Session, tasks: Iterable[Task]) -> list[Task]:
        nonlocal sorted_tasks
        found = in_task_order(self, tasks)
        sorted_tasks += len(found)
        return found

    monkeypatch.setattr(Session, "in_task_order", counted)
    world = World()
    world.node("n1", cpu=150, pods=200)
    world.job("many", tasks=1000, min_available=1, cpu=1)
    for _ in range(3):
        left = iter(range(40))
        session = Session(world.policy, has_time=lambda left=left: next(left, None) is not None)
        for _ in action_named("allocate")(session):
            pass
    placed = [task.spec.name for task in world.cluster.tasks.values() if task.row >= 0]
    assert placed == [f"many-{number}" for number in range(120)]
    # Once at first; turns of few tasks, and a task that comes back, would sort them anew.
    assert sorted_tasks == 1000


def test_jobs_that_do_not_fit_are_not_tried_again_without_news() -> None:
    world = World()
    world.node("n1", cpu=1)
    job = world.job("big", cpu=2)
    world.schedule()
    assert world.why("big")
    world.schedule()
    assert not world.session.failures
    world.node("n2", cpu=2)
    assert world.schedule() == {"big-0": "n2"}
    assert job.phase is JobPhase.INQUEUE


def test_a_pod_that_is_gated_while_it_stands_in_line_is_passed_over() -> None:
    world = World(plugins=[("priority", "gang"), ("predicates", "proportion", "nodeorder")])
    world.node("n1", cpu=100, memory=100)
    world.job("first", cpu=1)
    assert world.schedule() == {"first-0": "n1"}
    for number in range(20):
        world.job(f"j{number}", cpu=1)
    cut_short = Session(world.policy, has_time=lambda: False)
    assert not list(action_named("allocate")(cut_short)), "all stand in line now"
    gated = world.cluster.tasks["j9-0"]
    assert gated.job is not None
    world.cluster.put_task(replace(gated.spec, is_gated=True), gated.job)
    assert sorted(world.schedule()) == sorted(f"j{number}-0" for number in range(20) if number != 9)
