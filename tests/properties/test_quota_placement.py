"""Properties of placement under quotas, over generated worlds of queues, limits and gangs."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.queue import Queue
from hekla.placement.session import Session
from hekla.testing.cluster import World, amounts, check

PLUGINS = {
    "proportion": (("gang", "drf"), ("proportion", "predicates", "nodeorder")),
    "capacity": (("gang", "drf"), ("capacity", "predicates", "nodeorder")),
    "tree": (("gang", "drf"), (("capacity", {"hierarchy": True}), "predicates", "nodeorder")),
}
NAMES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Plan:
    nodes: tuple[tuple[int, int], ...]
    queues: tuple[Queue, ...]
    jobs: tuple[tuple[str, int, int, int, int], ...]
    """(queue, tasks, minimum, cpu, gpu)"""


limits = st.one_of(st.just({}), st.builds(amounts, cpu=st.integers(0, 8)), st.builds(amounts, gpu=st.integers(0, 4)))


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    nodes = draw(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 4)), max_size=4))
    queues = [
        Queue(
            name=name, weight=draw(st.integers(1, 4)), priority=draw(st.integers(0, 1)),
            parent=draw(st.sampled_from(["root", *NAMES[:number]])), capability=draw(limits), guarantee=draw(limits),
            deserved=draw(limits), is_open=draw(st.integers(0, 9)) > 0, created=float(number),
        )
        for number, name in enumerate(NAMES)
    ]  # fmt: skip
    jobs = draw(st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(1, 4), st.integers(0, 4), st.integers(0, 3), st.integers(0, 2)),
        min_size=1, max_size=8,
    ))  # fmt: skip
    return Plan(tuple(nodes), tuple(queues), tuple((q, n, min(m, n), c, g) for q, n, m, c, g in jobs))


def build(plan: Plan, plugins: str) -> World:
    world = World(plugins=PLUGINS[plugins])
    for number, (cpu, gpu) in enumerate(plan.nodes):
        world.node(f"n{number}", cpu=cpu, gpu=gpu)
    for queue in plan.queues:
        world.cluster.put_queue(queue)
    for number, (queue_name, tasks, minimum, cpu, gpu) in enumerate(plan.jobs):
        world.job(f"j{number}", tasks=tasks, min_available=minimum, more={"queue": queue_name}, cpu=cpu, gpu=gpu)
    return world


def plugin(world: World, kind: str) -> object:
    return next(p for p in world.policy.plugins if type(p).__name__.lower() == kind)


@given(plans())
@settings(max_examples=30, deadline=None)
def test_no_queue_holds_more_than_it_deserves(plan: Plan) -> None:
    world = build(plan, "proportion")
    deserved = Session(world.policy).opened(plugin(world, "proportion")).deserved
    world.schedule()
    for name, account in world.cluster.ledger.accounts.items():
        for resource, amount in account.held.items():
            if resource != "pods":
                assert amount <= deserved[name].get(resource, 0)


@given(plans())
@settings(max_examples=30, deadline=None)
def test_who_waits_for_single_pods_is_held_back_by_its_share_or_by_every_node(plan: Plan) -> None:
    world = build(plan, "proportion")
    world.schedule()
    session = Session(world.policy)
    for job in world.cluster.jobs.values():
        waiting = [task for task in job.pending() if not task.is_best_effort]
        if job.spec.min_available > 1 or not waiting or not session.is_admitted_to_queue(job):
            continue
        with session.statement() as statement:
            assert not session.allowance(job, waiting[0], 1) or not statement.allocate(waiting[0])


@pytest.mark.parametrize("kind", ["capacity", "tree"])
@given(plans())
@settings(max_examples=30, deadline=None)
def test_no_queue_holds_more_than_its_ceiling_at_any_level(kind: str, plan: Plan) -> None:
    world = build(plan, kind)
    tree = Session(world.policy).opened(plugin(world, "capacity"))
    world.schedule()
    for name, account in world.cluster.ledger.accounts.items():
        for resource, most in tree.shares[name].ceiling.items() if name in tree.shares else ():
            assert resource == "pods" or account.held[resource] <= most


@pytest.mark.parametrize("kind", PLUGINS)
@given(plans())
@settings(max_examples=20, deadline=None)
def test_a_discarded_attempt_leaves_every_total_as_it_was(kind: str, plan: Plan) -> None:
    world = build(plan, kind)
    ledger = world.cluster.ledger
    before = {name: (+a.held, +a.asked, +a.firm) for name, a in ledger.accounts.items()}
    with Session(world.policy).statement() as statement:
        for task in world.cluster.tasks.values():
            statement.allocate(task)
    assert {name: (+a.held, +a.asked, +a.firm) for name, a in ledger.accounts.items()} == before
    check(world.cluster)


@pytest.mark.parametrize("kind", PLUGINS)
@given(plans(), st.randoms())
@settings(max_examples=20, deadline=None)
def test_the_order_in_which_queues_came_is_irrelevant(kind: str, plan: Plan, dice) -> None:
    queues = list(plan.queues)
    dice.shuffle(queues)
    assert build(Plan(plan.nodes, tuple(queues), plan.jobs), kind).schedule() == build(plan, kind).schedule()


@pytest.mark.parametrize("kind", PLUGINS)
@given(plans())
@settings(max_examples=20, deadline=None)
def test_a_second_cycle_without_news_decides_nothing(kind: str, plan: Plan) -> None:
    world = build(plan, kind)
    world.schedule()
    assert world.schedule() == {}
