"""Who must give back by fair shares: whoever has borrowed the largest share, as long as that makes things more equal.

The workload's usage is added first. Then, from the root down, the member with the largest share is asked for its next
candidate. At the children of the lowest cohort that both sides have in common:

    final      the workload's side is not above the other side as that would be without the candidate
    initial    the workload's side is below the other side as that is now; one candidate per queue

Candidates that fail the first rule are kept for the second. A queue that stays within what it may count on takes back
whatever others borrowed. Each rule lowers the larger of two shares, so preemptions come to an end; for that reason a
victim is put back only if all that remain may still be taken by the rule under which they were.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from hekla.quota.cohort import CohortNode, CohortTree, FlavorResource
from hekla.quota.dominant import DominantShare, share_of
from hekla.quota.victims import (
    Fits,
    PreemptionPolicy,
    Target,
    Trial,
    VictimReason,
    Workload,
    always,
    may_preempt_within,
    may_reclaim_from,
    order_of,
)


class PreemptionStrategy(StrEnum):
    """When a share may be cut for another's sake."""

    FINAL = "LessThanOrEqualToFinalShare"
    INITIAL = "LessThanInitialShare"


BOTH = (PreemptionStrategy.FINAL, PreemptionStrategy.INITIAL)


def fair_victims(
    tree: CohortTree, workload: Workload, things: Iterable[FlavorResource], admitted: Iterable[Workload],
    policies: Mapping[str, PreemptionPolicy], rules: Sequence[PreemptionStrategy] = BOTH, fits: Fits = always,
) -> Sequence[Target]:  # fmt: skip
    """Whom to preempt, so that a workload fits that lacks these things; empty if nobody may be."""
    tree.take(workload.queue, workload.usage)
    try:
        search = _FairSearch(tree, workload, frozenset(things), fits)
        return search.run(admitted, policies.get(workload.queue, PreemptionPolicy()), rules)
    finally:
        tree.give(workload.queue, workload.usage)


