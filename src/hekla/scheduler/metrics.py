"""What the scheduler counts and measures, under Volcano's names and Hekla's own.

A cycle pays for additions only (`kube/measured.py`); what can be read off the cluster is read when /metrics is asked for
(`gauges.py`). docs/reference/metrics.md is written from these families.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prometheus_client import Metric

from hekla.kube.measured import Family, Tally, metric
from hekla.placement.model import Job, JobSpec, Task
from hekla.placement.session import Session
from hekla.placement.statement import Evict
from hekla.scheduler.evictor import DONE
from hekla.scheduler.gauges import GAUGES, read_gauges

if TYPE_CHECKING:
    from hekla.scheduler.batch import BatchScheduler

_FINE = (0.1, 0.25, 0.5, 1.0, 2.5)
"""Below Volcano's first bucket: most of our cycles end there."""

_MS = (*_FINE, *(5.0 * 2**n for n in range(15)))
_WAIT_MS = tuple(32.0 * 2**n for n in range(16))

CYCLE = Family(
    "volcano_e2e_scheduling_latency_milliseconds",
    "histogram",
    "How long a scheduling cycle took, or one slice of it.",
    (),
    _MS,
)
OPEN_SESSION = Family(
    "volcano_open_session_duration_milliseconds", "histogram", "How long it took to open a cycle's session.", (), _MS
)
ACTION = Family(
    "volcano_action_scheduling_latency_milliseconds",
    "histogram",
    "How long an action took in one cycle.",
    ("action",),
    _MS,
)
PLUGIN = Family(
    "volcano_plugin_scheduling_latency_milliseconds",
    "histogram",
    "How long a plug-in took for what it computes once per cycle.",
    ("plugin", "OnSession"),
    _MS,
)
POD_WAIT = Family(
    "volcano_task_scheduling_latency_milliseconds",
    "histogram",
    "From a pod's creation until its binding was durable (stage Bound).",
    ("stage",),
    _WAIT_MS,
)
STAGE = Family(
    "volcano_scheduling_stage_duration_milliseconds",
    "histogram",
    "From the decision about a pod until its binding was durable (stage Bind).",
    ("stage",),
    _MS,
)
JOB_WAIT = Family(
    "volcano_e2e_job_scheduling_latency_milliseconds",
    "histogram",
    "From a job's creation until its first pods were given nodes.",
    (),
    _WAIT_MS,
)
ATTEMPTS = Family(
    "volcano_schedule_attempts_total",
    "counter",
    "Outcomes of attempts to place pods: Success, Failure (no room) or Error (the binding was refused).",
    ("result",),
)
PREEMPTIONS = Family(
    "volcano_total_preemption_attempts",
    "untyped",
    "Cycles in which preempt, reclaim or a gang action evicted for a waiting pod; it only grows.",
)
TRANSACTIONS = Family(
    "volcano_eviction_transactions_total",
    "counter",
    "Sets of evictions that were decided together for one waiting job.",
    ("action",),
)

CYCLES = Family(
    "hekla_scheduler_cycles_total",
    "counter",
    "Cycles, by whether one ended by itself, was cut to let others have their turn, or failed.",
    ("end",),
)
UNSCHEDULABLE = Family(
    "hekla_unschedulable_total",
    "counter",
    "Attempts that found no room for a job, by the reason that most nodes gave.",
    ("reason",),
)
EVICTIONS = Family(
    "hekla_evictions_total",
    "counter",
    "Evictions by the action that decided them and what became of them: done, gone (already), refused.",
    ("action", "outcome"),
)
LOST_WORK = Family(
    "hekla_evicted_seconds_total",
    "counter",
    "Run time of the evicted pods since they started or last saved their work.",
    ("action",),
)
REFUSED = Family(
    "hekla_turned_away_total",
    "counter",
    "Times that a job was turned away without looking at nodes, by reason.",
    ("reason",),
)

EXTENDER_CALLS = Family(
    "hekla_extender_calls_total",
    "counter",
    "Calls of the plug-in extender, by what came of them: ok, wrong, silent, late (a cycle did not wait for it), "
    "unasked or untold (it was silent before).",
    ("verb", "outcome"),
)
EXTENDER_SILENT = Family(
    "hekla_extender_silent", "gauge", "Whether an extender is left alone because it was silent several times.", ("url",)
)

