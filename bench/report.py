"""What every bench prints around its figures: machine, versions, load, disk; and the figures themselves."""

import argparse
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("hekla", "apsw", "msgspec", "numpy", "numba", "uvloop", "httptools")
NOISY_LOAD_PER_CORE, SLOW_SYNC_MS = 0.5, 1.0


@dataclass
class Figure:
    """One measured number."""

    name: str
    value: float
    unit: str
    baseline: float | None = None
    note: str = ""

    def line(self) -> str:
        ratio = f"  {self.value / self.baseline:6.2f}x of {_shown(self.baseline)}" if self.baseline else ""
        return (
            f"  {self.name:<60} {_shown(self.value):>12} {self.unit:<12}{ratio}{'  ' + self.note if self.note else ''}"
        )


@dataclass
class Report:
    """Where a bench puts its figures. `directory` is on the disk that is measured."""

    directory: Path
    is_quick: bool = False
    is_full: bool = False
    """Whether the sizes are measured too that take long."""
    only: tuple[str, ...] = ()
    """Words of which a kind of work must have one in its name, where a bench has several kinds; none: all are done."""

    figures: list[Figure] = field(default_factory=list)

    def add(self, name: str, value: float, unit: str, *, baseline: float | None = None, note: str = "") -> None:
        figure = Figure(name, value, unit, baseline, note)
        self.figures.append(figure)
        print(figure.line(), flush=True)

    def wants(self, work: str) -> bool:
        """Whether this kind of work is asked for."""
        return not self.only or any(word in work for word in self.only)

    def scaled(self, count: int) -> int:
        """A count, a tenth of it in a quick run."""
        return max(1, count // 10) if self.is_quick else count

    @contextmanager
    def folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.directory, prefix="hekla-bench-") as path:
            yield Path(path)


@dataclass(frozen=True)
class Spent:
    wall_s: float
    cpu_s: float


class Watch:
    """Wall and CPU time of this process, all threads."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> Spent:
        return Spent(time.perf_counter() - self._wall, time.process_time() - self._cpu)


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def sync_ms(directory: Path, count: int = 200) -> tuple[float, float]:
    """p50 and p99 of a 4 KiB append with fdatasync, in ms: what a durable write costs at least."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(count):
            os.write(file.fileno(), b"x" * 4096)
            start = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - start) * 1e3)
    return percentile(taken, 0.5), percentile(taken, 0.99)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def machine_lines(directory: Path) -> list[str]:
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    p50, p99 = sync_ms(directory)
    noise = []
    if load / cores > NOISY_LOAD_PER_CORE:
        noise.append(f"load {load:.2f} on {cores} cores")
    if p50 > SLOW_SYNC_MS:
        noise.append(f"fdatasync p50 {p50:.2f} ms")
    return [
        f"machine   {_cpu_name()}, {cores} cores, {_memory_gb():.1f} GB, {platform.system()} {platform.release()}",
        f"versions  python {platform.python_version()}, sqlite {sqlite3.sqlite_version}, " + ", ".join(_versions()),
        f"load      {load:.2f} (1 min)    fdatasync of 4 KiB: p50 {p50:.3f} ms, p99 {p99:.3f} ms",
        f"quiet     {'no: ' + '; '.join(noise) + '. Take no ratio from this run.' if noise else 'yes'}",
    ]


def run_bench(name: str, bench: Callable[[Report], None], report: Report) -> None:
    print(f"\n== {name}: {(bench.__doc__ or '').strip().splitlines()[0]}", flush=True)
    for line in machine_lines(report.directory):
        print(f"  {line}")
    bench(report)
    sys.stdout.flush()


def run_alone(name: str, bench: Callable[[Report], None], **parts: Callable[[Report], None]) -> None:
    """What `python -m bench.NAME` does: all of a bench, or the part that is named; flags are those of `python -m bench NAME`."""
    about = (bench.__doc__ or "").strip().splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=about)
    parser.epilog = f"`python -m bench {name} --quick` runs a tenth of it; `python -m bench --help` tells all flags"
    if parts:
        parser.add_argument("part", nargs="?", choices=sorted(parts), help="only this")
    part = getattr(parser.parse_args(), "part", None)
    run_bench(name, parts[part] if part else bench, Report(Path.cwd()))


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _versions() -> Iterator[str]:
    for package in PACKAGES:
        try:
            yield f"{package} {version(package)}"
        except PackageNotFoundError:
            continue