class _FairSearch:
    """The search for one workload's victims; the workload is in the tree already."""

    def __init__(self, tree: CohortTree, workload: Workload, things: frozenset[FlavorResource], fits: Fits) -> None:
        self._tree, self._workload, self._things, self._fits = tree, workload, things, fits
        self._node = tree[workload.queue]
        self._mine = {self._node.name, *(cohort.name for cohort in self._node.above())}
        self._is_nominal = self._node.is_within(things)
        self._left: dict[str, list[Workload]] = {}
        """By queue, the candidates that were not looked at yet, the next one last."""

    def run(
        self, admitted: Iterable[Workload], policy: PreemptionPolicy, rules: Sequence[PreemptionStrategy]
    ) -> Sequence[Target]:  # fmt: skip
        self._sort(admitted, policy)
        trial, taken, kept = (
            Trial(self._tree),
            list[tuple[Workload, VictimReason, PreemptionStrategy]](),
            list[Workload](),
        )
        with trial.undone():
            for number, rule in enumerate(rules):
                if number:
                    self._left = _by_queue(reversed(kept))
                for other in self._in_turn(trial, rule):
                    reason = self._reason(other, rule)
                    if reason is None:
                        kept.append(other)
                        continue
                    trial.remove(other)
                    taken.append((other, reason, rule))
                    if self._is_enough():
                        return self._filled_back(trial, taken)
        return ()

    def _sort(self, admitted: Iterable[Workload], policy: PreemptionPolicy) -> None:
        queue = self._workload.queue
        useful = [other for other in admitted if self._things & other.usage.keys() and self._may_ask(other, policy)]
        self._left = _by_queue(sorted(useful, key=lambda other: order_of(other, queue), reverse=True))

    def _may_ask(self, other: Workload, policy: PreemptionPolicy) -> bool:
        if other.queue == self._workload.queue:
            return may_preempt_within(policy, self._workload, other)
        node = self._tree.nodes.get(other.queue)
        return (
            node is not None
            and node.root is self._node.root
            and not node.is_within(self._things)
            and may_reclaim_from(policy, self._workload, other)
        )

    # Whose turn it is

    def _in_turn(self, trial: Trial, rule: PreemptionStrategy) -> Iterator[Workload]:
        """Candidates, each from the queue that has the largest share at that moment."""
        while (queue := self._heaviest(self._node.root)) is not None:
            left = self._left[queue.name]
            yield left.pop()
            if rule is PreemptionStrategy.INITIAL and queue is not self._node:
                left.clear()  # one for each queue: its share would have to be looked at anew

    def _heaviest(self, node: CohortNode) -> CohortNode | None:
        """Down from a member to a queue with candidates, by the larger share; a cohort goes before a queue."""
        if node.is_queue:
            return node if self._left.get(node.name) else None
        best: tuple[tuple[DominantShare, bool], CohortNode] | None = None
        for child in sorted(node.children, key=lambda child: self._first_candidate(child)):
            if child.name not in self._mine and child.is_within(self._things):
                continue
            found = self._heaviest(child)
            if found is None:
                continue
            key = (share_of(child), not child.is_queue)
            if best is None or key > best[0]:
                best = key, found
        return best[1] if best is not None else None

    def _first_candidate(self, node: CohortNode) -> tuple[object, ...]:
        """Where queues tie, the one whose next candidate goes first."""
        left = self._left.get(node.name) if node.is_queue else None
        return (0, *order_of(left[-1], self._workload.queue)) if left else (1, node.name)

    # Who may go

    def _reason(self, other: Workload, rule: PreemptionStrategy) -> VictimReason | None:
        """Why a candidate may go; None if it may not."""
        if other.queue == self._workload.queue:
            return VictimReason.IN_QUEUE
        node = self._tree[other.queue]
        if not self._still_borrows(node):
            return None
        if self._is_nominal:
            return VictimReason.RECLAIMED
        mine, theirs = self._sides(node)
        if rule is PreemptionStrategy.INITIAL:
            return VictimReason.FAIR_SHARING if share_of(mine) < share_of(theirs) else None
        self._tree.give(other.queue, other.usage)
        is_fair = share_of(mine) <= share_of(theirs)
        self._tree.take(other.queue, other.usage)
        return VictimReason.FAIR_SHARING if is_fair else None

    def _still_borrows(self, node: CohortNode) -> bool:
        at: CohortNode | None = node
        while at is not None and at.name not in self._mine:
            if at.is_within(self._things):
                return False
            at = at.parent
        return True

    def _sides(self, other: CohortNode) -> tuple[CohortNode, CohortNode]:
        """The two children of the lowest common cohort, under which the workload and the candidate are."""
        theirs = other
        while theirs.parent is not None and theirs.parent.name not in self._mine:
            theirs = theirs.parent
        mine = self._node
        while mine.parent is not theirs.parent and mine.parent is not None:
            mine = mine.parent
        return mine, theirs

    def _is_enough(self) -> bool:
        """Whether the workload, which is in the tree, takes no more than there is."""
        return all(self._node.free(thing) >= 0 for thing in self._workload.usage) and self._fits()

    def _filled_back(
        self, trial: Trial, taken: list[tuple[Workload, VictimReason, PreemptionStrategy]]
    ) -> Sequence[Target]:
        """Put back whom it needs not, as long as all others may go by their rules."""
        for number in range(len(taken) - 2, -1, -1):
            rest = [*taken[:number], *taken[number + 1 :]]
            trial.restore(taken[number][0])
            if self._is_enough() and self._is_legal(trial, rest):
                taken = rest
            else:
                trial.remove(taken[number][0])
        return tuple((other, reason) for other, reason, _ in taken)

    def _is_legal(self, trial: Trial, taken: Sequence[tuple[Workload, VictimReason, PreemptionStrategy]]) -> bool:
        """Whether each may go when those before it are gone. The tree is left as it was."""
        for other, _, _ in taken:
            trial.restore(other)
        is_legal = True
        for other, reason, rule in taken:
            is_legal = is_legal and self._reason(other, rule) is reason
            trial.remove(other)
        return is_legal


def _by_queue(workloads: Iterable[Workload]) -> dict[str, list[Workload]]:
    queues: dict[str, list[Workload]] = {}
    for workload in workloads:
        queues.setdefault(workload.queue, []).append(workload)
    return queues
