"""Reconciles Volcano's CronJob: makes a Job at each time of its schedule, in its time zone.

A Job's name holds the minute it was made for, so no time is served twice, not even after a crash. `job.py` runs it.
Of several times that were missed only the latest is served. Jobs that were terminated count as failed, so the history
limit prunes them (Volcano keeps them for ever).
"""

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hekla.api.meta import Document
from hekla.api.volcano import CronJob, Job
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.apiserver.fielderrors import shown
from hekla.kube.commands import Command, Create, Delete, Event, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.lib.schedule import MANY, Due, ScheduleError, check, due
from hekla.workloads import keys
from hekla.workloads.job_status import merge_patch, parsed_time, rfc3339
from hekla.workloads.templates import FAILED, SUCCEEDED, job_from, said

FINE_S = 0.1
"""How long after the due time to look, so that the clock surely shows it (Volcano's)."""

_ZONE = re.compile(r"(?:CRON_)?TZ=(\S+)\s+(.*)")


@dataclass(frozen=True)
class CronView:
    """A CronJob and its jobs, oldest first, at one moment."""

    cron: CronJob
    jobs: Sequence[Job]
    now: datetime

    @cached_property
    def active(self) -> list[Job]:
        """Jobs that have not ended."""
        return [job for job in self.jobs if not _is_finished(job)]

    def ended(self, phases: frozenset[Phase]) -> list[Job]:
        """Jobs that have ended in one of these phases, oldest first."""
        return [job for job in self.jobs if job.status.state.phase in phases]


@reconciler(CronJob, owns=(Job,), name="volcano_cron_job")
def reconcile_cron_job(cron: CronJob, world: World, now: datetime) -> Iterator[Command]:
    """Tell what became of former jobs, prune them, and start what is due."""
    if cron.metadata.deletion_timestamp is not None:
        return
    jobs = sorted(
        world.owned(Job, cron.metadata.uid), key=lambda job: (job.metadata.creation_timestamp or "", job.metadata.name)
    )
    view = CronView(cron, jobs, now)
    yield from _tell(view)
    yield from _prune(view)
    asked = yield from _asked(view)
    served = cron.status.last_schedule_time
    if asked is not None and asked.at is not None and not _is_too_late(view, asked.at):
        if asked.missed > MANY:
            yield Event(target_of(cron), "TooManyMissedTimes", "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew", "Warning")  # fmt: skip
        is_served = yield from _start(view, world, asked.at)
        served = rfc3339(asked.at) if is_served else served
    if asked is not None:
        yield RequeueAfter(max(FINE_S, (asked.following - now).total_seconds() + FINE_S))
    yield from _set_status(view, served)


def _asked(view: CronView) -> Generator[Command, None, Due | None]:
    """What the schedule asks for now; None if it is suspended or cannot be read."""
    cron = view.cron
    if cron.spec.suspend:
        return None
    since = cron.status.last_schedule_time or cron.metadata.creation_timestamp
    try:
        schedule, zone = yield from _schedule(cron)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        yield Event(target_of(cron), "InvalidTimeZone", f"Invalid time zone: {error}", "Warning")
        return None
    try:
        check(schedule)
    except ScheduleError as error:
        message = f"unparseable schedule for cronjob: {cron.spec.schedule}: {error}"
        yield Event(target_of(cron), "UnParseableCronJobSchedule", message, "Warning")
        return None
    try:
        return due(schedule, zone, since=parsed_time(since) if since else view.now, now=view.now)
    except ScheduleError as error:  # one that names no day there is, such as the 30th of February
        yield Event(target_of(cron), "InvalidSchedule", f"Error getting schedule time: {error}", "Warning")
        return None


def _schedule(cron: CronJob) -> Generator[Command, None, tuple[str, tzinfo]]:
    """The schedule and its zone: `timeZone`, unless there is one inside the schedule, which the webhook refuses and old
    objects have.
    """
    inside = _ZONE.fullmatch(cron.spec.schedule)
    schedule, zone = (inside[2], inside[1]) if inside else (cron.spec.schedule, "")
    if inside:
        message = (
            f"CRON_TZ or TZ in the schedule {shown(cron.spec.schedule)} is not officially supported. "
            "If set, the TimeZone field will be ignored during execution."
        )
        yield Event(target_of(cron), "UnsupportedSchedule", message, "Warning")
    named: tzinfo = (
        ZoneInfo(cron.spec.time_zone) if cron.spec.time_zone else UTC
    )  # it must exist also where it is not heeded
    return schedule, ZoneInfo(zone) if zone else named


