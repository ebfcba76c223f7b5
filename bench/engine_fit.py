"""The time of an engine's step, fitted to timings of a real one: joint, no part negative, and judged by what it was not shown.

    first token of a lone prompt of n tokens     around + fixed + n * prefill + n^2 / 2 * attention
    between two tokens of k answers side by side fixed + k * decode + all the tokens they look back on * context

Each timing is a row, weighted by its own value, so that an error is a share of it. `serving_engine.py` takes the timings.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hekla.simulation.engine.shape import StepTime

PARTS = ("around", "fixed", "prefill", "attention", "decode", "context")


@dataclass(frozen=True)
class Point:
    """What is timed, and in which proportions the parts are in it."""

    name: str
    row: tuple[float, ...]


def lone(tokens: int) -> Point:
    """The first token of a prompt that nobody else competes with."""
    return Point(f"first token of {tokens} alone", (1, 1, tokens, tokens * tokens / 2, 0, 0))


def beside(answers: int, context: float) -> Point:
    """The time between tokens of so many answers, each of which looks back on so many tokens."""
    return Point(f"{answers} answers at {context:.0f} tokens", (0, 1, 0, 0, answers, answers * context))


@dataclass(frozen=True)
class Fit:
    """A step, and what a request costs around the engine's steps (HTTP, processes)."""

    step: StepTime
    around_s: float

    def foretold(self, point: Point) -> float:
        """The timing of a point."""
        one = self.step
        parts = (self.around_s, one.fixed_s, one.prefill_s, one.attention_s, one.decode_s, one.context_s)
        return float(np.dot(point.row, parts))


def fitted(timings: dict[Point, float]) -> Fit:
    """The parts, none negative, that come closest in shares of each timing."""
    target = np.array(list(timings.values()))
    rows = np.array([point.row for point in timings]) / target[:, None]
    parts = dict(zip(PARTS, _least_squares(rows), strict=True))
    step = StepTime(
        fixed_s=parts["fixed"], prefill_s=parts["prefill"], decode_s=parts["decode"], context_s=parts["context"],
        attention_s=parts["attention"], overlap=0.0,
    )  # fmt: skip
    return Fit(step, parts["around"])


def left_out(timings: dict[Point, float]) -> dict[Point, float]:
    """How far off each timing is foretold, as a share, by a fit to all the others."""
    found = {}
    for point, value in timings.items():
        others = {other: timing for other, timing in timings.items() if other is not point}
        found[point] = fitted(others).foretold(point) / value - 1
    return found


def median_error(errors: dict[Point, float]) -> float:
    """Of either sign."""
    return statistics.median(map(abs, errors.values()))


def _least_squares(rows: "np.ndarray") -> Sequence[float]:
    """The factors of the columns that come closest to one in every row; none negative.

    Where the best of all is not negative it is that. Else every subset is tried: six columns have 63, which needs no library.
    """
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-300)  # columns differ by nine orders of magnitude
    columns = rows / scale
    products, target = columns.T @ columns, columns.sum(axis=0)
    whole = np.linalg.lstsq(columns, np.ones(len(rows)), rcond=None)[0]
    if whole.min() >= 0:
        return [float(one) for one in whole / scale]
    best, found = float("inf"), np.zeros(rows.shape[1])
    for size in range(1, rows.shape[1]):
        for kept in map(list, combinations(range(rows.shape[1]), size)):
            try:
                factors = np.linalg.solve(products[np.ix_(kept, kept)], target[kept])
            except np.linalg.LinAlgError:
                continue  # two columns that say the same
            rest = float(factors @ products[np.ix_(kept, kept)] @ factors - 2 * factors @ target[kept])
            if factors.min() >= 0 and rest < best:
                best, found = rest, np.zeros(rows.shape[1])
                found[kept] = factors / scale[kept]
    return [float(one) for one in found]
