"""What `queueing/lookahead.py` and `queueing/kept_lines.py` rely on holds for every plug-in that says so, or must: the contract of `framework.py`."""

from collections.abc import Iterator

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from hekla.placement.constraint import Refusal
from hekla.placement.framework import PLUGINS, Allocatable, JobOrder, Overused, Ready, TaskOrder, Valid
from hekla.placement.model import Job, JobSpec, TaskStatus
from hekla.placement.registry import build_plugin, load
from hekla.placement.session import Session
from hekla.testing.cluster import World, amounts

load()
ABROAD = {"extender"}
"""Their answers are those of a program elsewhere."""


def named(point: type, promise: str = "") -> list[str]:
    """Plug-ins that implement an extension point, of those at home; all of them, or those that promise something."""
    found = [name for name, kind in sorted(PLUGINS.items()) if name not in ABROAD and issubclass(kind, point)]
    return [name for name in found if not promise or hasattr(PLUGINS[name], promise)]


def test_each_promise_is_made_by_somebody() -> None:
    assert set(named(Overused)) >= {"proportion"}
    assert set(named(Allocatable)) >= {"capacity", "proportion"}
    assert "gang" in named(Ready, "starts_whole_jobs")
    assert set(named(JobOrder, "orders_waiting_by")) >= {"priority", "gang", "drf", "sla"}
    assert "priority" in named(TaskOrder, "keeps_task_order")


QUEUES = ("a", "b", "c")
queues = st.tuples(
    st.integers(1, 4), st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 40)),
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 12)),
    st.dictionaries(st.sampled_from(["cpu", "memory"]), st.integers(0, 4)),
)  # fmt: skip
worlds = st.tuples(
    st.tuples(queues, queues, queues), st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 3), st.integers(0, 3), st.integers(1, 4)), max_size=12),
)  # fmt: skip


def world_with(name: str, drawn: object) -> World:
    world = World(plugins=((name, *(("gang",) if name != "gang" else ())), ("predicates",)))
    for number in range(3):
        world.node(f"n{number}", cpu=10, memory=10)
    shares, jobs = drawn  # type: ignore[misc]
    for queue, (weight, most, deserved, kept) in zip(QUEUES, shares, strict=True):
        world.queue(
            queue, weight=weight, capability=amounts(**most), deserved=amounts(**deserved), guarantee=amounts(**kept)
        )
    for number, (queue, cpu, memory, tasks) in enumerate(jobs):
        world.job(f"j{number}", tasks=tasks, cpu=cpu, memory=memory, more={"queue": queue})
    return world


def holdings(world: World, session: Session, queue: str, request: dict[str, int]) -> Iterator[int]:
    """Steps in which a queue holds more and more, and more of its jobs' tasks hold a node."""
    for step in range(8):
        yield step
        session.cluster.ledger.post(queue, request, 1)


asked = st.tuples(st.integers(0, 3), st.integers(0, 3)).filter(any)


@pytest.mark.parametrize("name", named(Overused))
@given(worlds, st.sampled_from(QUEUES), asked)
@settings(max_examples=25, deadline=None)
def test_a_queue_that_has_had_its_share_still_has_when_it_holds_more(
    name: str, drawn: object, queue: str, more: tuple[int, int]
) -> None:
    world = world_with(name, drawn)
    session, request = Session(world.policy), amounts(cpu=more[0], memory=more[1])
    told = [session.is_overused(world.cluster.queues[queue]) for _ in holdings(world, session, queue, request)]
    assert told == sorted(told), "a queue had its share, and then had not, though it held more"


@pytest.mark.parametrize("name", named(Allocatable))
@given(worlds, st.sampled_from(QUEUES), asked, asked)
@settings(max_examples=25, deadline=None)
def test_a_queue_that_holds_more_may_take_no_more(
    name: str, drawn: object, queue: str, more: tuple[int, int], wanted: tuple[int, int]
) -> None:
    world = world_with(name, drawn)
    one = world.job("one", cpu=wanted[0], memory=wanted[1], more={"queue": queue})
    session, request = Session(world.policy), amounts(cpu=more[0], memory=more[1])
    (task,) = one.tasks.values()
    told = [session.allowance(one, task, 9) for _ in holdings(world, session, queue, request)]
    assert told == sorted(told, reverse=True)
    assert all(0 <= number <= 9 for number in told)


