"""Where tasks may go that should be close to one another, and what is near: one domain, and where siblings are."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from hekla.placement.columns import BoolArray, IntArray
from hekla.placement.topology.tree import Tree


@dataclass(slots=True)
class Venue:
    """One attempt to place tasks inside a domain. `anchor` follows the tasks as they are placed."""

    tree: Tree
    domain: int
    allowed: BoolArray | None = None  # [node]; None stands for every node

    anchor: int = -1
    """The smallest domain around the siblings that are placed; -1 while there are none."""

    siblings: Counter[int] = field(default_factory=Counter)
    """How many siblings are directly in which domain."""

    wanted: int = 1
    """How many siblings there are, placed or not."""

    @property
    def is_settled(self) -> bool:
        """Whether the anchor cannot rise any more."""
        return self.anchor == self.domain or self.anchor == self.tree.root

    def settle(self, row: int) -> bool:
        """Take note of a sibling; whether the anchor has moved."""
        leaf = int(self.tree.leaf[row])
        before, self.anchor = self.anchor, self.tree.common(self.anchor, leaf)
        self.siblings[leaf] += 1
        return self.anchor != before


def venue(tree: Tree, domain: int, rows: int, *, siblings: Iterable[int] = (), wanted: int = 1) -> Venue:
    """A domain as a venue, with the rows of the siblings that are placed already."""
    leaves = Counter(int(tree.leaf[row]) for row in siblings)
    anchor = -1
    for leaf in leaves:
        anchor = tree.common(anchor, leaf)
    allowed = None if domain == tree.root else tree.mask(domain, rows)
    return Venue(tree, domain, allowed, anchor, leaves, max(wanted, 1))


def slots(idle: IntArray, resources: IntArray, amounts: IntArray, ok: BoolArray) -> IntArray:
    """How many pods of a shape each node has room for, exact.  # [node]"""
    room: IntArray = np.where(ok, _PLENTY, np.int64(0))
    for resource, amount in zip(resources.tolist(), amounts.tolist(), strict=True):
        np.minimum(room, idle[resource] // amount, out=room)
    return np.maximum(room, 0)


_PLENTY = np.int64(1 << 32)
"""More pods than any node takes, so that sums over nodes cannot overflow."""
