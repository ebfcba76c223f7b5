"""B12, B13: traces through the engine: GPUs given away under sharing, and a cluster of 15 teams over weeks.

openb: pods that share GPUs arrive until 130 % of the cluster's GPUs are asked for, by `fgd` and by policies of the paper,
against the curves that its authors published (means of ten seeds). Philly: one stretch of the trace, the same jobs under
seven configurations. Both run in virtual time; what is measured is what was decided, and the CPU that it took.

    python -m bench.traces                         all of it, and the plots into docs/explanation/pictures
    python -m bench.traces --whole philly          the whole trace of 109 days, one configuration after the other
"""

import argparse
import csv
import gzip
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.plots import bars, lines
from bench.report import Report, machine_lines
from hekla.placement import kernels
from hekla.placement.columns import CPU, FloatArray, IntArray, Nodes
from hekla.placement.devices.shares import WHOLE
from hekla.placement.plugins.fgd import Fgd, Kind
from hekla.placement.registry import build_plugin
from hekla.placement.shape import Shape
from hekla.scheduler.configuration import DEFAULT_TEXT, parse_configuration
from hekla.simulation.inflation import Curve, inflate
from hekla.simulation.openb import MODEL_LABEL, mix_of, read_nodes, read_pods
from hekla.simulation.outcome import SIZES, Outcome
from hekla.simulation.simulator import Rules, Simulation, equal_nodes, queues_by_use
from hekla.simulation.trace import GPU, TraceJob, read_philly

DATA = Path(__file__).parent / "data"
PICTURES = Path(__file__).parents[1] / "docs" / "explanation" / "pictures"
MIXES = (
    "default", "gpushare100", "multigpu50", "gpuspec33", "cpu050", "cpu250", "gpushare40", "gpushare60", "gpushare80",
    "gpuspec10", "multigpu20",
)  # fmt: skip
TOLERANCE = 0.5
DAY_S = 86_400.0


def rows_of(name: str) -> list[str]:
    return gzip.decompress((DATA / f"{name}.gz").read_bytes()).decode().splitlines()


# openb


@dataclass(frozen=True)
class BestFit:
    """The least of cpu and GPU left behind, each by the largest node's, in a hundred steps."""

    weight: float = 1.0

    def score_rows(self, nodes: Nodes, shape: Shape, rows: IntArray) -> FloatArray:
        cpu = (nodes.idle[CPU, rows] - shape.request.get("cpu", 0)) / 128_000
        gpu = (nodes.devices.left[:, rows].sum(axis=0) - shape.gpu_milli) / (8 * WHOLE)
        return (np.floor(100 * (1 - (cpu + gpu) / 2)) / 100).astype(np.float32)


