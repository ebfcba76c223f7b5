"""Reconciles CronJob: makes a Job at each time of its schedule, in its time zone.

A Job's name holds the minute it was made for, so no time is served twice, not even after a crash. `job.py` runs it.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hekla.api.meta import Document
from hekla.controlplane.owning import controller_reference
from hekla.controlplane.statuses import conditions_of, set_status
from hekla.controlplane.views import CronJob, Job
from hekla.kube.commands import Command, Create, Delete, Event, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339, rfc3339
from hekla.lib.schedule import Due, ScheduleError, due

SCHEDULED = "batch.kubernetes.io/cronjob-scheduled-timestamp"
FINE_S = 0.2
"""How long after the minute to look, so that the clock surely shows it."""


@reconciler(CronJob, owns=(Job,), name="cronjob")
def reconcile_cron_job(cron_job: CronJob, world: World, now: datetime) -> Iterator[Command]:
    """Start what is due, forget old jobs, and say when it last ran."""
    jobs = sorted(world.owned(Job, cron_job.metadata.uid), key=lambda job: job.metadata.creation_timestamp or "")
    if cron_job.metadata.deletion_timestamp:
        return
    active = [job for job in jobs if not _is_finished(job) and SCHEDULED in job.metadata.annotations]
    yield from _tell(cron_job, jobs)
    yield from _forget(cron_job, jobs)
    served = cron_job.status.last_schedule_time
    if not cron_job.spec.suspend:
        try:
            asked = _asked(cron_job, now)
        except (ScheduleError, ZoneInfoNotFoundError, ValueError) as error:
            message = f"spec.schedule {cron_job.spec.schedule!r} cannot be used: {error}"
            yield Event(target_of(cron_job), "UnparseableSchedule", message, "Warning")
            return
        if asked.at is not None:
            yield from _start(cron_job, jobs, active, asked.at)
            if not (cron_job.spec.concurrency_policy == "Forbid" and active):
                served = rfc3339(asked.at)
        yield RequeueAfter(max(1.0, (asked.following - now).total_seconds() + FINE_S))
    yield from set_status(cron_job, _status(cron_job, jobs, active, served))


def _tell(cron_job: CronJob, jobs: Sequence[Job]) -> Iterator[Command]:
    """Tell of jobs that somebody else made in its name, which do not count, and of those that have ended."""
    known = {one.uid for one in cron_job.status.active}
    for job in jobs:
        name, ends = job.metadata.name, [kind for kind in ("Complete", "Failed") if kind in conditions_of(job)]
        if not ends and SCHEDULED not in job.metadata.annotations:
            message = f"Saw a job that the controller did not create or forgot: {name}"
            yield Event(target_of(cron_job), "UnexpectedJob", message, "Warning")
        elif ends and job.metadata.uid in known:
            yield Event(target_of(cron_job), "SawCompletedJob", f"Saw completed job: {name}, condition: {ends[0]}")


def _asked(cron_job: CronJob, now: datetime) -> Due:
    """What the schedule asks for: the last time that was missed, if any, and the next one."""
    zone = ZoneInfo(cron_job.spec.time_zone) if cron_job.spec.time_zone else UTC
    since = (
        parse_rfc3339(cron_job.status.last_schedule_time) or parse_rfc3339(cron_job.metadata.creation_timestamp) or now
    )
    asked = due(cron_job.spec.schedule, zone, since=since, now=now)
    deadline_s = cron_job.spec.starting_deadline_seconds
    if deadline_s is not None and asked.at is not None and asked.at <= now - timedelta(seconds=deadline_s):
        return replace(asked, at=None)
    return asked


def _start(cron_job: CronJob, jobs: Sequence[Job], active: Sequence[Job], due: datetime) -> Iterator[Command]:
    name = f"{cron_job.metadata.name[:52]}-{int(due.timestamp()) // 60}"
    if any(job.metadata.name == name for job in jobs):
        return
    if active and cron_job.spec.concurrency_policy == "Forbid":
        message = "Not starting job because prior execution is running and concurrency policy is Forbid"
        yield Event(target_of(cron_job), "JobAlreadyActive", message)
        return
    if cron_job.spec.concurrency_policy == "Replace":
        for job in active:
            yield Delete(target_of(job), reason="replaced by the next run", propagation="Background")
    yield Create(Job, _job_document(cron_job, name, due))
    yield Event(target_of(cron_job), "SuccessfulCreate", f"Created job {name}")


def _job_document(cron_job: CronJob, name: str, due: datetime) -> Document:
    template = copy.deepcopy(cron_job.spec.job_template)
    said = template.get("metadata") or {}
    metadata: Document = {
        "name": name,
        "namespace": cron_job.metadata.namespace,
        "annotations": {**(said.get("annotations") or {}), SCHEDULED: rfc3339(due)},
        "ownerReferences": [controller_reference(cron_job)],
    }
    if said.get("labels"):
        metadata["labels"] = said["labels"]
    return {"metadata": metadata, "spec": template.get("spec") or {}}


def _forget(cron_job: CronJob, jobs: Sequence[Job]) -> Iterator[Command]:
    for kind, limit, usual in (
        ("Complete", cron_job.spec.successful_jobs_history_limit, 3),
        ("Failed", cron_job.spec.failed_jobs_history_limit, 1),
    ):
        ended = [job for job in jobs if kind in conditions_of(job) and not job.metadata.deletion_timestamp]
        for job in ended[: max(0, len(ended) - (usual if limit is None else limit))]:
            yield Delete(target_of(job), reason="older than the history that is kept", propagation="Background")
            yield Event(target_of(cron_job), "SuccessfulDelete", f"Deleted job {job.metadata.name}")


def _status(cron_job: CronJob, jobs: Sequence[Job], active: Sequence[Job], served: str | None) -> Document:
    references = [
        {
            "apiVersion": "batch/v1", "kind": "Job", "namespace": job.metadata.namespace, "name": job.metadata.name,
            "uid": job.metadata.uid, "resourceVersion": job.metadata.resource_version,
        }
        for job in active
    ]  # fmt: skip
    known = {one.uid: one.resource_version for one in cron_job.status.active}
    for reference in references:
        # A job's own progress is no news for its cron job.
        reference["resourceVersion"] = known.get(str(reference["uid"]), str(reference["resourceVersion"]))
    ends = [job.status.completion_time for job in jobs if job.status.completion_time]
    succeeded = max(
        [*ends, *([cron_job.status.last_successful_time] if cron_job.status.last_successful_time else [])], default=None
    )
    return {"active": references or None, "lastScheduleTime": served, "lastSuccessfulTime": succeeded}


def _is_finished(job: Job) -> bool:
    return any(kind in ("Complete", "Failed") for kind in conditions_of(job))
