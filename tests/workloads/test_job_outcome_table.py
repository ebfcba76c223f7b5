"""How jobs end, generated whole: every way in which pods may have ended, with every minimum; what tasks wait for; ttl; resumes.

The expectations are written from Volcano's tables and share nothing with the code.
"""

from itertools import product
from typing import Any

import pytest

from hekla.api.core import Pod
from hekla.api.volcano import Job
from hekla.kube.commands import Delete, RequeueAfter
from hekla.testing.job_world import NAMESPACE, JobWorld, job, task

# ---- all pods have ended


def expected(well: tuple[int, int], least: tuple[int, int], minimum: int, success: int | None) -> str:
    """What Volcano's table says of tasks of two and one pods, of which so many ended well."""
    total = sum(well)
    if success is not None and total >= success:
        return "Completed"
    if minimum >= sum(least) and any(done < needed for done, needed in zip(well, least, strict=True)):
        return "Failed"
    if success is not None:
        return "Failed"
    return "Completed" if total >= minimum else "Failed"


GRID = [
    (well, least, minimum, success)
    for well, least, minimum, success in product(
        list(product(range(3), range(2))), [(2, 1), (1, 0), (2, 0)], range(1, 4), [None, 1, 2, 3]
    )
    if minimum <= 3
]


@pytest.mark.parametrize("well", list(product(range(3), range(2))))
def test_a_job_whose_pods_have_all_ended_is_judged_by_the_table(well: tuple[int, int]) -> None:
    for _, least, minimum, success in [row for row in GRID if row[0] == well]:
        tasks = [task("a", 2, minAvailable=least[0]), task("b", 1, minAvailable=least[1])]
        more = {} if success is None else {"minSuccess": success}
        world = JobWorld(job(task_list=tasks, minAvailable=minimum, **more)).admit().settle().run_all().settle()
        for number in range(2):
            world.end(f"train-a-{number}", 0 if number < well[0] else 1)
        world.end("train-b-0", 0 if well[1] else 1).settle()
        assert world.phase == expected(well, least, minimum, success), (least, minimum, success)
        assert world.job.status.state.message, "why is said"


@pytest.mark.parametrize("enough", [1, 2, 3])
def test_a_job_is_complete_as_soon_as_enough_pods_succeeded_and_the_rest_is_told_to_end(enough: int) -> None:
    world = JobWorld(job(tasks={"worker": 4}, minAvailable=1, minSuccess=enough)).admit().settle().run_all().settle()
    for number in range(enough):
        assert world.phase == "Running"
        world.end(f"train-worker-{number}").settle()
    assert world.phase == "Completed"
    assert set(world.pods) == {f"train-worker-{number}" for number in range(enough)}


@pytest.mark.parametrize(("minimum", "replicas"), [(1, 3), (2, 3), (3, 3)])
def test_a_job_runs_when_and_as_long_as_enough_pods_do(minimum: int, replicas: int) -> None:
    world = JobWorld(job(tasks={"worker": replicas}, minAvailable=minimum)).admit().settle()
    for number in range(replicas):
        assert world.phase == ("Running" if number >= minimum else "Pending")
        world.run(f"train-worker-{number}").settle()
    lost = 0
    while world.phase == "Running":
        world.vanish(f"train-worker-{lost}").settle()
        lost += 1
    assert lost == replicas - minimum + 1


# ---- tasks that wait for others


def waiting(how: str, minimum: int | None = None) -> JobWorld:
    names = {"name": ["a", "b"], "iteration": how}
    tasks = [task("a", 2, minAvailable=1), task("b", 1), task("c", 2, dependsOn=names)]
    more = {} if minimum is None else {"minAvailable": minimum}
    return JobWorld(job(task_list=tasks, **more)).admit().settle()


def ready(world: JobWorld, name: str, state: str) -> None:
    if state == "succeeded":
        world.end(name)
        return
    world.run(name)
    statuses = [{"name": "main", "ready": state == "ready", "state": {"running": {}}}]
    world.world.change(Pod, NAMESPACE, name, {"status": {"containerStatuses": statuses}})


