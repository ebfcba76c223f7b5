"""Runs a trace through the placement engine in virtual time: arrivals, cycles, run times, faults, evictions.

Nothing here decides where work goes: every cycle is a `Session` with the actions and plug-ins of a scheduler
configuration, the same that a live cluster runs. This module plays the world around it. A job makes progress while all
its tasks have a node; if one loses its node, the job starts again from its last checkpoint. Time jumps from event to
event, so that months take minutes; the same trace, rules and seed give the same outcome.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import floor, inf
from typing import Any

import numpy as np

from hekla.placement.cluster import Cluster
from hekla.placement.columns import NodeSpec
from hekla.placement.model import Job, JobPhase, JobSpec, Task, TaskSpec, TaskStatus
from hekla.placement.policy import Policy
from hekla.placement.queue import Queue
from hekla.placement.registry import action_named
from hekla.placement.session import Session
from hekla.placement.statement import Bind, Evict
from hekla.scheduler.configuration import Configuration
from hekla.simulation.outcome import Fate, Recorder, SimulationOutcome
from hekla.simulation.trace import GPU, TraceJob

DAY_S = 86_400.0
LEAST_KNOWN = 5
"""Of fewer jobs nobody takes a median."""

MOST_IN_LINE = 64
"""So many jobs of a strict line wait before the scheduler's eyes. Those behind them cannot start before one of these does, so
that they are shown when one has: the same comes of it, and a cycle does not look at ten thousand."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How the world around the scheduler behaves."""

    window_s: float = 1.0
    """A cycle follows an event at once, but no sooner than so long after the cycle before."""

    checkpoint_s: float = inf
    """After how much progress a job writes a checkpoint; inf means never, and 0 that nothing is ever lost."""

    grace_s: float = 30.0
    """How long a pod that is evicted holds its room."""

    faults_every_s: float = inf
    """How long a node lives between faults, on average (exponentially distributed)."""

    repair_s: float = 3600.0
    """How long a node that failed is away."""

    sample_s: float = 600.0
    """How often fairness is looked at."""

    until_s: float = inf
    """When the simulation ends at the latest."""

    line: str = ""
    """The one queue in which all jobs stand, as where a scheduler knows no queues; empty: each in its own."""

    is_strict: bool = False
    """Whether nothing in that line passes a job that waits."""

    resource: str = GPU
    """The resource that shares and utilisation are measured in."""

    learns_from: int = 0
    """If above 0, a job is said to run as long as the median of so many jobs of its queue and size that ended last; else what
    the trace says.
    """

    seed: int = 0
    """For ties between nodes, and for faults."""


class _Life:
    """One job on its way through the simulation."""

    __slots__ = ("fate", "generation", "job", "progress_s", "running", "since_s", "trace")

    def __init__(self, trace: TraceJob, fate: Fate) -> None:
        self.trace = trace
        self.fate = fate
        self.job: Job | None = None
        self.running = 0
        self.since_s = -1.0
        """Since when all tasks run; negative while they do not."""

        self.progress_s = 0.0
        self.generation = 0
        """Grows with every start and stop, so that an end that was foreseen before is void."""


_Event = tuple[float, int, Callable[[float, Any], bool], Any]
"""When, its number among all, what happens then, and to whom."""


