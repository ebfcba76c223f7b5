"""B12: openb through the engine: GPUs given away under sharing. (`philly.py` runs a cluster of 15 teams over weeks.)

Pods that share GPUs arrive until 130 % of the cluster's GPUs are asked for, by `fgd` and by policies of the paper, against
the curves that its authors published (means of ten seeds). What is measured is what was decided, and the CPU that it took.

    python -m bench.traces            all mixes, and the plots into docs/explanation/pictures
"""

import argparse
import csv
import gzip
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.plots import lines
from bench.report import Report, machine_lines
from hekla.placement import kernels
from hekla.placement.columns import CPU, FloatArray, IntArray, Nodes
from hekla.placement.devices.shares import WHOLE
from hekla.placement.plugins.fgd import Fgd, PodKind
from hekla.placement.registry import build_plugin
from hekla.placement.shape import Shape
from hekla.simulation.inflation import Curve, inflate
from hekla.simulation.openb import MODEL_LABEL, mix_of, read_nodes, read_pods

DATA = Path(__file__).parent / "data"
PICTURES = Path(__file__).parents[1] / "docs" / "explanation" / "pictures"
MIXES = (
    "default", "gpushare100", "multigpu50", "gpuspec33", "cpu050", "cpu250", "gpushare40", "gpushare60", "gpushare80",
    "gpuspec10", "multigpu20",
)  # fmt: skip
TOLERANCE = 0.5


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


def policy(name: str, mix: tuple[PodKind, ...], seed: int) -> object:
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


def run(report: Report) -> None:
    """B12: openb against the published curves."""
    assert kernels.use_compiled(), "numba is needed for this bench"
    openb(report)


def draw(comparisons: Sequence[Comparison]) -> Iterator[tuple[str, str]]:
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


def main() -> int:
    """Run this bench alone, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.traces", description=__doc__)
    parser.add_argument("--mix", action="append", default=[], help="one mix; may be repeated")
    options = parser.parse_args()
    report = Report(Path.cwd())
    print("\n".join(machine_lines(report.directory)))
    assert kernels.use_compiled(), "numba is needed for this bench"
    for name, picture in draw(openb(report, options.mix or MIXES)):
        PICTURES.mkdir(parents=True, exist_ok=True)
        (PICTURES / name).write_text(picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
