"""A job's status: its pods counted, its phase with a reason, and the smallest patch from what is written to what is true."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from hekla.api.core import Pod
from hekla.api.meta import Document
from hekla.api.volcano.batch import JobCondition, JobState, JobStatus, TaskState
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.kube.commands import SetStatus, target_of
from hekla.workloads.job_view import JobView, task_of

_PHASES = ("Pending", "Running", "Succeeded", "Failed")


def counted(view: JobView, doomed: Sequence[Pod] = ()) -> JobStatus:
    """The status with the pods counted as they are now, the phase as it was; the doomed count as terminating."""
    names = {pod.metadata.name for pod in doomed}
    staying = [pod for pod in view.pods if pod.metadata.name not in names and not view.is_leaving(pod)]
    phases = Counter(_phase(pod) for pod in staying)
    tasks: dict[str, Counter[str]] = {}
    for pod in staying:
        tasks.setdefault(task_of(pod), Counter())[_phase(pod)] += 1
    return replace(
        view.job.status,
        pending=phases["Pending"],
        running=phases["Running"],
        succeeded=phases["Succeeded"],
        failed=phases["Failed"],
        unknown=phases["Unknown"],
        terminating=len(view.pods) - len(staying),
        min_available=view.job.spec.min_available,
        task_status_count={name: TaskState(phase=dict(sorted(tasks[name].items()))) for name in sorted(tasks)},
    )


def in_phase(status: JobStatus, phase: Phase, now: datetime, reason: str = "", message: str = "") -> JobStatus:
    """The status in a phase: since when, why, and the phase moved to the end of the conditions."""
    if status.state.phase == phase:
        return replace(status, state=replace(status.state, reason=reason, message=message))
    since = rfc3339(now)
    conditions = [one for one in status.conditions if one.status != phase]
    conditions.append(JobCondition(status=phase, last_transition_time=since))
    state = JobState(phase=phase, reason=reason, message=message, last_transition_time=since)
    return replace(status, state=state, conditions=conditions)


COUNTS_WAIT_S = 0.5
"""How long a job's first word, and numbers that move no phase, wait for what comes next. A job of 10,000 pods is then
written twice a second and not for every few pods; one that starts at once is told Pending and Running in one write."""


def set_status(view: JobView, status: JobStatus) -> list[SetStatus]:
    """The command that writes a status, or none if it is written already."""
    if status == view.job.status:  # most looks change nothing
        return []
    patch = merge_patch(written(view.job.status), written(status))
    return [SetStatus(target_of(view.job), patch, _patience_s(view.job.status, status))] if patch else []


def _patience_s(before: JobStatus, after: JobStatus) -> float:
    """A phase that others wait for, and a decision that pods die by, cannot wait."""
    is_news = after.state.phase != (before.state.phase or Phase.PENDING)
    is_decision = (after.version, after.retry_count) != (before.version, before.retry_count)
    return 0.0 if is_news or is_decision else COUNTS_WAIT_S


def written(status: JobStatus) -> Document:
    """A status as Volcano writes it: without zeroes and empty parts."""
    document: Document = _without_empty(msgspec.to_builtins(status))
    return document


def merge_patch(old: Document, new: Document) -> Document:
    """The JSON merge patch that makes `new` of `old`; empty if they are the same."""
    patch: Document = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            if below := merge_patch(before, value):
                patch[key] = below
        elif value != before:
            patch[key] = value
    return patch


def duration(start: datetime, end: datetime) -> str:
    """A span as Go writes it: `1h2m3s`."""
    seconds = max(0, int((end - start).total_seconds()))
    hours, minutes = seconds // 3600, seconds // 60 % 60
    if hours:
        return f"{hours}h{minutes}m{seconds % 60}s"
    return f"{minutes}m{seconds % 60}s" if minutes else f"{seconds}s"


def rfc3339(moment: datetime) -> str:
    """A time as Kubernetes writes it, in UTC and whole seconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def parsed_time(text: str) -> datetime:
    """The time that an RFC 3339 text says."""
    return datetime.fromisoformat(text)


def _phase(pod: Pod) -> str:
    # A pod without a phase was created this instant.
    phase = pod.status.phase or "Pending"
    return phase if phase in _PHASES else "Unknown"


def _without_empty(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    kept = {key: _without_empty(one) for key, one in value.items()}
    return {key: one for key, one in kept.items() if one not in (None, "", 0, [], {})}