USAGE_ASKED = Family(
    "hekla_node_usage_questions_total",
    "counter",
    "Times that the source of measurements was asked, by whether it answered.",
    ("outcome",),
)

EVICTING = ("preempt", "reclaim", "gangpreempt", "gangreclaim", "shuffle")
"""Actions that evict."""

COUNTED = (
    CYCLE, OPEN_SESSION, ACTION, PLUGIN, POD_WAIT, STAGE, JOB_WAIT, ATTEMPTS, PREEMPTIONS, TRANSACTIONS, CYCLES,
    UNSCHEDULABLE, REFUSED, EVICTIONS, LOST_WORK,
)  # fmt: skip

JOB_DURATION = Family(
    "volcano_e2e_job_scheduling_duration",
    "gauge",
    "Milliseconds from a job's creation until its pods were last given nodes.",
    ("job_name", "queue", "job_namespace"),
)
JOB_START = Family(
    "volcano_e2e_job_scheduling_start_time",
    "gauge",
    "When a job was created, in seconds since 1970.",
    ("job_name", "queue", "job_namespace"),
)
JOB_LAST = Family(
    "volcano_e2e_job_scheduling_last_time",
    "gauge",
    "When pods of a job were last given nodes, in seconds since 1970.",
    ("job_name", "queue", "job_namespace"),
)
VICTIMS = Family("volcano_pod_preemption_victims", "gauge", "Pods that the last action that evicted any chose.")
OF_JOBS = (JOB_DURATION, JOB_START, JOB_LAST)

METRICS = (*COUNTED, *OF_JOBS, VICTIMS, EXTENDER_CALLS, EXTENDER_SILENT, USAGE_ASKED, *GAUGES)

MOST_JOBS = 1000
"""Jobs that have series of their own: those that were given nodes last, and those that have waited longest."""

MOST_NOTED = 4096
"""Waits that are noted before they are counted."""


