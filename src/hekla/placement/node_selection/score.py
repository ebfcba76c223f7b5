"""Scores as sums of what the kernels can add up: node facts, fullness of resources, balance of cpu and memory.

A plug-in says *what* it likes as a `Score`; the engine evaluates the sum over all nodes, or over the one row that
changed, in one pass. So a formula is written once and is fast wherever it is used. Scores live in 0..1, higher wins.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hekla.placement.columns import FloatArray


@dataclass(frozen=True)
class Score:
    """`constant + static[node] + sum of fullness[r] * fullness(r) + balance * (1 - |cpu - memory| / 2)`."""

    constant: float = 0.0
    fullness: Mapping[str, float] = field(default_factory=dict)
    """Weight by resource of the share that would be in use; a negative weight prefers emptier nodes."""

    balance: float = 0.0
    static: FloatArray | None = None
    """What the facts of a node decide.  # [node]"""

    def __add__(self, other: "Score") -> "Score":
        names = self.fullness.keys() | other.fullness.keys()
        return Score(
            self.constant + other.constant,
            {name: self.fullness.get(name, 0.0) + other.fullness.get(name, 0.0) for name in sorted(names)},
            self.balance + other.balance,
            other.static
            if self.static is None
            else self.static
            if other.static is None
            else self.static + other.static,
        )

    def __mul__(self, factor: float) -> "Score":
        return Score(
            self.constant * factor,
            {name: weight * factor for name, weight in self.fullness.items()},
            self.balance * factor,
            None if self.static is None else self.static * np.float32(factor),
        )

    __rmul__ = __mul__


NEUTRAL = Score()
"""No opinion."""


def full(weights: Mapping[str, float]) -> Score:
    """The weighted mean of how full each resource would be; no weights, no opinion."""
    total = sum(weights.values())
    return Score(fullness={name: weight / total for name, weight in weights.items()}) if total > 0 else NEUTRAL


def empty(weights: Mapping[str, float]) -> Score:
    """The weighted mean of how much of each resource would stay free."""
    return Score(constant=1.0) + full(weights) * -1.0 if sum(weights.values()) > 0 else NEUTRAL


def balanced() -> Score:
    """1 where cpu and memory would be used in equal parts, falling to 1/2 where one is full and the other idle."""
    return Score(balance=1.0)


def by_node(values: FloatArray) -> Score:
    """A score that node facts decide.  # [node]"""
    return Score(static=values)


def mean(parts: Mapping[str, tuple[float, Score]]) -> Score:
    """The weighted mean of named parts; parts of weight 0 are left out."""
    total = sum(weight for weight, _ in parts.values())
    result = NEUTRAL
    for weight, score in parts.values():
        if weight > 0:
            result = result + score * (weight / total)
    return result
