"""Judges every decision of a cycle by the plain oracle (`plain.py`, `plain_turns.py`, `plain_network.py`).

The oracle reads the same specs as the engine and plays the cycle itself: it says whose turn it is, whether the job fits, and
which node each pod gets. A decision is the same, equal (the two nodes are one step of rounding apart, where 32-bit and
64-bit floats may fall to different sides), or differs. After each, the oracle follows the engine, so that one difference is
counted once. Besides, it tells how many of the nodes chosen would be others if a term or a filter were missing.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.placement.measure import decisions
from bench.placement.plain import FILTERS, STEPS, WEIGHTS, Bools, Floats, PlainNodes
from bench.placement.plain_network import PlainNetwork
from bench.placement.plain_turns import COUNTED, PlainJob, PlainQueues, PlainTurns
from hekla.placement.model import JobPhase, JobSpec, TaskSpec
from hekla.placement.queue import Queue
from hekla.placement.topology.topology import DomainSpec
from hekla.testing.cluster import World

Decided = tuple[str, str]
"""(uid of the pod, node)."""


@dataclass(frozen=True)
class Inputs:
    """What a cycle decides from: specs alone."""

    nodes: PlainNodes
    domains: Sequence[DomainSpec]
    queues: Mapping[str, Queue]
    jobs: Sequence[tuple[JobSpec, Sequence[TaskSpec]]]
    """Jobs that are in, with their pods that wait."""

    held: Sequence[tuple[JobSpec, TaskSpec]]

    @classmethod
    def of(cls, made: World) -> "Inputs":
        """Before the cycle."""
        cluster = made.cluster
        nodes = PlainNodes([spec for spec in cluster.nodes.specs if spec is not None])
        held, jobs = list[tuple[JobSpec, TaskSpec]](), list[tuple[JobSpec, list[TaskSpec]]]()
        for job in cluster.jobs.values():
            waiting = []
            for task in job.tasks.values():
                if task.row >= 0:
                    nodes.put(task.spec, nodes.row[cluster.nodes.name(task.row)])
                    held.append((job.spec, task.spec))
                else:
                    waiting.append(task.spec)
            if waiting and job.phase is not JobPhase.PENDING:
                jobs.append((job.spec, waiting))
        return cls(nodes, list(cluster.topology.specs.values()), dict(cluster.queues), jobs, held)


@dataclass
class Verdict:
    """What came of it."""

    compared: int = 0
    equal: int = 0
    """One step of rounding apart."""

    refused: int = 0
    """Jobs that the oracle found no room for, as the engine did."""

    differing: list[str] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)
    """By term or filter, how many nodes would be others without it."""

    def line(self) -> str:
        return (
            f"{self.compared:,} decisions compared, {len(self.differing)} differing ({self.equal} a step of rounding"
            f" apart; {self.refused:,} refusals agree)"
        )


class Judge:
    """One cycle, played beside what the engine decided."""

    def __init__(
        self, inputs: Inputs, *, uses_network: bool = False, tells_terms: bool = False,
        without: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.verdict = Verdict()
        self._nodes, self._tells = inputs.nodes, tells_terms
        self._network = PlainNetwork(inputs.nodes, inputs.domains) if uses_network else None
        self._closeness = PlainNetwork(inputs.nodes, inputs.domains) if inputs.domains else None
        self._step = 1.0 / STEPS * sum(w for n, w in WEIGHTS.items() if uses_network or n != "network-topology-aware")
        total = {name: int(column[inputs.nodes.is_ready].sum()) for name, column in inputs.nodes.most.items()}
        asked, held = _sums(inputs)
        queues = PlainQueues(inputs.queues, total, asked, held, without)
        own = dict[str, list[TaskSpec]]()
        for spec, pod in inputs.held:
            own.setdefault(spec.uid, []).append(pod)
        jobs = [PlainJob.of(spec, waiting, own.get(spec.uid, ())) for spec, waiting in inputs.jobs]
        self._held, self._queues, self._without = held, queues, without
        self._turns = PlainTurns(
            queues, [j for j in jobs if j.ready + len(j.waiting) >= j.spec.min_available], total, without
        )

    def compare(self, decided: Iterable[Decided]) -> Verdict:
        """Judge what was decided, in order."""
        left = deque(decided)
        while (job := self._turns.next()) is not None:
            self._turn(job, left)
        self.verdict.differing += [f"{uid} on {node}: not its turn, or no room for all of it" for uid, node in left]
        self.verdict.compared += len(left)
        return self.verdict

    def decide(self) -> list[Decided]:
        """What the oracle decides by itself."""
        decided = list[Decided]()
        while (job := self._turns.next()) is not None:
            rows = self._rows_for(job)
            pods = job.turn
            if rows is None and "gang" not in self._without:
                continue
            placed = list(zip(pods, rows or self._as_far_as(pods), strict=False))
            for pod, row in placed:
                self._put(job, pod, row)
                decided.append((pod.uid, self._nodes.specs[row].name))
            self._end_turn(job, len(placed))
        return decided

    def _turn(self, job: PlainJob, left: deque[Decided]) -> None:
        pods = job.turn
        is_decided = bool(left) and left[0][0] == pods[0].uid
        if not is_decided:
            if (rows := self._rows_for(job)) is not None:
                node = self._nodes.specs[rows[0]].name
                self.verdict.differing.append(f"{pods[0].uid} waits, and fits on {node} with all that goes with it")
                self.verdict.compared += len(pods)
            self.verdict.refused += 1
            return
        inside, siblings = self._inside(job, left), list[int]()
        for pod in pods:
            if not left or left[0][0] != pod.uid:
                self.verdict.differing.append(f"{pod.uid}: its job was bound without it")
                return
            row = self._nodes.row[left.popleft()[1]]
            self._judge(job, pod, row, inside, siblings)
            self._put(job, pod, row)
            siblings.append(row)
        self._end_turn(job, len(pods))

    def _judge(self, job: PlainJob, pod: TaskSpec, row: int, inside: Bools | None, siblings: Sequence[int]) -> None:
        verdict, nodes = self.verdict, self._nodes
        weighed = self._nodes.weigh(pod, self._near(job, pod, siblings), inside)
        total = weighed.total()
        best = self._best(total)
        verdict.compared += 1
        if not weighed.may[row] or not self._queues.may_take(job.spec.queue, pod):
            verdict.differing.append(f"{pod.uid} on {nodes.specs[row].name}, which may not take it")
        elif row != best:
            if total[row] == total[best] or total[best] - total[row] > self._step:
                verdict.differing.append(
                    f"{pod.uid} on {nodes.specs[row].name} ({total[row]:.7f}), better is {nodes.specs[best].name} ({total[best]:.7f})"
                )
            else:
                verdict.equal += 1
        if self._tells:
            for name in (*weighed.parts, *(f for f in FILTERS if f in weighed.refused)):
                verdict.changed[name] += self._best(weighed.total(without=name)) != best

    def _best(self, total: Floats) -> int:
        """The best node, after rounding; the first of equals; -1 for none."""
        steps = np.where(total >= 0, np.floor(total / self._step + 0.5), -1)
        row = int(steps.argmax())
        return row if steps[row] >= 0 else -1

    # Whether a job fits

    def _rows_for(self, job: PlainJob) -> list[int] | None:
        """The nodes of all pods of a turn, by the oracle alone; None if there is no room for all of them."""
        pods = job.turn
        if not self._is_close(job):
            return self._filled(job, pods, None)
        assert self._closeness is not None
        for domain in self._closeness.in_order(job.spec.closeness, pods):  # type: ignore[arg-type]
            if (rows := self._filled(job, pods, domain.rows)) is not None:
                return rows
        return None

    def _filled(self, job: PlainJob, pods: Sequence[TaskSpec], inside: Bools | None) -> list[int] | None:
        rows, taken = list[int](), list[tuple[TaskSpec, int]]()
        for pod in pods:
            row = -1
            if self._queues.may_take(job.spec.queue, pod):
                row = self._best(self._nodes.weigh(pod, self._near(job, pod, rows), inside).total())
            if row < 0:
                break
            self._put(job, pod, row)
            taken.append((pod, row))
            rows.append(row)
        for pod, row in reversed(taken):
            self._put(job, pod, row, -1)
        return rows if len(rows) == len(pods) else None

    def _as_far_as(self, pods: Sequence[TaskSpec]) -> list[int]:
        """Without gangs: whichever pods find room."""
        rows = list[int]()
        for pod in pods:
            row = self._best(self._nodes.weigh(pod).total())
            if row < 0:
                break
            self._nodes.put(pod, row)
            rows.append(row)
        for pod, row in zip(pods, rows, strict=False):
            self._nodes.put(pod, row, -1)
        return rows

    def _inside(self, job: PlainJob, left: Sequence[Decided]) -> Bools | None:
        """The domain that a gang must be in, by the oracle."""
        if not self._is_close(job):
            return None
        assert self._closeness is not None
        pods = job.turn
        for domain in self._closeness.in_order(job.spec.closeness, pods):  # type: ignore[arg-type]
            if self._filled(job, pods, domain.rows) is not None:
                return domain.rows
        self.verdict.differing.append(f"{job.spec.name}: no domain takes it")
        return None

    def _is_close(self, job: PlainJob) -> bool:
        return job.spec.closeness is not None and self._closeness is not None

    def _near(self, job: PlainJob, pod: TaskSpec, siblings: Sequence[int]) -> Mapping[str, Floats]:
        if self._network is None:
            return {}
        if job.spec.closeness is None:
            return self._network.packing(pod)
        return self._network.nearness(siblings, len(job.waiting) + job.ready)

    # Books

    def _put(self, job: PlainJob, pod: TaskSpec, row: int, sign: int = 1) -> None:
        self._nodes.put(pod, row, sign)
        held = self._held[job.spec.queue]
        for name, amount in (*pod.request.items(), ("pods", 1)):
            held[name] += sign * amount
            job.held[name] += sign * amount

    def _end_turn(self, job: PlainJob, placed: int) -> None:
        job.waiting, job.ready = job.waiting[placed:], job.ready + placed
        if job.waiting and placed:
            self._turns.again(job)


def _sums(inputs: Inputs) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """By queue, what its pods ask for, and what of it they hold."""
    asked, held = dict[str, Counter[str]](), dict[str, Counter[str]]()
    pairs = [(job, pod, True) for job, pod in inputs.held]
    pairs += [(job, pod, False) for job, pods in inputs.jobs for pod in pods]
    for job, pod, has_node in pairs:
        sums = [asked.setdefault(job.queue, Counter()), held.setdefault(job.queue, Counter())]
        for account in sums[: 2 if has_node else 1]:
            for name in COUNTED:
                account[name] += 1 if name == "pods" else pod.request.get(name, 0)
    return asked, held


def judged(made: World, *, tells_terms: bool = False) -> str:
    """Let the engine decide a cycle, judge all of it, and tell what came of it in a few words; any difference raises."""
    return verdict_on(made, tells_terms=tells_terms).line()


def verdict_on(made: World, *, tells_terms: bool = False) -> Verdict:
    """The verdict on a cycle of a world."""
    inputs, uses_network = Inputs.of(made), any(type(p).__name__ == "NetworkTopologyAware" for p in made.policy.plugins)
    judge = Judge(inputs, uses_network=uses_network, tells_terms=tells_terms)
    verdict = judge.compare((told.split(" ", 1)[1], node) for told, node in decisions(made))
    assert not verdict.differing, f"{verdict.line()}: {'; '.join(verdict.differing[:5])}"
    return verdict
