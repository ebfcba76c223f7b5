"""Plays the stories of tests/scenarios/workloads/jobs: a job, what happens to it, what is expected after each step."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from hekla.testing.job_world import JobWorld, job

STORIES = sorted((Path(__file__).parents[1] / "scenarios" / "workloads" / "jobs").glob("*.yaml"))


def play(world: JobWorld, step: Any) -> None:
    """One line of a story; afterwards the controller works until it is quiet."""
    verb, what = (step, None) if isinstance(step, str) else next(iter(step.items()))
    match verb:
        case "admit":
            world.admit()
        case "run" if what == "all":
            world.run_all()
        case "run" | "evict" | "vanish":
            for name in what:
                getattr(world, verb)(f"train-{name}")
        case "end":
            for name, code in what.items():
                world.end(f"train-{name}", code)
        case "restarts":
            for name, count in what.items():
                world.restarts(f"train-{name}", count)
        case "order":
            world.order(what)
        case "gang is":
            world.group_phase(what)
        case "later":
            world.later(what)
        case "expect":
            return
        case _:
            pytest.fail(f"a story knows no {verb!r}")
    world.settle()


def seen(world: JobWorld) -> dict[str, Any]:
    """What a story may expect."""
    status = world.job.status
    return {
        "phase": world.phase,
        "retries": status.retry_count,
        "version": status.version,
        "pods": sorted(name.removeprefix("train-") for name in world.pods),
        "created": len(world.created),
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "pending": status.pending,
        "reason": status.state.reason,
        "message": status.state.message,
        "gang": world.group is not None,
    }


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story_goes_as_it_is_told(path: Path) -> None:
    story = yaml.safe_load(path.read_text())
    world = JobWorld(job(**story["job"])).settle()
    for number, step in enumerate(story["steps"], 1):
        play(world, step)
        if isinstance(step, dict) and "expect" in step:
            found = seen(world)
            assert {key: found[key] for key in step["expect"]} == step["expect"], f"{path.name}, step {number}"


def test_there_are_stories() -> None:
    assert len(STORIES) >= 8