class SchedulerMetrics:
    """One scheduler's numbers; a collector for Prometheus' registry."""

    def __init__(self, scheduler: "BatchScheduler") -> None:
        self._scheduler = scheduler
        self.tally = Tally()
        # told from the start: Prometheus sees no increase in a series that begins with what it should warn of
        self.tally.count(CYCLES, "failed", by=0)
        for action in EVICTING:
            self.tally.count(LOST_WORK, action, by=0)
        self.reasons: dict[str, str] = {}
        """By uid of a job, why it last found no room or was turned away."""

        self.victims = 0
        """Evictions of the last action that decided any."""

        self._jobs: deque[tuple[JobSpec, float]] = deque(maxlen=MOST_JOBS)
        """Gangs that were given nodes last, and when; the newest at the end."""

        self._waits: list[float] = []
        """How long jobs had waited for their first nodes, not counted yet."""

        self._decided: dict[str, float] = {}
        """By uid of a job, when its pods were last given nodes."""

    # What a cycle tells

    def on_session(self, session: Session, took_s: float) -> None:
        """A session was opened."""
        self.tally.observe(OPEN_SESSION, took_s * 1000)

    def on_action(self, action: str, took_s: float) -> None:
        """An action has ended."""
        self.tally.observe(ACTION, took_s * 1000, action)

    def on_plugin(self, plugin: str, took_s: float) -> None:
        """A plug-in has computed what it computes once per cycle."""
        self.tally.observe(PLUGIN, took_s * 1000, plugin, "OnSessionOpen")

    def on_placed(self, jobs: Mapping[str, Job], now_s: float, wall_s: float) -> None:
        """Pods of these jobs, by uid, were given nodes in the cycle that ends now."""
        # Nothing is decided faster than single pods: at 10 us each, 2 % leaves 0.2 us. So waits are only noted here.
        decided, waits, gangs = self._decided, self._waits, self._jobs
        for uid, job in jobs.items():
            spec = job.spec
            if uid not in decided:
                waits.append(wall_s - spec.created)
            decided[uid] = now_s
            if spec.has_group:
                gangs.append((spec, wall_s))
        if self.reasons:
            for uid in jobs:
                self.reasons.pop(uid, None)
        if len(self._waits) > MOST_NOTED:
            self._count_waits()

    def _count_waits(self) -> None:
        for waited_s in self._waits:
            self.tally.observe(JOB_WAIT, max(waited_s, 0.0) * 1000)
        self._waits.clear()

    def on_cycle(self, session: Session, took_s: float) -> None:
        """A cycle, or a slice of one, has ended."""
        tally = self.tally
        tally.observe(CYCLE, took_s * 1000)
        tally.count(CYCLES, "cut" if session.is_cut_short else "done")
        for uid, failure in session.failures.items():
            reasons = failure.explanation.reasons
            reason = reasons[0][0].code if reasons else "no-nodes"
            tally.count(ATTEMPTS, "Failure")
            tally.count(UNSCHEDULABLE, reason)
            self.reasons[uid] = reason
        for uid, refusal in session.refusals.items():
            if uid not in session.failures:
                tally.count(REFUSED, refusal.code)
                self.reasons[uid] = refusal.code
        if (
            len(self.reasons) > 2 * len(session.cluster.jobs) + MOST_JOBS
        ):  # lone pods: their jobs have uids of their own
            self.reasons = {uid: why for uid, why in self.reasons.items() if uid in session.cluster.jobs}

    def on_failed_cycle(self) -> None:
        """A cycle has raised."""
        self.tally.count(CYCLES, "failed")

    def forget(self, uid: str) -> None:
        """A pod or a PodGroup is gone."""
        for known in (uid, f"pod:{uid}"):  # a lone pod's job has a uid of its own
            self._decided.pop(known, None)
            self.reasons.pop(known, None)

    def on_evictions(self, evictions: Sequence[Evict]) -> None:
        """A cycle's action has decided to evict."""
        if evictions:
            self.victims = len(evictions)
        for action, uid in {(evict.action, evict.preemptor.uid if evict.preemptor else "") for evict in evictions}:
            self.tally.count(TRANSACTIONS, action)
            if uid:
                self.tally.count(PREEMPTIONS)

    # What the binder and the evictor tell

    def on_evicted(self, evict: Evict, outcome: str, wall_s: float) -> None:
        """An eviction was carried out, or not."""
        self.tally.count(EVICTIONS, evict.action, outcome)
        if outcome == DONE:
            self.tally.count(LOST_WORK, evict.action, by=evict.task.spec.lost_work_s(wall_s))

    def on_settled(self, task: Task, now_s: float, wall_s: float, *, is_bound: bool) -> None:
        """A binding is durable, or was given up."""
        decided_s = self._decided.get(task.job.uid) if task.job is not None else None
        self.tally.count(ATTEMPTS, "Success" if is_bound else "Error")
        if is_bound:
            self.tally.observe(POD_WAIT, max(wall_s - task.spec.created, 0.0) * 1000, "Bound")
            if decided_s is not None:
                self.tally.observe(STAGE, (now_s - decided_s) * 1000, "Bind")

    # What Prometheus asks

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry need not guard the names, so that two schedulers may live in one process of tests."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All families, as they stand now."""
        self._count_waits()
        yield from self.tally.collect(COUNTED)
        jobs = {(spec.name, spec.queue, spec.namespace): (spec.created, wall_s) for spec, wall_s in self._jobs}
        yield metric(JOB_DURATION, {key: max(last - created, 0.0) * 1000 for key, (created, last) in jobs.items()})
        yield metric(JOB_START, {key: created for key, (created, _) in jobs.items()})
        yield metric(JOB_LAST, {key: last for key, (_, last) in jobs.items()})
        yield metric(VICTIMS, {(): self.victims})
        extenders = self._scheduler.extenders
        yield metric(EXTENDER_CALLS, {key: float(count) for key, count in extenders.counted.items()})
        yield metric(EXTENDER_SILENT, {(url,): 1.0 for url in extenders.silent})
        usage = self._scheduler.usage
        yield metric(USAGE_ASKED, {("answered",): usage.asked - usage.failed, ("failed",): usage.failed})
        yield from read_gauges(self._scheduler, self.reasons, most_jobs=MOST_JOBS)
