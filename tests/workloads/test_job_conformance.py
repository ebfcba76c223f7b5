"""Volcano's tables, generated whole: every phase with every action, every event with every action at both levels.

The expectations are written from specs/volcano-crds.md 1.3 and 1.4 and share nothing with the code.
"""

from typing import Any

import pytest

from hekla.api.volcano.batch import JobPhase
from hekla.api.volcano.bus import Command
from hekla.testing.job_world import NAMESPACE, JobWorld, job, task
from hekla.workloads.job_lifecycle import FINISHED, TRANSITIONS, TransitionError, Trigger, after, diagram

ACTIONS = [
    "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "AbortJob", "TerminateJob", "CompleteJob", "ResumeJob",
]  # fmt: skip
RESTARTS = {action for action in ACTIONS if action.startswith("Restart")}
KILLS = {"AbortJob": "Aborting", "TerminateJob": "Terminating", "CompleteJob": "Completing"}

# phase -> action -> the phase that follows at once; what is not here changes nothing
TABLE: dict[str, dict[str, str]] = {
    "Pending": {**dict.fromkeys(RESTARTS, "Restarting"), **KILLS},
    "Running": {**dict.fromkeys(RESTARTS, "Restarting"), **KILLS},
    "Aborting": {"ResumeJob": "Restarting"},
    "Aborted": {"ResumeJob": "Restarting"},
}
LASTING = ["Pending", "Running", "Aborted", "Completed", "Terminated", "Failed"]


def world_in(phase: str) -> JobWorld:
    """A job that has come to a phase in the ordinary way."""
    world = JobWorld(job(tasks={"worker": 2})).admit().settle()
    if phase == "Pending":
        return world
    world.run_all().settle()
    match phase:
        case "Aborted":
            world.order("AbortJob").settle()
        case "Terminated":
            world.order("TerminateJob").settle()
        case "Completed":
            world.end("train-worker-0").end("train-worker-1").settle()
        case "Failed":
            world.end("train-worker-0", 1).end("train-worker-1", 1).settle()
        case "Aborting" | "Completing" | "Terminating":
            world.order({"Aborting": "AbortJob", "Completing": "CompleteJob", "Terminating": "TerminateJob"}[phase])
            world.step()
    assert world.phase == phase
    return world


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("phase", [*LASTING, "Aborting", "Completing", "Terminating"])
def test_every_order_in_every_phase(phase: str, action: str) -> None:
    world = world_in(phase)
    before = world.job.status
    world.order(action).step()
    assert world.phase == TABLE.get(phase, {}).get(action, phase)
    status = world.job.status
    counts = phase in ("Pending", "Running") and action in RESTARTS
    assert status.retry_count == before.retry_count + int(counts)
    whole = world.phase != phase and action in {*KILLS, "RestartJob", "ResumeJob"}
    assert status.version == before.version + int(whole)


@pytest.mark.parametrize("action", ACTIONS)
def test_every_order_for_a_job_that_restarts_waits_until_that_is_over(action: str) -> None:
    world = world_in("Running").order("RestartJob")
    world.step()
    assert world.phase == "Restarting"
    world.order(action)
    world.step()
    assert world.phase == "Restarting", "its pods are on their way out"
    assert len(world.world.list(Command, NAMESPACE)) == 1, "the order waits"
    world.let_go()
    for _ in range(3):
        world.step()
        if not world.world.list(Command, NAMESPACE):
            break
    assert world.phase == TABLE["Pending"].get(action, "Pending")
    assert world.job.status.retry_count == (2 if action in RESTARTS else 1)


