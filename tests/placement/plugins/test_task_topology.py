"""The plug-in task-topology: annotations, buckets and scores."""

import pytest
from msgspec.structs import replace

from hekla.placement.kernels import SCALE
from hekla.placement.model import Job, TaskStatus
from hekla.placement.plugins.task_topology import AFFINITY_KEY, ANTI_AFFINITY_KEY, ORDER_KEY, plan_of, wishes_of
from hekla.testing.cluster import World

WEIGHT = 10


def world_with(traits: dict[str, str], **roles: int) -> tuple[World, Job]:
    world = World(plugins=(("gang",), (("task-topology", {"task-topology.weight": WEIGHT}),)))
    for name in ("n1", "n2"):
        world.node(name, cpu=4, memory=8)
    job = world.job("pg1", tasks=0, more={"traits": traits})
    for role, count in roles.items():
        world.tasks(job, count, role=role, cpu=1, memory=1)
    return world, job


def buckets(job: Job) -> list[list[str]]:
    plan = plan_of(job)
    assert plan is not None
    return [[task.spec.name.removeprefix("pg1-") for task in bucket.waiting] for bucket in plan.buckets]


@pytest.mark.parametrize(
    "traits",
    [
        {},
        {"volcano.sh/preemptable": "true"},
        {AFFINITY_KEY: "ps,nobody"},
        {AFFINITY_KEY: "ps,ps"},
        {AFFINITY_KEY: "ps,worker", ORDER_KEY: "worker,nobody"},
    ],
)
def test_annotations_that_cannot_be_followed_count_as_none(traits: dict[str, str]) -> None:
    _, job = world_with(traits, ps=1, worker=1)
    assert wishes_of(job) is None


def test_groups_are_read_as_pairs_and_alone_as_own_kind() -> None:
    _, job = world_with({AFFINITY_KEY: "ps,worker;chief", ANTI_AFFINITY_KEY: "ps"}, ps=1, worker=1, chief=1)
    wishes = wishes_of(job)
    assert wishes is not None
    assert wishes.near == {("ps", "worker"), ("worker", "ps"), ("chief", "chief")}
    assert wishes.apart == {("ps", "ps")}
    assert dict(wishes.urgency) == {"ps": 4, "worker": 3, "chief": 2}


def test_roles_that_avoid_their_own_kind_make_a_bucket_each_and_others_share_them_out() -> None:
    _, job = world_with({AFFINITY_KEY: "ps,worker", ANTI_AFFINITY_KEY: "ps"}, ps=2, worker=4)
    assert buckets(job) == [["ps-0", "worker-0", "worker-2"], ["ps-1", "worker-1", "worker-3"]]


def test_roles_that_avoid_each_other_are_parted() -> None:
    _, job = world_with({ANTI_AFFINITY_KEY: "a,b"}, a=2, b=1)
    assert buckets(job) == [["a-0", "a-1"], ["b-0"]]


def test_the_jobs_own_order_decides_who_begins_a_bucket() -> None:
    _, job = world_with({AFFINITY_KEY: "ps,worker", ORDER_KEY: "worker,ps"}, ps=1, worker=2)
    assert buckets(job) == [["worker-0", "worker-1", "ps-0"]]


def test_tasks_that_run_make_a_bucket_for_their_node() -> None:
    world, job = world_with({AFFINITY_KEY: "ps,worker"}, ps=2, worker=1)
    for name, node in (("pg1-ps-0", "n2"), ("pg1-ps-1", "n1")):
        task = world.cluster.tasks[name]
        world.cluster.put_task(replace(task.spec, node=node, status=TaskStatus.RUNNING), job)
    plan = plan_of(job)
    assert plan is not None
    assert [sorted(bucket.roles.items()) for bucket in plan.buckets] == [[("ps", 1), ("worker", 1)], [("ps", 1)]]


def volcanos_scores(world: World, name: str, shift: int = 0) -> list[float]:
    """What Volcano would say, apart from a shift that is the same for all nodes."""
    task = world.cluster.tasks[name]
    found = world.policy.placer.scores(task)[:2] / SCALE * WEIGHT * 100
    plan = plan_of(job) if (job := task.job) is not None else None
    assert plan is not None
    return [round(float(score) - shift * WEIGHT * 100 / plan.largest, 1) for score in found]


def test_a_node_is_liked_for_what_it_holds_and_may_hold_of_the_bucket() -> None:
    world, job = world_with({AFFINITY_KEY: "ps,worker"}, ps=1, worker=5)
    ps = world.cluster.tasks["pg1-ps-0"]
    world.cluster.put_task(replace(ps.spec, node="n1", status=TaskStatus.RUNNING), job)
    world.schedule(())
    # the bucket has 1 + 5 tasks: on n1 one runs and 3 of 5 fit, on n2 4 of 5 fit
    assert volcanos_scores(world, "pg1-worker-0") == [666.7, 666.7]


def test_what_is_adverse_on_a_node_counts_against_it() -> None:
    world, job = world_with({AFFINITY_KEY: "ps,worker", ANTI_AFFINITY_KEY: "ps"}, ps=2, worker=2)
    ps = world.cluster.tasks["pg1-ps-0"]
    world.cluster.put_task(replace(ps.spec, node="n1", status=TaskStatus.RUNNING), job)
    world.schedule(())
    # both workers join what runs, which asks for least; ps-1 is alone: 0 - 1 + 1 on n1, 0 + 1 on n2, of 3
    assert volcanos_scores(world, "pg1-ps-1", shift=1) == pytest.approx([0.0, 333.3], abs=0.1)
