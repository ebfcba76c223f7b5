"""Who must give back so that a workload fits in a tree of lenders: the fewest that the rules allow, with reasons.

Candidates are looked at in order, taken away one by one until the workload fits, and then put back where it fits
without them. Three kinds of candidate in other queues:

    hierarchical   beyond a subtree whose pool has room for the workload: it claims what its own branch owns
    by priority    otherwise; only while the workload stays within what its queue may count on, unless the queue may
                   preempt while borrowing and the candidate's priority is lower and not above a threshold

A queue, or a branch on the way to it, that holds no more than it may count on loses nothing to others. After Kueue's
classic preemption; `fair_victims.py` has the rules by shares.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from hekla.quota.cohort import CohortNode, CohortTree, FlavorResource, Usage


class Within(StrEnum):
    """Whom a workload may preempt in its own queue."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    LOWER_OR_NEWER = "LowerOrNewerEqualPriority"


class Reclaim(StrEnum):
    """Whom a workload may preempt in other queues of its tree."""

    NEVER = "Never"
    LOWER_PRIORITY = "LowerPriority"
    ANY = "Any"


class VictimReason(StrEnum):
    """Why a workload is a victim."""

    IN_QUEUE = "InClusterQueue"
    RECLAIMED = "InCohortReclamation"
    WHILE_BORROWING = "InCohortReclaimWhileBorrowing"
    FAIR_SHARING = "InCohortFairSharing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPolicy:
    """What the workloads of one queue may do to others."""

    within: Within = Within.NEVER
    reclaim: Reclaim = Reclaim.NEVER
    borrows: bool = False
    """Whether a workload may preempt others while its queue borrows."""

    borrow_threshold: int | None = None
    """The highest priority that may be preempted while borrowing; None: any that is lower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Something that is admitted or refused as a whole."""

    uid: str
    queue: str
    usage: Usage = field(default_factory=dict)
    """What it takes. Of what it asks for none of, it needs none to be free: that is left out."""

    priority: int = 0
    since: float = 0.0
    """From when its place in the queue counts."""

    admitted: float = 0.0
    """Since when it holds its quota."""

    is_leaving: bool = False
    """Is being evicted already."""

    def __post_init__(self) -> None:
        if 0 in self.usage.values():
            object.__setattr__(self, "usage", {thing: amount for thing, amount in self.usage.items() if amount})


Target = tuple[Workload, VictimReason]
Fits = Callable[[], bool]
"""A further condition on a set of victims, such as room on the nodes they leave; the tree is as it would be then."""


def always() -> bool:
    """No further condition."""
    return True


