"""Who waits behind a gate until its queue has room: what opens, for whom, and for how much."""

from msgspec.structs import replace

from hekla.placement.model import Job, JobPhase
from hekla.testing.cluster import World, amounts, check

PLUGINS = (("priority", "gang"), ("capacity", "predicates"))


def small_queue(cpu: int = 4) -> World:
    world = World(plugins=PLUGINS)
    world.queue("q", capability=amounts(cpu=cpu))
    world.node("n1", cpu=100)
    return world


def gated(world: World, name: str, tasks: int, *, least: int = 1, priority: int = 0, asks: bool = True) -> Job:
    """A job whose pods wait behind gates."""
    job = world.job(name, tasks=0, min_available=least, more={"queue": "q", "priority": priority})
    for task in world.tasks(job, tasks, cpu=1, is_gated=True):
        world.cluster.put_task(replace(task.spec, asks_queue=asks), job)
    return job


def open_now(world: World) -> list[str]:
    """Whose gates open in a cycle; nobody of them is placed before its pod says so."""
    bound = world.schedule()
    opened = [task.spec.name for task in world.session.let_through]
    assert not set(bound) & set(opened)
    check(world.cluster)
    return opened


def take_gates_off(world: World, *names: str) -> None:
    for name in names:
        task = world.cluster.tasks[name]
        assert task.job is not None
        world.cluster.put_task(replace(task.spec, is_gated=False), task.job)


def test_as_many_gates_open_as_the_queue_has_room_for() -> None:
    world = small_queue(cpu=4)
    gated(world, "a", 3)
    gated(world, "b", 3)
    assert open_now(world) == ["a-0", "a-1", "a-2", "b-0"]
    assert "b" in world.session.refusals


def test_who_was_let_through_and_has_no_node_yet_is_counted() -> None:
    world = small_queue(cpu=4)
    world.running("full", "n1", cpu=99)
    gated(world, "a", 2)
    assert open_now(world) == ["a-0", "a-1"]
    take_gates_off(world, "a-0", "a-1")
    gated(world, "b", 3)
    assert open_now(world) == ["b-0", "b-1"], "one runs, one waits for a node: both are in the queue"


def test_a_gate_that_is_not_off_yet_opens_again_and_nobody_elses_instead() -> None:
    world = small_queue(cpu=1)
    gated(world, "a", 1)
    gated(world, "b", 1)
    assert open_now(world) == ["a-0"]
    assert open_now(world) == ["a-0"]


def test_a_gang_opens_whole_or_not_at_all() -> None:
    world = small_queue(cpu=3)
    gated(world, "gang", 4, least=4)
    gated(world, "one", 1)
    assert open_now(world) == ["one-0"]
    world.queue("q", capability=amounts(cpu=4))
    assert open_now(world) == ["gang-0", "gang-1", "gang-2", "gang-3"]


def test_who_goes_first_in_the_queue_is_let_through_first() -> None:
    world = small_queue(cpu=1)
    gated(world, "a", 1)
    gated(world, "b", 1, priority=5)
    assert open_now(world) == ["b-0"]


def test_other_gates_and_jobs_that_are_not_let_in_stay_closed() -> None:
    world = small_queue()
    gated(world, "other", 1, asks=False)
    outside = gated(world, "outside", 1)
    outside.phase = JobPhase.PENDING
    outside.respec(replace(outside.spec, min_resources=amounts(cpu=50)))
    assert open_now(world) == []


def test_room_in_the_queue_that_comes_back_opens_gates() -> None:
    world = small_queue(cpu=1)
    world.job("runs", cpu=1, more={"queue": "q"})
    gated(world, "a", 1)
    assert open_now(world) == []
    world.start("runs")
    world.finish("runs-0")
    assert open_now(world) == ["a-0"]