@dataclass(frozen=True)
class GpuPacking:
    """GPUs in use before idle ones of nodes in use before idle nodes."""

    weight: float = 1.0

    def score_rows(self, nodes: Nodes, shape: Shape, rows: IntArray) -> FloatArray:
        if not shape.gpu_milli:
            return np.zeros(len(rows), np.float32)
        left, counts = nodes.devices.left[:, rows], nodes.devices.counts[rows]
        free = (left == WHOLE).sum(axis=0)
        number = max(1, shape.gpu_milli // WHOLE)
        used_room = np.where((left >= min(shape.gpu_milli, WHOLE)) & (left < WHOLE), left, 2 * WHOLE).min(axis=0)
        shared = np.maximum(100 - used_room // 100, 50)
        opened = np.maximum(50 - number, 33)
        told = np.where(free == counts, np.maximum(33 - free, free), np.where(used_room < WHOLE, shared, opened))
        return (told / 100).astype(np.float32)


class Dice:
    """Any node, one as good as the other."""

    weight = 1.0

    def __init__(self, seed: int) -> None:
        self._dice = np.random.default_rng(seed)

    def score_rows(self, nodes: Nodes, shape: Shape, rows: IntArray) -> FloatArray:
        return np.zeros(len(rows), np.float32)

    def score_live(self, nodes: Nodes, tallies: object, task: object) -> FloatArray:
        return self._dice.random(nodes.rows, np.float32)


def policy(name: str, mix: tuple[Kind, ...], seed: int) -> object:
    match name:
        case "FGD":
            return Fgd(workload=mix, model_label=MODEL_LABEL)
        case "BestFit":
            return BestFit()
        case "GpuPacking":
            return GpuPacking()
        case _:
            return Dice(seed)


@dataclass(frozen=True)
class Comparison:
    """A policy on a mix: our mean curve and the published one, by percent asked for."""

    mix: str
    policy: str
    ours: FloatArray
    published: FloatArray
    lost: FloatArray
    published_lost: FloatArray
    pods_per_s: float

    @property
    def at_100(self) -> tuple[float, float]:
        return float(self.ours[100]), float(self.published[100])

    @property
    def farthest(self) -> float:
        """The largest distance between the curves, in points."""
        return float(np.nanmax(np.abs(self.ours - self.published)[1:]))


def golden(kind: str) -> Mapping[tuple[str, str], FloatArray]:
    return {
        (row["workload"], row["policy"]): np.array([float(row[str(p)] or "nan") for p in range(131)], np.float32)
        for row in csv.DictReader(rows_of(f"openb/golden_{kind}.csv"))
    }


def compare(mix: str, name: str, seeds: int) -> Comparison:
    """Run one policy on one mix."""
    nodes, pods = list(read_nodes(rows_of("openb/nodes.csv"))), list(read_pods(rows_of(f"openb/pods_{mix}.csv")))
    kinds, curves, spent = mix_of(pods), list[Curve](), 0.0
    for seed in range(seeds):
        began = time.process_time()
        tiers = [[build_plugin("predicates"), policy(name, kinds, seed)]]
        curves.append(inflate(nodes, pods, tiers, kinds, seed=seed))
        spent += time.process_time() - began
    ours, lost = (_mean([_padded(getattr(curve, part)) for curve in curves]) for part in ("allocated", "lost"))
    key = (mix, name)
    return Comparison(
        mix, name, ours, golden("allocated")[key], lost, golden("lost")[key], sum(c.pods for c in curves) / spent
    )


def _padded(values: Sequence[float]) -> FloatArray:
    return np.array([*values, *[float("nan")] * 131][:131], np.float32)


def _mean(curves: Sequence[FloatArray]) -> FloatArray:
    return np.array([np.mean(column[~np.isnan(column)]) if not np.isnan(column).all() else np.nan
                     for column in np.array(curves).T], np.float32)  # fmt: skip


def openb(report: Report, mixes: Sequence[str] = MIXES) -> list[Comparison]:
    told = []
    for mix in mixes[: 2 if report.is_quick else len(mixes)]:
        full = mix in MIXES[:4]
        for name in ("FGD", "BestFit", "GpuPacking", "Random") if full and not report.is_quick else ("FGD",):
            one = compare(mix, name, 1 if report.is_quick else 4 if name == "FGD" and full else 2)
            ours, theirs = one.at_100
            note = f"{one.farthest:.2f} points apart at most, {one.pods_per_s:,.0f} pods per CPU-s"
            report.add(f"openb {mix}, {name}: % of GPUs at 100 %", ours, "%", baseline=theirs, note=note)
            told.append(one)
    worst = max((one.ours[100] - one.published[100] for one in told if one.policy == "FGD"), key=abs)
    report.add(
        "openb, FGD: farthest from the published mean at 100 %", float(worst), "points", note=f"aim: {TOLERANCE}"
    )
    return told


# Philly

KUBE = """\
actions: "allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: predicates
  - name: nodeorder
"""
FIFO = """\
actions: "allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: predicates
  - name: nodeorder
"""
CAPACITY = """\
actions: "enqueue, allocate, backfill, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: overcommit
  - name: drf
  - name: predicates
  - name: capacity
  - name: nodeorder
  - name: binpack
"""
HEKLA = """\
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: fair-share
  - name: drf
  - name: predicates
  - name: proportion
  - name: binpack
    arguments:
      binpack.cpu: 1
      binpack.memory: 1
      binpack.resources: nvidia.com/gpu
      binpack.resources.nvidia.com/gpu: 10
"""


UNBOUND = HEKLA.replace("  - name: proportion\n", "")
RESERVING = HEKLA.replace(
    "  - name: fair-share\n",
    "  - name: reservation\n    arguments: {defaultEstimate: 4h, after: 1h}\n  - name: fair-share\n",
)


@dataclass(frozen=True)
class Setting:
    """A configuration, and how jobs stand in line for it."""

    name: str
    text: str
    line: str = ""
    is_strict: bool = False


SETTINGS = (
    Setting("spread, no gangs", KUBE, line="all"),
    Setting("FIFO", FIFO, line="all", is_strict=True),
    Setting("Volcano's default", DEFAULT_TEXT),
    Setting("capacity, reclaim", CAPACITY),
    Setting("Hekla", HEKLA),
    Setting("Hekla, no bounds", UNBOUND),
    Setting("Hekla, reservations", RESERVING),
)


@dataclass(frozen=True)
class Stretch:
    """A part of the trace, and the cluster that it is run on."""

    first_day: int = 0
    days: int = 110
    nodes: int = 80
    window_s: float = 60.0
    checkpoint_s: float = 1800.0

    def jobs(self) -> list[TraceJob]:
        low, high = self.first_day * DAY_S, (self.first_day + self.days) * DAY_S
        return [job for job in read_philly(rows_of("philly/philly.csv")) if low <= job.submit_s < high]


def simulate(setting: Setting, stretch: Stretch) -> tuple[Outcome, float]:
    """One configuration over one stretch, and the CPU-seconds that it took."""
    jobs = stretch.jobs()
    nodes = list(equal_nodes(stretch.nodes, {"cpu": 64_000, "memory": 512 << 30, GPU: 8}))
    rules = Rules(
        window_s=stretch.window_s, checkpoint_s=stretch.checkpoint_s, line=setting.line, is_strict=setting.is_strict,
        until_s=(stretch.first_day + stretch.days + 60) * DAY_S,
    )  # fmt: skip
    queues = queues_by_use(jobs, capacity=8 * stretch.nodes)
    simulation = Simulation(nodes, queues, jobs, parse_configuration(setting.text), rules)
    began = time.process_time()
    return simulation.run(), time.process_time() - began


def summary(outcome: Outcome, first_s: float, last_s: float) -> dict[str, Any]:
    """The figures of one run; utilisation and fairness over the time in which jobs arrived."""
    samples = [s for s in outcome.samples if first_s <= s.at_s <= last_s]
    jain = [s.jain for s in samples if s.jain >= 0]
    waits = {size or "all": vars_of(outcome.waits(size)) for size in ("", *SIZES)}
    return {
        "held": float(np.mean([s.held for s in samples])) / outcome.capacity if samples else 0.0,
        "wasted_h": (outcome.held - outcome.useful) / 3600, "jain": float(np.mean(jain)) if jain else 1.0,
        "contended": len(jain) / len(samples) if samples else 0.0, "unfinished": outcome.unfinished, "evictions": outcome.evictions,
        "lost_h": outcome.lost / 3600, "cycles": outcome.cycles, "jobs": len(outcome.fates), "waits": waits,
        "jct": vars_of(outcome.completion_times()), "slowdown_fairness": outcome.slowdown_fairness,
        "served": {name: outcome.held_by_queue[name] / owed for name, owed in outcome.entitled_by_queue.items() if owed},
    }  # fmt: skip


def vars_of(spread: Any) -> dict[str, float]:
    return {name: getattr(spread, name) for name in ("count", "mean", "p50", "p90", "p95", "p99", "most")}


def philly(report: Report, stretch: Stretch, names: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    jobs, told = stretch.jobs(), dict[str, dict[str, Any]]()
    first, last = jobs[0].submit_s, jobs[-1].submit_s
    for setting in SETTINGS:
        if names and setting.name not in names:
            continue
        outcome, spent = simulate(setting, stretch)
        told[setting.name] = figures = {**summary(outcome, first, last), "cpu_s": spent}
        _tell(report, setting.name, figures, told)
    return told


def _tell(report: Report, name: str, figures: Mapping[str, Any], told: Mapping[str, Mapping[str, Any]]) -> None:
    base = next(iter(told.values()))
    one = f"philly, {name}: "
    report.add(
        one + "mean wait", figures["waits"]["all"]["mean"] / 3600, "h", baseline=base["waits"]["all"]["mean"] / 3600
    )
    for part in ("p50", "p90", "p99"):
        told_h, first_h = figures["waits"]["all"][part] / 3600, base["waits"]["all"][part] / 3600
        report.add(f"{one}wait, {part}", told_h, "h", baseline=first_h or None)
    for size in ("8", "9-16", "17+"):
        wait, first = figures["waits"][size]["p95"] / 3600, base["waits"][size]["p95"] / 3600
        report.add(one + f"wait of {size} GPUs, p95", wait, "h", baseline=first or None)
    report.add(one + "GPUs held while jobs arrive", 100 * figures["held"], "%", baseline=100 * base["held"])
    report.add(one + "Jain's index under contention", figures["jain"], "", baseline=base["jain"])
    report.add(one + "lost to evictions", figures["lost_h"], "GPU-h", note=f"{figures['evictions']} evictions")
    report.add(one + "CPU", figures["cpu_s"], "s", note=f"{figures['jobs']:,} jobs, {figures['cycles']:,} cycles")


BUSY = Stretch(first_day=35, days=14)


def run(report: Report) -> None:
    """B12, B13: openb against the published curves; seven configurations over two weeks of Philly."""
    assert kernels.use_compiled(), "numba is needed for this bench"
    openb(report)
    philly(report, Stretch(first_day=35, days=2) if report.is_quick else BUSY)


def draw(comparisons: Sequence[Comparison], told: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Pictures by file name."""
    for mix in sorted({one.mix for one in comparisons if one.mix in MIXES[:4]}):
        curves = {}
        for one in comparisons:
            if one.mix == mix:
                curves[one.policy] = [
                    (float(p), float(one.ours[p])) for p in range(70, 131) if not np.isnan(one.ours[p])
                ]
                if one.policy == "FGD":
                    curves["FGD, published"] = [(float(p), float(one.published[p])) for p in range(70, 131)]
        yield f"openb-{mix}.svg", lines(f"openb, {mix}", "% of the GPUs asked for", "% allocated", curves)
    if told:
        sizes = [size for size in SIZES if any(f["waits"][size]["count"] for f in told.values())]
        waits = {name: [f["waits"][size]["mean"] / 3600 for size in sizes] for name, f in told.items()}
        yield "philly-waits.svg", bars("Philly: mean wait by GPUs of a job", "hours", sizes, waits)


def main() -> int:
    """Run this bench alone, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description=__doc__)
    parser.add_argument("parts", nargs="*", default=["openb", "philly"])
    parser.add_argument("--whole", action="store_true", help="all 109 days of Philly")
    parser.add_argument("--window", type=float, default=60.0, help="seconds between cycles of Philly, at least")
    parser.add_argument("--only", action="append", default=[], help="one configuration by name; may be repeated")
    parser.add_argument("--mix", action="append", default=[], help="one mix of openb; may be repeated")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    options = parser.parse_args()
    report = Report(Path.cwd())
    print("\n".join(machine_lines(report.directory)))
    assert kernels.use_compiled(), "numba is needed for this bench"
    comparisons = openb(report, options.mix or MIXES) if "openb" in options.parts else []
    stretch = replace(Stretch() if options.whole else BUSY, window_s=options.window)
    told = philly(report, stretch, options.only) if "philly" in options.parts else {}
    for name, picture in draw(comparisons, told):
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / name).write_text(picture)
    if options.json:
        options.json.write_text(json.dumps({"philly": told}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
