from datetime import UTC, datetime, timedelta

import pytest

from hekla.api.volcano import CronJob, Job
from hekla.testing.job_world import task
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge
from hekla.testing.world import FakeWorld
from hekla.workloads import keys
from hekla.workloads.cron_job import reconcile_cron_job

NOON = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
MINUTES = int(datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()) // 60


def cron_job(schedule="*/5 * * * *", **spec):
    template = {"metadata": {"labels": {"team": "red"}}, "spec": {"queue": "research", "tasks": [task("worker", 2)]}}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "CronJob",
        "metadata": {
            "name": "tick",
            "namespace": "default",
            "uid": "cron",
            "creationTimestamp": "2026-01-01T11:58:00Z",
        },
        "spec": {"schedule": schedule, "jobTemplate": template, **spec},
    }


def run(world, now=NOON):
    converge(reconcile_cron_job, world, "default", "tick", now=now)


def names(world):
    return [job.metadata.name for job in world.list(Job)]


def end(world, name, phase="Completed", at="2026-01-01T12:01:00Z"):
    world.change(Job, "default", name, {"status": {"state": {"phase": phase, "lastTransitionTime": at}}})


def status(world):
    return world.get(CronJob, "default", "tick").status


def reasons(world):
    return [event.reason for event in world.events]


def test_a_job_is_made_at_each_time_with_what_the_template_says():
    world = FakeWorld(cron_job())
    run(world, datetime(2026, 1, 1, 11, 59, tzinfo=UTC))
    assert names(world) == []
    assert 60 < world.requeues[-1] < 61
    run(world)
    (made,) = world.list(Job)
    assert made.metadata.name == f"tick-{MINUTES}"
    assert made.metadata.annotations[keys.CRON_TIME] == "2026-01-01T12:00:00Z"
    assert made.metadata.labels == {"team": "red"}
    assert (made.spec.queue, made.spec.tasks[0].replicas) == ("research", 2)
    assert status(world).last_schedule_time == "2026-01-01T12:00:00Z"
    assert [one.name for one in status(world).active] == [made.metadata.name]


def test_what_the_template_leaves_out_is_left_to_admission():
    world = FakeWorld(cron_job())
    run(world)
    (made,) = [document for document in world.documents().values() if document["kind"] == "Job"]
    assert sorted(made["spec"]) == ["queue", "tasks"]


def test_a_time_is_served_once_even_if_the_controller_forgot():
    world = FakeWorld(cron_job())
    run(world)
    end(world, f"tick-{MINUTES}")
    world.change(CronJob, "default", "tick", {"status": {"lastScheduleTime": None, "active": None}})
    run(world)
    assert names(world) == [f"tick-{MINUTES}"]


def test_of_many_missed_times_the_latest_is_served_and_the_rest_is_told():
    world = FakeWorld(cron_job("* * * * *"))
    run(world, NOON + timedelta(hours=8))
    assert names(world) == [f"tick-{MINUTES + 8 * 60}"]
    assert "TooManyMissedTimes" in reasons(world)


def test_a_time_missed_by_more_than_the_deadline_is_not_served():
    world = FakeWorld(cron_job("0 12 * * *", startingDeadlineSeconds=60))
    run(world, NOON + timedelta(minutes=30))
    assert names(world) == []


def test_forbid_waits_for_the_run_before_and_then_serves_the_time():
    world = FakeWorld(cron_job(concurrencyPolicy="Forbid"))
    run(world)
    run(world, NOON + timedelta(minutes=5))
    assert names(world) == [f"tick-{MINUTES}"]
    told = next(event for event in world.events if event.reason == "ForbidConcurrent")
    assert (told.type, told.message) == ("Warning", "Skipping job creation because another job is already running")
    end(world, f"tick-{MINUTES}")
    run(world, NOON + timedelta(minutes=6))
    assert names(world) == [f"tick-{MINUTES}", f"tick-{MINUTES + 5}"]
    assert "SawCompletedJob" in reasons(world)


def test_replace_deletes_the_run_before():
    world = FakeWorld(cron_job(concurrencyPolicy="Replace"))
    run(world)
    run(world, NOON + timedelta(minutes=5))
    assert names(world) == [f"tick-{MINUTES + 5}"]
    assert {"ReplaceConcurrent", "SuccessfulDelete"} <= set(reasons(world))


def test_allow_lets_runs_overlap():
    world = FakeWorld(cron_job())
    run(world)
    run(world, NOON + timedelta(minutes=5))
    assert len(names(world)) == 2


