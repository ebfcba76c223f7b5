"""Queues as a tree: what each is guaranteed, deserves and may hold at most.

    ceiling(root)  = min(limit, all there is)
    ceiling(queue) = min(limit, max(ceiling(above) - guarantees of all below it, 0) + own guarantee)
    deserved       = max(min(deserved as written, ceiling), guarantee)

A limit that does not name a resource does not bound it; in a tree it is then bounded by what is above. Queues without
a tree are children of a root that nobody sees. A ring or a missing queue above concerns the queues in it and below
alone: they are refused with a reason, and all others go on. (The peer stops for the whole cluster.)
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from hekla.quota.amounts import PODS, Amounts, added, bounded
from hekla.quota.verdict import BROKEN_TREE, NOT_A_LEAF, OVER_LIMIT, Denial, insufficient, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What is written down for one queue."""

    name: str
    parent: str = ""
    """The queue above; empty for a root."""

    guarantee: Amounts = field(default_factory=dict)
    deserved: Amounts = field(default_factory=dict)
    limit: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueShare:
    """What a queue may count on in a given cluster."""

    guarantee: Amounts
    deserved: Amounts
    ceiling: Amounts
    """The most it may hold; a resource that is not named is not bounded."""

    bounds: Amounts
    """The part of the ceiling that is less than all there is. Where it is not, only nodes hold the queue back."""


Taken = Callable[[str], Amounts]
"""What a queue holds, those below it included."""


class QuotaTree:
    """The queues of a cluster with so much in it."""

    def __init__(self, quotas: Iterable[Quota], total: Amounts) -> None:
        self.quotas = {quota.name: quota for quota in quotas}
        self.total = total
        self.children: dict[str, list[str]] = {}
        for quota in sorted(self.quotas.values(), key=lambda quota: quota.name):
            self.children.setdefault(quota.parent, []).append(quota.name)
        self.shares: dict[str, QueueShare] = {}
        self._settle(self.children.get("", ()), total)

    def ancestors(self, name: str) -> Iterator[str]:
        """A queue and those above it, up to the root; a ring is cut where it closes."""
        seen: set[str] = set()
        while name in self.quotas and name not in seen:
            yield name
            seen.add(name)
            name = self.quotas[name].parent

    def why_no_jobs(self, name: str) -> Denial | None:
        """Why a queue can have no jobs at all; None if it can."""
        below = self.children.get(name)
        if below:
            sentence = f'queue "{name}" has queues below it ({", ".join(below[:3])}); put the job into one of those'
            return Denial(NOT_A_LEAF, sentence)
        if name not in self.shares:
            return Denial(BROKEN_TREE, self._fault(name))
        return None

    def why_not(self, name: str, asked: Amounts, taken: Taken) -> Denial | None:
        """Why a queue may not take more: it or one above would pass what bounds it."""
        return joined(
            insufficient(OVER_LIMIT, queue, asked, taken(queue), self.shares[queue].bounds)
            for queue in self.ancestors(name)
        )

    def why_not_promise(self, name: str, asked: Amounts, promised: Taken) -> Denial | None:
        """Why a queue may not promise more: it or one above would pass its ceiling, or there is not as much."""
        return joined(
            insufficient(OVER_LIMIT, queue, asked, promised(queue), self.shares[queue].ceiling)
            for queue in self.ancestors(name)
        )

    def allowance(self, name: str, asked: Amounts, taken: Taken, wanted: int) -> int:
        """How many equal requests, of `wanted`, a queue may take."""
        for queue in self.ancestors(name):
            bounds = self.shares[queue].bounds
            if bounds:
                held = taken(queue)
                for resource, amount in bounded(asked):
                    if resource in bounds:
                        wanted = min(wanted, (bounds[resource] - held.get(resource, 0)) // amount)
        return max(wanted, 0)

    def path(self, name: str) -> list[str]:
        """The queues from the one below the root to this one."""
        return [*self.ancestors(name)][-2::-1] if self.quotas[name].parent else [name]

    def _settle(self, names: Iterable[str], above: Amounts) -> None:
        """Compute the shares of siblings, then of those below; from the roots, so that rings are never entered."""
        kept = added(self._guarantee(name) for name in names)
        for name in names:
            quota, guarantee = self.quotas[name], self._guarantee(name)
            ceiling = {
                resource: max(amount - kept.get(resource, 0), 0) + guarantee.get(resource, 0)
                for resource, amount in above.items()
            }
            for resource, most in quota.limit.items():
                ceiling[resource] = min(most, ceiling.get(resource, most))
            bounds = {r: most for r, most in ceiling.items() if most < self.total.get(r, 0)}
            self.shares[name] = QueueShare(guarantee, _deserved(quota.deserved, ceiling, guarantee), ceiling, bounds)
            self._settle(self.children.get(name, ()), ceiling)

    def _guarantee(self, name: str) -> Amounts:
        return self.quotas[name].guarantee

    def _fault(self, name: str) -> str:
        *_, last = self.ancestors(name)
        above = self.quotas[last].parent
        if above in self.quotas:
            return f'queue "{name}" is in a ring of queues or below one; give "{last}" another parent'
        return f'queue "{last}" is below "{above}", which does not exist; create that, or give it another parent'


def _deserved(written: Amounts, ceiling: Amounts, guarantee: Amounts) -> dict[str, int]:
    cut = {resource: min(amount, ceiling.get(resource, amount)) for resource, amount in written.items()}
    return {r: max(cut.get(r, 0), guarantee.get(r, 0)) for r in cut.keys() | guarantee.keys() if r != PODS}
