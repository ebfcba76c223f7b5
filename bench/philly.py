"""B13: Philly, a cluster that 15 teams share for 109 days: the same jobs in virtual time, one configuration after the other.

What is measured is what was decided, and the CPU that it took. A configuration that has come to its end is kept in a folder,
so that a run of hours that breaks off goes on where it was; what was kept of another stretch or commit is not taken.

    python -m bench.philly                               14 busy days
    python -m bench.philly --whole --keep /tmp/philly    all 109 days, and the table of docs/explanation/traces.md
"""

import argparse
import gzip
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.plots import bars
from bench.report import Report, machine_lines
from hekla.placement import kernels
from hekla.scheduler.configuration import DEFAULT_TEXT, parse_configuration
from hekla.simulation.outcome import SIZES, SimulationOutcome
from hekla.simulation.simulator import Rules, Simulation, equal_nodes, queues_by_use
from hekla.simulation.trace import GPU, TraceJob, read_philly

TRACE = Path(__file__).parent / "data" / "philly" / "philly.csv.gz"
DAY_S = 86_400.0
PAST = 50
"""From so many past jobs of a queue and size the median is taken."""

Figures = dict[str, Any]
"""What came of one configuration, by name; it goes through JSON."""

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


RESERVE = "  - name: reservation\n    arguments: {defaultEstimate: 4h, after: 1h}\n"
UNBOUND = HEKLA.replace("  - name: proportion\n", "")
RESERVING = UNBOUND.replace("  - name: fair-share\n", RESERVE + "  - name: fair-share\n")
BESIDE = HEKLA.replace("  - name: fair-share\n", RESERVE + "  - name: fair-share\n")


@dataclass(frozen=True)
class Setting:
    """A configuration, and how jobs stand in line for it."""

    name: str
    text: str
    line: str = ""
    is_strict: bool = False
    estimates: str = ""
    """What jobs say of how long they run: nothing, `true`, `rough` or `past`."""


