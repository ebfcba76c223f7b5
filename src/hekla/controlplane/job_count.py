"""Counts each ended pod of a Job exactly once, whatever crashes in between.

A pod carries a finalizer until it is counted. First its uid goes into `status.uncountedTerminatedPods`, then the
finalizer goes, then the counter rises and the uid leaves the list; every step can be repeated.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hekla.api.pods import Pod
from hekla.controlplane.job_failures import Judged, PodFailureVerdict, judge
from hekla.controlplane.job_indexes import index_of, parse_indexes
from hekla.controlplane.pod_state import is_leaving
from hekla.controlplane.views import Job
from hekla.lib.digits import whole_number

FINALIZER = "batch.kubernetes.io/job-tracking"
FAILURE_COUNT = "batch.kubernetes.io/job-index-failure-count"


@dataclass
class JobPodCount:
    """What has come of a job's pods so far, this round included."""

    succeeded: int = 0
    """Counted for good."""

    failed: int = 0
    uncounted_succeeded: list[str] = field(default_factory=list)
    uncounted_failed: list[str] = field(default_factory=list)
    completed_indexes: set[int] = field(default_factory=set)
    failed_indexes: set[int] = field(default_factory=set)
    to_release: list[Pod] = field(default_factory=list)
    """Pods whose finalizer may go once the status with this tally is written."""

    fatal: str = ""
    """Why a failed pod ends the whole job; empty if none does."""

    @property
    def all_succeeded(self) -> int:
        """Successes, those not yet counted included."""
        return self.succeeded + len(self.uncounted_succeeded)

    @property
    def all_failed(self) -> int:
        """Failures, those not yet counted included."""
        return self.failed + len(self.uncounted_failed)

    @property
    def is_settled(self) -> bool:
        """Whether every ended pod has been counted and let go."""
        return not (self.uncounted_succeeded or self.uncounted_failed or self.to_release)


def is_indexed(job: Job) -> bool:
    """Whether each pod works on an index of its own."""
    return job.spec.completion_mode == "Indexed"


def tally(job: Job, pods: Sequence[Pod], *, is_ending: bool) -> JobPodCount:
    """Count. `is_ending` says that the job is over and its pods are being removed."""
    counted = JobPodCount(job.status.succeeded, job.status.failed)
    counted.completed_indexes = parse_indexes(job.status.completed_indexes)
    counted.failed_indexes = parse_indexes(job.status.failed_indexes)
    held = {pod.metadata.uid: pod for pod in pods if FINALIZER in pod.metadata.finalizers}
    _count_released(job, counted, held)
    known = {*counted.uncounted_succeeded, *counted.uncounted_failed}
    for uid, pod in held.items():
        if uid in known or job.metadata.deletion_timestamp:
            counted.to_release.append(pod)
        elif pod.status.phase == "Succeeded":
            _count_success(job, counted, pod)
        elif has_failed(job, pod, is_ending=is_ending):
            _count_failure(job, counted, pod)
    if is_indexed(job):
        counted.succeeded = len(counted.completed_indexes)
    return counted


def _count_released(job: Job, counted: JobPodCount, held: dict[str, Pod]) -> None:
    """Uids of the list whose pods have been let go are counted now."""
    listed = job.status.uncounted_terminated_pods
    for uid in listed.succeeded if listed else ():
        if uid in held:
            counted.uncounted_succeeded.append(uid)
        else:
            counted.succeeded += 1
    for uid in listed.failed if listed else ():
        if uid in held:
            counted.uncounted_failed.append(uid)
        else:
            counted.failed += 1


def has_failed(job: Job, pod: Pod, *, is_ending: bool = False) -> bool:
    """Whether a pod counts as failed; one that is being deleted does, unless only failed pods are to be replaced."""
    if pod.status.phase == "Failed":
        return True
    if pod.status.phase == "Succeeded" or not is_leaving(pod):
        return False
    return is_ending or job.spec.pod_replacement_policy != "Failed"


def _count_success(job: Job, counted: JobPodCount, pod: Pod) -> None:
    counted.to_release.append(pod)
    if not is_indexed(job):
        counted.uncounted_succeeded.append(pod.metadata.uid)
        return
    index = index_of(pod)
    if index is not None and index < (job.spec.completions or 0):
        # The set of indexes cannot count one twice, so no list is needed.
        counted.completed_indexes.add(index)


def _count_failure(job: Job, counted: JobPodCount, pod: Pod) -> None:
    judged = (
        judge(pod, job.spec.pod_failure_policy) if pod.status.phase == "Failed" else Judged(PodFailureVerdict.COUNT)
    )
    counted.to_release.append(pod)
    if judged.verdict is PodFailureVerdict.IGNORE:
        return
    counted.uncounted_failed.append(pod.metadata.uid)
    if judged.verdict is PodFailureVerdict.FAIL_JOB:
        counted.fatal = counted.fatal or judged.message
    index, limit = index_of(pod), job.spec.backoff_limit_per_index
    if index is None or limit is None:
        return
    if judged.verdict is PodFailureVerdict.FAIL_INDEX or failure_count(pod) >= limit:
        counted.failed_indexes.add(index)


def failure_count(pod: Pod) -> int:
    """How often its index had failed before this pod."""
    return whole_number(pod.metadata.annotations.get(FAILURE_COUNT, "")) or 0