def _is_too_late(view: CronView, at: datetime) -> bool:
    deadline_s = view.cron.spec.starting_deadline_seconds
    return deadline_s is not None and at < view.now - timedelta(seconds=deadline_s)


def _start(view: CronView, world: World, at: datetime) -> Generator[Command, None, bool]:
    """Make the job of a time; whether the time is served with that."""
    cron, name = view.cron, f"{view.cron.metadata.name}-{int(at.timestamp()) // 60}"
    present = world.get(Job, cron.metadata.namespace, name)
    if present is not None:
        if not any(owner.uid == cron.metadata.uid for owner in present.metadata.owner_references):
            owner = next((one.name for one in present.metadata.owner_references if one.controller), "none")
            message = (
                f"Job {name} exists but is not owned by this CronJob (current owner: {owner}); "
                "rename it, or this time stays unserved"
            )
            yield Event(target_of(cron), "ForeignJob", message, "Warning")
        return True
    if view.active and cron.spec.concurrency_policy == "Forbid":
        message = "Skipping job creation because another job is already running"
        yield Event(target_of(cron), "ForbidConcurrent", message, "Warning")
        return False
    if view.active and cron.spec.concurrency_policy == "Replace":
        for job in view.active:
            message = f"Replacing active job for CronJob: {job.metadata.name} with {name}"
            yield Event(target_of(cron), "ReplaceConcurrent", message, "Warning")
            yield from _delete(cron, job, "replaced by the next run")
    yield Create(Job, _job(cron, name, at), is_announced=True)
    return True


def _job(cron: CronJob, name: str, at: datetime) -> Document:
    template = cron.spec.job_template
    annotations = {**template.metadata.annotations, keys.CRON_TIME: _told(cron, at)}
    return job_from(cron, name, said(template.spec), labels=template.metadata.labels, annotations=annotations)


def _told(cron: CronJob, at: datetime) -> str:
    """A time as `timeZone` has it: `2026-01-01T13:00:00+01:00`."""
    zone = cron.spec.time_zone
    local = at.astimezone(ZoneInfo(zone)) if zone else at
    return local.isoformat(timespec="seconds") if local.utcoffset() else rfc3339(at)


def _tell(view: CronView) -> Iterator[Command]:
    """Say which of the jobs that were active have ended or are gone."""
    by_uid = {job.metadata.uid: job for job in view.jobs}
    for reference in view.cron.status.active:
        job = by_uid.get(reference.uid)
        if job is None:
            message = f"Active job {shown(reference.name)} no longer exists (UID: {reference.uid})"
            yield Event(target_of(view.cron), "StaleReference", message, "Warning")
        elif _is_finished(job):
            message = f"Saw completed job: {job.metadata.name} in active, remove: it is {job.status.state.phase}"
            yield Event(target_of(view.cron), "SawCompletedJob", message)


def _prune(view: CronView) -> Iterator[Command]:
    spec = view.cron.spec
    for phases, limit in (
        (SUCCEEDED, spec.successful_jobs_history_limit),
        (FAILED, spec.failed_jobs_history_limit),
    ):
        ended = [job for job in view.ended(phases) if job.metadata.deletion_timestamp is None]
        for job in ended[: max(0, len(ended) - limit)]:
            yield from _delete(view.cron, job, "older than the history that is kept")


def _delete(cron: CronJob, job: Job, reason: str) -> Iterator[Command]:
    yield Delete(target_of(job), reason=reason, propagation="Background")
    yield Event(target_of(cron), "SuccessfulDelete", f"Deleted job {shown(job.metadata.name)}")


def _set_status(view: CronView, served: str | None) -> Iterator[Command]:
    before = view.cron.status
    written: Document = {
        "active": [said(one) for one in before.active] or None,
        "lastScheduleTime": before.last_schedule_time,
        "lastSuccessfulTime": before.last_successful_time,
    }
    ends = [job.status.state.last_transition_time for job in view.ended(SUCCEEDED)]
    wanted: Document = {
        "active": [_reference(job) for job in view.active] or None,
        "lastScheduleTime": served,
        "lastSuccessfulTime": max((end for end in (*ends, before.last_successful_time) if end), default=None),
    }
    if patch := merge_patch(written, wanted):
        yield SetStatus(target_of(view.cron), patch)


def _reference(job: Job) -> Document:
    # Without a resource version: a job's own progress is no news for its CronJob.
    meta, info = job.metadata, Job.kind_info
    return {
        "apiVersion": info.api_version, "kind": info.kind, "namespace": meta.namespace, "name": meta.name, "uid": meta.uid,
    }  # fmt: skip


def _is_finished(job: Job) -> bool:
    return job.status.state.phase in SUCCEEDED | FAILED
