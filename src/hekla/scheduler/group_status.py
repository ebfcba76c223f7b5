"""What a PodGroup's status should say: phase, counts, conditions. Pure: the job and the cycle's outcome go in.

running tasks and unschedulable      -> Unknown
enough scheduled                     -> Running, or Completed once all of those are done
else, unless let in                  -> Pending
"""

from dataclasses import dataclass

from hekla.api.meta import Document
from hekla.api.volcano.scheduling import PodGroup, PodGroupCondition
from hekla.placement.constraint import Refusal
from hekla.placement.model import SCHEDULED_STATUSES, Job, JobPhase, TaskStatus
from hekla.placement.session import Failure
from hekla.scheduler import sentences
from hekla.scheduler.outlooks import with_outlook

UNSCHEDULABLE, SCHEDULED = "Unschedulable", "Scheduled"
NOT_ENOUGH_RESOURCES = "NotEnoughResources"


@dataclass(frozen=True, kw_only=True)
class CycleOutcome:
    """What a cycle found about one job."""

    is_ready: bool
    failure: Failure | None = None
    refusal: Refusal | None = None
    """Why it was not even tried."""

    is_promised: bool = False
    """Whether pods of it wait for room that others are leaving."""

    outlook: str = ""
    """What is known besides (`outlooks.py`)."""


def phase_of(job: Job, *, is_unschedulable: bool) -> JobPhase:
    """The phase that a job's tasks amount to."""
    if job.statuses[TaskStatus.RUNNING] and is_unschedulable:
        return JobPhase.UNKNOWN
    scheduled = job.count(SCHEDULED_STATUSES) + sum(
        1 for task in job.tasks.values() if task.status is TaskStatus.RELEASING and task.spec.node
    )
    if scheduled and scheduled >= job.spec.min_available:
        done = job.statuses[TaskStatus.SUCCEEDED] + job.statuses[TaskStatus.FAILED]
        return JobPhase.COMPLETED if done == scheduled else JobPhase.RUNNING
    if job.phase in {JobPhase.INQUEUE, JobPhase.PENDING}:
        return job.phase
    # It ran before. Its room has been granted, so it is not made to queue anew (upstream #5796).
    return JobPhase.INQUEUE if job.phase is JobPhase.UNKNOWN else JobPhase.PENDING


def condition_of(job: Job, outcome: CycleOutcome) -> tuple[str, str, str]:
    """(type, reason, message) of the condition that the outcome deserves."""
    if outcome.is_ready:
        return SCHEDULED, sentences.GANG_READY, ""
    refusal = outcome.refusal
    if refusal is not None and outcome.failure is None:
        reason = refusal.code if refusal.code[:1].isupper() else NOT_ENOUGH_RESOURCES
        return UNSCHEDULABLE, reason, refusal.sentence
    return UNSCHEDULABLE, NOT_ENOUGH_RESOURCES, sentences.gang_unschedulable(job, outcome.failure)


def status_patch(group: PodGroup, job: Job, outcome: CycleOutcome, *, session: str, now: str) -> Document:
    """The fields of the status that have to change; empty if none has."""
    is_told = outcome.failure is not None or outcome.refusal is not None or outcome.is_promised
    is_unschedulable = not outcome.is_ready and is_told
    job.phase = phase_of(job, is_unschedulable=is_unschedulable)
    wanted: Document = {
        "phase": str(job.phase),
        "running": job.statuses[TaskStatus.RUNNING],
        "succeeded": job.statuses[TaskStatus.SUCCEEDED],
        "failed": job.statuses[TaskStatus.FAILED],
    }
    status = group.status
    changed = {key: value for key, value in wanted.items() if getattr(status, key) != value}
    conditions = _conditions(status.conditions, job, outcome, session=session, now=now)
    if conditions is not None:
        changed["conditions"] = conditions
    return changed


def _conditions(
    before: list[PodGroupCondition], job: Job, outcome: CycleOutcome, *, session: str, now: str
) -> list[Document] | None:
    """The conditions if one of them has to change: time and session alone are no reason."""
    if not (outcome.is_ready or outcome.failure or outcome.refusal or outcome.is_promised):
        return None
    kind, reason, message = condition_of(job, outcome)
    message = with_outlook(message, outcome.outlook)
    other = SCHEDULED if kind == UNSCHEDULABLE else UNSCHEDULABLE
    known = {condition.type: condition for condition in before}
    current = known.get(kind)
    is_told = current is not None and (current.status, current.reason, current.message) == ("True", reason, message)
    is_contradicted = other in known and known[other].status == "True"
    if is_told and not is_contradicted:
        return None
    stale = [condition_document(c, status="False" if c.type == other else c.status) for c in before if c.type != kind]
    fresh = {
        "type": kind, "status": "True", "reason": reason, "message": message,
        "transitionID": session, "lastTransitionTime": now,
    }  # fmt: skip
    return [*stale, fresh]


def condition_document(condition: PodGroupCondition, *, status: str = "", message: str = "") -> Document:
    """A condition as it is written, with another status or message if one is given."""
    return {
        "type": condition.type, "status": status or condition.status, "reason": condition.reason,
        "message": message or condition.message,
        "transitionID": condition.transition_id, "lastTransitionTime": condition.last_transition_time,
    }  # fmt: skip
