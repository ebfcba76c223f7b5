from datetime import UTC, datetime, timedelta

import pytest

from hekla.controlplane.cron_job import SCHEDULED, reconcile_cron_job
from hekla.controlplane.views import CronJob, Job
from hekla.testing.reconcilers import assert_heals, converge
from hekla.testing.world import FakeWorld

NOON = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)


def cron_job(schedule="*/5 * * * *", **spec):
    template = {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "x"}]}}}}
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "tick", "uid": "cron", "creationTimestamp": "2026-01-01T11:58:00Z"},
        "spec": {"schedule": schedule, "concurrencyPolicy": "Allow", "jobTemplate": template, **spec},
    }


def run(world, now):
    converge(reconcile_cron_job, world, "default", "tick", now=now)


def jobs(world):
    return world.list(Job)


def finish(world, job, kind="Complete", at="2026-01-01T12:01:00Z"):
    status = {"conditions": [{"type": kind, "status": "True"}], "completionTime": at if kind == "Complete" else None}
    world.change(Job, "default", job.metadata.name, {"status": status})


def test_a_job_is_made_at_each_time_of_the_schedule(now):
    world = FakeWorld(cron_job())
    run(world, datetime(2026, 1, 1, 11, 59, tzinfo=UTC))
    assert jobs(world) == []
    assert 60 < world.requeues[-1] < 61
    run(world, NOON)
    (job,) = jobs(world)
    assert job.metadata.name == f"tick-{int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) // 60}"
    assert job.metadata.annotations[SCHEDULED] == "2026-01-01T12:00:00Z"
    status = world.get(CronJob, "default", "tick").status
    assert status.last_schedule_time == "2026-01-01T12:00:00Z"
    assert [one.name for one in status.active] == [job.metadata.name]
    run(world, NOON + timedelta(minutes=5))
    assert len(jobs(world)) == 2


def test_after_a_long_pause_only_the_last_missed_time_is_served(now):
    world = FakeWorld(cron_job())
    run(world, NOON + timedelta(hours=8))
    assert [job.metadata.annotations[SCHEDULED] for job in jobs(world)] == ["2026-01-01T20:00:00Z"]


def test_a_time_missed_by_more_than_the_deadline_is_not_served(now):
    world = FakeWorld(cron_job("0 12 * * *", startingDeadlineSeconds=60))
    run(world, NOON + timedelta(minutes=30))
    assert jobs(world) == []


def test_forbid_waits_for_the_run_before(now):
    world = FakeWorld(cron_job(concurrencyPolicy="Forbid"))
    run(world, NOON)
    run(world, NOON + timedelta(minutes=5))
    assert len(jobs(world)) == 1
    assert world.events[-1].reason == "JobAlreadyActive"
    finish(world, jobs(world)[0])
    run(world, NOON + timedelta(minutes=6))
    assert len(jobs(world)) == 2


def test_replace_ends_the_run_before(now):
    world = FakeWorld(cron_job(concurrencyPolicy="Replace"))
    run(world, NOON)
    first = jobs(world)[0].metadata.name
    run(world, NOON + timedelta(minutes=5))
    assert [job.metadata.name for job in jobs(world)] != [first]
    assert len(jobs(world)) == 1


def test_old_jobs_are_forgotten(now):
    world = FakeWorld(cron_job(successfulJobsHistoryLimit=2, failedJobsHistoryLimit=0))
    for number in range(5):
        run(world, NOON + timedelta(minutes=5 * number))
        for job in jobs(world):
            if not job.status.conditions:
                finish(world, job, "Failed" if number == 4 else "Complete")
    run(world, NOON + timedelta(minutes=21))
    assert len(jobs(world)) == 2
    assert world.get(CronJob, "default", "tick").status.last_successful_time


def test_the_time_zone_counts(now):
    world = FakeWorld(cron_job("0 13 * * *", timeZone="Europe/Berlin"))
    run(world, NOON)
    assert [job.metadata.annotations[SCHEDULED] for job in jobs(world)] == ["2026-01-01T12:00:00Z"]


@pytest.mark.parametrize("changes", [{"schedule": "every day"}, {"timeZone": "Mars/Olympus"}])
def test_a_schedule_that_cannot_be_read_is_said_in_an_event(now, changes):
    world = FakeWorld(cron_job(**changes))
    run(world, NOON)
    assert world.events[-1].reason == "UnparseableSchedule"
    assert "cannot be used" in world.events[-1].message


def test_a_suspended_cron_job_makes_nothing(now):
    world = FakeWorld(cron_job(suspend=True))
    run(world, NOON)
    assert jobs(world) == []


def test_it_heals(now):
    assert_heals(reconcile_cron_job, lambda: FakeWorld(cron_job()), "default", "tick", now=NOON)


def test_a_job_that_somebody_made_from_it_is_told_of_and_does_not_count(now):
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "tick", "uid": "cron", "controller": True}
    metadata = {"name": "by-hand", "ownerReferences": [owner]}
    world = FakeWorld(
        cron_job(concurrencyPolicy="Forbid"), {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata}
    )
    run(world, NOON)
    assert len(jobs(world)) == 2
    assert "by-hand" not in [one.name for one in world.get(CronJob, "default", "tick").status.active]
    assert world.events[0].message == "Saw a job that the controller did not create or forgot: by-hand"
