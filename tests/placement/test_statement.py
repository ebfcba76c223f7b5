import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.budgets import DisruptionBudget
from hekla.placement.constraint import Operator, PodSelector, Requirement
from hekla.placement.model import TaskStatus
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.session import Session
from hekla.placement.statement import Bind, Evict, Nominate
from hekla.testing.cluster import World, check


def full_world() -> World:
    world = World()
    for number in range(3):
        world.node(f"n{number}", cpu=4, memory=8)
    for number in range(6):
        world.running(f"old{number}", f"n{number % 3}", cpu=2, memory=1)
    world.job("new", tasks=3, cpu=3, memory=1)
    return world


def state(world: World) -> tuple[object, ...]:
    cluster, nodes = world.cluster, world.cluster.nodes
    return (
        nodes.used.tobytes(), nodes.idle.tobytes(), nodes.share.tobytes(), nodes.releasing.tobytes(),
        nodes.pipelined.tobytes(), nodes.reserved.tobytes(),
        {name: (dict(a.held), dict(a.asked), dict(a.firm)) for name, a in cluster.ledger.accounts.items()},
        {uid: (t.row, t.status, t.is_claim, t.is_leaving, t.evicted_at) for uid, t in cluster.tasks.items()},
        {uid: (list(job.statuses), job.ready_count) for uid, job in cluster.jobs.items()},
        dict(cluster.leaving), dict(cluster.lines.promised), +cluster.spent, len(cluster.precedence),
    )  # fmt: skip


STEPS = st.lists(
    st.tuples(st.sampled_from(["evict", "pipeline", "allocate", "forsake"]), st.integers(0, 8)), max_size=14
)


@given(STEPS, st.integers(0, 14))
@settings(max_examples=120, deadline=None)
def test_whatever_was_tried_is_taken_back_to_the_bit(steps: list[tuple[str, int]], keep: int) -> None:
    world = full_world()
    cluster = world.cluster
    old = [cluster.tasks[f"old{number}-0"] for number in range(6)]
    new = [cluster.tasks[f"new-{number}"] for number in range(3)]
    before = state(world)
    marks = []
    with Session(world.policy).statement() as statement:
        for what, number in steps:
            marks.append((statement.savepoint, state(world)))
            task = new[number % 3]
            if what == "evict" and not old[number % 6].is_leaving:
                statement.evict(old[number % 6], "makes room", task.job)
            elif what == "pipeline" and task.row < 0:
                statement.pipeline(task, number % 3, evicted=True)
            elif what == "allocate" and task.row < 0:
                statement.allocate(task)
            elif what == "forsake" and task.is_claim:
                statement.forsake(task)
            check(cluster)
        if marks:
            savepoint, then = marks[keep % len(marks)]
            statement.back_to_savepoint(savepoint)
            assert state(world) == then
    assert state(world) == before
    check(cluster)


def test_a_commit_yields_evictions_then_nominations_then_binds() -> None:
    world = full_world()
    tasks = world.cluster.tasks
    world.node("n9", cpu=4, memory=8)
    with Session(world.policy).statement() as statement:
        statement.allocate(tasks["new-1"])
        statement.evict(tasks["old0-0"], "makes room", tasks["new-0"].job, "preempt")
        statement.evict(tasks["old3-0"], "makes room", tasks["new-0"].job, "preempt")
        statement.pipeline(tasks["new-0"], 0, evicted=True)
        decisions = list(statement.commit())
    assert [type(decision) for decision in decisions] == [Evict, Evict, Nominate, Bind]
    assert tasks["old0-0"].status is TaskStatus.RELEASING
    assert tasks["new-0"].status is TaskStatus.PIPELINED
    check(world.cluster)


def test_nobody_may_leave_for_nobody() -> None:
    world = full_world()
    tasks = world.cluster.tasks
    statement = Session(world.policy).statement()
    statement.evict(tasks["old0-0"], "makes room", tasks["new-0"].job)
    with pytest.raises(AssertionError, match="would leave for nobody"):
        statement.commit()


def test_room_that_is_promised_is_kept_from_others() -> None:
    world = World()
    world.node("n1", cpu=4)
    world.running("old", "n1", cpu=2)
    world.job("new", cpu=3)
    tasks = world.cluster.tasks
    with Session(world.policy).statement() as statement:
        statement.evict(tasks["old-0"], "makes room", tasks["new-0"].job)
        statement.pipeline(tasks["new-0"], 0, evicted=True)
        list(statement.commit())
    world.job("one", cpu=1)
    world.job("two", cpu=2)
    assert world.schedule() == {"one-0": "n1"}, "of the 2 that are free 1 is needed for what was promised"
    world.cluster.remove_task("old-0")
    assert world.schedule() == {"new-0": "n1"}


def test_an_eviction_that_is_refused_is_undone() -> None:
    world = full_world()
    tasks = world.cluster.tasks
    with Session(world.policy).statement() as statement:
        statement.evict(tasks["old0-0"], "makes room", None)
        list(statement.commit())
    world.cluster.put_state(tasks["old0-0"], TaskStatus.RUNNING, "n0")
    assert tasks["old0-0"].status is TaskStatus.RELEASING, "its pod has not heard yet"
    world.cluster.spare(tasks["old0-0"])
    assert tasks["old0-0"].status is TaskStatus.RUNNING
    assert not world.cluster.leaving
    check(world.cluster)


def test_an_eviction_is_charged_to_its_budgets_until_they_report_anew() -> None:
    world = World()
    world.node("n1", cpu=4)
    task = world.running("web", "n1", cpu=1, labels={"app": "web"})
    selector = PodSelector(labels=(Requirement("app", Operator.IN, ("web",)),), namespaces=frozenset({"default"}))
    budget = DisruptionBudget(name="web", namespace="default", selector=selector, allowed=1, revision="1")
    world.cluster.put_budget(budget)
    with Session(world.policy).statement() as statement:
        statement.evict(task, "makes room", None)
        list(statement.commit())
    assert world.cluster.spent["default", "web"] == 1
    world.cluster.put_budget(
        DisruptionBudget(name="web", namespace="default", selector=selector, allowed=1, revision="2")
    )
    assert not +world.cluster.spent
    world.cluster.remove_budget("default", "web")
    assert not world.cluster.budgets


def test_a_rehearsal_keeps_promises_and_those_who_leave_to_itself() -> None:
    world = full_world()
    tasks = world.cluster.tasks
    with Session(world.policy).statement() as statement:
        statement.evict(tasks["old0-0"], "makes room", tasks["new-0"].job)
        statement.pipeline(tasks["new-0"], 0, evicted=True)
        list(statement.commit())
    before = state(world)
    rehearsal = Rehearsal(world.policy)
    nodes = rehearsal.cluster.nodes
    copied = [array.tobytes() for array in (nodes.used, nodes.releasing, nodes.pipelined, nodes.reserved)]
    with rehearsal.without("old1"), rehearsal.without("new"):
        assert not nodes.pipelined.any()
    with rehearsal.without("old0"):
        assert not rehearsal.cluster.leaving
    assert copied == [array.tobytes() for array in (nodes.used, nodes.releasing, nodes.pipelined, nodes.reserved)]
    with Session(rehearsal.policy).statement() as statement:
        statement.forsake(rehearsal.job("new").tasks["new-0"])
    assert state(world) == before
    check(world.cluster)