@pytest.mark.parametrize("how", ["any", "all"])
@pytest.mark.parametrize(("a", "b"), list(product(["pending", "running", "ready", "succeeded"], repeat=2)))
def test_a_task_is_made_when_all_or_any_of_those_it_waits_for_are_up(how: str, a: str, b: str) -> None:
    world = waiting(how)
    for name, state in (("train-a-0", a), ("train-b-0", b)):
        if state != "pending":
            ready(world, name, state)
    world.settle()
    up = [state in ("ready", "succeeded") for state in (a, b)]
    is_made = any(up) if how == "any" else all(up)
    assert ("train-c-0" in world.pods) is is_made
    assert ("train-c-1" in world.pods) is is_made


@pytest.mark.parametrize("minimum", range(1, 5))
def test_the_gang_never_waits_for_pods_that_wait_for_it(minimum: int) -> None:
    world = waiting("all", minimum)
    assert world.group is not None
    assert world.group.spec.min_member == min(minimum, 2), "one of a, one of b"
    assert world.group.spec.min_task_member == {"a": 1, "b": 1}
    assert len(world.pods) >= world.group.spec.min_member


def test_a_chain_of_tasks_starts_link_by_link_and_says_what_it_waits_for() -> None:
    links = [task("a", 1), task("b", 1, dependsOn={"name": ["a"]}), task("c", 1, dependsOn={"name": ["b"]})]
    world = JobWorld(job(task_list=links)).admit().settle()
    assert set(world.pods) == {"train-a-0"}
    assert world.job.status.state.reason == "TasksWaiting"
    assert world.job.status.state.message == (
        "task 'b' waits for 'a' (0 of 1 pods are ready); task 'c' waits for 'b' (0 of 1 pods are ready)"
    )
    world.end("train-a-0").settle()
    assert set(world.pods) == {"train-a-0", "train-b-0"}
    world.run("train-b-0").settle()
    assert set(world.pods) == {"train-a-0", "train-b-0", "train-c-0"}
    world.run("train-c-0").settle()
    assert world.phase == "Running"
    world.end("train-b-0").end("train-c-0").settle()
    assert world.phase == "Completed"


def test_partitions_of_a_task_that_waits_hold_nobody_back() -> None:
    parts = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 2}
    tasks = [task("a", 1), task("b", 4, partitionPolicy=parts, dependsOn={"name": ["a"]})]
    world = JobWorld(job(task_list=tasks)).admit().settle()
    assert world.group is not None
    (policy,) = world.group.spec.sub_group_policy
    assert (policy.name, policy.sub_group_size, policy.min_sub_groups) == ("b", 2, 0)
    assert world.group.spec.min_member == 1


def test_a_restart_makes_tasks_wait_again() -> None:
    tasks = [task("a", 1), task("b", 1, dependsOn={"name": ["a"]})]
    policies = [{"event": "PodFailed", "action": "RestartJob"}]
    world = JobWorld(job(task_list=tasks, policies=policies)).admit().settle().run_all().settle().run_all().settle()
    world.end("train-b-0", 1).settle().admit().settle()
    assert set(world.pods) == {"train-a-0"}


# ---- partitions


