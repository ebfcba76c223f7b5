"""Why nobody is evicted for a job that waits, and what would change that: each claim is then tried for real."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from hekla.placement.budgets import DisruptionBudget
from hekla.placement.constraint import Operator, PodSelector, Requirement
from hekla.placement.model import Job, JobPhase, TaskStatus
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.topology.wish import Closeness
from hekla.scheduler.remedies_by_eviction import remedies_by_eviction
from hekla.scheduler.why_not_evicted import why_not_evicted
from hekla.testing.cluster import World, amounts, check

PREEMPT = ("enqueue", "allocate", "preempt")
RECLAIM = ("enqueue", "allocate", "reclaim")
PLUGINS = (("priority", "gang", "conformance", "cdp"), ("predicates", "proportion", "nodeorder", "binpack"))
CLASSES = {"low": 10, "middle": 100, "high": 1000, "system-node-critical": 2_000_001_000}


def full(actions: Sequence[str] = PREEMPT, *, jobs: int = 2, **more: Any) -> World:
    """Two nodes of 4 GPUs, held by jobs that can spare their one pod."""
    world = World(plugins=PLUGINS)
    world.policy.actions = actions
    for number in range(jobs):
        world.node(f"n{number}", cpu=16, gpu=4)
        world.running(f"old-{number}", f"n{number}", gpu=4, min_available=0, more=more)
    return world


def asked(world: World, job: Job, classes: Mapping[str, int] = CLASSES) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """What the actions find, and the remedies; nothing may have changed by asking."""
    before = world.cluster.nodes.used.tobytes(), world.cluster.ledger.changes
    rehearsal = Rehearsal(world.policy, now=0.0)
    found = why_not_evicted(rehearsal, job.uid, lambda _: True)
    fixes = {r.change: r.sentence for r in remedies_by_eviction(rehearsal, job.uid, found, classes, lambda _: True)}
    assert before == (world.cluster.nodes.used.tobytes(), world.cluster.ledger.changes)
    check(world.cluster)
    return [one.document(lambda _: True) for one in found], fixes


def kept(document: Mapping[str, Any]) -> dict[str, int]:
    return {one["code"]: one["pods"] for one in document["kept"]}


def test_pods_of_equal_priority_stay_and_the_lowest_class_that_would_do_is_offered() -> None:
    world = full()
    (by,), fixes = asked(world, world.job("new", gpu=4))
    assert (by["action"], by["code"], kept(by)) == ("preempt", "allKept", {"notLowerPriority": 2})
    assert by["message"] == 'none of the 2 pods that run of other jobs in queue "default" may go'
    assert fixes == {"HigherPriority": 'give it priorityClassName "low" (10): 1 pod of default/old-0 would be evicted'}


def test_what_is_offered_comes_true() -> None:
    world = full()
    job = world.job("new", gpu=4)
    _, fixes = asked(world, job)
    assert "HigherPriority" in fixes
    world.cluster.put_job(replace(job.spec, priority=10))
    world.schedule(PREEMPT)
    assert list(world.evicted) == ["old-0-0"]


def test_a_class_between_is_found() -> None:
    world = full(priority=50)
    _, fixes = asked(world, world.job("new", gpu=4))
    assert fixes["HigherPriority"].startswith('give it priorityClassName "middle" (100)')


def test_pods_of_a_higher_priority_are_counted() -> None:
    world = full(priority=5000)
    (by,), fixes = asked(world, world.job("new", gpu=4))
    assert (kept(by), fixes) == ({"higherPriority": 2}, {})


def test_who_may_go_is_told_also_where_it_would_not_be_enough() -> None:
    world = full()
    (by,), fixes = asked(world, world.job("new", tasks=3, gpu=4, more={"priority": 10}))
    assert (by["code"], by["mayGo"], fixes) == ("notEnough", 2, {})
    assert by["message"] == "evicting the 2 pods that may go would not make room"


def test_an_action_that_will_make_room_says_for_whom_others_go() -> None:
    world = full()
    (by,), fixes = asked(world, world.job("new", gpu=4, more={"priority": 10}))
    assert (by["code"], by["victims"], fixes) == ("makesRoom", ["default/old-0"], {})
    assert by["message"] == "evicts 1 pod of default/old-0 for it when it is its turn"
    world.schedule(PREEMPT)
    assert list(world.evicted) == ["old-0-0"]
    (by,), _ = asked(world, world.cluster.jobs["new"])
    assert by["code"] == "roomIsBeingMade"


def test_without_an_action_that_evicts_the_one_that_would_help_is_offered() -> None:
    world = full(("enqueue", "allocate"))
    (by,), fixes = asked(world, world.job("new", gpu=4, more={"priority": 10}))
    assert (by["code"], by["action"]) == ("notConfigured", "")
    assert fixes == {"AddAction": 'add the action "preempt" to the scheduler: 1 pod of default/old-0 would be evicted'}


def test_a_queue_that_deserves_more_hears_that_reclaim_is_missing() -> None:
    world = full(PREEMPT, jobs=4, queue="rich")
    world.queue("rich")
    job = world.job("new", gpu=4)
    (by,), fixes = asked(world, job)
    assert by["code"] == "noPods"
    assert fixes["AddAction"].startswith('add the action "reclaim" to the scheduler: 1 pod of default/old-')
    world.schedule(RECLAIM)
    assert len(world.evicted) == 1


def test_queues_that_hold_what_they_deserve_keep_their_pods() -> None:
    world = full(RECLAIM, jobs=3, queue="rich")
    for queue in ("rich", "modest"):
        world.queue(queue)
    modest = world.cluster.jobs["old-0"]
    world.cluster.put_job(replace(modest.spec, queue="modest"))
    (by,), fixes = asked(world, world.job("new", gpu=4))
    assert (by["code"], by["mayGo"], kept(by), fixes) == ("makesRoom", 1, {"withinShare": 2}, {})


def test_a_gang_beyond_what_its_queue_may_take_back_hears_how_far_it_gets() -> None:
    world = full(RECLAIM, jobs=4, queue="rich")
    world.queue("rich")
    (by,), _ = asked(world, world.job("new", tasks=3, gpu=4))
    assert (by["code"], by["message"]) == (
        "shareTooSmall", 'queue "default" may take 2 of the 3 pods that it needs, and no more',
    )  # fmt: skip


def test_queues_that_give_nothing_back_are_named_by_their_reason() -> None:
    world = full(RECLAIM, jobs=4, queue="mine")
    world.queue("mine", is_reclaimable=False)
    (by,), _ = asked(world, world.job("new", gpu=4))
    assert kept(by) == {"queueNotReclaimable": 4}


def test_a_policy_that_forbids_it_is_named_and_what_taking_it_off_would_do() -> None:
    world = full()
    job = world.job("new", gpu=4, more={"priority": 10})
    for task in list(job.tasks.values()):
        world.cluster.put_task(replace(task.spec, preemption_never=True), job)
    (by,), fixes = asked(world, job)
    assert by["code"] == "preemptionPolicyNever"
    assert fixes == {"MayPreempt": "take preemptionPolicy: Never off its pods: 1 pod of default/old-0 would be evicted"}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"is_preemptable": False}, "notPreemptable"),
        ({"min_run_s": 1000.0, "started": 0.0}, "minRun"),
        ({"cooldown_s": 1000.0, "scheduled_at": 0.0}, "coolingDown"),
        ({"namespace": "kube-system"}, "systemPod"),
        ({"labels": {"app": "db"}}, "disruptionBudget"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_protection_is_counted_under_its_name(fields: dict[str, Any], code: str) -> None:
    world = full()
    db = PodSelector(labels=(Requirement("app", Operator.IN, ("db",)),), namespaces=frozenset({"default"}))
    world.cluster.put_budget(DisruptionBudget(name="db", namespace="default", selector=db, allowed=0))
    task = world.cluster.tasks["old-0-0"]
    assert task.job is not None
    known = replace(task.spec, node="n0", status=TaskStatus.RUNNING, **fields)
    world.cluster.put_task(known, task.job)
    (by,), _ = asked(world, world.job("new", tasks=2, gpu=4, more={"priority": 10}))
    assert (by["code"], by["mayGo"], kept(by)) == ("notEnough", 1, {code: 1})


def test_pods_that_are_leaving_are_counted() -> None:
    world = full()
    task = world.cluster.tasks["old-0-0"]
    assert task.job is not None
    world.cluster.put_task(replace(task.spec, node="n0", status=TaskStatus.RELEASING), task.job)
    (by,), _ = asked(world, world.job("new", tasks=3, gpu=4, more={"priority": 10}))
    assert kept(by) == {"leaving": 1}


def test_who_made_way_for_the_others_does_not_have_them_evicted() -> None:
    world = full()
    job = world.job("new", gpu=4, more={"priority": 10})
    world.cluster.precedence.note("old-0", job.uid, 0.0)
    world.cluster.precedence.note("old-1", job.uid, 0.0)
    (by,), _ = asked(world, job)
    assert kept(by) == {"wentBefore": 2}


def test_what_keeps_all_actions_is_said_once() -> None:
    world = full(("enqueue", "allocate", "preempt", "reclaim"))
    outside = world.job("outside", gpu=4, phase=JobPhase.PENDING, more={"min_resources": amounts(gpu=4)})
    (by,), fixes = asked(world, outside)
    assert (by["code"], fixes) == ("notLetIn", {})
    part = world.job("part", tasks=1, min_available=3, gpu=4, more={"priority": 10})
    (by,), _ = asked(world, part)
    assert by["code"] == "tooFewPods"


def test_a_gang_that_wants_to_be_close_is_left_to_the_actions_for_gangs() -> None:
    world = full()
    close = {"priority": 10, "closeness": Closeness(is_hard=False)}
    (by,), fixes = asked(world, world.job("near", gpu=4, more=close))
    assert (by["code"], by["message"]) == (
        "leftToGangActions", "it wants its pods close together, and gangpreempt makes room for such gangs",
    )  # fmt: skip
    assert fixes["AddAction"].startswith('add the action "gangpreempt" to the scheduler: 1 pod of default/old-')
    world.schedule(("allocate", "gangpreempt"))
    assert len(world.evicted) == 1


def test_jobs_that_may_not_be_seen_are_not_named() -> None:
    world = full()
    job = world.job("new", gpu=4, more={"priority": 10})
    (by,) = why_not_evicted(Rehearsal(world.policy), job.uid, lambda _: False)
    assert by.document(lambda _: False)["victims"] == ["a job of another namespace"]
    assert "old" not in by.sentence
