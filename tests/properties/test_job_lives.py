"""Whatever happens to the pods of a job, in whatever order, and wherever the controller dies: the job stays sane."""

from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hekla.api.meta import Document
from hekla.api.volcano.batch import JobPhase
from hekla.testing.job_world import JobWorld, job, task
from hekla.testing.reconcilers import writes
from hekla.workloads.job_lifecycle import FINISHED, TRANSITIONS

EVENTS = ["PodPending", "PodFailed", "PodEvicted", "TaskCompleted", "TaskFailed", "Unknown", "*"]
ACTIONS = [
    "AbortJob", "RestartJob", "RestartTask", "RestartPod", "RestartPartition", "TerminateJob", "CompleteJob", "ResumeJob",
]  # fmt: skip
HAPPENINGS = [
    "run",
    "end well",
    "end badly",
    "evict",
    "vanish",
    "restart",
    "admit",
    "unknown",
    "abort",
    "resume",
    "later",
    "step",
]


def any_job(
    replicas: tuple[int, int], mine: list[Document], own: list[Document], retries: int, success: int, more: set[str]
) -> Document:
    """A job of two tasks: the first perhaps in partitions, the second perhaps waiting for it, all perhaps deleted in the end."""
    first: Document = {"policies": own}
    if "partitions" in more:
        first["partitionPolicy"] = {"totalPartitions": replicas[0], "partitionSize": 1}
    second = {"dependsOn": {"name": ["a"]}} if "waits" in more else {}
    spec = {"minSuccess": success} if success else {}
    tasks = [task("a", replicas[0], **first), task("b", replicas[1], **second)]
    return job(task_list=tasks, policies=mine, maxRetry=retries, **spec)


policies = st.lists(
    st.fixed_dictionaries(
        {"event": st.sampled_from(EVENTS), "action": st.sampled_from(ACTIONS)},
        optional={"timeout": st.sampled_from(["5s", "1m"])},
    ),
    max_size=3,
    unique_by=lambda policy: policy["event"],
)
jobs = st.builds(
    any_job,
    st.tuples(st.integers(1, 3), st.integers(0, 2)),
    policies,
    policies,
    st.integers(0, 4),
    st.integers(0, 2),
    st.sets(st.sampled_from(["partitions", "waits"])),
)
lives = st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 9), st.none() | st.integers(0, 6)), max_size=25)


def befall(world: JobWorld, happening: str, choice: int) -> None:
    """One thing happens to the job, if it can."""
    staying = [name for name, pod in sorted(world.pods.items()) if not pod.metadata.deletion_timestamp]
    pending = [name for name in staying if world.pods[name].status.phase in ("", "Pending")]
    alive = [name for name in staying if world.pods[name].status.phase in ("", "Pending", "Running")]
    match happening:
        case "run" if pending:
            world.run(pending[choice % len(pending)])
        case "end well" | "end badly" if alive:
            world.end(alive[choice % len(alive)], 1 if happening == "end badly" else 0)
        case "evict" if staying:
            world.evict(staying[choice % len(staying)])
        case "vanish" if staying:
            world.vanish(staying[choice % len(staying)])
        case "restart" if alive:
            world.restarts(alive[choice % len(alive)], choice)
        case "admit" | "unknown" if world.group is not None:
            world.group_phase("Inqueue" if happening == "admit" else "Unknown")
        case "abort":
            world.order("AbortJob")
        case "resume":
            world.order("ResumeJob")
        case "later":
            world.later(choice * 10)
        case _:
            pass


def reachable(phase: JobPhase) -> set[JobPhase]:
    """The phases that the table leads to from one, by any number of steps."""
    seen, todo = {phase}, [phase]
    while todo:
        for following in TRANSITIONS[todo.pop()].values():
            if following not in seen:
                seen.add(following)
                todo.append(following)
    return seen


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(jobs, lives)
def test_any_life_is_legal_bounded_and_comes_to_rest(document: dict, life: list[tuple[str, int, int | None]]) -> None:
    world = JobWorld(document)
    world.step()
    before = JobPhase(world.phase)
    for happening, choice, upto in life:
        befall(world, happening, choice)
        # The controller may die after any of its commands. `step` asserts that no existing pod is created again.
        world.step(upto)
        now = JobPhase(world.phase)
        assert now in TRANSITIONS[before].values() or now is before, f"{before} -> {now}"
        assert world.job.status.retry_count <= max(1, world.job.spec.max_retry)
        before = now
    world.settle(rounds=40)
    assert JobPhase(world.phase) in reachable(before)
    assert not writes(world.decide())
    if JobPhase(world.phase) in FINISHED | {JobPhase.ABORTED}:
        assert all(pod.status.phase in ("Succeeded", "Failed") for pod in world.pods.values())
        assert world.group is None


@settings(max_examples=100, deadline=None)
@given(jobs, st.sampled_from(["end badly", "evict", "end well"]), st.integers(0, 9), st.integers(0, 9))
def test_a_controller_that_dies_at_any_step_ends_with_the_same_result(
    document: dict, happening: str, choice: int, upto: int
) -> None:
    def life(dies_after: int | None) -> tuple[str, int, int, list[str]]:
        world = JobWorld(document).admit().settle().run_all().settle()
        befall(world, happening, choice)
        world.step(dies_after)
        world.settle(rounds=40)
        status = world.job.status
        return world.phase, status.version, status.retry_count, sorted(world.pods)

    assert life(upto) == life(None)


LOSSES = st.sampled_from(["end badly", "evict", "vanish"])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["RestartJob", "RestartTask", "RestartPod", "RestartPartition"]),
    st.lists(st.tuples(LOSSES, st.integers(0, 9), st.integers(1, 4)), max_size=6),
)
def test_every_retry_has_a_loss_of_its_own_however_often_the_job_is_looked_at(
    action: str, losses: list[tuple[str, int, int]]
) -> None:
    lost = [{"event": event, "action": action} for event in ("PodFailed", "PodEvicted")]
    parts = {"totalPartitions": 2, "partitionSize": 1}
    tasks = [task("a", 2, partitionPolicy=parts), task("b", 2)]
    world = (
        JobWorld(job(task_list=tasks, policies=lost, maxRetry=99, minAvailable=1)).admit().settle().run_all().settle()
    )
    for number, (loss, choice, looks) in enumerate(losses, 1):
        befall(world, loss, choice)
        for _ in range(looks):
            world.step()
        assert world.job.status.retry_count <= number
    world.settle(rounds=40)
    assert world.job.status.retry_count <= len(losses)


@settings(max_examples=100, deadline=None)
@given(jobs, lives)
def test_no_pod_is_made_again_unless_it_was_lost_or_killed(
    document: dict, life: list[tuple[str, int, int | None]]
) -> None:
    world = JobWorld(document).admit().settle()
    there, gone = set(world.pods), Counter[str]()

    def look() -> None:
        nonlocal there
        now = set(world.pods)
        gone.update(there - now)
        there = now

    for happening, choice, upto in life:
        befall(world, happening, choice)
        look()
        world.step(upto)
        look()
        if choice % 2:
            world.let_go()
            look()
        made = Counter(world.created)
        assert all(count <= 1 + gone[name] for name, count in made.items()), (made, gone)