def fire(world: JobWorld, event: str) -> None:
    match event:
        case "PodFailed" | "*":
            world.end("train-a-0", 5)
        case "PodEvicted":
            world.vanish("train-a-0")
        case "TaskCompleted":
            world.end("train-a-0").end("train-a-1")
        case "TaskFailed":
            world.restarts("train-a-1", 3)
        case "Unknown":
            world.group_phase("Unknown")


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "event", ["PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "*", "exit code"]
)
@pytest.mark.parametrize("level", ["job", "task"])
def test_every_policy_of_every_event_at_both_levels(level: str, event: str, action: str) -> None:
    policy: dict[str, Any] = {"action": action, **({"exitCode": 5} if event == "exit code" else {"event": event})}
    mine = {"policies": [policy]} if level == "task" else {}
    parts = {"totalPartitions": 2, "partitionSize": 1}
    document = job(
        task_list=[task("a", 2, partitionPolicy=parts, **mine), task("b", 1)],
        **({"policies": [policy]} if level == "job" else {}),
    )
    world = JobWorld(document).admit().settle().run_all().settle()
    fire(world, "PodFailed" if event == "exit code" else event)
    world.step()
    # The gang's trouble belongs to no task, so no task, pod or partition can be restarted for it.
    hears = event != "Unknown" or (level == "job" and action in {*KILLS, "RestartJob"})
    assert world.phase == (TABLE["Running"].get(action, "Running") if hears else "Running")


@pytest.mark.parametrize("action", sorted(RESTARTS))
def test_a_restart_kills_no_more_than_it_says(action: str) -> None:
    parts = {"totalPartitions": 2, "partitionSize": 2}
    policies = [{"event": "PodFailed", "action": action}]
    world = JobWorld(job(task_list=[task("a", 4, partitionPolicy=parts), task("b", 1)], policies=policies))
    world.admit().settle().run_all().settle().end("train-a-1", 1).step()
    left = {name for name, pod in world.pods.items() if not pod.metadata.deletion_timestamp}
    expected = {
        "RestartJob": set(),
        "RestartTask": {"train-b-0"},
        "RestartPartition": {"train-a-2", "train-a-3", "train-b-0"},
        "RestartPod": {"train-a-0", "train-a-2", "train-a-3", "train-b-0"},
    }
    assert left == expected[action]


def test_events_of_an_older_version_call_for_nothing() -> None:
    world = JobWorld(job(policies=[{"event": "PodFailed", "action": "AbortJob"}])).admit().settle().run_all().settle()
    world.end("train-worker-0", 1).settle()
    assert world.phase == "Aborted"
    assert set(world.pods) == {"train-worker-0"}
    world.order("ResumeJob").settle().admit().settle().run_all().settle()
    assert world.phase == "Running"


def test_the_first_policy_that_matches_decides() -> None:
    policies = [{"exitCode": 5, "action": "TerminateJob"}, {"event": "PodFailed", "action": "RestartJob"}]
    world = JobWorld(job(policies=policies)).admit().settle().run_all().settle()
    world.end("train-worker-0", 5).step()
    assert world.phase == "Terminating"


def test_a_pending_pod_calls_for_nothing_without_a_timeout() -> None:
    world = JobWorld(job(policies=[{"event": "PodPending", "action": "AbortJob"}])).admit().settle()
    assert world.phase == "Pending"


# ---- the table itself


@pytest.mark.parametrize("phase", list(JobPhase))
def test_every_phase_can_be_reached_and_every_unfinished_one_left(phase: JobPhase) -> None:
    reached = {following for row in TRANSITIONS.values() for following in row.values()}
    assert phase in reached
    assert bool(TRANSITIONS[phase]) is (phase not in FINISHED)


def test_a_trigger_that_a_phase_does_not_expect_is_named() -> None:
    with pytest.raises(
        TransitionError, match="a job that is Completed takes no 'it is resumed'; it expects nothing more"
    ):
        after(JobPhase.COMPLETED, Trigger.RESUME)


def test_the_diagram_has_every_transition() -> None:
    lines = diagram().splitlines()
    assert sum(" --> " in line and ":" in line for line in lines) == sum(len(row) for row in TRANSITIONS.values())


def test_a_job_that_is_being_deleted_is_left_alone() -> None:
    world = world_in("Running")
    world.world.change(type(world.job), NAMESPACE, "train", {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})
    assert world.decide() == []