class Trial:
    """A tree with workloads taken away and put back; at the end of a `with` it is as it was."""

    def __init__(self, tree: CohortTree) -> None:
        self._tree = tree
        self._gone: dict[str, Workload] = {}

    def remove(self, workload: Workload) -> None:
        """Take a workload away."""
        self._gone[workload.uid] = workload
        self._tree.give(workload.queue, workload.usage)

    def restore(self, workload: Workload) -> None:
        """Put one back."""
        del self._gone[workload.uid]
        self._tree.take(workload.queue, workload.usage)

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Put all back at the end of the block."""
        try:
            yield
        finally:
            for workload in list(self._gone.values()):
                self.restore(workload)


def victims(
    tree: CohortTree, workload: Workload, things: Iterable[FlavorResource], admitted: Iterable[Workload],
    policies: Mapping[str, PreemptionPolicy], fits: Fits = always,
) -> Sequence[Target]:  # fmt: skip
    """Whom to preempt, so that a workload fits that lacks these things; empty if nobody, or all allowed, would do."""
    search = _Search(tree, workload, frozenset(things), policies.get(workload.queue, PreemptionPolicy()), fits)
    return search.run(admitted)


def order_of(workload: Workload, queue: str) -> tuple[bool, bool, int, float, str]:
    """In which order candidates go: leaving, of other queues, of low priority, admitted last."""
    own = workload.queue == queue
    return (not workload.is_leaving, own, workload.priority, -workload.admitted, workload.uid)


def may_preempt_within(policy: PreemptionPolicy, workload: Workload, other: Workload) -> bool:
    """Whether a workload may preempt one of its own queue."""
    if policy.within is Within.LOWER_OR_NEWER and workload.priority == other.priority:
        return workload.since < other.since
    return policy.within is not Within.NEVER and other.priority < workload.priority


def may_reclaim_from(policy: PreemptionPolicy, workload: Workload, other: Workload) -> bool:
    """Whether a workload may preempt one of another queue that borrows, priorities alone considered."""
    if policy.reclaim is Reclaim.LOWER_PRIORITY:
        return other.priority < workload.priority
    return policy.reclaim is Reclaim.ANY


class _Search:
    """The search for one workload's victims."""

    def __init__(
        self, tree: CohortTree, workload: Workload, things: frozenset[FlavorResource], policy: PreemptionPolicy, fits: Fits
    ) -> None:  # fmt: skip
        self._tree, self._workload, self._things, self._policy, self._fits = tree, workload, things, policy, fits
        self._node = tree[workload.queue]

    def run(self, admitted: Iterable[Workload]) -> Sequence[Target]:
        candidates = list(self._candidates(admitted))
        for may_borrow in self._attempts(candidates):
            found = self._attempt(candidates, may_borrow=may_borrow)
            if found:
                return found
        return ()

    # Candidates

    def _candidates(self, admitted: Iterable[Workload]) -> Iterator[tuple[Workload, VictimReason, bool]]:
        """Candidates in order, each with its reason and whether it may go while the workload's queue borrows."""
        advantage, queue = self._reach(), self._workload.queue
        sorted_ones = sorted(admitted, key=lambda other: order_of(other, queue))
        by_class: list[list[tuple[Workload, VictimReason, bool]]] = [[] for _ in range(6)]
        for other in sorted_ones:
            kind = self._classified(other, advantage) if self._things & other.usage.keys() else None
            if kind is not None:
                place, reason, while_borrowing = kind
                by_class[place + (0 if other.is_leaving else 3)].append((other, reason, while_borrowing))
        return (entry for entries in by_class for entry in entries)

    def _reach(self) -> Mapping[str, bool]:
        """By name, the queues that may be asked to give back, and whether the workload's own branch owns what it asks."""
        reach: dict[str, bool] = {}
        if self._policy.reclaim is Reclaim.NEVER:
            return reach
        rest = {thing: self._workload.usage.get(thing, 0) for thing in self._things}
        has_advantage, rest = _fits_in_pool(self._node, rest)
        before = self._node
        for cohort in self._node.above():
            for queue in self._borrowing(cohort, before):
                reach[queue.name] = has_advantage
            fits, rest = _fits_in_pool(cohort, rest)
            has_advantage, before = has_advantage or fits, cohort
        return reach

    def _borrowing(self, cohort: CohortNode, skipped: CohortNode) -> Iterator[CohortNode]:
        """Queues that borrow, below a cohort, in branches that borrow; a branch that was looked at already is left out."""
        for child in cohort.children:
            if child is skipped or child.is_within(self._things):
                continue
            if child.is_queue:
                yield child
            else:
                yield from self._borrowing(child, skipped)

    def _classified(self, other: Workload, advantage: Mapping[str, bool]) -> tuple[int, VictimReason, bool] | None:
        if other.queue == self._workload.queue:
            return (2, VictimReason.IN_QUEUE, True) if may_preempt_within(self._policy, self._workload, other) else None
        if other.queue not in advantage or not may_reclaim_from(self._policy, self._workload, other):
            return None
        if advantage[other.queue]:
            return 0, VictimReason.RECLAIMED, True
        threshold = self._policy.borrow_threshold
        is_above = other.priority >= self._workload.priority or (threshold is not None and other.priority > threshold)
        if not self._policy.borrows or is_above:
            return 1, VictimReason.RECLAIMED, False
        return 1, VictimReason.WHILE_BORROWING, True

    # Attempts

    def _attempts(self, candidates: Sequence[tuple[Workload, VictimReason, bool]]) -> tuple[bool, ...]:
        """Whether to try with borrowing, without, or one after the other."""
        others = [reason for other, reason, _ in candidates if other.queue != self._workload.queue]
        is_forbidden = not self._policy.borrows
        if not others or (is_forbidden and not self._is_under_nominal()):
            return (True,)
        advantage = self._reach()
        is_hierarchical = any(advantage.get(other.queue, False) for other, _, _ in candidates)
        return (False, True) if is_forbidden and not is_hierarchical else (True, False)

    def _is_under_nominal(self) -> bool:
        return all(self._node.used(thing) < self._node.nominal(thing) for thing in self._things)

    def _attempt(
        self, candidates: Sequence[tuple[Workload, VictimReason, bool]], *, may_borrow: bool
    ) -> Sequence[Target]:  # fmt: skip
        trial, targets = Trial(self._tree), list[Target]()
        with trial.undone():
            for other, reason, while_borrowing in candidates:
                if (may_borrow and not while_borrowing) or not self._still_borrows(other):
                    continue
                trial.remove(other)
                targets.append((other, reason))
                if self._is_enough(may_borrow=may_borrow):
                    return filled_back(trial, targets, lambda: self._is_enough(may_borrow=may_borrow))
        return ()

    def _still_borrows(self, other: Workload) -> bool:
        """Whether a candidate's queue, and the branches between it and the workload, still hold more than their own."""
        if other.queue == self._workload.queue:
            return True
        mine = {self._node.name, *(cohort.name for cohort in self._node.above())}
        node: CohortNode | None = self._tree[other.queue]
        while node is not None and node.name not in mine:
            if node.is_within(self._things):
                return False
            node = node.parent
        return True

    def _is_enough(self, *, may_borrow: bool) -> bool:
        for thing, amount in self._workload.usage.items():
            if amount > self._node.free(thing) or (not may_borrow and self._node.borrows_with(thing, amount)):
                return False
        return self._fits()


def filled_back(trial: Trial, targets: list[Target], is_enough: Callable[[], bool]) -> Sequence[Target]:
    """The targets without those that need not go after all, looked for from the last but one to the first."""
    for number in range(len(targets) - 2, -1, -1):
        trial.restore(targets[number][0])
        if is_enough():
            targets[number] = targets[-1]
            targets.pop()
        else:
            trial.remove(targets[number][0])
    return tuple(targets)


def _fits_in_pool(node: CohortNode, asked: Usage) -> tuple[bool, dict[FlavorResource, int]]:
    """Whether a member may count on so much more, and what of it must come from above."""
    fits = not any(node.borrows_with(thing, amount) for thing, amount in asked.items())
    return fits, {thing: max(0, amount - node.own_free(thing)) for thing, amount in asked.items()}
