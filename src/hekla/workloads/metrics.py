"""What the controllers count, under the names of Volcano's: how jobs and flows ended, retries, and gangs by queue and phase.

Pure: changes of objects go in as watches tell of them, and what the caches hold when /metrics is asked for. Series of a job
go with the job, as Volcano's do. `hekla.app.controller_metrics` is the shell; the queues of the runtime count themselves.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime

from prometheus_client import Metric

from hekla.api.meta import OwnerReference
from hekla.api.pods import Pod
from hekla.api.volcano import Job, JobFlow, PodGroup
from hekla.api.volcano.batch import JobPhase
from hekla.api.volcano.flow import FlowPhase
from hekla.kube.measured import Family, Tally, metric
from hekla.workloads.job_status import parsed_time, rfc3339
from hekla.workloads.ours import DEFAULT_QUEUE

_OF_JOB = ("job_name", "queue_name")

JOBS_COMPLETED = Family(
    "volcano_job_completed_phase_count",
    "untyped",
    "Times that a job (NAMESPACE/NAME) has completed; it only grows, and goes with the job.",
    _OF_JOB,
)
JOBS_FAILED = Family(
    "volcano_job_failed_phase_count",
    "untyped",
    "Times that a job (NAMESPACE/NAME) has failed; it only grows, and goes with the job.",
    _OF_JOB,
)
JOB_RETRIES = Family(
    "volcano_job_retry_counts", "untyped", "Times that a job (NAMESPACE/NAME) was started anew.", ("job_id",)
)
FLOWS_SUCCEEDED = Family(
    "volcano_jobflow_succeed_phase_count",
    "untyped",
    "JobFlows of a namespace that have succeeded; it only grows.",
    ("jobflow_namespace",),
)
FLOWS_FAILED = Family(
    "volcano_jobflow_failed_phase_count",
    "untyped",
    "JobFlows of a namespace that have failed; it only grows.",
    ("jobflow_namespace",),
)
POD_CREATION = Family(
    "volcano_controller_job_to_pod_creation_latency_milliseconds",
    "histogram",
    "From a job's creation until a pod of its first life was made, in the whole seconds that objects tell.",
    (),
    tuple(32.0 * 2**n for n in range(16)),
)
_PHASES = ("Pending", "Inqueue", "Running", "Unknown", "Completed")
QUEUE_GANGS = {
    phase: Family(
        f"volcano_queue_pod_group_{phase.lower()}_count", "gauge", f"PodGroups of a queue in the phase {phase}.", ("queue_name",)
    )
    for phase in _PHASES
}  # fmt: skip
"""Told by whoever sees them: the scheduler, or controllers that run without one in their process."""

_ENDS: Mapping[str, Family] = {JobPhase.COMPLETED: JOBS_COMPLETED, JobPhase.FAILED: JOBS_FAILED}
_FLOW_ENDS: Mapping[str, Family] = {FlowPhase.SUCCEED: FLOWS_SUCCEEDED, FlowPhase.FAILED: FLOWS_FAILED}
COUNTED = (FLOWS_SUCCEEDED, FLOWS_FAILED, POD_CREATION)
FAMILIES = (JOBS_COMPLETED, JOBS_FAILED, JOB_RETRIES, *COUNTED)

MOST_JOBS = 10_000
"""Jobs with series of their own; those that ended first lose theirs when there are more."""

JOB_KIND = ("batch.volcano.sh/v1alpha1", "Job")


class ControllerTally:
    """What was counted since the controllers began."""

    def __init__(self, job_of: Callable[[str, str], Job | None], *, since: datetime) -> None:
        """`job_of` finds the job of a namespace and name; pods that were made before `since` are not counted."""
        self._job_of = job_of
        self._since = rfc3339(since)
        self.tally = Tally()
        self._ended: dict[str, tuple[tuple[str, str], Counter[Family]]] = {}
        """By uid of a job, its labels and how often it ended how."""

    def on_job(self, old: Job | None, new: Job | None) -> None:
        """A job has changed; one that is new has not ended before our eyes."""
        if new is None:
            if old is not None:
                self._ended.pop(old.metadata.uid, None)
            return
        phase = new.status.state.phase
        if old is None or phase == old.status.state.phase or phase not in _ENDS:
            return
        labels = (_named(new), new.spec.queue or DEFAULT_QUEUE)
        _, counts = self._ended.setdefault(new.metadata.uid, (labels, Counter()))
        counts[_ENDS[phase]] += 1
        if len(self._ended) > MOST_JOBS:
            self._ended.pop(next(iter(self._ended)))

    def on_flow(self, old: JobFlow | None, new: JobFlow | None) -> None:
        """A flow has changed."""
        if old is None or new is None or new.status.state.phase == old.status.state.phase:
            return
        family = _FLOW_ENDS.get(new.status.state.phase)
        if family is not None:
            self.tally.count(family, new.metadata.namespace)

    def on_pod(self, old: Pod | None, new: Pod | None) -> None:
        """A pod was made, or has changed: only the first of these is news here."""
        if old is not None or new is None or (new.metadata.creation_timestamp or "") < self._since:
            return
        owner = next((one for one in new.metadata.owner_references if _is_job(one)), None)
        job = self._job_of(new.metadata.namespace, owner.name) if owner is not None else None
        if job is None or job.status.version or job.status.retry_count:
            return  # of a later life; when that began is written nowhere
        made, asked = new.metadata.creation_timestamp, job.metadata.creation_timestamp
        if made and asked:
            took_s = (parsed_time(made) - parsed_time(asked)).total_seconds()
            self.tally.observe(POD_CREATION, max(took_s, 0.0) * 1000)

    def collect(self, jobs: Iterable[Job]) -> Iterator[Metric]:
        """All families, as they stand now."""
        for family in (JOBS_COMPLETED, JOBS_FAILED):
            yield metric(family, {labels: counts[family] for labels, counts in self._ended.values() if counts[family]})
        yield metric(JOB_RETRIES, dict(_retries(jobs)))
        yield from self.tally.collect(COUNTED)


def _retries(jobs: Iterable[Job]) -> Iterator[tuple[tuple[str, ...], float]]:
    retried = ((one, one.status.retry_count) for one in jobs if one.status.retry_count)
    for number, (job, count) in enumerate(retried):
        if number >= MOST_JOBS:
            return
        yield (_named(job),), float(count)


def gangs_by_queue(groups: Iterable[PodGroup]) -> Iterator[Metric]:
    """The PodGroups of each queue, by phase."""
    counted: Mapping[str, Counter[tuple[str, ...]]] = {phase: Counter() for phase in _PHASES}
    for group in groups:
        phase = group.status.phase or "Pending"
        queue = (group.spec.queue or DEFAULT_QUEUE,)
        for one in _PHASES:
            counted[one][queue] += one == phase
    for phase, family in QUEUE_GANGS.items():
        yield metric(family, {queue: float(count) for queue, count in counted[phase].items()})


def _named(job: Job) -> str:
    return f"{job.metadata.namespace}/{job.metadata.name}"


def _is_job(owner: OwnerReference) -> bool:
    return owner.controller is True and (owner.api_version, owner.kind) == JOB_KIND
