"""Properties of placement over generated worlds: whatever the world, these hold."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement import kernels
from hekla.placement.constraint import (
    Constraints,
    Effect,
    HostPort,
    Operator,
    PodSelector,
    PodTerm,
    Requirement,
    Taint,
    Toleration,
    TopologySpread,
)
from hekla.placement.kernels import SCALE, twin
from hekla.placement.model import TaskStatus
from hekla.placement.session import Session
from hekla.testing.cluster import World, check

PODS = PodSelector((Requirement("app", Operator.IN, ("a",)),), frozenset({"default"}))
CONSTRAINTS = [
    Constraints(),
    Constraints(),
    Constraints(selector=(("zone", "a"),)),
    Constraints(tolerations=(Toleration("dedicated", "Exists"),)),
    Constraints(anti_affinity=(PodTerm("host", PODS),)),
    Constraints(affinity=(PodTerm("zone", PODS),)),
    Constraints(spreads=(TopologySpread("zone", 1, PODS),)),
    Constraints(ports=(HostPort("TCP", 80),)),
]


@dataclass(frozen=True)
class NodePlan:
    name: str
    cpu: int
    memory: int
    gpu: int
    zone: str
    is_tainted: bool
    is_schedulable: bool


@dataclass(frozen=True)
class JobPlan:
    name: str
    tasks: int
    minimum: int
    priority: int
    cpu: int
    memory: int
    gpu: int
    constraints: Constraints
    app: str


@st.composite
def node_plans(draw: st.DrawFn, number: int) -> NodePlan:
    return NodePlan(
        name=f"n{number}",
        cpu=draw(st.integers(0, 8)),
        memory=draw(st.integers(0, 16)),
        gpu=draw(st.sampled_from([0, 0, 4, 8])),
        zone=draw(st.sampled_from(["a", "b", ""])),
        is_tainted=draw(st.booleans()) and draw(st.booleans()),
        is_schedulable=draw(st.integers(0, 9)) > 0,
    )


@st.composite
def job_plans(draw: st.DrawFn, number: int) -> JobPlan:
    tasks = draw(st.integers(1, 6))
    return JobPlan(
        name=f"j{number}",
        tasks=tasks,
        minimum=draw(st.integers(0, tasks)),
        priority=draw(st.integers(0, 2)),
        cpu=draw(st.integers(0, 4)),
        memory=draw(st.integers(0, 8)),
        gpu=draw(st.sampled_from([0, 0, 1, 4])),
        constraints=draw(st.sampled_from(CONSTRAINTS)),
        app=draw(st.sampled_from(["a", "b"])),
    )


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[NodePlan], list[JobPlan]]:
    nodes = [draw(node_plans(number)) for number in range(draw(st.integers(0, 6)))]
    jobs = [draw(job_plans(number)) for number in range(draw(st.integers(1, 8)))]
    return nodes, jobs


def build(nodes: list[NodePlan], jobs: list[JobPlan], *, seed: int = 0) -> World:
    world = World(seed=seed)
    for node in nodes:
        add_node(world, node)
    for job in sorted(jobs, key=lambda plan: plan.name):
        add_job(world, job)
    return world


def add_node(world: World, plan: NodePlan) -> None:
    labels = {"host": plan.name, **({"zone": plan.zone} if plan.zone else {})}
    taints = [Taint("dedicated", "", Effect.NO_SCHEDULE)] if plan.is_tainted else []
    world.node(
        plan.name, cpu=plan.cpu, memory=plan.memory, gpu=plan.gpu, labels=labels, taints=taints,
        is_schedulable=plan.is_schedulable, pods=5,
    )  # fmt: skip


def add_job(world: World, plan: JobPlan) -> None:
    world.job(
        plan.name, tasks=plan.tasks, min_available=plan.minimum, more={"priority": plan.priority},
        constraints=plan.constraints, labels={"app": plan.app}, cpu=plan.cpu, memory=plan.memory, gpu=plan.gpu,
    )  # fmt: skip


def state_of(world: World) -> tuple[object, ...]:
    nodes = world.cluster.nodes
    tallies = world.cluster.tallies
    return (
        nodes.used.tobytes(),
        nodes.idle.tobytes(),
        nodes.share.tobytes(),
        tuple(tallies.total(number) for number in range(len(tallies))),
        tuple((task.uid, task.row, task.status) for task in world.cluster.tasks.values()),
        tuple((job.uid, tuple(job.statuses), job.ready_count) for job in world.cluster.jobs.values()),
    )


@pytest.fixture(autouse=True, params=["plain", "compiled"])
def form(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "compiled" and not kernels.use_compiled():
        pytest.skip("numba is not installed")
    yield
    kernels.use(twin)


@given(plans())
@settings(max_examples=25, deadline=None)
def test_nothing_is_overfull(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    world = build(*plan)
    world.schedule()
    assert (world.cluster.nodes.idle >= 0).all()


@given(plans())
@settings(max_examples=25, deadline=None)
def test_no_gang_starts_in_part(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    world = build(*plan)
    world.schedule()
    for job in world.cluster.jobs.values():
        # Pods that ask for nothing hold nothing: they may start early.
        started = [t for t in job.tasks.values() if t.status is TaskStatus.BINDING and not t.is_best_effort]
        assert not started or job.ready_count + job.pending_best_effort >= job.spec.min_available


@given(plans())
@settings(max_examples=25, deadline=None)
def test_the_same_world_is_decided_the_same_twice(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    assert build(*plan).schedule() == build(*plan).schedule()


@given(plans(), st.randoms())
@settings(max_examples=25, deadline=None)
def test_the_order_in_which_nodes_came_is_irrelevant(plan: tuple[list[NodePlan], list[JobPlan]], dice) -> None:
    nodes, jobs = plan
    shuffled = list(nodes)
    dice.shuffle(shuffled)
    assert build(nodes, jobs).schedule() == build(shuffled, jobs).schedule()


@given(plans())
@settings(max_examples=25, deadline=None)
def test_a_second_cycle_without_news_decides_nothing(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    world = build(*plan)
    world.schedule()
    waiting_for_others = any(job.constraints.affinity or job.constraints.spreads for job in plan[1])
    if not waiting_for_others:
        assert world.schedule() == {}


@given(plans())
@settings(max_examples=30, deadline=None)
def test_a_discarded_statement_restores_every_bit(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    world = build(*plan)
    before = state_of(world)
    session = Session(world.policy)
    with session.statement() as statement:
        for job in world.cluster.jobs.values():
            for task in job.tasks.values():
                statement.allocate(task)
    check(world.cluster)
    assert state_of(world) == before


@given(plans())
@settings(max_examples=30, deadline=None)
def test_scores_are_finite_and_in_zero_to_one(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    world = build(*plan)
    world.schedule()
    for task in world.cluster.tasks.values():
        scores = world.policy.placer.scores(task)
        assert ((scores >= -1) & (scores <= SCALE)).all()


@given(plans())
@settings(max_examples=30, deadline=None)
def test_a_task_goes_where_the_full_pass_says(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    """Indexes, repairs and runs are short cuts; the plain pass over all nodes is what they must agree with."""
    world = build(*plan)
    nodes, placer = world.cluster.nodes, world.policy.placer
    for _ in range(2):
        for task in world.cluster.tasks.values():
            if task.row >= 0:
                continue
            expected = twin.best(placer.scores(task), nodes.rank(), nodes.height)
            row = placer.place(task)
            assert row == expected
            if row >= 0:
                world.cluster.settle(task, row)
                assert task.job is not None
                task.job.move(task, TaskStatus.ALLOCATED)
    check(world.cluster)


@given(plans())
@settings(max_examples=30, deadline=None)
def test_what_is_explained_adds_up_with_what_is_decided(plan: tuple[list[NodePlan], list[JobPlan]]) -> None:
    from hekla.placement.explain import explain

    world = build(*plan)
    world.schedule()
    for task in world.cluster.tasks.values():
        if task.row >= 0:
            continue
        explanation = explain(world.policy, task)
        assert explanation.feasible == int((world.policy.placer.scores(task) >= 0).sum())
        if explanation.feasible < explanation.nodes:
            assert explanation.reasons


@given(plans(), st.data())
@settings(max_examples=25, deadline=None)
def test_columns_stay_true_while_nodes_and_tasks_come_and_go(
    plan: tuple[list[NodePlan], list[JobPlan]], data: st.DataObject
) -> None:
    nodes, jobs = plan
    world = build(nodes, jobs)
    for _ in range(4):
        world.schedule()
        cluster = world.cluster
        if cluster.nodes.row_of and data.draw(st.booleans()):
            cluster.remove_node(data.draw(st.sampled_from(sorted(cluster.nodes.row_of))))
        if cluster.tasks and data.draw(st.booleans()):
            cluster.remove_task(data.draw(st.sampled_from(sorted(cluster.tasks))))
        if nodes and data.draw(st.booleans()):
            add_node(world, data.draw(st.sampled_from(nodes)))
        check(cluster)
        assert np.array_equal(cluster.nodes.idle, cluster.nodes.allocatable - cluster.nodes.used)
