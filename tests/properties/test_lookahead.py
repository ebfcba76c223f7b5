"""Deciding many jobs in one pass gives what deciding them one by one gives, whatever the world."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement import kernels
from hekla.placement.constraint import (
    Constraints,
    Effect,
    Operator,
    PodSelector,
    PodTerm,
    Requirement,
    Taint,
    Toleration,
)
from hekla.placement.kernels import twin
from hekla.placement.model import Item
from hekla.placement.node_selection.stream import Classes, Stream
from hekla.placement.queueing import lookahead, turns_ahead
from hekla.placement.queueing.lookahead import Lookahead
from hekla.placement.queueing.turns import Turns
from hekla.placement.queueing.turns_ahead import Course
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.shape import Shape
from hekla.testing.cluster import World, check

PODS = PodSelector((Requirement("app", Operator.IN, ("a",)),), frozenset({"default"}))
CONSTRAINTS = (
    *(Constraints(),) * 5,
    Constraints(selector=(("zone", "a"),)),
    Constraints(tolerations=(Toleration("dedicated", "Exists"),)),
    Constraints(tolerations=(Toleration("shy-0", "Exists"), Toleration("shy-1", "Exists"))),
    Constraints(anti_affinity=(PodTerm("host", PODS),)),
)
PLUGINS = (
    (("priority", "gang"), ("predicates", "nodeorder", "binpack")),
    (("priority", "gang", "conformance"), ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack")),
    (("gang", "sla"), ("drf", "predicates", "capacity", "nodeorder")),
    (("priority",), ("predicates", "binpack")),
    (("priority", "gang"), (("drf", {"hierarchy": True}), "predicates", "proportion", "binpack")),
    (("priority", "gang"), ("fair-share", "predicates", "capacity", "binpack")),
    (("priority", "gang"), ("drf", "predicates", "capacity", "nodeorder")),
)


@dataclass(frozen=True)
class Plan:
    plugins: int
    nodes: tuple[tuple[int, int, str, int], ...]  # cpu, memory, zone, how many taints would rather be left alone
    queues: tuple[tuple[int, int], ...]  # weight, most cpus
    jobs: tuple[tuple[int, int, int, int, int, int, Constraints, bool], ...]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    whole = st.integers(0, 3)
    most_shy = draw(st.sampled_from([0, 3]))
    nodes = st.tuples(st.integers(1, 6), st.integers(2, 12), st.sampled_from("ab"), st.integers(0, most_shy))
    job = st.tuples(
        st.integers(1, 3), whole, whole, st.integers(0, 2), st.integers(0, 3), st.integers(0, 2),
        st.sampled_from(CONSTRAINTS), st.integers(0, 9).map(lambda dice: dice == 0),
    )  # fmt: skip
    return Plan(
        draw(st.integers(0, len(PLUGINS) - 1)),
        tuple(draw(st.lists(nodes, min_size=1, max_size=6))),
        tuple(draw(st.lists(st.tuples(st.integers(1, 3), st.integers(2, 12)), min_size=1, max_size=3))),
        tuple(draw(st.lists(job, min_size=1, max_size=30))),
    )


def build(plan: Plan) -> World:
    world = World(plugins=PLUGINS[plan.plugins])
    for number, (cpu, memory, zone, shy) in enumerate(plan.nodes):
        world.node(
            f"n{number}", cpu=cpu, memory=memory, labels={"host": f"n{number}", "zone": zone}, pods=6,
            taints=[Taint(f"shy-{one}", "", Effect.PREFER_NO_SCHEDULE) for one in range(shy)],
        )  # fmt: skip
    for number, (weight, most) in enumerate(plan.queues):
        world.queue(f"q{number}", weight=weight, capability={"cpu": most * 1000} if most < 8 else {})
    for number, (tasks, least, cpu, memory, priority, queue, constraints, is_gated) in enumerate(plan.jobs):
        world.job(
            f"j{number}", tasks=tasks, min_available=tasks if least else min(least, tasks), constraints=constraints,
            labels={"app": "a"}, is_gated=is_gated, cpu=cpu, memory=memory,
            more={"priority": priority, "queue": f"q{queue % len(plan.queues)}"},
        )  # fmt: skip
    return world


def outcome(world: World) -> list[object]:
    """Every decision, reason and total of two cycles."""
    told: list[object] = []
    for _ in range(2):
        session = Session(world.policy)
        for name in ("enqueue", "allocate", "backfill"):
            told += [(bind.task.uid, bind.node) for bind in action_named(name)(session)]
        told += [(uid, failure.explanation, failure.placements) for uid, failure in sorted(session.failures.items())]
        told += [sorted(session.refusals.items())]
        check(world.cluster)
    cluster = world.cluster
    told += [cluster.nodes.used.tobytes(), cluster.nodes.share.tobytes()]
    told += [(job.uid, job.statuses, job.ready_count, +Counter(job.holding)) for job in cluster.jobs.values()]
    return told


@pytest.fixture(autouse=True, params=["plain", "compiled"])
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled" and not kernels.use_compiled():
        pytest.skip("numba is not installed")
    yield
    kernels.use(twin)


@given(plans())
@settings(max_examples=100, deadline=None)
def test_jobs_placed_together_go_where_they_go_one_by_one(plan: Plan) -> None:
    together = outcome(build(plan))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lookahead, "place", lambda self, job: [])
        one_by_one = outcome(build(plan))
    assert together == one_by_one


@dataclass(frozen=True)
class Crowd:
    plugins: int
    nodes: int
    queues: tuple[tuple[int, int, int], ...]  # weight, priority, most cpus
    pods: tuple[tuple[int, int, int, int], ...]  # queue, shape, priority, tasks
    chunk: int
    most_shy: int = 0  # how many taints that would rather be left alone some nodes have


@st.composite
def crowds(draw: st.DrawFn) -> Crowd:
    queue = st.tuples(st.integers(1, 3), st.integers(0, 1), st.sampled_from((8, 20, 99)))
    tasks = st.integers(0, 30).map(lambda dice: 2 if dice == 0 else 1)
    pod = st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 1), tasks)
    return Crowd(
        draw(st.integers(0, len(PLUGINS) - 1)),
        draw(st.integers(2, 8)),
        tuple(draw(st.lists(queue, min_size=1, max_size=4))),
        tuple(draw(st.lists(pod, min_size=10, max_size=90))),
        draw(st.integers(1, 16)),
        draw(st.sampled_from([0, 0, 3])),
    )


def crowd(plan: Crowd) -> World:
    """Lone pods of few shapes in several queues, with a gang here and there."""
    world = World(plugins=PLUGINS[plan.plugins])
    for number in range(plan.nodes):
        shy = [Taint(f"shy-{one}", "", Effect.PREFER_NO_SCHEDULE) for one in range(number % (plan.most_shy + 1))]
        world.node(f"n{number}", cpu=16, memory=64, pods=40, taints=shy)
    for number, (weight, priority, most) in enumerate(plan.queues):
        capability = {"cpu": most * 1000} if most < 99 else {}
        world.queue(f"q{number}", weight=weight, priority=priority, capability=capability)
    for number, (queue, shape, priority, tasks) in enumerate(plan.pods):
        more = {"queue": f"q{queue % len(plan.queues)}", "priority": priority}
        world.job(f"j{number}", tasks=tasks, cpu=(1, 1, 2, 0.5)[shape], memory=(1, 2, 0, 1)[shape], more=more)
    return world


@given(crowds())
@settings(max_examples=120, deadline=None)
def test_turns_of_several_queues_told_at_once_are_those_told_one_by_one(plan: Crowd) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lookahead, "WORTH_TELLING", 1)
        patched.setattr(turns_ahead, "LEAST_CHUNK", plan.chunk)
        at_once = outcome(crowd(plan))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Turns, "run_of_all", lambda self, most, is_plain: ([], []))
        one_by_one = outcome(crowd(plan))
    assert at_once == one_by_one


@pytest.mark.parametrize("plugins", [1, 5, 6])
def test_turns_of_several_queues_are_told_many_at_once(plugins: int) -> None:
    """The first of each shape that was not seen before is told by itself, and so are the first few."""
    told, counts = Turns.run_of_all, [0, 0]

    def counted(turns: Turns, most: int, is_plain: Callable[[Shape], bool]) -> tuple[list[Item], list[Course]]:
        lone, courses = told(turns, most, is_plain)
        counts[0], counts[1] = counts[0] + 1, counts[1] + len(lone)
        return lone, courses

    pods = tuple((number % 3, number % 4, number % 2, 1) for number in range(2000))
    world = crowd(Crowd(plugins, 400, ((1, 0, 99), (2, 0, 99), (3, 1, 99)), pods, 16))
    with patch.object(Turns, "run_of_all", counted):
        world.schedule()
    assert sum(task.row >= 0 for task in world.cluster.tasks.values()) == 2000
    assert counts[1] > 1900
    assert counts[0] < 20


@given(plans(), st.integers(1, 5), st.integers(0, 5))
@settings(max_examples=80, deadline=None)
def test_turns_that_are_given_back_come_again_in_the_same_order(plan: Plan, taken: int, returned: int) -> None:
    def turns() -> Turns:
        world = build(plan)
        return Turns(Session(world.policy), world.cluster.jobs.values(), heeds_shares=True)

    plain, tried = turns(), turns()
    expected = [job.uid for job in plain]
    found = [job.uid for job in (tried.next(),) if job is not None]
    found += [job.uid for _ in range(taken - 1) if (job := tried.next_ahead()) is not None]
    kept = max(0, len(found) - returned)
    tried.give_back(len(found) - kept)
    found = found[:kept]
    while (job := tried.next()) is not None:
        found.append(job.uid)
    assert found == expected


@given(plans(), st.integers(1, 4))
@settings(max_examples=40, deadline=None)
def test_every_slice_of_a_cycle_gets_on(plan: Plan, turns: int) -> None:
    world = build(plan)
    # A job that minds where others are is tried again after each of them.
    for _ in range((len(world.cluster.tasks) + 1) * (len(world.cluster.jobs) + 1)):
        left = iter(range(turns))
        session = Session(world.policy, has_time=lambda left=left: next(left, None) is not None)
        for _ in action_named("allocate")(session):
            pass
        if not session.is_cut_short:
            return
    raise AssertionError("there are more slices than turns")


def test_many_jobs_of_few_shapes_take_few_calls_of_a_kernel() -> None:
    world = World(plugins=PLUGINS[1])
    for number in range(40):
        world.node(f"n{number}", cpu=64, memory=256)
    for number in range(2000):
        world.job(f"j{number}", cpu=1, memory=0.1 * (1 + number % 4))
    world.schedule()
    assert sum(1 for task in world.cluster.tasks.values() if task.row >= 0) == 2000
    assert world.policy.placer.stream.calls <= 2000 / lookahead.MOST_JOBS + 10


def test_a_few_dozen_pods_of_shapes_seen_before_take_one_call_of_a_kernel() -> None:
    world = World(plugins=PLUGINS[1])
    for number in range(40):
        world.node(f"n{number}", cpu=64, memory=256)
    world.job("first", cpu=1, memory=0.1)
    world.schedule()
    before = world.policy.placer.stream.calls
    for number in range(30):
        world.job(f"j{number}", cpu=1, memory=0.1)
    world.schedule()
    assert sum(1 for task in world.cluster.tasks.values() if task.row >= 0) == 31
    assert world.policy.placer.stream.calls == before + 1


def test_pods_that_compare_nodes_take_few_calls_of_a_kernel_as_well() -> None:
    world = World(plugins=PLUGINS[1])
    for number in range(90):
        shy = [Taint(f"shy-{one}", "", Effect.PREFER_NO_SCHEDULE) for one in range(number % 3)]
        world.node(f"n{number}", cpu=64, memory=256, taints=shy)
    for number in range(1000):
        world.job(f"j{number}", cpu=1, memory=0.1 * (1 + number % 4))
    world.schedule()
    assert sum(1 for task in world.cluster.tasks.values() if task.row >= 0) == 1000
    assert world.policy.placer.stream.calls <= 1000 / 15 + 10, (
        "30 nodes are the worst, and half of them may fill unseen"
    )


def in_cycles(mixes: list[list[int]], *, forgets: bool = False) -> tuple[list[int], int]:
    """Where the jobs of each cycle go, whose shapes are of a few in any order, and how often tables were packed for it."""
    world = World(plugins=PLUGINS[1])
    for number in range(20):
        world.node(f"n{number}", cpu=16, memory=64, labels={"zone": "ab"[number % 2]})
    stream = world.policy.placer.stream
    for cycle, mix in enumerate(mixes):
        for number, kind in enumerate(mix):
            selector = (("zone", "a"),) if kind % 3 == 0 else ()
            world.job(
                f"j{cycle}-{number}",
                cpu=1 + kind % 2,
                memory=0.1 * (1 + kind),
                constraints=Constraints(selector=selector),
            )
        if forgets:
            stream._known = stream._all = None
        world.schedule()
    return [task.row for task in world.cluster.tasks.values()], stream.packs


@given(st.lists(st.lists(st.integers(0, 9), min_size=2, max_size=12), min_size=2, max_size=12))
@settings(max_examples=30, deadline=None)
def test_tables_that_are_kept_from_cycle_to_cycle_place_as_new_ones(mixes: list[list[int]]) -> None:
    assert in_cycles(mixes)[0] == in_cycles(mixes, forgets=True)[0]


def test_shapes_that_come_again_in_another_order_are_not_packed_anew() -> None:
    mixes = [[(cycle * step) % 8 for step in range(1, 8)] for cycle in range(1, 21)]
    assert in_cycles(mixes)[1] <= 8, "at most once for each shape"
    assert in_cycles(mixes, forgets=True)[1] >= 20


def test_a_shape_that_comes_once_has_those_that_come_again_not_packed_for_it() -> None:
    mixes = [[*range(8)], [*range(8)], [0, 1, 20], [2, 1, 21], [1, 0, 22]]
    sizes: list[int] = []
    world_packs = Stream._packed

    def counted(stream: Stream, kinds: Sequence[Shape]) -> Classes:
        sizes.append(len(kinds))
        return world_packs(stream, kinds)

    with patch.object(Stream, "_packed", counted):
        in_cycles(mixes)
    assert sizes[-3:] == [3, 3, 3]
