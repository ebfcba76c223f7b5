"""Policies of jobs, generated whole: every event with every action in every phase, at once and after a timeout, at both levels.

The expectations are written from Volcano's table of events and actions and share nothing with the code.
"""

from itertools import product
from typing import Any

import msgspec
import pytest

from hekla.api.core import Pod
from hekla.kube.commands import Event
from hekla.testing.job_world import NAMESPACE, JobWorld, job, task
from hekla.workloads.job_events import happenings
from hekla.workloads.job_view import view_of

ACTIONS = [
    "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "AbortJob", "TerminateJob", "CompleteJob",
]  # fmt: skip
AFTER = {
    **dict.fromkeys(ACTIONS[:4], "Restarting"), "AbortJob": "Aborting", "TerminateJob": "Terminating",
    "CompleteJob": "Completing",
}  # fmt: skip
EVENTS = ["PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "exit code"]
OF_TASKS = [event for event in EVENTS if event != "Unknown"]
PAIRS = [
    (event, action) for event, action in product(EVENTS, ACTIONS)
    if event != "Unknown" or action not in ("RestartTask", "RestartPod", "RestartPartition")
]  # fmt: skip
"""What befell the gang as a whole names no task that could be restarted alone."""
ENDED = ("Aborted", "Terminated")


def said(event: str, action: str, **more: Any) -> dict[str, Any]:
    """A policy."""
    return {"action": action, **({"exitCode": 5} if event == "exit code" else {"event": event}), **more}


def world_with(policies: list[Any], of_a: list[Any] | None = None, phase: str = "Running", **more: Any) -> JobWorld:
    """A job of tasks `a` (two pods, in two partitions) and `b` (one pod), in a phase."""
    parts = {"totalPartitions": 2, "partitionSize": 1}
    tasks = [task("a", 2, partitionPolicy=parts, policies=of_a or []), task("b", 1)]
    world = JobWorld(job(task_list=tasks, policies=policies, **more)).admit().settle()
    if phase != "Pending":
        world.run_all().settle()
    assert world.phase == ("Pending" if phase == "Pending" else "Running")
    return world


def happen(world: JobWorld, event: str) -> None:
    """The event comes to pass, in the least way."""
    match event:
        case "PodFailed" | "exit code":
            world.end("train-a-0", 5)
        case "PodEvicted":
            world.vanish("train-a-0")
        case "TaskCompleted":
            world.end("train-a-0").end("train-a-1")
        case "TaskFailed":
            world.world.change(
                Pod, NAMESPACE, "train-a-1", {"status": {"phase": "Running"}, "spec": {"nodeName": "n1"}}
            )
            world.restarts("train-a-1", 3)
        case "Unknown":
            world.group_phase("Unknown")


@pytest.mark.parametrize(("event", "action"), PAIRS)
def test_in_a_job_that_is_pending_with_pods_every_event_has_its_action(event: str, action: str) -> None:
    world = world_with([said(event, action)], phase="Pending")
    happen(world, event)
    world.step()
    assert world.phase == AFTER[action]
    assert world.job.status.retry_count == int(action in ACTIONS[:4])


@pytest.mark.parametrize(("event", "action"), PAIRS)
def test_a_timeout_puts_the_action_off_and_nothing_else(event: str, action: str) -> None:
    world = world_with([said(event, action, timeout="30s")])
    happen(world, event)
    world.step()
    before = world.phase
    assert before not in {*AFTER.values()}, "nothing is ordered yet"
    if event == "PodEvicted":
        world.settle()  # the pod is made anew, and waits for a node
    world.later(29).step()
    assert world.phase not in AFTER.values()
    world.later(2).step()
    assert world.phase == AFTER[action]


@pytest.mark.parametrize(("event", "action"), list(product(OF_TASKS, ACTIONS)))
def test_a_tasks_policy_goes_before_the_jobs(event: str, action: str) -> None:
    other = "TerminateJob" if action != "TerminateJob" else "AbortJob"
    world = world_with([said(event, other)], of_a=[said(event, action)])
    happen(world, event)
    world.step()
    assert world.phase == AFTER[action]


@pytest.mark.parametrize(("event", "action"), list(product(OF_TASKS, ACTIONS)))
def test_a_tasks_policy_that_says_nothing_of_the_event_leaves_it_to_the_job(event: str, action: str) -> None:
    world = world_with([said(event, action)], of_a=[{"event": "JobUpdated", "action": "TerminateJob"}])
    happen(world, event)
    world.step()
    assert world.phase == AFTER[action]


@pytest.mark.parametrize(("event", "action"), list(product(OF_TASKS, ACTIONS)))
def test_the_policies_of_another_task_are_not_asked(event: str, action: str) -> None:
    tasks = [task("a", 2), task("b", 1, policies=[said(event, action)])]
    world = JobWorld(job(task_list=tasks)).admit().settle().run_all().settle()
    happen(world, event)
    world.step()
    assert world.phase in ("Running", "Pending")
    assert world.job.status.retry_count == 0


PHASES = {
    "Restarting": ["RestartJob"], "Aborting": ["AbortJob"], "Completing": ["CompleteJob"],
    "Terminating": ["TerminateJob"], "Aborted": ["AbortJob"], "Terminated": ["TerminateJob"],
}  # fmt: skip
"""Phases that hear of no event, and what leads there."""


def world_in(phase: str) -> JobWorld:
    """The job of tasks `a` and `b`, without policies, in a phase in which it hears of nothing."""
    world = world_with([])
    if phase in ("Completed", "Failed"):
        for name in tuple(world.pods):
            world.end(name, int(phase == "Failed"))
        world.settle()
    else:
        world.order(PHASES[phase][0]).step()
    if phase in ENDED:
        world.settle()
    assert world.phase == phase
    return world


def plant(world: JobWorld, event: str) -> None:
    """The event comes to pass, with pods of the job's present version, as if they had been made the moment before."""
    version = {"volcano.sh/job-version": str(world.job.status.version), "volcano.sh/task-spec": "a"}
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": "train", "uid": "uid-train"}
    for number in range(2):
        labels = {"volcano.sh/task-spec": "a", "volcano.sh/partition-id": str(number)}
        world.world.put({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": f"train-a-{number}", "namespace": NAMESPACE, "uid": f"planted-{number}", "labels": labels,
                "annotations": version, "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"containers": [{"name": "main", "image": "python"}]},
        })  # fmt: skip
        world.run(f"train-a-{number}")
    if event == "Unknown":
        world.world.put({
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup",
            "metadata": {"name": "train-uid-train", "namespace": NAMESPACE, "uid": "planted-group"},
            "status": {"phase": "Unknown"},
        })  # fmt: skip
    elif event == "PodEvicted":
        world.evict("train-a-0")
    else:
        happen(world, event)


@pytest.mark.parametrize("phase", [*PHASES, "Completed", "Failed"])
@pytest.mark.parametrize(("event", "action"), PAIRS)
@pytest.mark.parametrize("level", ["job", "task"])
def test_a_job_that_is_restarting_ending_or_over_hears_of_no_event(
    level: str, event: str, action: str, phase: str
) -> None:
    world = world_in(phase)
    before = world.job.status
    tasks = msgspec.to_builtins(world.job.spec.tasks)
    if level == "task":
        tasks[0]["policies"] = [said(event, action)]
    policies = [said(event, action)] if level == "job" else []
    world.world.change(type(world.job), NAMESPACE, "train", {"spec": {"policies": policies, "tasks": tasks}})
    plant(world, event)
    view = view_of(world.job, world.world, world.now)
    fired = {happening.event for happening in happenings(view)}
    assert ("PodFailed" if event == "exit code" else event) in fired, "the event has really come to pass"
    commands = world.step()
    told = [command.reason for command in commands if isinstance(command, Event)]
    assert "ExecuteAction" not in told
    assert world.phase in (phase, "Pending" if phase == "Restarting" else phase)
    assert (world.job.status.retry_count, world.job.status.version) == (before.retry_count, before.version)


@pytest.mark.parametrize("action", ["AbortJob", "TerminateJob", "CompleteJob"])
def test_what_happened_while_a_part_restarted_is_heard_when_it_is_over(action: str) -> None:
    tasks = [
        task("a", 1, policies=[said("PodFailed", "RestartPod")]),
        task("b", 1, policies=[said("PodFailed", action)]),
    ]
    world = JobWorld(job(task_list=tasks)).admit().settle().run_all().settle().end("train-a-0", 1)
    world.step()
    assert world.phase == "Restarting"
    world.end("train-b-0", 1).step()
    assert world.phase in ("Restarting", "Pending"), "it is not heard yet"
    for _ in range(4):
        world.let_go()
        world.step()
        if world.phase == AFTER[action]:
            return
    raise AssertionError(f"the failure was never heard; the job is {world.phase}")


@pytest.mark.parametrize("event", EVENTS)
def test_several_events_in_one_policy_are_each_meant(event: str) -> None:
    if event == "exit code":
        world = world_with([{"events": ["TaskFailed"], "action": "AbortJob"}, said(event, "TerminateJob")])
    else:
        world = world_with([{"events": ["JobUpdated", event], "action": "TerminateJob"}])
    happen(world, event)
    world.step()
    assert world.phase == "Terminating"


@pytest.mark.parametrize("code", [1, 2, 5, 126, 137, 143, 255])
@pytest.mark.parametrize("meant", [5, 137])
def test_an_exit_code_is_meant_to_the_number(code: int, meant: int) -> None:
    world = world_with([{"exitCode": meant, "action": "AbortJob"}, {"event": "PodFailed", "action": "TerminateJob"}])
    world.end("train-a-0", code).step()
    assert world.phase == ("Aborting" if code == meant else "Terminating")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_exit_code_of_any_container_counts(place: int) -> None:
    """Volcano reads that of the first container only (#5460)."""
    world = world_with([{"exitCode": 5, "action": "AbortJob"}])
    ended = [
        {"name": f"c{number}", "state": {"terminated": {"exitCode": 5 if number == place else 0}}}
        for number in range(3)
    ]
    world.world.change(Pod, NAMESPACE, "train-a-0", {"status": {"phase": "Failed", "containerStatuses": ended}})
    world.step()
    assert world.phase == "Aborting"


@pytest.mark.parametrize(("event", "action"), list(product(["*"], ACTIONS)))
def test_any_event_means_every_event_but_not_a_pod_that_merely_waits(event: str, action: str) -> None:
    world = world_with([said(event, action)], phase="Pending")
    assert world.phase == "Pending"
    for one in [event for event, allowed in PAIRS if allowed == action]:
        again = world_with([said(event, action)])
        happen(again, one)
        again.step()
        assert again.phase == AFTER[action], one


# ---- delayed actions


@pytest.mark.parametrize("action", ACTIONS)
def test_a_pod_that_is_pending_too_long_calls_for_its_action_from_when_it_was_made(action: str) -> None:
    world = world_with([said("PodPending", action, timeout="30s")], phase="Pending")
    world.later(29).step()
    assert world.phase == "Pending"
    world.later(2).step()
    assert world.phase == AFTER[action]


def test_a_pod_that_starts_in_time_is_no_longer_waited_for() -> None:
    world = world_with([said("PodPending", "AbortJob", timeout="30s")], phase="Pending")
    world.later(29).run_all().settle().later(60).settle()
    assert world.phase == "Running"


@pytest.mark.parametrize("action", ACTIONS)
def test_the_action_for_an_evicted_pod_outlives_the_pod_that_takes_its_place(action: str) -> None:
    """Volcano forgets it when the pod is made anew (#5508)."""
    world = world_with([said("PodEvicted", action, timeout="30s")])
    world.evict("train-a-0").settle()
    assert world.created.count("train-a-0") == 2
    world.later(31).step()
    assert world.phase == AFTER[action]


@pytest.mark.parametrize("action", ACTIONS)
def test_an_evicted_pod_that_runs_again_in_time_is_forgiven(action: str) -> None:
    world = world_with([said("PodEvicted", action, timeout="30s")])
    world.evict("train-a-0").settle().run_all().settle().later(60).settle()
    assert (world.phase, world.job.status.retry_count) == ("Running", 0)


def test_a_restart_of_the_job_settles_what_was_put_off() -> None:
    policies = [said("PodFailed", "AbortJob", timeout="30s"), said("TaskFailed", "RestartJob")]
    world = world_with(policies)
    world.end("train-a-0", 1).settle()
    assert "hekla.dev/delayed-actions" in world.job.metadata.annotations
    world.restarts("train-a-1", 3).settle().admit().settle().run_all().settle()
    assert (world.phase, world.job.status.retry_count) == ("Running", 1)
    world.later(60).settle()
    assert (world.phase, world.job.status.retry_count) == ("Running", 1)


def test_a_partial_restart_leaves_what_was_put_off_for_others() -> None:
    tasks = [
        task("a", 1, policies=[said("PodFailed", "AbortJob", timeout="30s")]),
        task("b", 1, policies=[said("PodFailed", "RestartPod")]),
    ]
    world = JobWorld(job(task_list=tasks)).admit().settle().run_all().settle()
    world.end("train-a-0", 1).settle().end("train-b-0", 1).settle()
    assert world.job.status.retry_count == 1
    world.later(31).step()
    assert world.phase == "Aborting"


# ---- partial restarts

PARTIAL = {
    "RestartTask": {"train-a-0", "train-a-1", "train-a-2", "train-a-3"},
    "RestartPartition": {"train-a-0", "train-a-1"},
    "RestartPod": {"train-a-1"},
}


def parted(**spec: Any) -> JobWorld:
    """A job of two partitions of two pods, and a pod beside them."""
    parts = {"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1}
    tasks = [task("a", 4, minAvailable=2, partitionPolicy=parts), task("b", 1)]
    return JobWorld(job(task_list=tasks, **spec)).admit().settle().run_all().settle()


@pytest.mark.parametrize(("action", "event"), list(product(PARTIAL, ["PodFailed", "PodEvicted", "exit code"])))
def test_a_partial_restart_makes_anew_what_it_names_keeps_the_gang_and_costs_one_retry(action: str, event: str) -> None:
    world = parted(policies=[said(event, action)])
    group = world.group
    assert group is not None
    before = {name: pod.metadata.uid for name, pod in world.pods.items()}
    first = len(world.created)
    if event == "PodEvicted":
        world.evict("train-a-1")
    else:
        world.end("train-a-1", 5)
    world.settle()
    assert set(world.created[first:]) == PARTIAL[action]
    assert len(world.created[first:]) == len(PARTIAL[action]), "each once"
    assert set(before) == set(world.pods)
    status = world.job.status
    enough = len(before) - len(PARTIAL[action]) >= world.job.spec.min_available
    assert (status.retry_count, status.version, world.phase) == (1, 0, "Running" if enough else "Pending")
    assert world.group is not None
    assert world.group.metadata.uid == group.metadata.uid
    assert world.group.status.phase == "Inqueue"
    world.run_all().settle()
    assert world.phase == "Running"


@pytest.mark.parametrize("action", PARTIAL)
def test_a_pod_that_takes_its_time_to_go_costs_one_retry_and_not_one_per_look(action: str) -> None:
    world = parted(policies=[said("PodEvicted", action)])
    world.evict("train-a-1")
    for _ in range(8):
        world.step()  # the node has not let go of the pod
    assert world.job.status.retry_count == 1
    world.settle().run_all().settle()
    assert (world.phase, world.job.status.retry_count) == ("Running", 1)


@pytest.mark.parametrize("action", PARTIAL)
def test_a_gang_in_trouble_restarts_no_part_and_costs_no_retry(action: str) -> None:
    world = parted(policies=[said("Unknown", action)])
    world.group_phase("Unknown").settle()
    assert (world.phase, world.job.status.retry_count) == ("Running", 0)


@pytest.mark.parametrize("action", PARTIAL)
@pytest.mark.parametrize("together", [1, 2, 4])
def test_pods_that_fall_together_are_restarted_together_and_cost_one_retry(action: str, together: int) -> None:
    world = parted(policies=[said("PodFailed", action)], maxRetry=9)
    for number in range(together):
        world.end(f"train-a-{number}", 1)
    world.settle()
    assert world.job.status.retry_count == 1


@pytest.mark.parametrize("action", ["RestartJob", *PARTIAL])
@pytest.mark.parametrize("most", range(4))
def test_a_job_that_always_fails_is_restarted_as_often_as_it_may(action: str, most: int) -> None:
    world = JobWorld(job(tasks={"worker": 2}, policies=[said("PodFailed", action)], maxRetry=most))
    for _ in range(most + 3):
        if world.phase == "Failed":
            break
        if world.group is None or world.group.status.phase != "Inqueue":
            world.step()
            world.admit()
        world.settle().run_all().settle().end("train-worker-0", 1).settle()
    allowed = max(1, most)
    assert (world.phase, world.job.status.retry_count) == ("Failed", allowed)
    assert world.created.count("train-worker-0") == allowed
    assert world.job.status.state.reason == "RetriesExhausted"


def test_the_last_restart_keeps_the_pods_that_ended_for_their_logs() -> None:
    world = JobWorld(job(tasks={"worker": 2}, policies=[said("PodFailed", "RestartJob")], maxRetry=1))
    world.admit().settle().run_all().settle().end("train-worker-0", 1).settle()
    assert (world.phase, set(world.pods)) == ("Failed", {"train-worker-0"})


@pytest.mark.parametrize(
    ("allowed", "restarts", "is_failed"), [(3, 2, False), (3, 3, True), (1, 1, True), (-1, 99, False)]
)
def test_a_task_has_failed_when_its_containers_restarted_as_often_as_it_allows(
    allowed: int, restarts: int, is_failed: bool
) -> None:
    tasks = [task("worker", 2, maxRetry=allowed)]
    world = (
        JobWorld(job(task_list=tasks, policies=[said("TaskFailed", "AbortJob")])).admit().settle().run_all().settle()
    )
    world.restarts("train-worker-0", restarts // 2).restarts("train-worker-1", restarts - restarts // 2).step()
    assert world.phase == ("Aborting" if is_failed else "Running")
