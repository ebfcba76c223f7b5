"""A tree of domains over nodes: racks in rows in halls, all under a virtual root that holds every node.

Nodes are listed in the order of the tree, so that every domain is one stretch of the list: a sum over each of all
domains is then one running sum and a difference per domain, whatever their number (`Tree.sums`).
`topology.py` makes a tree from HyperNodes; one is never changed, only replaced.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import BoolArray, IdArray, IntArray, natural_key

T = TypeVar("T", np.int64, np.float64)

ROOT_NAME = "<cluster-top-hypernode>"
"""What Volcano calls the virtual root."""


@dataclass(frozen=True)
class Tree:
    """Domains by number; parents have higher tiers than their children, and the last domain is the root."""

    names: Sequence[str]
    tiers: Sequence[int]
    tier_names: Mapping[str, int]
    """Tiers by what people call them."""

    parents: Sequence[int]
    """By domain, the one around it; -1 for the root."""

    leaf: IdArray  # [node] the smallest domain around it; the root for nodes in none
    order: IdArray  # [position] rows of nodes, in the order of the tree
    start: IntArray  # [domain] its first position
    end: IntArray  # [domain] the position after its last

    @property
    def root(self) -> int:
        """The domain of everything."""
        return len(self.names) - 1

    @property
    def is_flat(self) -> bool:
        """Whether there is nothing but the root."""
        return self.root == 0

    def levels(self, *, within: int, up_to: int) -> Iterator[Sequence[int]]:
        """The domains inside one (itself included), tier by tier from the lowest, none above a tier; by name in each."""
        if within not in self._levels:
            self._levels[within] = self._levels_within(within)
        return (level for tier, level in self._levels[within] if tier <= up_to)

    @cached_property
    def _levels(self) -> dict[int, Sequence[tuple[int, Sequence[int]]]]:
        return {}  # told once: to ask 10,000 nodes' 665 domains for every gang took 0.3 ms

    def _levels_within(self, within: int) -> Sequence[tuple[int, Sequence[int]]]:
        # numbers ascend by tier, then by name
        inside = (domain for domain in range(within + 1) if within == self.root or self.holds(within, domain))
        return [(tier, list(level)) for tier, level in groupby(inside, key=self.tiers.__getitem__)]

    def chain(self, domain: int) -> Iterator[int]:
        """A domain and those around it, up to the root."""
        while domain >= 0:
            yield domain
            domain = self.parents[domain]

    def holds(self, outer: int, inner: int) -> bool:
        """Whether a domain is another one or around it."""
        return outer in self.chain(inner)

    def common(self, one: int, other: int) -> int:
        """The smallest domain around both; -1 stands for nothing yet."""
        if one < 0 or other < 0:
            return max(one, other)
        around = set(self.chain(one))
        return next(domain for domain in self.chain(other) if domain in around)

    def around(self, rows: Iterable[int]) -> int:
        """The smallest domain around all of these nodes; -1 if there are none."""
        domain = -1
        for leaf in {int(self.leaf[row]) for row in rows}:
            domain = self.common(domain, leaf)
        return domain

    def rows(self, domain: int) -> IdArray:
        """The nodes of a domain."""
        return self.order[self.start[domain] : self.end[domain]]

    def mask(self, domain: int, rows: int) -> BoolArray:
        """The same as a mask over `rows` nodes.  # [node]"""
        mask = np.zeros(rows, np.bool_)
        mask[self.rows(domain)] = True
        return mask

    def sums(self, values: NDArray[T]) -> NDArray[T]:
        """The sum of a column over each domain.  # [domain]"""
        running = np.zeros(len(self.order) + 1, values.dtype)
        np.cumsum(values[self.order], out=running[1:])
        found: NDArray[T] = running[self.end] - running[self.start]
        return found

    def is_leaf(self, domain: int) -> bool:
        """Whether all nodes of a domain are in no smaller one."""
        return bool((self.leaf[self.rows(domain)] == domain).all())

    @cached_property
    def tops(self) -> IdArray:
        """The largest domain around each domain but the root; the root for itself.  # [domain]"""
        tops = np.full(len(self.names), self.root, np.int32)
        for domain in reversed(range(self.root)):  # parents have higher numbers
            parent = self.parents[domain]
            tops[domain] = domain if parent == self.root else tops[parent]
        return tops

    @cached_property
    def lines(self) -> IdArray:
        """By place of a tier, from the lowest, and domain: the domain of that tier around it, -1 where none is."""
        places = {tier: place for place, tier in enumerate(sorted(set(self.tiers)))}
        lines = np.full((len(places), len(self.names)), -1, np.int32)  # [tier, domain]
        for domain in range(len(self.names)):
            for around in self.chain(domain):
                lines[places[self.tiers[around]], domain] = around
        return lines


@dataclass(frozen=True, kw_only=True)
class Branch:
    """A domain before the tree is grown."""

    name: str
    tier: int
    tier_name: str = ""
    parent: str = ""
    """The name of the domain around it; "" for the root."""

    rows: Sequence[int] = ()
    """Nodes that are in it and in no smaller one."""


def grow(branches: Iterable[Branch], *, loose: Iterable[int], rows: int) -> Tree:
    """A tree of branches, whose parents are of higher tiers; `loose` nodes are in none. Order of input is irrelevant."""
    listed = sorted(branches, key=lambda branch: (branch.tier, natural_key(branch.name)))
    number = {branch.name: at for at, branch in enumerate(listed)}
    root = len(listed)
    parents = [number[branch.parent] if branch.parent else root for branch in listed] + [-1]
    own = [*(sorted(branch.rows) for branch in listed), sorted(loose)]
    order, start, end = _laid_out(parents, own)
    leaf = np.full(rows, root, np.int32)
    for domain, direct in enumerate(own):
        leaf[direct] = domain
    top = max((branch.tier for branch in listed), default=0) + 1
    return Tree(
        names=(*(branch.name for branch in listed), ROOT_NAME),
        tiers=(*(branch.tier for branch in listed), top),
        tier_names=_tier_names(listed),
        parents=parents,
        leaf=leaf,
        order=np.array(order, np.int32),
        start=np.array(start, np.int64),
        end=np.array(end, np.int64),
    )


def _laid_out(parents: Sequence[int], own: Sequence[Sequence[int]]) -> tuple[list[int], list[int], list[int]]:
    """The nodes in the order of the tree, with the stretch of each domain."""
    children: list[list[int]] = [[] for _ in parents]
    for child, parent in enumerate(parents[:-1]):
        children[parent].append(child)
    start, end, order = [0] * len(parents), [0] * len(parents), list[int]()
    left = [(len(parents) - 1, False)]
    while left:
        domain, is_left = left.pop()
        if is_left:
            end[domain] = len(order)
            continue
        start[domain] = len(order)
        order += own[domain]
        left.append((domain, True))
        left += ((child, False) for child in reversed(children[domain]))
    return order, start, end


def _tier_names(branches: Sequence[Branch]) -> dict[str, int]:
    """Tiers by name; where a name is given to several tiers, the lowest has it."""
    names: dict[str, int] = {}
    for branch in branches:
        if branch.tier_name:
            names.setdefault(branch.tier_name, branch.tier)
    return names
