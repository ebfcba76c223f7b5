"""Admission decides what a plain loop decides that looks at every queue anew before each decision, and remembers nothing."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.quota.admission import Admission, Admit, Decision, Preempt, shape_of
from hekla.quota.cohort import Allotment, CohortMember, CohortNode, CohortTree
from hekla.quota.dominant import climbing, share_of
from hekla.quota.victims import PreemptionPolicy, Reclaim, Within, Workload

CPU, GPU = ("default", "cpu"), ("default", "gpu")
QUEUES = ("a", "b", "c", "d")


@dataclass(frozen=True)
class Plan:
    members: tuple[CohortMember, ...]
    workloads: tuple[Workload, ...]
    finished: tuple[int, ...]
    strict: frozenset[str]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    members = [_member(draw, "left", "root", is_queue=False), _member(draw, "root", "", is_queue=False)]
    members += [_member(draw, name, draw(st.sampled_from(["left", "root", ""])), is_queue=True) for name in QUEUES]
    workloads = [
        Workload(
            uid=f"w{number:02}", queue=draw(st.sampled_from(QUEUES)), priority=draw(st.integers(0, 2)),
            usage={CPU: draw(st.integers(0, 5)), **({GPU: 1} if draw(st.booleans()) else {})},
            since=float(draw(st.integers(0, 3))),
        )
        for number in range(draw(st.integers(1, 14)))
    ]  # fmt: skip
    finished = draw(st.lists(st.integers(0, len(workloads) - 1), max_size=5, unique=True))
    return Plan(
        tuple(members), tuple(workloads), tuple(finished), draw(st.frozensets(st.sampled_from(QUEUES), max_size=2))
    )


def _member(draw: st.DrawFn, name: str, parent: str, *, is_queue: bool) -> CohortMember:
    nominal = draw(st.integers(0, 6))
    lend = draw(st.one_of(st.none(), st.integers(0, nominal))) if parent else None
    borrow = draw(st.one_of(st.none(), st.integers(0, 6))) if parent else None
    quota = {CPU: Allotment(nominal=nominal, borrowing_limit=borrow, lending_limit=lend), GPU: Allotment(nominal=2)}
    return CohortMember(
        name=name, parent=parent, allotments=quota, is_queue=is_queue, weight=Fraction(draw(st.integers(0, 3)))
    )


class PlainLoop:
    """The oracle: every decision looks at everything that waits."""

    def __init__(self, plan: Plan, *, by_shares: bool) -> None:
        self.members, self.strict, self.by_shares = plan.members, plan.strict, by_shares
        self.waiting: list[Workload] = []
        self.running: list[Workload] = []
        self.aside: set[tuple[str, object]] = set()
        """Demands by queue that did not fit: who asks for the same waits too, until a pass begins in which it fits."""

        self.blocked: dict[str, str] = {}
        """By strict queue, the head that did not fit."""

    def submit(self, workload: Workload) -> None:
        """One that goes before all others of its shape is tried at once: it may do more than they."""
        demand = (workload.queue, shape_of(workload))
        like = [one for one in self.waiting if (one.queue, shape_of(one)) == demand]
        if all((workload.since, workload.uid) < (one.since, one.uid) for one in like):
            self.aside.discard(demand)
        self.waiting.append(workload)

    def decide(self) -> Iterator[str]:
        tree = self._tree()
        fits = {(one.queue, shape_of(one)) for one in self.waiting if tree.fits(one.queue, one.usage)}
        self.aside -= fits
        self.blocked = {
            queue: uid for queue, uid in self.blocked.items()
            if any(one.uid == uid and (queue, shape_of(one)) not in fits for one in self.waiting)
        }  # fmt: skip
        while (workload := self._next()) is not None:
            if self._tree().fits(workload.queue, workload.usage):
                self.waiting.remove(workload)
                self.running.append(workload)
                yield workload.uid
            elif workload.queue in self.strict:
                self.blocked[workload.queue] = workload.uid
            else:
                self.aside.add((workload.queue, shape_of(workload)))

    def _head(self, queue: str) -> Workload | None:
        line = [one for one in self.waiting if one.queue == queue and (queue, shape_of(one)) not in self.aside]
        head = min(line, key=lambda one: (-one.priority, one.since, one.uid), default=None)
        return None if head is not None and self.blocked.get(queue) == head.uid else head

    def _next(self) -> Workload | None:
        tree = self._tree()
        heads = [head for queue in QUEUES if (head := self._head(queue)) is not None]
        if not self.by_shares:
            return min(heads, key=lambda one: _by_level(tree, one), default=None)
        winners = [won for root in _roots(tree) if (won := _tournament(tree, root, heads)) is not None]
        return winners[0] if winners else None

    def _tree(self) -> CohortTree:
        tree = CohortTree(self.members)
        for other in self.running:
            tree.take(other.queue, other.usage)
        return tree


def _by_level(tree: CohortTree, workload: Workload) -> tuple[object, ...]:
    return tree.borrow_level(workload.queue, workload.usage), -workload.priority, workload.since, workload.uid


def _roots(tree: CohortTree) -> list[CohortNode]:
    roots: dict[str, CohortNode] = {}
    for node in tree.queues():
        roots.setdefault(node.root.name, node.root)
    return list(roots.values())


def _tournament(tree: CohortTree, member: CohortNode, heads: list[Workload]) -> Workload | None:
    if member.is_queue:
        return next((head for head in heads if head.queue == member.name), None)
    offers = [(child, won) for child in member.children if (won := _tournament(tree, child, heads)) is not None]
    return min(offers, key=lambda offer: _by_share(tree, *offer))[1] if offers else None


def _by_share(tree: CohortTree, member: CohortNode, workload: Workload) -> tuple[object, ...]:
    queue = tree[workload.queue]
    borrows = any(queue.borrows_with(thing, amount) for thing, amount in workload.usage.items())
    charge = dict(climbing(queue, workload.usage))[member]
    return borrows, share_of(member, charge), -workload.priority, workload.since, workload.uid


def admitted(decisions: Iterator[Decision]) -> list[str]:
    return [decision.workload.uid for decision in decisions if isinstance(decision, Admit)]


@pytest.mark.parametrize("by_shares", [False, True], ids=["levels", "shares"])
@given(plans())
@settings(max_examples=60, deadline=None)
def test_it_admits_whom_the_plain_loop_admits(by_shares: bool, plan: Plan) -> None:
    engine = Admission(CohortTree(plan.members), strict=plan.strict, by_shares=by_shares)
    oracle = PlainLoop(plan, by_shares=by_shares)
    half = len(plan.workloads) // 2
    for part in (plan.workloads[:half], plan.workloads[half:]):
        for workload in part:
            engine.submit(workload)
            oracle.submit(workload)
        mine, theirs = admitted(engine.decide()), list(oracle.decide())
        # Trees that share nothing may come in any order.
        assert _per_tree(engine, mine, plan) == _per_tree(engine, theirs, plan)
        for number in plan.finished:
            uid = plan.workloads[number].uid
            if uid in engine.admitted:
                engine.finish(uid)
                oracle.running = [other for other in oracle.running if other.uid != uid]


def _per_tree(engine: Admission, uids: list[str], plan: Plan) -> dict[str, list[str]]:
    queue_of = {workload.uid: workload.queue for workload in plan.workloads}
    found: dict[str, list[str]] = {}
    for uid in uids:
        found.setdefault(engine.tree[queue_of[uid]].root.name, []).append(uid)
    return found


ANY = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY)


@pytest.mark.parametrize("by_shares", [False, True], ids=["levels", "shares"])
@given(plans())
@settings(max_examples=40, deadline=None)
def test_with_preemption_the_tree_is_never_overfull_and_everything_comes_to_rest(by_shares: bool, plan: Plan) -> None:
    engine = Admission(CohortTree(plan.members), dict.fromkeys(QUEUES, ANY), by_shares=by_shares)
    for workload in plan.workloads:
        engine.submit(workload)
    for _ in range(2 * len(plan.workloads) + 2):
        decisions = list(engine.decide())
        used = {name: dict(node.usage) for name, node in engine.tree.nodes.items()}
        fresh = CohortTree(plan.members)
        for other in engine.admitted.values():
            fresh.take(other.queue, other.usage)
        assert {n: +Counter(u) for n, u in used.items()} == {n: +Counter(x.usage) for n, x in fresh.nodes.items()}
        assert all(node.free(thing) >= 0 for node in engine.tree.queues() for thing in (CPU, GPU))
        leaving = {other.uid for one in decisions if isinstance(one, Preempt) for other, _ in one.targets}
        for uid in sorted(leaving):
            engine.requeue(uid)
        if not decisions:
            return
    raise AssertionError("workloads chase one another for ever")