class Simulation:
    """One run. `run` may be called once."""

    def __init__(
        self, nodes: Sequence[NodeSpec], queues: Sequence[Queue], jobs: Sequence[TraceJob], configuration: Configuration,
        rules: Rules | None = None,
    ) -> None:  # fmt: skip
        self.rules = rules or Rules()
        self.cluster = Cluster(seed=self.rules.seed)
        self._dice = np.random.default_rng(self.rules.seed)
        self._specs = {spec.name: spec for spec in nodes}
        for queue in queues:
            self.cluster.put_queue(queue)
        if self.rules.line and self.rules.line not in self.cluster.queues:
            self.cluster.put_queue(Queue(name=self.rules.line, is_strict=self.rules.is_strict))
        for spec in nodes:
            self.cluster.put_node(spec)
        self._policy = Policy(self.cluster, configuration.tiers, configuration.arguments)
        self._policy.actions = configuration.actions
        self._actions = [action_named(name) for name in configuration.actions]
        self._enqueues = "enqueue" in configuration.actions
        self._lives: dict[str, _Life] = {}
        self._stopping: set[str] = set()
        self._events: list[_Event] = []
        self._number = self._faults_alone = 0
        self._recorder = Recorder(queues, self.cluster.nodes.total(self.rules.resource), self.rules.sample_s)
        self._jobs = jobs
        self._ended: dict[tuple[str, int], deque[float]] = {}
        """How long those ran that ended last, by queue and size."""

        self._behind: deque[_Life] = deque()
        self._in_line = 0
        self._is_single_file = self.rules.is_strict and len({job.priority for job in jobs}) <= 1
        self.cycles = 0

    def run(self, *, on_day: Callable[[int], None] = lambda day: None) -> SimulationOutcome:
        """Play the trace to its end, or to `until_s`; jobs that are not done by then stay unfinished.

        `on_day` is told when a day of the trace begins: weeks of a cluster that is full take minutes.
        """
        for trace in sorted(self._jobs, key=lambda job: job.submit_s):
            self._at(trace.submit_s, self._arrive, trace)
        if self.rules.faults_every_s < inf:
            for name in self._specs:
                self._at(self._time_to_fault(), self._break, name)
        now, cycle_at, cycled_at, day = 0.0, inf, -inf, -1
        while (now := min(self._events[0][0] if self._events else inf, cycle_at)) < self.rules.until_s:
            self._recorder.pass_to(now)
            if now // DAY_S > day:
                on_day(day := int(now // DAY_S))
            if self._happen(now):
                cycle_at = min(cycle_at, max(now, cycled_at + self.rules.window_s))
            if cycle_at <= now:
                cycled_at, cycle_at = now, self._cycle(now)
            if self._is_over():
                break
        return self._recorder.outcome(self._recorder.now_s if now == inf else min(now, self.rules.until_s), self.cycles)

    # The world

    def _happen(self, now: float) -> bool:
        """Let everything happen that is due; whether anything did that a scheduler would notice."""
        is_news = False
        while self._events and self._events[0][0] <= now:
            _, _, happen, about = heappop(self._events)
            self._faults_alone = self._faults_alone + 1 if happen in (self._break, self._repair) else 0
            is_news |= happen(now, about)
        return is_news

    def _arrive(self, now: float, trace: TraceJob) -> bool:
        fate = Fate(trace.name, trace.queue, trace.asks(self.rules.resource), trace.run_s, now)
        life = self._lives[trace.name] = _Life(trace, fate)
        self._recorder.arrived(fate)
        self._behind.append(life)
        self._show()
        return True

    def _end(self, now: float, about: tuple[_Life, int]) -> bool:
        life, generation = about
        if life.generation != generation:
            return False
        assert life.job is not None
        self.cluster.remove_job(life.job.uid)
        self._recorder.stopped(life.fate)
        self._release(life)
        self._recorder.ended(life.fate, now)
        self._ended_of(life.trace).append(life.trace.run_s)
        del self._lives[life.trace.name]
        return True

    def _gone(self, now: float, about: tuple[_Life, Job | None]) -> bool:
        """The pods of a job that was stopped are gone: it waits again, with new pods."""
        life, job = about
        if job is None or job is not life.job:
            return False  # its node failed before they were
        self._stopping.discard(life.trace.name)
        self.cluster.remove_job(job.uid)
        self._release(life)
        self._submit(life)
        return True

    def _break(self, now: float, name: str) -> bool:
        row = self.cluster.nodes.row_of[name]
        hit = {task.job.spec.name for task in self.cluster.placed() if task.row == row and task.job is not None}
        for life in (self._lives[job] for job in sorted(hit)):
            self._stop(life, now)
            self._gone(now, (life, life.job))
        self.cluster.remove_node(name)
        self._at(now + self.rules.repair_s, self._repair, name)
        return True

    def _repair(self, now: float, name: str) -> bool:
        self.cluster.put_node(self._specs[name])
        self._at(now + self._time_to_fault(), self._break, name)
        return True

    # Jobs

    def _show(self) -> bool:
        """Submit who has come, in a strict line no more than may be of any use; whether anybody was."""
        is_news = False
        while self._behind and not (self._is_single_file and self._in_line >= MOST_IN_LINE):
            self._submit(self._behind.popleft())
            is_news = True
        return is_news

    def _submit(self, life: _Life) -> None:
        trace, tasks = life.trace, life.trace.tasks
        minimum = {name: amount * tasks for name, amount in trace.request.items()}
        self._in_line += 1
        life.generation += 1
        uid = f"{trace.name}.{life.generation}"
        life.job = job = self.cluster.put_job(
            JobSpec(
                uid=uid, name=trace.name, queue=self.rules.line or trace.queue, priority=trace.priority, created=life.fate.submit_s,
                min_available=tasks, min_resources=minimum, estimate_s=self._estimate(trace), phase=JobPhase.PENDING if self._enqueues else JobPhase.INQUEUE,
            )
        )  # fmt: skip
        for number in range(tasks):
            name = f"{trace.name}-{number}"
            self.cluster.put_task(
                TaskSpec(
                    uid=f"{uid}-{number}", name=name, request=trace.request, priority=trace.priority,
                    created=life.fate.submit_s,
                ),
                job,
            )  # fmt: skip

    def _ended_of(self, trace: TraceJob) -> deque[float]:
        key = (trace.queue, trace.asks(self.rules.resource))
        return self._ended.setdefault(key, deque(maxlen=max(self.rules.learns_from, 1)))

    def _estimate(self, trace: TraceJob) -> float | None:
        """How long a job is said to run, by what is known when it comes."""
        if not self.rules.learns_from:
            return trace.estimate_s
        known = self._ended_of(trace)
        return max(float(np.median(known)), 1.0) if len(known) >= LEAST_KNOWN else None

    def _stop(self, life: _Life, now: float) -> None:
        """Work ceases: what came after the last checkpoint is lost."""
        if life.since_s < 0:
            return
        done = life.progress_s + now - life.since_s
        every = self.rules.checkpoint_s
        kept = done if every == 0 else 0.0 if every == inf else floor(done / every) * every
        life.fate.lost_s += done - kept
        life.progress_s, life.since_s = kept, -1.0
        life.generation += 1
        self._recorder.stopped(life.fate)

    def _release(self, life: _Life) -> None:
        self._recorder.released(life.fate, life.running * self._part(life))
        life.running = 0

    def _part(self, life: _Life) -> int:
        return life.trace.request.get(self.rules.resource, 0)

    # Cycles

    def _cycle(self, now: float) -> float:
        """A cycle, and more as long as others come into sight; when the next is due though nothing happens."""
        again = self._one_cycle(now)
        while self._show():
            again = self._one_cycle(now)
        return again

    def _one_cycle(self, now: float) -> float:
        self.cycles += 1
        session = Session(self._policy, now=now)
        for action in self._actions:
            for decision in action(session):
                if isinstance(decision, Bind):
                    self._start(decision.task, decision.node, now)
                elif isinstance(decision, Evict):
                    self._evict(decision.task, now)
        again = session.look_again_at
        return max(again, now + self.rules.window_s) if again is not None else inf

    def _start(self, task: Task, node: str, now: float) -> None:
        assert task.job is not None
        life = self._lives[task.job.spec.name]
        self.cluster.put_state(task, TaskStatus.RUNNING, node, started=now)
        life.running += 1
        self._recorder.placed(life.fate, self._part(life))
        if life.running < life.trace.tasks:
            return
        task.job.phase = JobPhase.RUNNING
        self._in_line -= 1
        life.since_s = now
        life.generation += 1
        self._recorder.started(life.fate, now)
        self._at(now + life.trace.run_s - life.progress_s, self._end, (life, life.generation))

    def _evict(self, task: Task, now: float) -> None:
        """A pod is told to go; its siblings cannot go on without it, and go too."""
        assert task.job is not None
        life = self._lives[task.job.spec.name]
        life.fate.evictions += 1
        self._stop(life, now)
        if life.trace.name in self._stopping:
            return
        self._stopping.add(life.trace.name)
        for sibling in task.job.tasks.values():
            if sibling.status is TaskStatus.RUNNING:
                self.cluster.put_state(sibling, TaskStatus.RELEASING, self.cluster.nodes.name(sibling.row))
        self._at(now + self.rules.grace_s, self._gone, (life, life.job))

    # Time

    def _at(self, time_s: float, happen: Callable[[float, Any], bool], about: Any) -> None:
        self._number += 1
        heappush(self._events, (time_s, self._number, happen, about))

    def _time_to_fault(self) -> float:
        return float(self._dice.exponential(self.rules.faults_every_s))

    def _is_over(self) -> bool:
        """Whether nothing but faults happens any more: every node has come back since, and nobody could start."""
        return self._faults_alone > 4 * len(self._specs)


def equal_nodes(count: int, allocatable: dict[str, int]) -> Iterator[NodeSpec]:
    """Nodes `n0`, `n1`... that all have the same."""
    for number in range(count):
        yield NodeSpec(
            name=f"n{number}", allocatable={"pods": 256, **allocatable}, labels={"kubernetes.io/hostname": f"n{number}"}
        )


def queues_by_use(jobs: Iterable[TraceJob], resource: str = GPU, capacity: int = 0) -> list[Queue]:
    """A queue for each that the jobs name, with a weight by how much of the resource its jobs use over the trace.

    Weights are percents, at least 1. With a capacity, each queue deserves its part of it.
    """
    used: dict[str, float] = {}
    for job in jobs:
        used[job.queue] = used.get(job.queue, 0.0) + job.asks(resource) * job.run_s
    total = sum(used.values()) or 1.0
    weights = {name: max(1, round(100 * amount / total)) for name, amount in sorted(used.items())}
    parts = {name: capacity * weight // sum(weights.values()) for name, weight in weights.items()}
    return [
        Queue(name=name, weight=weight, deserved={resource: parts[name]} if capacity else {})
        for name, weight in weights.items()
    ]
