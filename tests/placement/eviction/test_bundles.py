"""What a gang can spare: the peer's cases of bundles, with its numbers."""

from collections.abc import Sequence
from typing import Any

from hekla.placement.eviction.bundles import spared
from hekla.placement.model import Job, JobSpec, SubGroupPolicy, Task, TaskSpec, TaskStatus
from hekla.testing.cluster import World, amounts

STAGE = SubGroupPolicy(name="stage", match_label_keys=("stage",), size=2, min_groups=2)


def running(groups: Sequence[str], *, size: int = 1, role: str = "", **fields: Any) -> Job:
    """A gang of which `size` pods of each group run: "1" has "1a", "1b"..."""
    world = World()
    world.node("n1", cpu=100)
    job = world.cluster.put_job(JobSpec(uid="victim", name="victim", **fields))
    for group in groups:
        for letter in "abc"[:size]:
            spec = TaskSpec(
                uid=group + letter, name=group + letter, request=amounts(cpu=1), labels={"stage": group}, role=role,
                node="n1", status=TaskStatus.RUNNING,
            )  # fmt: skip
            world.cluster.put_task(spec, job)
    return job


def split(job: Job, *names: str) -> tuple[str, str]:
    """What it can spare of these tasks, and what goes only with all of it."""
    safe, kept = spared(job, [job.tasks[name] for name in names])
    return told(safe), told(kept)


def told(tasks: Sequence[Task]) -> str:
    return " ".join(task.uid for task in tasks)


def test_a_role_keeps_its_minimum() -> None:  # G1
    job = running("01234", role="worker", min_available=3, role_minimums={"worker": 3})
    assert split(job, "0a", "1a", "2a", "3a", "4a") == ("0a 1a", "2a 3a 4a")


def test_as_many_sub_gangs_stay_whole_as_must() -> None:  # G2
    job = running("123", size=2, min_available=4, subgroups=(STAGE,))
    assert split(job, "1a", "2a", "3a") == ("1a", "2a 3a")


def test_what_is_left_of_a_broken_sub_gang_goes_before_another_is_broken() -> None:
    job = running("123", size=2, min_available=4, subgroups=(STAGE,))
    assert split(job, "1a", "2a", "1b", "3a") == ("1a 1b", "2a 3a")


def test_pods_beyond_the_size_of_their_sub_gang_break_nothing() -> None:
    job = running("12", size=3, min_available=4, subgroups=(STAGE,))
    assert split(job, "1a", "1b", "2a", "2b") == ("1a 2a", "1b 2b")


def test_where_no_sub_gang_must_be_whole_only_the_gangs_minimum_counts() -> None:
    free = SubGroupPolicy(name="stage", match_label_keys=("stage",), size=2)
    job = running("123", size=2, min_available=4, subgroups=(free,))
    assert split(job, "1a", "2a", "3a") == ("1a 2a", "3a")


def test_a_gang_that_is_broken_already_spares_all() -> None:  # G3
    job = running("12", min_available=10)
    assert split(job, "1a", "2a") == ("1a 2a", "")


def test_without_roles_the_gangs_minimum_counts() -> None:  # G4
    job = running("1234", min_available=2)
    assert split(job, "1a", "2a", "3a", "4a") == ("1a 2a", "3a 4a")
