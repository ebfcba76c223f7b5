"""Where a job stands by its pods alone: whether its gang runs, was lost, has succeeded or failed, and why.

`job_lifecycle.py` says which phase that leads to.
"""

from dataclasses import dataclass

from hekla.api.volcano.batch import JobPhase as Phase
from hekla.api.volcano.batch import JobSpec, JobStatus, TaskSpec
from hekla.workloads.job_lifecycle import Trigger


@dataclass(frozen=True)
class JobOutcome:
    """What the pods' numbers mean, with a reason code and a sentence for people."""

    trigger: Trigger
    reason: str
    message: str


def outcome(phase: Phase, spec: JobSpec, status: JobStatus) -> JobOutcome | None:
    """What happens next to a job in this phase with these numbers of pods; None if it stays as it is."""
    if phase is Phase.PENDING:
        return _started(spec, status)
    if phase is Phase.RUNNING:
        return _ended(spec, status) or _lost(spec, status)
    if phase is Phase.RESTARTING:
        return _restarted(spec, status)
    if phase in (Phase.ABORTING, Phase.COMPLETING, Phase.TERMINATING):
        return _settled(status)
    return None


def _started(spec: JobSpec, status: JobStatus) -> JobOutcome | None:
    there = status.running + status.succeeded + status.failed
    if spec.min_available > there:
        return None
    return JobOutcome(
        Trigger.STARTED, "GangStarted", f"{there} pods run or have run; the job needs {spec.min_available}"
    )


def _ended(spec: JobSpec, status: JobStatus) -> JobOutcome | None:
    replicas = _replicas(spec)
    if replicas == 0:
        # Scaled down to nothing: the job waits to be scaled up.
        return None
    if spec.min_success is not None and status.succeeded >= spec.min_success:
        return JobOutcome(
            Trigger.SUCCEEDED, "MinSuccess", f"{status.succeeded} pods succeeded; {spec.min_success} suffice"
        )
    if status.succeeded + status.failed != replicas:
        return None
    return _judged(spec, status)


def _judged(spec: JobSpec, status: JobStatus) -> JobOutcome:
    """All pods have ended: enough of them well?"""
    if spec.min_available >= sum(_least(task) for task in spec.tasks):
        for task in spec.tasks:
            short = _shortfall(task, status)
            if short:
                return JobOutcome(Trigger.FAILED, "TaskFailed", short)
    if spec.min_success is not None:
        told = f"{status.succeeded} pods succeeded, minSuccess is {spec.min_success}"
        return JobOutcome(Trigger.FAILED, "MinSuccess", told)
    told = f"{status.succeeded} of {_replicas(spec)} pods succeeded; minAvailable is {spec.min_available}"
    if status.succeeded >= spec.min_available:
        return JobOutcome(Trigger.SUCCEEDED, "PodsSucceeded", told)
    return JobOutcome(Trigger.FAILED, "PodsFailed", told)


def _shortfall(task: TaskSpec, status: JobStatus) -> str:
    counted = status.task_status_count.get(task.name)
    if task.min_available is None or counted is None:
        return ""
    succeeded = counted.phase.get("Succeeded", 0)
    if succeeded >= task.min_available:
        return ""
    return f"task {task.name!r} has {succeeded} succeeded pods; its minAvailable is {task.min_available}"


def _lost(spec: JobSpec, status: JobStatus) -> JobOutcome | None:
    if _replicas(spec) == 0 or status.pending <= _replicas(spec) - spec.min_available:
        return None
    told = f"{status.pending} of {_replicas(spec)} pods are pending; the job needs {spec.min_available} to run"
    return JobOutcome(Trigger.GANG_LOST, "GangLost", told)


def _restarted(spec: JobSpec, status: JobStatus) -> JobOutcome | None:
    # A job that is resumed has restarted no more often than before: one that may never be restarted may be resumed.
    if status.retry_count and status.retry_count >= spec.max_retry:
        told = f"restarted {status.retry_count} times; maxRetry is {spec.max_retry}"
        return JobOutcome(Trigger.RETRIES_EXHAUSTED, "RetriesExhausted", told)
    if _replicas(spec) - status.terminating >= status.min_available:
        return JobOutcome(Trigger.SETTLED, "Restarted", f"restart {status.retry_count} of at most {spec.max_retry}")
    return None


def _settled(status: JobStatus) -> JobOutcome | None:
    if status.terminating or status.pending or status.running:
        return None
    return JobOutcome(Trigger.SETTLED, "", "")


def _replicas(spec: JobSpec) -> int:
    return sum(task.replicas for task in spec.tasks)


def _least(task: TaskSpec) -> int:
    return task.replicas if task.min_available is None else task.min_available
