"""Admission by quota: Kueue's scale scenario of 15,000 workloads, unpaced, beside the recorded figure of its CI.

5 cohorts of 6 queues, 500 workloads each: 350 of 1 cpu for 200 ms, 100 of 5 cpu for 500 ms, 50 of 20 cpu for 1 s, with
rising priority; nominal 20, borrowing up to 100, reclaim Any, preemption by lower priority. Time is virtual: what is
measured is deciding alone. `paced` has workloads arrive as Kueue's generator makes them and tells waits and use.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from bench.report import Report
from hekla.quota.admission import Admission, Admit, Preempt
from hekla.quota.cohort import Allotment, CohortMember, CohortTree
from hekla.quota.victims import PreemptionPolicy, Reclaim, Within, Workload

CPU = ("default", "cpu")
KUEUE_PER_S, KUEUE_USE, KUEUE_WAITS = 42.7, 55.9, {"small": 215.0, "medium": 76.8, "large": 16.5}
"""Recorded by its CI: 15,000 workloads in 351 s of wall time; use in percent; mean waits in seconds."""

POLICY = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY)


@dataclass(frozen=True)
class Class:
    name: str
    count: int
    cpu: int
    lasts_s: float
    every_s: float
    priority: int


CLASSES = (
    Class("small", 350, 1, 0.2, 0.1, 50),
    Class("medium", 100, 5, 0.5, 0.5, 100),
    Class("large", 50, 20, 1.0, 1.2, 200),
)


def run(report: Report) -> None:
    """Admission by quota: Kueue's 15,000 workloads."""
    share = 10 if report.is_quick else 1
    for by_shares in (False, True):
        name = "by shares" if by_shares else "by levels"
        result = simulate(_workloads(share, paced=False), by_shares=by_shares)
        report.add(f"15,000 workloads unpaced, {name}", result.per_s, "admitted/s", baseline=KUEUE_PER_S)
        report.add(f"  evictions, {name}", result.evictions, "")
        report.add(f"  virtual time, {name} (66 s at full use)", result.virtual_s, "s")
    result = simulate(_workloads(share, paced=True))
    report.add("15,000 workloads as they arrive", result.per_s, "admitted/s", baseline=KUEUE_PER_S)
    report.add("  use of the queues' quota", 100 * result.use, "%", baseline=KUEUE_USE)
    for kind, wait in result.waits.items():
        report.add(f"  mean wait, {kind}", wait, "s", baseline=KUEUE_WAITS[kind])


@dataclass(frozen=True)
class Result:
    per_s: float
    virtual_s: float
    use: float
    waits: dict[str, float]
    evictions: int


def tree() -> CohortTree:
    quota = {CPU: Allotment(nominal=20_000, borrowing_limit=100_000)}
    return CohortTree(
        CohortMember(name=f"c{c}q{q}", parent=f"c{c}", allotments=quota) for c in range(5) for q in range(6)
    )


def simulate(workloads: Sequence[tuple[Class, Workload]], *, by_shares: bool = False) -> Result:
    """Run in virtual time until all have ended; an evicted workload starts over. Only deciding is on the watch."""
    quotas = tree()
    engine = Admission(quotas, {node.name: POLICY for node in quotas.queues()}, by_shares=by_shares)
    kinds = {workload.uid: kind for kind, workload in workloads}
    arrivals = sorted(((w.since, w.uid, w) for _, w in workloads), reverse=True)
    ends: list[tuple[float, str, int]] = []
    lives: dict[str, int] = {}
    waits: dict[str, list[float]] = {kind.name: [] for kind in CLASSES}
    now = spent = busy = 0.0
    admitted = evictions = 0
    while arrivals or ends:
        now = min([*(a[0] for a in arrivals[-1:]), *(e[0] for e in ends[:1])])
        begin = time.perf_counter()
        while arrivals and arrivals[-1][0] <= now:
            engine.submit(arrivals.pop()[2])
        while ends and ends[0][0] <= now:
            _, uid, life = heappop(ends)
            if lives[uid] == life:
                busy += kinds[uid].cpu * kinds[uid].lasts_s
                engine.finish(uid)
        gone: list[str] = []
        decisions = list(engine.decide(now))
        for decision in decisions:
            if isinstance(decision, Preempt):
                gone += [other.uid for other, _ in decision.targets]
        for uid in gone:
            engine.requeue(uid)
        decisions += engine.decide(now) if gone else ()
        spent += time.perf_counter() - begin
        for uid in gone:
            lives[uid] += 1
            evictions += 1
        for decision in decisions:
            if isinstance(decision, Admit):
                kind, uid = kinds[decision.workload.uid], decision.workload.uid
                if uid not in lives:
                    waits[kind.name].append(now - decision.workload.since)
                    admitted += 1
                lives[uid] = lives.get(uid, 0) + 1
                heappush(ends, (now + kind.lasts_s, uid, lives[uid]))
        _check(engine)
    assert admitted == len(workloads), f"{len(workloads) - admitted} workloads were never admitted"
    means = {name: sum(times) / max(len(times), 1) for name, times in waits.items()}
    return Result(admitted / spent, now, busy / (600 * now), means, evictions)


def _check(engine: Admission) -> None:
    """Nothing is overfull, by the sums of what was admitted and no formula of the engine's."""
    held: dict[str, int] = {}
    queues: dict[str, int] = {}
    for workload in engine.admitted.values():
        cohort = workload.queue.partition("q")[0]
        held[cohort] = held.get(cohort, 0) + workload.usage[CPU]
        queues[workload.queue] = queues.get(workload.queue, 0) + workload.usage[CPU]
    assert all(amount <= 120_000 for amount in (*held.values(), *queues.values()))


def _workloads(share: int, *, paced: bool) -> list[tuple[Class, Workload]]:
    dice, made = random.Random(1), list[tuple[Class, Workload]]()
    for cohort in range(5):
        for queue in range(6):
            for kind in CLASSES:
                for number in range(kind.count // share):
                    workload = Workload(
                        uid=f"{kind.name}-{cohort}-{queue}-{number}", queue=f"c{cohort}q{queue}", priority=kind.priority,
                        usage={CPU: kind.cpu * 1000}, since=number * kind.every_s if paced else 0.0,
                    )  # fmt: skip
                    made.append((kind, workload))
    dice.shuffle(made)
    return [(kind, replace(workload)) for kind, workload in made]
