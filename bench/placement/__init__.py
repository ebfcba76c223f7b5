"""B1, B3: placement decisions per second of CPU, with all default plug-ins on, against the NumPy twin and the oracle.

Decided is what `allocate` decides: queue and job order, gangs, statements, commits included; what the scheduler does
before (reading objects) and after (binding) is not. Every decision of every case is judged by a plain oracle that shares
no code with the engine (`oracle.py`): whose turn it is, who waits, which node; any difference ends the bench. That every
plug-in and every term of a score matters in these worlds is counted by `python -m bench.placement.evidence`.

`--all` adds 100 and 50,000 nodes and the deepest queues. The recorded figures of kube-scheduler are from
specs/performance.md 1.1 and 6.1: the whole scheduler on two such cores, while these are decisions alone.
"""

import time
from dataclasses import dataclass, field
from typing import Any

from bench.placement import worlds
from bench.placement.measure import USUAL, Fill, cycles, decide, quiet_collector, rate, warmed
from bench.placement.oracle import judged
from bench.placement.storm import unsound
from bench.report import Report, percentile
from hekla.placement import kernels
from hekla.placement.kernels import twin

KUBE_SCHEDULER_PER_S, KUBE_ANTI_AFFINITY_PER_S = 317.0, 61.0
RECORDED = "recorded: kube-scheduler, whole path"
SAMPLE = 120


@dataclass(frozen=True)
class Case:
    """Work that waits, of which all fits."""

    name: str
    fill: Fill
    count: int
    recorded: float = KUBE_SCHEDULER_PER_S
    details: dict[str, Any] = field(default_factory=dict)

    def number(self, wanted: int, nodes: int) -> int:
        """As many as a small cluster has room for: a pod on a third of the nodes where they repel each other."""
        return min(wanted, nodes // 3 if self.fill is worlds.apart else nodes * 2)


CASES = (
    Case("all different pods", worlds.different, 3000),
    Case("gangs of 8 to 512", worlds.gangs, 6000),
    Case("gangs of 1 to 512", worlds.mixed, 6000),
    Case("single pods of 16 shapes", worlds.lone, 10_000),
    Case("single pods in 4 queues", worlds.queued, 10_000),
    Case("anti-affinity by host", worlds.apart, 400, KUBE_ANTI_AFFINITY_PER_S),
    Case("spread over zones", worlds.even, 600),
    Case("preferred pods, soft spread", worlds.company, 600),
    Case("gangs of 8 to 512, soft taints of three degrees", worlds.gangs, 1500, details={"is_shy": True}),
    Case("single pods of 16 shapes, soft taints of three degrees", worlds.lone, 1500, details={"is_shy": True}),
    Case(
        "gangs kept in racks and blocks", worlds.close, 1000,
        details={"plugins": worlds.NEAR_PLUGINS, "has_network": True},
    ),
)  # fmt: skip


def run(report: Report) -> None:
    """B1, B3: placement decisions per second of CPU, all default plug-ins on, beside the NumPy twin."""
    assert kernels.use_compiled(), "numba is needed for this bench"
    speeds: dict[tuple[str, int], float] = {}
    sizes = (100, 1_000, 10_000, 50_000) if report.is_full else (1_000, 10_000)
    for nodes in sizes:
        for case in CASES:
            speeds[case.name, nodes] = _measure(report, case, nodes)
    for case in CASES:
        low, high = speeds[case.name, sizes[0]], speeds[case.name, sizes[-1]]
        growth = f"cost per pod, {sizes[-1]:,} nodes against {sizes[0]:,}: {case.name}"
        report.add(growth, low / high, "times", note=f"{sizes[-1] // sizes[0]} times the nodes")
    for nodes in sizes:
        _measure_cycles(report, nodes)
        _measure_depths(report, nodes)
        _measure_full(report, nodes)
        _measure_storm(report, nodes)


def _measure(report: Report, case: Case, nodes: int) -> float:
    """Pods decided per second of CPU, compared with the oracle and the twin."""
    number = case.number(report.scaled(case.count), nodes)
    fast = rate(nodes, case.fill, number, **case.details)
    made = warmed(nodes, **case.details)
    case.fill(made, number)
    note = judged(made)
    with _twin():
        plain = rate(nodes, case.fill, min(number, SAMPLE), rounds=1, **case.details)
    report.add(f"{case.name}, {nodes:,} nodes", fast, "per CPU-s", baseline=plain, note=f"the NumPy twin; {note}")
    report.add(f"  beside {RECORDED}", fast, "per CPU-s", baseline=case.recorded)
    return fast


def _measure_cycles(report: Report, nodes: int) -> None:
    """What a cycle costs with 100 arrivals and as many departures."""
    made = warmed(nodes)
    with quiet_collector():
        taken = cycles(made, 100, report.scaled(200))
    worlds.lone(made, 100)
    note = judged(made)
    for share in (0.5, 0.99):
        report.add(
            f"cycle with 100 arrivals, {nodes:,} nodes, p{share * 100:.0f}",
            percentile(taken, share),
            "CPU-ms",
            note=note,
        )


def _measure_depths(report: Report, nodes: int) -> None:
    """Queues of three depths, most of whose pods have to wait: what fits is decided, the rest is told why not."""
    for depth in (1_000, 10_000, 100_000) if report.is_full else (1_000, 10_000):
        pair = [warmed(nodes, fullness=0.2) for _ in range(2)]
        for made in pair:
            worlds.fill_up(made, leave=max(1, nodes // 100))
            worlds.lone(made, report.scaled(depth))
        with quiet_collector():
            bound, seconds = decide(pair[0])
        looked_at = report.scaled(depth)
        note = f"{bound:,} found room; {judged(pair[1])}"
        report.add(f"nearly full, {depth:,} wait, {nodes:,} nodes", looked_at / seconds, "per CPU-s", note=note)


def _measure_full(report: Report, nodes: int) -> None:
    """A full cluster: gangs of which none fits, each told why."""
    number, pair = report.scaled(1000), [warmed(nodes, fullness=0.2) for _ in range(2)]
    for made in pair:
        worlds.fill_up(made)
        worlds.gangs(made, number)
    with quiet_collector():
        bound, seconds = decide(pair[0])
    assert not bound, "a full cluster has room"
    report.add(f"full, gangs refused, {nodes:,} nodes", number / seconds, "per CPU-s", note=judged(pair[1]))


def _measure_storm(report: Report, nodes: int) -> None:
    """A full cluster of low priority, and urgent gangs: evictions and nominations."""
    made = warmed(nodes, fullness=0.2)
    worlds.fill_up(made)
    worlds.urgent(made, report.scaled(20))
    with quiet_collector():
        began = time.process_time()
        decided, seconds = decide(made, (*USUAL, "preempt"))
    assert decided, "nobody was evicted for urgent gangs"
    faults, evictions = unsound(made)
    assert not faults, faults[:5]
    report.add(
        f"preemption storm, {nodes:,} nodes",
        decided / seconds,
        "per CPU-s",
        note=f"{evictions:,} evictions judged sound",
    )
    report.add("  whole storm", (time.process_time() - began) * 1e3, "CPU-ms")


class _twin:  # noqa: N801 - reads as a statement
    """The NumPy form of the kernels, for a while."""

    def __enter__(self) -> None:
        self._before = kernels.active()
        kernels.use(twin)

    def __exit__(self, *args: object) -> None:
        kernels._active = self._before
