from hekla.placement.model import JobPhase
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
    world.node("n1", cpu=100)
    for number in range(10):
        world.job(f"j{number}", cpu=1)
    bound: list[str] = []
    cycles = 0
    while len(bound) < 10:
        turns = iter([True, True, True, False])
        session = Session(world.policy, has_time=lambda turns=turns: next(turns))
        bound += [bind.task.spec.name for bind in action_named("allocate")(session)]
        assert session.is_cut_short or len(bound) == 10
        cycles += 1
    assert bound == [f"j{number}-0" for number in range(10)]
    assert cycles == 4


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
