"""What `hekla why` says an action would evict is what the action evicts, and asking changes nothing."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.model import Job
from hekla.placement.rehearsal import Rehearsal
from hekla.scheduler.why_not_evicted import why_not_evicted
from hekla.testing.cluster import World, check

PLUGINS = (("priority", "gang", "conformance"), ("drf", "predicates", "proportion", "nodeorder", "binpack"))


@dataclass(frozen=True)
class Story:
    nodes: tuple[int, ...]
    running: tuple[tuple[int, int, str, int, int], ...]
    """(node, cpu, queue, priority, minimum)"""

    asks: tuple[int, int, str, int]
    """(tasks, cpu, queue, priority)"""

    action: str


@st.composite
def stories(draw: st.DrawFn) -> Story:
    nodes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    queue, priority = st.sampled_from(["a", "b"]), st.integers(0, 2)
    runs = st.tuples(st.integers(0, len(nodes) - 1), st.integers(1, 3), queue, priority, st.integers(0, 1))
    return Story(
        nodes=tuple(nodes), running=tuple(draw(st.lists(runs, max_size=10))),
        asks=draw(st.tuples(st.integers(1, 3), st.integers(1, 4), queue, priority)),
        action=draw(st.sampled_from(["preempt", "reclaim", "gangpreempt", "gangreclaim"])),
    )  # fmt: skip


def told(story: Story) -> tuple[World, Job]:
    world = World(plugins=PLUGINS)
    for queue in ("a", "b"):
        world.queue(queue)
    for number, cpu in enumerate(story.nodes):
        world.node(f"n{number}", cpu=cpu)
    free = list(story.nodes)
    for number, (node, cpu, queue, priority, least) in enumerate(story.running):
        if free[node] >= cpu:
            free[node] -= cpu
            more = {"queue": queue, "priority": priority}
            world.running(f"r{number}", f"n{node}", cpu=cpu, min_available=least, more=more)
    tasks, cpu, queue, priority = story.asks
    return world, world.job("new", tasks=tasks, cpu=cpu, more={"queue": queue, "priority": priority})


@given(stories())
@settings(max_examples=120, deadline=None)
def test_the_action_evicts_whom_it_was_said_to_evict(story: Story) -> None:
    world, job = told(story)
    if world.schedule(("allocate",)):
        return  # it fits
    world.policy.actions = (story.action,)
    before = world.cluster.nodes.used.tobytes()
    found = why_not_evicted(Rehearsal(world.policy, now=world.session.now), job.uid, lambda _: True)
    assert before == world.cluster.nodes.used.tobytes()
    check(world.cluster)
    world.schedule((story.action,))
    assert sorted(world.evicted) == sorted(task.spec.name for by in found for task in by.victims)