def test_a_suspended_one_makes_nothing_and_still_prunes():
    world = FakeWorld(cron_job(successfulJobsHistoryLimit=0))
    run(world)
    end(world, f"tick-{MINUTES}")
    world.change(CronJob, "default", "tick", {"spec": {"suspend": True}})
    run(world, NOON + timedelta(hours=1))
    assert names(world) == []
    assert status(world).last_successful_time == "2026-01-01T12:01:00Z"


@pytest.mark.parametrize(("phase", "kept"), [("Completed", 3), ("Failed", 1), ("Terminated", 1), ("Aborted", 6)])
def test_history_is_kept_to_its_limit(phase, kept):
    """Volcano never prunes those that were terminated (#5680); one that was aborted may yet be resumed."""
    world = FakeWorld(cron_job())
    for number in range(6):
        now = NOON + timedelta(minutes=5 * number)
        run(world, now)
        end(world, f"tick-{MINUTES + 5 * number}", phase)
    world.change(CronJob, "default", "tick", {"spec": {"suspend": True}})
    run(world, NOON + timedelta(hours=1))
    assert names(world) == [f"tick-{MINUTES + 5 * number}" for number in range(6 - kept, 6)]


def test_an_active_job_that_is_gone_is_told():
    world = FakeWorld(cron_job(suspend=True))
    gone = {"kind": "Job", "namespace": "default", "name": "tick-1", "uid": "u1"}
    world.change(CronJob, "default", "tick", {"status": {"active": [gone]}})
    run(world)
    told = next(event for event in world.events if event.reason == "StaleReference")
    assert (told.type, told.message) == ("Warning", 'Active job "tick-1" no longer exists (UID: u1)')


def test_a_job_of_somebody_else_is_left_alone():
    other = {
        "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job",
        "metadata": {"name": f"tick-{MINUTES}", "namespace": "default"}, "spec": {"tasks": [task("worker", 1)]},
    }  # fmt: skip
    world = FakeWorld(cron_job(), other)
    run(world)
    assert "ForeignJob" in reasons(world)
    assert world.list(Job)[0].spec.tasks[0].replicas == 1


def test_a_schedule_is_read_in_its_time_zone():
    world = FakeWorld(cron_job("0 13 * * *", timeZone="Europe/Berlin"))
    run(world)
    assert names(world) == [f"tick-{MINUTES}"]
    assert world.list(Job)[0].metadata.annotations[keys.CRON_TIME] == "2026-01-01T13:00:00+01:00"
    in_london = FakeWorld(cron_job("0 12 * * *", timeZone="Europe/London"))
    run(in_london)
    assert in_london.list(Job)[0].metadata.annotations[keys.CRON_TIME] == "2026-01-01T12:00:00Z"


def test_a_zone_inside_the_schedule_is_heeded_and_frowned_upon():
    world = FakeWorld(cron_job("CRON_TZ=Europe/Berlin 0 13 * * *", timeZone="Asia/Tokyo"))
    run(world)
    assert names(world) == [f"tick-{MINUTES}"]
    assert "UnsupportedSchedule" in reasons(world)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"schedule": "often"}, "UnParseableCronJobSchedule"),
        ({"schedule": "0 0 30 2 *"}, "InvalidSchedule"),
        ({"schedule": "0 0 * * *", "timeZone": "Nowhere/Land"}, "InvalidTimeZone"),
        ({"schedule": "TZ=UTC 0 0 * * *", "timeZone": "Nowhere/Land"}, "InvalidTimeZone"),
    ],
)
def test_what_cannot_be_read_is_told(broken, reason):
    world = FakeWorld(cron_job(**broken))
    run(world)
    assert reason in reasons(world)
    assert names(world) == []


def test_intervals_run_from_the_last_run():
    world = FakeWorld(cron_job("@every 1h"))
    run(world, datetime(2026, 1, 1, 12, 58, 1, tzinfo=UTC))
    assert status(world).last_schedule_time == "2026-01-01T12:58:00Z"


def test_it_converges_heals_and_touches_only_its_own():
    make = lambda: FakeWorld(cron_job(concurrencyPolicy="Replace"))  # noqa: E731 - a world per attempt
    assert_converges(reconcile_cron_job, make(), "default", "tick", now=NOON)
    assert_heals(reconcile_cron_job, make, "default", "tick", now=NOON)
    assert_touches_only_its_own(reconcile_cron_job, make(), "default", "tick", now=NOON)
    later = make()
    run(later)
    assert_touches_only_its_own(reconcile_cron_job, later, "default", "tick", now=NOON + timedelta(minutes=5))
