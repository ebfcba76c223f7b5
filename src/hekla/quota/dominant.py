"""Dominant shares in a tree of lenders: how much of what is lent a member has borrowed, of the resource it borrows most.

    share(n) = max over resources of   borrowed(n) * 1000 / lendable(n's cohort)   / weight(n)

Borrowed is what n holds beyond its pool, over all flavors; lendable is what n's cohort could ever hold, as seen from
there, so that a borrowing limit makes it less. Who borrows nothing has share 0, who borrows with weight 0 the largest there
is. Shares are exact fractions: two that are equal are equal. After Kueue's fair sharing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from hekla.quota.cohort import UNLIMITED, CohortNode, FlavorResource, Usage

NO_CHANGE: Usage = {}


@dataclass(frozen=True, slots=True, order=True)
class DominantShare:
    """A share that can be compared: those who borrow with weight 0 come after all others."""

    is_beyond_measure: bool = False
    """Borrows, with weight 0."""

    ratio: Fraction = Fraction(0)
    """In thousandths of what is lendable; of two beyond measure, the one that borrows more is larger."""

    @property
    def told(self) -> int:
        """As status shows it: rounded up, and the largest number for one beyond measure."""
        return UNLIMITED if self.is_beyond_measure else ceil(self.ratio)


NOTHING_BORROWED = DominantShare()


def share_of(node: CohortNode, extra: Usage = NO_CHANGE) -> DominantShare:
    """A member's share, if its usage were larger by this; a root borrows from nobody."""
    if node.parent is None:
        return NOTHING_BORROWED
    worst = Fraction(0)
    lendable = lendable_of(node.parent)
    for resource, amount in _borrowed(node, extra).items():
        whole = lendable.get(resource, 0)
        if whole > 0:
            worst = max(worst, Fraction(amount * 1000, whole))
    if not worst:
        return NOTHING_BORROWED
    return DominantShare(False, worst / node.weight) if node.weight > 0 else DominantShare(True, worst)


def lendable_of(cohort: CohortNode) -> Mapping[str, int]:
    """By resource, over all flavors, the most that a cohort could hold; computed once, as quotas do not change in a tree."""
    if cohort.lendable is None:
        total: dict[str, int] = {}
        for thing in cohort.root.pool:
            total[thing[1]] = min(total.get(thing[1], 0) + cohort.capacity(thing), UNLIMITED)
        cohort.lendable = total
    return cohort.lendable


def _borrowed(node: CohortNode, extra: Usage) -> Mapping[str, int]:
    borrowed: dict[str, int] = {}
    for thing in node.usage.keys() | extra.keys():
        beyond = node.used(thing) + extra.get(thing, 0) - node.nominal(thing)
        if beyond > 0:
            borrowed[thing[1]] = borrowed.get(thing[1], 0) + beyond
    return borrowed


def climbing(node: CohortNode, usage: Usage) -> "list[tuple[CohortNode, Usage]]":
    """What each member on the way up would be charged with for a usage of the lowest: less, where a part is its own."""
    steps: list[tuple[CohortNode, Usage]] = []
    rest: dict[FlavorResource, int] = dict(usage)
    at: CohortNode | None = node
    while at is not None:
        steps.append((at, dict(rest)))
        rest = {thing: amount - at.own_free(thing) for thing, amount in rest.items() if amount > at.own_free(thing)}
        at = at.parent
    return steps