@pytest.mark.parametrize(("total", "size"), [(1, 1), (2, 3), (4, 2)])
def test_pods_are_numbered_into_partitions_and_each_is_a_sub_gang(total: int, size: int) -> None:
    parts = {"totalPartitions": total, "partitionSize": size, "minPartitions": 1}
    replicas = total * size
    world = JobWorld(job(task_list=[task("w", replicas, minAvailable=size, partitionPolicy=parts)])).admit().settle()
    found = {name: pod.metadata.labels["volcano.sh/partition-id"] for name, pod in world.pods.items()}
    assert found == {f"train-w-{number}": str(number // size) for number in range(replicas)}
    assert world.group is not None
    (policy,) = world.group.spec.sub_group_policy
    assert (policy.sub_group_size, policy.min_sub_groups) == (size, 1)
    assert policy.match_label_keys == ["volcano.sh/partition-id"]


# ---- time to live

ENDS: dict[str, Any] = {
    "Completed": lambda world: world.end("train-worker-0").end("train-worker-1"),
    "Failed": lambda world: world.end("train-worker-0", 1).end("train-worker-1", 1),
    "Terminated": lambda world: world.order("TerminateJob"),
    "Aborted": lambda world: world.order("AbortJob"),
}


@pytest.mark.parametrize("ttl", [0, 5, 3600])
@pytest.mark.parametrize("phase", ENDS)
def test_only_what_has_finished_is_deleted_and_only_when_its_time_is_over(phase: str, ttl: int) -> None:
    world = JobWorld(job(ttlSecondsAfterFinished=ttl)).admit().settle().run_all().settle()
    for _ in range(12):  # to the end, and not beyond: the world would let go of a job that is deleted
        if world.phase == phase:
            break
        if world.phase == "Running":
            ENDS[phase](world)
        world.step()
        world.let_go()
    assert world.phase == phase

    def deletions() -> list[Delete]:
        return [one for one in world.decide() if isinstance(one, Delete) and one.target.kind is Job]

    if phase == "Aborted":
        world.later(ttl + 1)
        assert deletions() == [], "it may be resumed"
        return
    if ttl:
        assert deletions() == []
        assert RequeueAfter(float(ttl)) in world.decide()
    world.later(ttl)
    (deletion,) = deletions()
    assert (deletion.target.uid, deletion.propagation) == ("uid-train", "Foreground"), "no other job of this name"


def test_a_job_without_a_time_to_live_stays() -> None:
    world = JobWorld(job()).admit().settle().run_all().settle().end("train-worker-0").end("train-worker-1").settle()
    world.later(10**8)
    assert world.decide() == []


# ---- suspended, resumed, made anew


@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_job_may_be_suspended_and_resumed_as_often_as_one_likes(most: int) -> None:
    """Volcano counts each resume as a retry, so that maxRetry of them fail the job (#5737)."""
    world = JobWorld(job(maxRetry=most))
    for _ in range(5):
        world.admit().settle().run_all().settle()
        assert world.phase == "Running"
        world.order("AbortJob").settle()
        assert (world.phase, world.pods, world.group) == ("Aborted", {}, None)
        world.order("ResumeJob").settle()
        assert (world.phase, world.job.status.retry_count) == ("Pending", 0)


def test_a_job_may_be_resumed_while_it_is_being_suspended() -> None:
    world = JobWorld(job()).admit().settle().run_all().settle()
    world.order("AbortJob").step()
    assert world.phase == "Aborting"
    world.order("ResumeJob").settle().admit().settle().run_all().settle()
    assert (world.phase, world.job.status.retry_count, set(world.pods)) == (
        "Running", 0, {"train-worker-0", "train-worker-1"},
    )  # fmt: skip


@pytest.mark.parametrize("action", ["AbortJob", "TerminateJob", "CompleteJob", "RestartJob"])
def test_an_order_that_comes_during_a_restart_is_carried_out_after_it(action: str) -> None:
    world = JobWorld(job()).admit().settle().run_all().settle()
    world.order("RestartJob").step()
    assert world.phase == "Restarting"
    world.order(action).step()
    assert world.phase == "Restarting"
    world.settle()
    after = {"AbortJob": "Aborted", "TerminateJob": "Terminated", "CompleteJob": "Completed", "RestartJob": "Pending"}
    assert world.phase == after[action]


def test_a_job_made_anew_under_an_old_name_has_nothing_to_do_with_what_is_left_of_the_old_one() -> None:
    """In Volcano a late clean-up after the old job removes the new one from memory, and it is stuck (#5773)."""
    old = JobWorld(job()).admit().settle().run_all().settle()
    documents = [
        document
        for key, document in old.world.documents().items()
        if key[0] in ("pods", "podgroups.scheduling.volcano.sh")
    ]
    for document in documents:
        document["metadata"][
            "ownerReferences"
        ] = []  # their owner is gone; the test's world allows no reference to nobody
    document = job()
    document["metadata"]["uid"] = "uid-new"
    new = JobWorld(document, *documents).admit()
    with pytest.raises(AssertionError, match="is created although it exists"):
        new.settle()  # a server refuses this until the old pods are gone, and the controller tries again
    assert new.job.status.state.phase in ("", "Pending")
    assert (new.job.status.running, new.job.status.retry_count) == (0, 0), "the old pods are not counted"
    for number in range(2):
        new.vanish(f"train-worker-{number}")
    new.created.clear()
    new.settle().run_all().settle()
    assert (new.phase, new.created) == ("Running", ["train-worker-0", "train-worker-1"])


def test_each_phase_stands_once_in_the_conditions_in_order_of_its_last_time() -> None:
    world = JobWorld(job(policies=[{"event": "PodFailed", "action": "RestartJob"}])).admit().settle().run_all().settle()
    world.later(5).end("train-worker-0", 1).settle().admit().settle().later(5).run_all().settle()
    assert [one.status for one in world.job.status.conditions] == ["Restarting", "Pending", "Running"]
