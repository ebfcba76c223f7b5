"""`%time` and `%timeit`, told as IPython tells them."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

RUNS = 7
SHORTEST_RUN_S = 0.2


@contextlib.contextmanager
def timed_text() -> Iterator[None]:
    """Print what a block took, also where it failed."""
    before, began = os.times(), time.perf_counter()
    try:
        yield
    finally:
        wall_s, after = time.perf_counter() - began, os.times()
        user_s, system_s = after[0] - before[0], after[1] - before[1]
        told = f"user {_told(user_s)}, sys: {_told(system_s)}, total: {_told(user_s + system_s)}"
        sys.stdout.write(f"CPU times: {told}\nWall time: {_told(wall_s)}\n")


class Times:
    """What the runs of a statement took."""

    def __init__(self, runs_s: list[float], loops: int) -> None:
        """`runs_s` are whole runs of so many loops."""
        self.loops, self.repeat = loops, len(runs_s)
        self.all_runs = runs_s
        self.timings = [one / loops for one in runs_s]
        self.best, self.worst = min(self.timings), max(self.timings)
        self.average = sum(self.timings) / len(self.timings)
        self.stdev = math.sqrt(sum((one - self.average) ** 2 for one in self.timings) / len(self.timings))

    @classmethod
    def of(cls, line: str, body: str, names: dict[str, Any]) -> Times | None:
        """`[-n LOOPS] [-r RUNS] [-q] [-o] statement`; a body's statement is the body, and the line prepares it."""
        options, statement = _options(line)
        prepare = "pass"
        if body != "pass":
            prepare, statement = statement or "pass", body
        import timeit

        timer = timeit.Timer(statement or "pass", prepare, globals=names)
        loops = int(options.get("n", 0)) or _loops(timer)
        was_collecting = gc.isenabled()
        try:
            made = cls(timer.repeat(int(options.get("r", RUNS)), loops), loops)
        finally:
            gc.enable() if was_collecting else gc.disable()
        if "q" not in options:
            sys.stdout.write(f"{made}\n")
        return made if "o" in options else None

    def __str__(self) -> str:
        runs = f"{self.repeat} run{'s' * (self.repeat != 1)}, {self.loops:,} loop{'s' * (self.loops != 1)} each"
        return f"{_told(self.average)} ± {_told(self.stdev)} per loop (mean ± std. dev. of {runs})"

    __repr__ = __str__


def _loops(timer: Any) -> int:
    for power in range(10):
        if timer.timeit(10**power) >= SHORTEST_RUN_S:
            return int(10**power)
    return 10**9


def _options(line: str) -> tuple[dict[str, str], str]:
    options: dict[str, str] = {}
    rest = line.lstrip()
    while rest.startswith("-") and rest[1:2] in tuple("nrqotcp"):
        flag, rest = rest[1], rest[2:].lstrip()
        options[flag] = ""
        if flag in "nrp":
            options[flag], _, rest = rest.partition(" ")
            rest = rest.lstrip()
    return options, rest


def _told(seconds: float) -> str:
    """Three digits and a unit."""
    if seconds >= 60:
        return f"{int(seconds // 60)}min {seconds % 60:.0f}s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= size or unit == "ns":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError("nanoseconds take what is left")
