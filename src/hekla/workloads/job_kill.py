"""How a job's pods are killed so that a controller may die at any step and still end with the same result.

Three steps: *mark* the pods with the moment (version and retry count) that their death belongs to, *commit* the job's
status, which makes that moment the present one, *reap* what is marked for a moment that has come. Marks of a moment that
never came mean nothing, so a decision that was not committed is taken again.
"""

from collections.abc import Collection, Iterator

from hekla.api.core import Pod
from hekla.api.volcano.batch import JobPhase as Phase
from hekla.kube.commands import Command, Delete, Patch, target_of
from hekla.workloads import keys
from hekla.workloads.job_view import JobView, Moment, killed_at

NONE: frozenset[str] = frozenset()
SOFT = frozenset({"Succeeded", "Failed"})
"""Pods that ended by themselves keep their logs."""


def retained_phases(view: JobView, *, is_restart: bool) -> frozenset[str]:
    """Pods in which phases survive a kill: none on a restart, unless it was the last one allowed."""
    is_last = view.job.status.retry_count >= view.job.spec.max_retry - 1
    return NONE if is_restart and not is_last else SOFT


def victims(view: JobView, retained: frozenset[str]) -> list[Pod]:
    """The pods that a kill of the whole job hits."""
    return [pod for pod in view.pods if not view.is_leaving(pod) and pod.status.phase not in retained]


def mark(pods: Collection[Pod], moment: Moment) -> Iterator[Command]:
    """Say on each pod which moment its death belongs to; also, in Volcano's words, that the controller wants it gone."""
    note = {keys.KILLED_AT: f"{moment[0]}.{moment[1]}", keys.OUT_OF_SYNC: "true"}
    for pod in pods:
        if killed_at(pod) != moment:
            yield Patch(target_of(pod), {"metadata": {"annotations": note}})


def reap(view: JobView) -> Iterator[Command]:
    """Delete the pods whose moment has come."""
    for pod in view.pods:
        if view.is_killed(pod) and pod.metadata.deletion_timestamp is None:
            yield Delete(target_of(pod), reason="the job's controller decided it")


def kill_now(view: JobView, pods: Collection[Pod]) -> Iterator[Command]:
    """Kill pods by a decision that is already in the job's status: scaled down, wound up."""
    yield from mark(pods, view.moment)
    yield from (Delete(target_of(pod), reason="the job needs it no more") for pod in pods)


def delete_group(view: JobView, reason: str) -> Iterator[Command]:
    """Take the gang from its queue."""
    if view.group is not None and view.group.metadata.deletion_timestamp is None:
        yield Delete(target_of(view.group), reason=reason)


def next_moment(view: JobView, following: Phase, *, is_whole: bool, is_resume: bool) -> Moment:
    """The moment after a kill: a kill of the whole job is a new version, a restart costs one retry.

    Being resumed costs none: a job may be suspended and resumed as often as one likes.
    """
    version, retry = view.moment
    costs = following is Phase.RESTARTING and not is_resume
    return version + int(is_whole), retry + int(costs)