@pytest.mark.parametrize("name", named(Allocatable))
@given(worlds, st.sampled_from(QUEUES), st.lists(asked, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_who_may_take_a_sum_may_take_its_parts_one_by_one(
    name: str, drawn: object, queue: str, parts: list[tuple[int, int]]
) -> None:
    world = world_with(name, drawn)
    whole = world.job(
        "whole", cpu=sum(cpu for cpu, _ in parts), memory=sum(memory for _, memory in parts), more={"queue": queue}
    )
    jobs = [
        world.job(f"part{n}", cpu=cpu, memory=memory, more={"queue": queue}) for n, (cpu, memory) in enumerate(parts)
    ]
    session = Session(world.policy)
    (sum_of_all,) = whole.tasks.values()
    assume(session.allowance(whole, sum_of_all, 1) == 1)
    for job in jobs:
        (task,) = job.tasks.values()
        assert session.allowance(job, task, 1) == 1, "the whole might be taken, and a part might not"
        job.move(task, TaskStatus.BINDING)


@pytest.mark.parametrize("name", sorted({*named(Ready, "starts_whole_jobs"), *named(Valid, "starts_whole_jobs")}))
@given(st.integers(1, 4), st.integers(0, 4), st.booleans())
@settings(max_examples=25, deadline=None)
def test_a_job_whose_tasks_all_have_nodes_is_ready_if_it_may_be_tried(
    name: str, tasks: int, least: int, has_minimums: bool
) -> None:
    world = World(plugins=((name,), ("predicates",)))
    minimums = {"": least} if has_minimums else {}
    job = world.job("j", tasks=tasks, cpu=1, min_available=least, more={"role_minimums": minimums})
    session = Session(world.policy)
    refused: Refusal | None = session.why_invalid(job)
    if tasks == 1 and least <= 1 and not has_minimums:
        assert refused is None, "a lone pod that waits may always be tried"
    assume(refused is None)
    for task in job.tasks.values():
        job.move(task, TaskStatus.BINDING)
    assert session.is_ready(job)


def specs() -> st.SearchStrategy[JobSpec]:
    return st.builds(
        JobSpec, uid=st.sampled_from(["u", "v"]), name=st.sampled_from(["m", "n"]), namespace=st.sampled_from(["x", "y"]),
        queue=st.sampled_from(QUEUES), priority=st.integers(-1, 2), created=st.sampled_from([0.0, 1.0, 5.0]),
        estimate_s=st.none() | st.just(60.0), patience_s=st.none() | st.sampled_from([1.0, 9.0]),
        min_available=st.integers(0, 1), min_resources=st.none() | st.just({"cpu": 1000}),
        is_preemptable=st.none() | st.booleans(), lineage=st.sampled_from(["", "l"]),
        traits=st.sampled_from([{}, {"a": "b"}]), has_group=st.booleans(),
    )  # fmt: skip


@pytest.mark.parametrize("name", named(JobOrder, "orders_waiting_by"))
@given(specs(), specs(), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=50, deadline=None)
def test_the_key_of_a_lone_job_that_waits_follows_from_the_fields_that_are_told(
    name: str, one: JobSpec, other: JobSpec, cpu: int, more: int
) -> None:
    world = World(plugins=((name,), ("predicates",)))
    plugin = build_plugin(name)
    told = {field: getattr(one, field) for field in plugin.orders_waiting_by}  # type: ignore[attr-defined]
    keys = []
    for number, (spec, asks) in enumerate(((one, cpu), (structs.replace(other, **told), more))):
        job = world.cluster.put_job(structs.replace(spec, uid=f"j{number}"))
        world.tasks(job, 1, cpu=asks, memory=1, role=f"r{number}")
        keys.append(plugin.job_key(Session(world.policy, now=number * 7.0), job))  # type: ignore[attr-defined]
        world.node(f"n{number}", cpu=10)  # what there is in the cluster makes no difference either
    assert keys[0] == keys[1]


@pytest.mark.parametrize("name", named(TaskOrder, "keeps_task_order"))
@given(st.lists(st.integers(0, 3), min_size=1, max_size=6), st.data())
@settings(max_examples=25, deadline=None)
def test_the_order_of_tasks_stays_while_others_find_their_nodes(
    name: str, priorities: list[int], data: st.DataObject
) -> None:
    world = World(plugins=((name, "gang"), ("predicates",)))
    world.node("n", cpu=100)
    job: Job = world.job("j", tasks=0, min_available=1)
    for number, priority in enumerate(priorities):
        world.tasks(job, 1, cpu=1, priority=priority, role=f"r{number}")
    session, plugin = Session(world.policy), build_plugin(name)
    before = {task.uid: plugin.task_key(session, task) for task in job.tasks.values()}  # type: ignore[attr-defined]
    for task in data.draw(st.lists(st.sampled_from(list(job.tasks.values())), unique=True)):
        world.cluster.place(task, 0)
        job.move(task, TaskStatus.BINDING)
    later = Session(world.policy, now=100.0)
    assert before == {task.uid: plugin.task_key(later, task) for task in job.tasks.values()}  # type: ignore[attr-defined]
