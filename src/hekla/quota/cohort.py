"""A tree of lenders: queues with a nominal quota of each flavor, in cohorts that share what their members leave idle.

For each (flavor, resource) and each member of the tree, queue or cohort:

    kept(n)       what n lends to nobody            0 without a lending limit, else max(0, pool(n) - lending limit)
    pool(n)       nominal(n) + what the members below lend it:  pool(m) - kept(m)
    use(cohort)   what the members below took from it:  max(0, use(m) - kept(m))
    free(n)       pool(n) - use(n) for a root, else  own part left + min(free(above), room under the borrowing limit)
    capacity(n)   the same for an empty tree: the most that n could ever hold

`free` is negative where quotas were cut below what is held. Sums stop at the largest int64, which stands for
"without limit". After Kueue's cohorts; `dominant.py` has shares in this tree, `victims.py` says who must give back.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from hekla.quota.verdict import BROKEN_TREE, Denial

FlavorResource = tuple[str, str]
"""(flavor, resource): an amount of GPUs of one kind is not an amount of another."""

Usage = Mapping[FlavorResource, int]

UNLIMITED = (1 << 63) - 1
"""The largest amount there can be; sums stop here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allotment:
    """What one member has of one (flavor, resource)."""

    nominal: int = 0
    borrowing_limit: int | None = None
    """How much more than the nominal quota it may hold; None: as much as others lend."""

    lending_limit: int | None = None
    """How much of the nominal quota others may borrow; None: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CohortMember:
    """A queue or a cohort, as it is written down."""

    name: str
    parent: str = ""
    """The cohort above; empty for a root. A cohort that nobody wrote down exists, and has nothing of its own."""

    allotments: Mapping[FlavorResource, Allotment] = field(default_factory=dict)
    weight: Fraction = Fraction(1)
    """How much of what others leave idle it may claim beside its siblings."""

    is_queue: bool = True


class CohortNode:
    """A member at its place in the tree, with what it holds."""

    __slots__ = (
        "_limits", "_most", "children", "height", "is_queue", "kept", "lendable", "name", "parent", "pool", "usage",
        "weight",
    )  # fmt: skip

    def __init__(self, member: CohortMember, parent: "CohortNode | None") -> None:
        self.name, self.weight, self.is_queue = member.name, member.weight, member.is_queue
        self.parent = parent
        self.children: list[CohortNode] = []
        self.height = 0
        """0 for a queue; a cohort is one higher than the highest below it."""

        self.usage: dict[FlavorResource, int] = {}
        self.pool: dict[FlavorResource, int] = {}
        self.kept: dict[FlavorResource, int] = {}
        self._limits: dict[FlavorResource, int] = {}
        """The most it may hold, where that is limited."""

        self._most: dict[FlavorResource, int] = {}
        self.lendable: Mapping[str, int] | None = None
        """What it has to lend, once `dominant.py` has asked."""

    def settle(self, allotments: Mapping[FlavorResource, Allotment]) -> None:
        """Compute pools from below, when all children are settled."""
        self.height = max((child.height + 1 for child in self.children), default=0 if self.is_queue else 1)
        for thing in {*allotments, *(thing for child in self.children for thing in child.pool)}:
            own = allotments.get(thing, _NOTHING)
            lent = sum(child.pool.get(thing, 0) - child.kept.get(thing, 0) for child in self.children)
            pool = self.pool[thing] = min(own.nominal + lent, UNLIMITED)
            if own.lending_limit is not None:
                self.kept[thing] = max(0, pool - own.lending_limit)
            if own.borrowing_limit is not None:
                self._limits[thing] = min(pool + own.borrowing_limit, UNLIMITED)

    def used(self, thing: FlavorResource) -> int:
        """What it holds, those below included as far as they took it from here."""
        return self.usage.get(thing, 0)

    def nominal(self, thing: FlavorResource) -> int:
        """What it may count on: its own and what its members lend it."""
        return self.pool.get(thing, 0)

    def limit(self, thing: FlavorResource) -> int:
        """The most that it may hold, whatever others leave."""
        return self._limits.get(thing, UNLIMITED)

    def own_free(self, thing: FlavorResource) -> int:
        """What is left of the part that it lends to nobody."""
        return max(0, self.kept.get(thing, 0) - self.usage.get(thing, 0))

    def free(self, thing: FlavorResource) -> int:
        """How much more it may take at this moment; negative after a cut."""
        pool, used = self.pool.get(thing, 0), self.usage.get(thing, 0)
        if self.parent is None:
            return pool - used
        kept = self.kept.get(thing, 0)
        above = self.parent.free(thing)
        limit = self._limits.get(thing)
        if limit is not None:
            above = min(above, limit - kept - max(0, used - kept))
        return max(0, kept - used) + above

    def capacity(self, thing: FlavorResource) -> int:
        """The most it could hold if nobody else held anything."""
        most = self._most.get(thing)
        if most is None:
            most = self.pool.get(thing, 0)
            if self.parent is not None:
                most = self.kept.get(thing, 0) + self.parent.capacity(thing)
            most = self._most[thing] = min(most, self._limits.get(thing, UNLIMITED), UNLIMITED)
        return most

    def take(self, thing: FlavorResource, amount: int) -> None:
        """Hold more; what its own part does not cover is taken from above."""
        rest = amount - self.own_free(thing)
        self.usage[thing] = self.usage.get(thing, 0) + amount
        if self.parent is not None and rest > 0:
            self.parent.take(thing, rest)

    def give(self, thing: FlavorResource, amount: int) -> None:
        """Hold less; what was taken from above goes back there first."""
        beyond = self.usage.get(thing, 0) - self.kept.get(thing, 0)
        self.usage[thing] = self.usage.get(thing, 0) - amount
        if self.parent is not None and beyond > 0:
            self.parent.give(thing, min(amount, beyond))

    def borrows_with(self, thing: FlavorResource, amount: int) -> bool:
        """Whether it would hold more than it may count on."""
        return self.usage.get(thing, 0) + amount > self.pool.get(thing, 0)

    def is_within(self, things: Iterable[FlavorResource]) -> bool:
        """Whether it holds no more than it may count on, of any of these."""
        return all(self.used(thing) <= self.nominal(thing) for thing in things)

    def above(self) -> "Iterator[CohortNode]":
        """The cohorts above, the nearest first."""
        node = self.parent
        while node is not None:
            yield node
            node = node.parent

    @property
    def root(self) -> "CohortNode":
        """The top of its tree: itself, where it is alone."""
        return [self, *self.above()][-1]

    @property
    def path(self) -> str:
        """`/research/vision/team-a`, for people."""
        return "/" + "/".join(reversed([self.name, *(node.name for node in self.above())]))

    def __repr__(self) -> str:
        return f"Node({self.path}, {self.usage})"


_NOTHING = Allotment()


class CohortTree:
    """All queues and cohorts. A ring of cohorts is left out, with the queues below it and a reason."""

    def __init__(self, members: Iterable[CohortMember]) -> None:
        written = {member.name: member for member in sorted(members, key=lambda member: member.name)}
        for name in sorted({member.parent for member in written.values()} - written.keys() - {""}):
            written[name] = CohortMember(name=name, is_queue=False)
        self.faults: dict[str, Denial] = {}
        """Why members have no place in the tree, by name."""

        self.nodes: dict[str, CohortNode] = {}
        for name in written:
            self._place(name, written)
        for node in sorted(self.nodes.values(), key=_depth, reverse=True):
            node.settle(written[node.name].allotments)

    def __getitem__(self, name: str) -> CohortNode:
        return self.nodes[name]

    def queues(self) -> Iterator[CohortNode]:
        """The queues, by name."""
        return (self.nodes[name] for name in sorted(self.nodes) if self.nodes[name].is_queue)

    def take(self, queue: str, usage: Usage) -> None:
        """A queue holds more."""
        node = self.nodes[queue]
        for thing, amount in usage.items():
            node.take(thing, amount)

    def give(self, queue: str, usage: Usage) -> None:
        """A queue holds less."""
        node = self.nodes[queue]
        for thing, amount in usage.items():
            node.give(thing, amount)

    def fits(self, queue: str, usage: Usage) -> bool:
        """Whether a queue may take this now; nothing at all fits where less than nothing is free, too."""
        node = self.nodes[queue]
        return all(amount <= node.free(thing) or not amount for thing, amount in usage.items())

    def borrow_level(self, queue: str, usage: Usage) -> int:
        """How far up something must be borrowed: 0 for what the queue may count on, else the height of the lender."""
        return max((borrow_level(self.nodes[queue], thing, amount)[0] for thing, amount in usage.items()), default=0)

    def _place(self, name: str, written: Mapping[str, CohortMember]) -> CohortNode | None:
        """The node of a member, made after those above it; None in a ring."""
        trail: list[str] = []
        while name and name not in self.nodes and name not in self.faults:
            if name in trail:
                self._refuse(trail, name)
                return None
            trail.append(name)
            name = written[name].parent
        if name in self.faults:
            self._refuse(trail, name)
            return None
        node = self.nodes.get(name)
        for below in reversed(trail):
            above, node = node, CohortNode(written[below], node)
            if above is not None:
                above.children.append(node)
            self.nodes[below] = node
        return node

    def _refuse(self, trail: Iterable[str], ring: str) -> None:
        for name in trail:
            sentence = f'"{name}" is in a ring of cohorts or below one; give "{ring}" another parent'
            self.faults[name] = Denial(BROKEN_TREE, sentence)


def borrow_level(node: CohortNode, thing: FlavorResource, amount: int) -> tuple[int, bool]:
    """The height of the lowest cohort that the amount stays within, and whether something lies above that to reclaim from."""
    if node.parent is None or not node.borrows_with(thing, amount):
        return 0, node.parent is not None
    rest = amount - node.own_free(thing)
    for cohort in node.above():
        if not cohort.borrows_with(thing, rest):
            return cohort.height, cohort.parent is not None
        rest -= cohort.own_free(thing)
    return node.root.height, False


def _depth(node: CohortNode) -> int:
    return sum(1 for _ in node.above())
