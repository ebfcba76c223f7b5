"""Reconciles batch Job: runs pods until enough have succeeded or too many have failed.

    count what ended -> is it decided? -> remove what is left, then say so
                                       -> else make or remove pods

`job_count.py` counts each pod once, `job_failures.py` judges failures, `job_pods.py` makes pods.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.controlplane.job_count import FINALIZER, JobPodCount, is_indexed, tally
from hekla.controlplane.job_indexes import format_indexes, ranges_of
from hekla.controlplane.job_pods import release, remove, scale
from hekla.controlplane.owning import delete_surplus
from hekla.controlplane.pod_state import has_ended, is_active, is_leaving, is_ready, restarts
from hekla.controlplane.statuses import conditions_of, set_status
from hekla.controlplane.views import Job
from hekla.kube.commands import Command, Delete, Event, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339, rfc3339

OURS = ("", "kubernetes.io/job-controller")
"""spec.managedBy: any other value means that another controller (Kueue's) takes care."""


@dataclass(frozen=True)
class JobEnd:
    """How a job ends."""

    is_success: bool
    reason: str
    message: str


@reconciler(Job, owns=(Pod,), name="job")
def reconcile_job(job: Job, world: World, now: datetime) -> Iterator[Command]:
    """Count, decide, act, and report."""
    if job.spec.managed_by not in OURS:
        return
    old = conditions_of(job)
    pods = world.owned(Pod, job.metadata.uid)
    if "Complete" in old or "Failed" in old:
        yield from (release(pod) for pod in pods if FINALIZER in pod.metadata.finalizers)
        yield from _expire(job, old, now)
        return
    counted = tally(job, pods, is_ending="FailureTarget" in old)
    outcome = _outcome(job, pods, counted, old, now)
    conditions = _conditions(job, pods, counted, outcome, old, now)
    yield from set_status(job, _status(job, pods, counted, conditions, now))
    # Only now that the status remembers them may the pods go.
    yield from (release(pod) for pod in counted.to_release)
    yield from _act(job, pods, counted, outcome, now)
    yield from _tell(job, old, conditions)


def _act(
    job: Job, pods: Sequence[Pod], counted: JobPodCount, outcome: JobEnd | None, now: datetime
) -> Iterator[Command]:
    active = [pod for pod in pods if is_active(pod)]
    if job.metadata.deletion_timestamp:
        return
    if outcome is not None and outcome.is_success:
        yield from remove(job, active, "the job is complete")
    elif outcome is not None:
        # With their finalizers: they count as failed once their deletion shows.
        yield from delete_surplus(job, active, f"the job has failed: {outcome.reason}")
    elif job.spec.suspend:
        yield from remove(job, active, "the job is suspended")
    else:
        yield from scale(job, pods, counted, now)
        yield from _deadline(job, now)


# ---- how it ends


def _outcome(
    job: Job, pods: Sequence[Pod], counted: JobPodCount, old: dict[str, Document], now: datetime
) -> JobEnd | None:
    for kind, is_success in (("FailureTarget", False), ("SuccessCriteriaMet", True)):
        if kind in old:
            return JobEnd(is_success, old[kind]["reason"], old[kind].get("message", ""))
    return _failure(job, pods, counted, now) or _success(job, pods, counted)


def _failure(job: Job, pods: Sequence[Pod], counted: JobPodCount, now: datetime) -> JobEnd | None:
    if counted.fatal:
        return JobEnd(False, "PodFailurePolicy", counted.fatal)
    limit = 6 if job.spec.backoff_limit is None else job.spec.backoff_limit
    if counted.all_failed > limit or _has_restarted_too_often(job, pods, limit):
        return JobEnd(False, "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    if job.spec.max_failed_indexes is not None and len(counted.failed_indexes) > job.spec.max_failed_indexes:
        message = "Job has exceeded the specified maximal number of failed indexes"
        return JobEnd(False, "MaxFailedIndexesExceeded", message)
    done = len(counted.failed_indexes) + len(counted.completed_indexes)
    if counted.failed_indexes and done >= (job.spec.completions or 0):
        return JobEnd(False, "FailedIndexes", "Job has failed indexes")
    left_s = _deadline_left_s(job, now)
    if left_s is not None and left_s <= 0:
        return JobEnd(False, "DeadlineExceeded", "Job was active longer than specified deadline")
    return None


def _has_restarted_too_often(job: Job, pods: Sequence[Pod], limit: int) -> bool:
    """With restartPolicy OnFailure it is the containers that fail again and again, in the same pod."""
    if (job.spec.template.get("spec") or {}).get("restartPolicy") != "OnFailure":
        return False
    total = sum(restarts(pod) for pod in pods if is_active(pod))
    return total > 0 if limit == 0 else total >= limit


def _success(job: Job, pods: Sequence[Pod], counted: JobPodCount) -> JobEnd | None:
    reached = JobEnd(True, "CompletionsReached", "Reached expected number of succeeded pods")
    if job.spec.completions is None:
        is_working = any(is_active(pod) for pod in pods)
        return reached if counted.all_succeeded and not is_working else None
    if counted.all_succeeded >= job.spec.completions:
        return reached
    return _success_policy(job, counted)


def _success_policy(job: Job, counted: JobPodCount) -> JobEnd | None:
    for number, rule in enumerate(job.spec.success_policy.rules if job.spec.success_policy else ()):
        wanted = ranges_of(rule.succeeded_indexes) if rule.succeeded_indexes else None
        done = counted.completed_indexes
        if wanted is not None:
            done = {index for index in done if any(index in run for run in wanted)}
        needed = rule.succeeded_count or sum(map(len, wanted or ()))
        if needed and len(done) >= needed:
            return JobEnd(True, "SuccessPolicy", f"Matched rules at index {number}")
    return None


def _deadline_left_s(job: Job, now: datetime) -> float | None:
    started = parse_rfc3339(job.status.start_time)
    if job.spec.active_deadline_seconds is None or started is None or job.spec.suspend:
        return None
    return (started + timedelta(seconds=job.spec.active_deadline_seconds) - now).total_seconds()


def _deadline(job: Job, now: datetime) -> Iterator[Command]:
    left_s = _deadline_left_s(job, now)
    if left_s is not None and left_s > 0:
        yield RequeueAfter(left_s + 0.1)


def _expire(job: Job, old: dict[str, Document], now: datetime) -> Iterator[Command]:
    """Delete a finished job when its time is up."""
    ttl_s = job.spec.ttl_seconds_after_finished
    finished = parse_rfc3339((old.get("Complete") or old["Failed"]).get("lastTransitionTime"))
    if ttl_s is None or finished is None or job.metadata.deletion_timestamp:
        return
    left_s = (finished + timedelta(seconds=ttl_s) - now).total_seconds()
    if left_s > 0:
        yield RequeueAfter(left_s + 0.1)
    else:
        yield Delete(target_of(job), reason="ttlSecondsAfterFinished has passed", propagation="Foreground")


# ---- what it says


def _conditions(
    job: Job,
    pods: Sequence[Pod],
    counted: JobPodCount,
    outcome: JobEnd | None,
    old: dict[str, Document],
    now: datetime,
) -> dict[str, Document]:
    conditions = dict(old)
    if outcome is None:
        _note_suspension(job, conditions, now)
        return conditions
    target, final = ("SuccessCriteriaMet", "Complete") if outcome.is_success else ("FailureTarget", "Failed")
    if target not in conditions:
        conditions[target] = _condition(target, "True", outcome.reason, outcome.message, now)
    is_quiet = all(has_ended(pod) or (FINALIZER not in pod.metadata.finalizers and is_leaving(pod)) for pod in pods)
    if is_quiet and counted.is_settled and target in old:
        conditions[final] = _condition(final, "True", outcome.reason, outcome.message, now)
    return conditions


def _note_suspension(job: Job, conditions: dict[str, Document], now: datetime) -> None:
    said = conditions.get("Suspended", {}).get("status") == "True"
    if job.spec.suspend and not said:
        conditions["Suspended"] = _condition("Suspended", "True", "JobSuspended", "Job suspended", now)
    elif said and not job.spec.suspend:
        conditions["Suspended"] = _condition("Suspended", "False", "JobResumed", "Job resumed", now)


def _condition(kind: str, status: str, reason: str, message: str, now: datetime) -> Document:
    at = rfc3339(now)
    return {
        "type": kind, "status": status, "lastProbeTime": at, "lastTransitionTime": at,
        "reason": reason, "message": message,
    }  # fmt: skip


def _status(
    job: Job, pods: Sequence[Pod], counted: JobPodCount, conditions: dict[str, Document], now: datetime
) -> Document:
    active = [pod for pod in pods if is_active(pod)]
    uncounted = {"succeeded": counted.uncounted_succeeded or None, "failed": counted.uncounted_failed or None}
    status: Document = {
        "active": len(active) or None,
        "ready": sum(is_ready(pod) for pod in active),
        "terminating": sum(is_leaving(pod) and not has_ended(pod) for pod in pods),
        "succeeded": counted.succeeded or None,
        "failed": counted.failed or None,
        "uncountedTerminatedPods": uncounted,
        "startTime": None if job.spec.suspend else job.status.start_time or rfc3339(now),
        "conditions": list(conditions.values()) or None,
    }
    if is_indexed(job):
        status["completedIndexes"] = format_indexes(counted.completed_indexes) or None
    if job.spec.backoff_limit_per_index is not None:
        status["failedIndexes"] = format_indexes(counted.failed_indexes)
    if "Complete" in conditions:
        status["completionTime"] = conditions["Complete"]["lastTransitionTime"]
    return status


def _tell(job: Job, old: dict[str, Document], conditions: dict[str, Document]) -> Iterator[Command]:
    for kind, status, word in (
        ("Complete", "True", "Completed"),
        ("Suspended", "True", "Suspended"),
        ("Suspended", "False", "Resumed"),
    ):
        if _status_of(conditions, kind) == status != _status_of(old, kind):
            yield Event(target_of(job), word, f"Job {word.lower()}")
    if "Failed" in conditions:
        said = conditions["Failed"]
        yield Event(target_of(job), said["reason"], said["message"], "Warning")


def _status_of(conditions: dict[str, Document], kind: str) -> str:
    return str(conditions[kind]["status"]) if kind in conditions else ""


def _is_held_and_leaving(pod: Pod, world: World) -> bool:
    return is_leaving(pod) and FINALIZER in pod.metadata.finalizers


def _held_pods_of(job: Job, world: World) -> Iterator[tuple[str, str]]:
    """The pods of a job that is gone."""
    if world.get(Job, job.metadata.namespace, job.metadata.name) is None:
        for pod in world.owned(Pod, job.metadata.uid):
            yield pod.metadata.namespace, pod.metadata.name


@reconciler(Pod, concerns=_is_held_and_leaving, finds={Job: _held_pods_of}, name="job-orphans")
def reconcile_job_orphan(pod: Pod, world: World, now: datetime) -> Iterator[Command]:
    """Let go a leaving pod whose job no longer exists: nobody will count it."""
    if FINALIZER not in pod.metadata.finalizers or not is_leaving(pod):
        return
    owner = next((one for one in pod.metadata.owner_references if one.controller), None)
    job = world.get(Job, pod.metadata.namespace, owner.name) if owner is not None and owner.kind == "Job" else None
    if job is None or owner is None or job.metadata.uid != owner.uid:
        yield release(pod)
