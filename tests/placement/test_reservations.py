"""Reservations beside pods that are leaving: these are counted on, and what they leave is not given away past a reservation."""

from hekla.placement.model import TaskStatus
from hekla.testing.cluster import World

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
