"""What a queue will hold in each of many states to come, and how much of what it deserves that is.

    asked for         1 2 1 1           by the lone pods whose turns come next, in one resource
    held beyond now   1 3 4 5           [state]

Quotients are those that `hekla.quota.fairness` gives for one state, to the bit: whole numbers below 2^53 are floats without
rounding, and a division of floats is rounded as Python's of whole numbers is; larger ones go through Python.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import IntArray
from hekla.placement.shape import Shape
from hekla.quota.amounts import Amounts
from hekla.quota.fairness import use_of

MOST = 1 << 62
"""More of anything is not told ahead."""

_EXACT = 1 << 53


class ProjectedUse:
    """What a queue holds beyond what it holds now, in some states, none smaller than the one before."""

    __slots__ = ("count", "more")

    def __init__(self, count: int, more: Mapping[str, IntArray]) -> None:
        self.count = count
        """How many states there are."""

        self.more = more
        """[state], by resource."""

    def last(self) -> dict[str, int]:
        """What is held beyond now in the last state."""
        return self.at(self.count - 1)

    def at(self, state: int) -> dict[str, int]:
        """What is held beyond now in one of the states."""
        return {name: int(sums[state]) for name, sums in self.more.items()}

    def uses(self, held: Amounts, deserved: Amounts) -> list[float]:
        """`use_of` in each state, where so much is held now."""
        least = use_of({**held, **dict.fromkeys(self.more, 0)}, deserved)
        most = np.full(self.count, least)
        for name in self.more.keys() & deserved.keys():
            np.maximum(most, _quotients(held.get(name, 0), self.more[name], deserved[name]), out=most)
        uses: list[float] = most.tolist()
        return uses


def grown(before: Mapping[str, int], shapes: Sequence[Shape]) -> ProjectedUse | None:
    """What is held after each of some pods, with what was held before the first; None where numbers are beyond bounds."""
    number = {shape: at for at, shape in enumerate(set(shapes))}
    asked, more = np.fromiter(map(number.__getitem__, shapes), np.int64, len(shapes)), dict[str, IntArray]()
    for name in {name for shape in number for name in shape.request} | before.keys():
        amounts, base = [shape.request.get(name, 0) for shape in number], before.get(name, 0)
        if base + max(amounts) * len(shapes) > MOST:
            return None
        more[name] = np.array(amounts, np.int64)[asked].cumsum() + base
    return ProjectedUse(len(shapes), more)


def _quotients(before: int, more: IntArray, whole: int) -> NDArray[np.float64]:
    """(What is held before) + (what is held more), of the whole."""
    if whole <= 0:
        return (more > -before).astype(np.float64)
    if max(before + int(more[-1]), whole) < _EXACT:
        return (more + before) / whole
    return np.array([(before + part) / whole for part in more.tolist()], np.float64)