SETTINGS = (
    Setting("spread, no gangs", KUBE, line="all"),
    Setting("FIFO", FIFO, line="all", is_strict=True),
    Setting("Volcano's default", DEFAULT_TEXT),
    Setting("capacity, reclaim", CAPACITY),
    Setting("Hekla", HEKLA),
    Setting("Hekla, no bounds", UNBOUND),
    Setting("Hekla, reservations", RESERVING),
    Setting("Hekla, reservations beside", BESIDE),
    Setting("Hekla, reservations, true estimates", RESERVING, estimates="true"),
    Setting("Hekla, reservations, rough estimates", RESERVING, estimates="rough"),
    Setting("Hekla, reservations, estimates from the past", RESERVING, estimates="past"),
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
        rows = gzip.decompress(TRACE.read_bytes()).decode().splitlines()
        return [job for job in read_philly(rows) if low <= job.submit_s < high]


def with_estimates(jobs: Iterable[TraceJob], how: str) -> list[TraceJob]:
    """The jobs as if their owners said how long they run: truly, or by a factor (log-normal, sigma 1: half of them are off by
    two or more) wrong.
    """  # fmt: skip
    if how not in ("true", "rough"):
        return list(jobs)
    dice, sigma = np.random.default_rng(1), 1.0 if how == "rough" else 0.0
    return [replace(job, estimate_s=max(job.run_s, 1.0) * float(dice.lognormal(0.0, sigma))) for job in jobs]


WHOLE = Stretch(window_s=300.0)
BUSY = Stretch(first_day=35, days=14)


def simulate(setting: Setting, stretch: Stretch, tell: Callable[[str], None] = lambda line: None) -> Figures:
    """One configuration over one stretch: what came of it, and the CPU-seconds that it took."""
    jobs = with_estimates(stretch.jobs(), setting.estimates)
    nodes = list(equal_nodes(stretch.nodes, {"cpu": 64_000, "memory": 512 << 30, GPU: 8}))
    rules = Rules(
        window_s=stretch.window_s, checkpoint_s=stretch.checkpoint_s, line=setting.line, is_strict=setting.is_strict,
        until_s=(stretch.first_day + stretch.days + 60) * DAY_S, learns_from=PAST if setting.estimates == "past" else 0,
    )  # fmt: skip
    queues = queues_by_use(jobs, capacity=8 * stretch.nodes)
    simulation = Simulation(nodes, queues, jobs, parse_configuration(setting.text), rules)
    began = time.process_time()

    def on_day(day: int) -> None:
        tell(f"{setting.name}: day {day}, {time.process_time() - began:.0f} CPU-s")

    outcome = simulation.run(on_day=on_day)
    spent = time.process_time() - began
    return {**summary(outcome, jobs[0].submit_s, jobs[-1].submit_s), "cpu_s": spent}


def summary(outcome: SimulationOutcome, first_s: float, last_s: float) -> Figures:
    """The figures of one run; utilisation and fairness over the time in which jobs arrived."""
    samples = [s for s in outcome.samples if first_s <= s.at_s <= last_s]
    jain = [s.jain for s in samples if s.jain >= 0]
    return {
        "held": float(np.mean([s.held for s in samples])) / outcome.capacity if samples else 0.0,
        "wasted_h": (outcome.held - outcome.useful) / 3600, "jain": float(np.mean(jain)) if jain else 1.0,
        "contended": len(jain) / len(samples) if samples else 0.0, "unfinished": outcome.unfinished, "evictions": outcome.evictions,
        "lost_h": outcome.lost / 3600, "cycles": outcome.cycles, "jobs": len(outcome.fates),
        "waits": {size or "all": asdict(outcome.waits(size)) for size in ("", *SIZES)},
        "jct": asdict(outcome.completion_times()), "slowdown_fairness": outcome.slowdown_fairness,
        "served": {name: outcome.held_by_queue[name] / owed for name, owed in outcome.entitled_by_queue.items() if owed},
    }  # fmt: skip


# What was kept


@dataclass(frozen=True)
class Keeper:
    """A folder with a file for each configuration that has come to its end."""

    folder: Path | None
    stretch: Stretch
    commit: str

    def kept(self, setting: Setting) -> Figures | None:
        """What came of a configuration, of this stretch and commit."""
        path = self._path(setting)
        if path is None or not path.exists():
            return None
        found: Figures = json.loads(path.read_text())
        is_ours = (found["stretch"], found["text"], found["commit"]) == (
            asdict(self.stretch),
            setting.text,
            self.commit,
        )
        return found["figures"] if is_ours else None

    def keep(self, setting: Setting, figures: Figures) -> None:
        """Write down what came of a configuration; whole, or not at all."""
        path = self._path(setting)
        if path is None:
            return
        told = {"stretch": asdict(self.stretch), "text": setting.text, "commit": self.commit, "figures": figures}
        path.parent.mkdir(parents=True, exist_ok=True)
        partly = path.with_suffix(".partly")
        partly.write_text(json.dumps(told, indent=1) + "\n")
        partly.replace(path)

    def _path(self, setting: Setting) -> Path | None:
        return self.folder / (re.sub(r"\W+", "-", setting.name.lower()) + ".json") if self.folder is not None else None


def commit_of(folder: Path) -> str:
    """The commit that the code is of, with a `+` where files were changed since."""
    asked = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--exclude=*"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


# What is told


def philly(report: Report, stretch: Stretch, keeper: Keeper, names: Sequence[str] = ()) -> dict[str, Figures]:
    """Run what has not been run, and tell of all."""
    told = dict[str, Figures]()
    for setting in SETTINGS:
        if names and setting.name not in names:
            continue
        figures = keeper.kept(setting)
        if figures is None:
            figures = simulate(setting, stretch, lambda line: print("   ", line, file=sys.stderr, flush=True))
            keeper.keep(setting, figures)
        told[setting.name] = figures
        _tell(report, setting.name, figures, told)
    return told


def _tell(report: Report, name: str, figures: Figures, told: Mapping[str, Figures]) -> None:
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


def table(told: Mapping[str, Figures]) -> Iterator[str]:
    """The table of docs/explanation/traces.md."""
    heads = (
        "", "mean wait", "all: p50, p90, p99", "8 GPUs: p90, p99", "9 to 16", "over 16", "GPUs held", "Jain's index",
        "least served queue", "evictions, GPU-hours lost", "CPU",
    )  # fmt: skip
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---|" * len(heads)
    for name, one in told.items():
        waits = one["waits"]
        cells = (
            name, f"{_hours(waits['all']['mean'])} h", _percentiles(waits["all"], "p50", "p90", "p99"),
            *(_percentiles(waits[size], "p90", "p99") for size in ("8", "9-16", "17+")),
            f"{100 * one['held']:.1f} %", f"{one['jain']:.3f}", f"{100 * min(one['served'].values(), default=1):.0f} %",
            f"{one['evictions']:,}, {one['lost_h']:,.0f}", f"{one['cpu_s']:,.0f} s",
        )  # fmt: skip
        yield "| " + " | ".join(cells) + " |"


def _percentiles(waits: Mapping[str, float], *parts: str) -> str:
    return ", ".join(_hours(waits[part]) for part in parts) + " h"


def _hours(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:.0f}" if hours >= 100 else f"{hours:.1f}" if hours >= 1 else f"{hours:.2f}"


def picture(title: str, told: Mapping[str, Figures]) -> str:
    """The mean wait by size of job, as SVG."""
    sizes = [size for size in SIZES if any(f["waits"][size]["count"] for f in told.values())]
    waits = {name: [f["waits"][size]["mean"] / 3600 for size in sizes] for name, f in told.items()}
    return bars(title, "hours", sizes, waits)


def run(report: Report) -> None:
    """B13: the configurations over two weeks of Philly."""
    assert kernels.use_compiled(), "numba is needed for this bench"
    stretch = Stretch(first_day=35, days=2) if report.is_quick else BUSY
    philly(report, stretch, Keeper(None, stretch, ""))


def main() -> int:
    """Run this bench alone, and draw."""
    parser = argparse.ArgumentParser(prog="python -m bench.philly", description=__doc__)
    parser.add_argument("--whole", action="store_true", help="all 109 days, with a cycle every five minutes at most")
    parser.add_argument("--keep", type=Path, help="a folder for what has come to its end")
    parser.add_argument("--only", action="append", default=[], help="one configuration by name; may be repeated")
    parser.add_argument("--draw", type=Path, help="a folder for the picture")
    options = parser.parse_args()
    report, stretch = Report(Path.cwd()), WHOLE if options.whole else BUSY
    keeper = Keeper(options.keep, stretch, commit_of(Path(__file__).parent))
    print("\n".join([*machine_lines(report.directory), f"commit    {keeper.commit}"]), flush=True)
    assert kernels.use_compiled(), "numba is needed for this bench"
    told = philly(report, stretch, keeper, options.only)
    print("\n".join(["", *table(told)]))
    if options.draw:
        options.draw.mkdir(parents=True, exist_ok=True)
        name, days = ("philly-whole-waits.svg", ", 109 days") if options.whole else ("philly-waits.svg", "")
        (options.draw / name).write_text(picture(f"Philly: mean wait by size of job{days}", told))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
