"""Deletes finished jobs once their `ttlSecondsAfterFinished` is over."""

from collections.abc import Iterator
from datetime import timedelta

from hekla.kube.commands import Command, Delete, RequeueAfter, target_of
from hekla.workloads.job_lifecycle import FINISHED
from hekla.workloads.job_status import parsed_time
from hekla.workloads.job_view import JobView


def expire(view: JobView) -> Iterator[Command]:
    """Delete the job, pods first, or look again when its time has come."""
    ttl, since = view.job.spec.ttl_seconds_after_finished, view.job.status.state.last_transition_time
    if ttl is None or since is None or view.phase not in FINISHED:
        return
    left = parsed_time(since) + timedelta(seconds=ttl) - view.now
    if left > timedelta():
        yield RequeueAfter(left.total_seconds())
    else:
        yield Delete(target_of(view.job), reason=f"finished {ttl} s ago", propagation="Foreground")
