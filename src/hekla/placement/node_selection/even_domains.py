"""Equal pods that keep the domains of a topology even, placed in one pass: its neighbour for pods that repel is `one_per_node.py`.

Such a pod changes two things for the next one: its node, and which domains are ahead of the others. So nodes are grouped by
the domains that they are in, the best node of each group is kept, and a placement looks again at the group that it was in
and at which groups are open. What comes out is what placing the pods one after the other gives (`tests/properties/test_evenly.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import BoolArray, IdArray, IntArray, Nodes
from hekla.placement.constraint import Constraints
from hekla.placement.filters.spread import evenness
from hekla.placement.model import Task

_NONE = np.int64(-1)


def keep_even(tasks: Sequence[Task]) -> bool:
    """Whether of these tasks, of one shape and with the same pods against them, each one minds how even domains are, and else
    nothing that the others change.
    """
    first = tasks[0]
    return _minds_evenness_alone(first.shape.constraints) and all(task.matched == first.matched for task in tasks)


@lru_cache(maxsize=1024)
def _minds_evenness_alone(wishes: Constraints) -> bool:
    is_hard = any(spread.is_hard for spread in wishes.spreads) and all(spread.is_hard for spread in wishes.spreads)
    return is_hard and replace(wishes, spreads=()).is_local


class Groups:
    """Nodes by the domains that they are in, and the best of each group."""

    def __init__(self, nodes: Nodes, tallies: Tallies, task: Task) -> None:
        self._even = [
            evenness(nodes, tallies, spread, task) for spread in task.shape.constraints.spreads if spread.is_hard
        ]
        self._order, self._start, self._domains = _grouped(nodes, [even.domains for even in self._even])
        self._place = np.empty(nodes.rows, np.int64)
        self._place[self._order] = np.arange(len(self._order))
        self._keys: IntArray = np.zeros(0, np.int64)  # [place] score and rank
        self._best: IntArray = np.zeros(0, np.int64)  # [group]

    def weigh(self, quantised: IdArray, rank: IdArray) -> None:
        """Take the scores of all nodes."""
        self._keys = (quantised[self._order].astype(np.int64) << 32) | rank[self._order]
        self._best = np.maximum.reduceat(self._keys, self._start[:-1])

    def best(self) -> int:
        """The best node of the groups that are open; -1 if there is none."""
        best = np.where(self._open(), self._best, _NONE)
        group = int(best.argmax())
        if best[group] < 0:
            return -1
        low, high = self._start[group], self._start[group + 1]
        return int(self._order[low + int((self._keys[low:high] == best[group]).argmax())])

    def took(self, row: int, quantised: int, rank: int) -> None:
        """A pod came to a node, which scores otherwise now."""
        place = int(self._place[row])
        group = int(np.searchsorted(self._start, place, side="right")) - 1
        self._keys[place] = (quantised << 32) | rank
        self._best[group] = self._keys[self._start[group] : self._start[group + 1]].max()
        for even, domains in zip(self._even, self._domains, strict=True):
            even.joined(int(domains[group]))

    def _open(self) -> BoolArray:
        """Which groups may take a pod.  # [group]"""
        first, *others = (even.open()[domains] for even, domains in zip(self._even, self._domains, strict=True))
        for other in others:
            first = first & other
        return first


def place_evenly(
    groups: Groups, quantised: IdArray, rank: IdArray, count: int, take: Callable[[int], None]
) -> list[int]:
    """Up to `count` rows, best first; `take` puts a pod on a row and scores it again."""
    groups.weigh(quantised, rank)
    found = list[int]()
    while len(found) < count and (row := groups.best()) >= 0:
        take(row)
        groups.took(row, int(quantised[row]), int(rank[row]))
        found.append(row)
    return found


def _grouped(nodes: Nodes, domains: Sequence[IdArray]) -> tuple[IntArray, IntArray, Sequence[IdArray]]:
    """(rows in order of their groups, where each group begins and the last ends, by spread the domain of each group)."""
    key = ("evenly", nodes.version, *(id(one) for one in domains))
    known: tuple[IntArray, IntArray, Sequence[IdArray]] | None = nodes.notes.get(key)
    if known is None:
        table = np.stack([one[: nodes.height] for one in domains])
        order = np.lexsort(table)
        is_new = (np.diff(table[:, order], axis=1) != 0).any(axis=0)
        start = np.concatenate([[0], np.flatnonzero(is_new) + 1, [nodes.height]])
        known = nodes.notes[key] = order, start, [one[order[start[:-1]]] for one in domains]
    return known
