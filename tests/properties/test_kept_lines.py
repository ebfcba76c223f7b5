"""Lines that are kept across cycles give the turns that sorting anew gives, whatever happens in between."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hekla.placement import kernels
from hekla.placement.kernels import twin
from hekla.placement.model import JobPhase, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queueing.lookahead import Lookahead
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.statement import Bind
from hekla.testing.cluster import World, check

PLUGINS = (
    (("priority", "gang", "conformance"), ("overcommit", "drf", "predicates", "proportion", "nodeorder", "binpack")),
    (("gang", "sla"), ("drf", "predicates", "capacity", "nodeorder")),
)
EVENTS = (
    "arrive", "arrive", "arrive", "second pod", "gang", "raise", "move", "gate", "ungate", "hold", "let go", "remove",
    "finish", "take back", "close", "open", "strict", "lax", "reload", "break off", "pending",
)  # fmt: skip
Event = tuple[str, int, int]


def world_of(plugins: int, seed: int) -> World:
    world = World(plugins=PLUGINS[plugins], seed=seed)
    for number in range(3):
        world.node(f"n{number}", cpu=4, memory=8, pods=4)
    for number in range(2):
        world.queue(f"q{number}", weight=1 + number)
    return world


def happen(world: World, event: Event, number: int) -> None:
    """Something happens to a job, a queue or the policy; to nobody if there is none."""
    kind, which, size = event
    cluster, queue = world.cluster, f"q{which % 2}"
    more = {"queue": queue, "priority": size % 2, "created": float(which % 3), "patience_s": float(size)}
    jobs = sorted(cluster.jobs.values(), key=lambda job: job.uid)
    job = jobs[which % len(jobs)] if jobs else None
    tasks = list(job.tasks.values()) if job is not None else []
    if kind in ("arrive", "pending"):
        phase = JobPhase.PENDING if kind == "pending" else JobPhase.INQUEUE
        world.job(f"j{number}", cpu=1 + size % 2, memory=1, phase=phase, more=more)
    elif kind == "gang":
        world.job(f"g{number}", tasks=2, cpu=1, memory=1, min_available=1 + size % 2, more=more)
    elif kind in ("close", "open", "strict", "lax"):
        before = cluster.queues[queue]
        is_open = kind == "open" or (kind != "close" and before.is_open)
        is_strict = kind == "strict" or (kind != "lax" and before.is_strict)
        cluster.put_queue(replace(before, is_open=is_open, is_strict=is_strict))
    elif kind == "reload":
        world.policy = Policy(cluster, world.policy.tiers, world.policy.arguments)
    elif kind == "break off":
        next(iter(action_named("allocate")(Session(world.policy))), None)
    elif job is None:
        return
    elif kind == "second pod":
        world.tasks(job, 1, cpu=1, memory=1)
    elif kind in ("raise", "move"):
        change = {"queue": queue} if kind == "move" else {"priority": size}
        cluster.put_job(structs.replace(job.spec, **change))
    elif kind in ("gate", "ungate") and tasks and tasks[0].status is TaskStatus.PENDING:
        cluster.put_task(structs.replace(tasks[0].spec, is_gated=kind == "gate"), job)
    elif kind == "hold":
        job.sit_out()
    elif kind == "let go" and job.is_held:
        job.take_part()
    elif kind == "remove":
        cluster.remove_job(job.uid)
    elif kind == "finish" and tasks and tasks[0].row >= 0:
        world.finish(tasks[0].uid)
    elif kind == "take back" and tasks and tasks[0].status is TaskStatus.BINDING:
        cluster.take_back(tasks[0])


def cycle(world: World, turns: int) -> list[object]:
    """What a cycle of so many turns decides, and why not."""
    left = iter(range(turns))
    session = Session(world.policy, has_time=lambda: next(left, None) is not None)
    told: list[object] = []
    for name in ("enqueue", "allocate", "backfill"):
        told += [(bind.task.uid, bind.node) for bind in action_named(name)(session) if isinstance(bind, Bind)]
    check(world.cluster)
    told += [sorted(session.failures), sorted(session.refusals.items())]
    return told


def told(plugins: int, seed: int, story: list[list[Event]], turns: int, *, is_kept: bool) -> list[object]:
    world, outcome, number = world_of(plugins, seed), list[object](), 0
    for chapter in story:
        for event in chapter:
            number += 1
            happen(world, event, number)
            if not is_kept:
                world.policy.kept_lines._is_on = False
        outcome.append(cycle(world, turns))
        stand_somewhere(world)
    return outcome


def stand_somewhere(world: World) -> None:
    """Each job that waits is loose or has a place in just one line."""
    lines = world.cluster.lines
    if world.policy.kept_lines._epoch != lines.epoch:
        return
    places = [
        place
        for line in world.policy.kept_lines._lines.values()
        for place in (*line._first[line._at :], *line._back)
        if place[3] == place[4].ticket
    ]
    standing = [place[4].uid for place in places]
    assert sorted([*standing, *lines.loose]) == sorted(lines.for_nodes)


@pytest.fixture(autouse=True)
def plain_form() -> None:
    kernels.use(twin)


events = st.tuples(st.sampled_from(EVENTS), st.integers(0, 20), st.integers(0, 3))
stories = st.lists(st.lists(events, max_size=8), min_size=1, max_size=6)


@given(st.integers(0, 1), st.integers(0, 1), stories, st.sampled_from([1, 2, 5, 1000]))
@settings(max_examples=60, deadline=None)
def test_kept_lines_give_the_turns_that_sorting_anew_gives(
    plugins: int, seed: int, story: list[list[Event]], turns: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lookahead, "place", lambda self, job: [])  # which asks for the time less often
        kept = told(plugins, seed, story, turns, is_kept=True)
        anew = told(plugins, seed, story, turns, is_kept=False)
    assert kept == anew


@given(st.integers(0, 1), st.integers(0, 1), stories)
@settings(max_examples=60, deadline=None)
def test_kept_lines_placed_together_go_where_sorted_ones_go_one_by_one(
    plugins: int, seed: int, story: list[list[Event]]
) -> None:
    story = [[event for event in chapter if event[0] != "break off"] for chapter in story]
    together = told(plugins, seed, story, 10_000, is_kept=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lookahead, "place", lambda self, job: [])
        one_by_one = told(plugins, seed, story, 10_000, is_kept=False)
    assert together == one_by_one


def test_a_slice_costs_what_it_decides_however_many_wait() -> None:
    world = World(plugins=PLUGINS[0])
    for number in range(20):
        world.node(f"n{number}", cpu=64, memory=256, pods=256)
    for number in range(3000):
        world.job(f"j{number}", cpu=0.1, memory=0.1)
    asked, bound, slices = 0, 0, 0
    order = Session.job_key

    def counted(self: Session, job: object) -> object:
        nonlocal asked
        asked += 1
        return order(self, job)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "job_key", counted)
        while bound < 3000:
            slices += 1
            left = iter(range(3))
            session = Session(world.policy, has_time=lambda left=left: next(left, None) is not None)
            bound += sum(1 for _ in action_named("allocate")(session))
            assert slices < 3000, "a slice gets on"
    assert slices > 3
    assert world.policy.kept_lines.taken_in == 3000, "a job joins its line once, not once per slice"
    assert asked < 10, "lone jobs whose specs are alike have one key"
