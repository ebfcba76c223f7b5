"""Properties of a tree of lenders, over generated trees: nothing is created, nobody exceeds a limit, lenders get theirs back."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.quota.cohort import Allotment, CohortMember, CohortTree, borrow_level
from hekla.quota.dominant import share_of
from hekla.quota.fair_victims import PreemptionStrategy, fair_victims
from hekla.quota.victims import PreemptionPolicy, Reclaim, Within, Workload, victims

CPU = ("default", "cpu")
QUEUES = ("a", "b", "c", "d")
limits = st.one_of(st.none(), st.integers(0, 6))


@dataclass(frozen=True)
class Plan:
    members: tuple[CohortMember, ...]
    steps: tuple[tuple[str, int], ...]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    cohorts = [("root", ""), ("left", "root"), ("right", draw(st.sampled_from(["root", "left"])))]
    made = [_member(draw, name, parent, is_queue=False) for name, parent in cohorts]
    made += [_member(draw, name, draw(st.sampled_from(["root", "left", "right"])), is_queue=True) for name in QUEUES]
    steps = draw(st.lists(st.tuples(st.sampled_from(QUEUES), st.integers(0, 8)), max_size=12))
    return Plan(tuple(made), tuple(steps))


def _member(draw: st.DrawFn, name: str, parent: str, *, is_queue: bool) -> CohortMember:
    nominal = draw(st.integers(0, 8))
    lend = draw(st.one_of(st.none(), st.integers(0, nominal))) if parent else None
    allotment = Allotment(nominal=nominal, borrowing_limit=draw(limits) if parent else None, lending_limit=lend)
    weight = Fraction(draw(st.integers(0, 4)), 2)
    return CohortMember(name=name, parent=parent, allotments={CPU: allotment}, weight=weight, is_queue=is_queue)


def filled(plan: Plan) -> tuple[CohortTree, list[Workload]]:
    """The tree with those steps taken that fit."""
    tree, admitted = CohortTree(plan.members), list[Workload]()
    for number, (queue, amount) in enumerate(plan.steps):
        if tree.fits(queue, {CPU: amount}):
            tree.take(queue, {CPU: amount})
            admitted.append(
                Workload(
                    uid=f"w{number}", queue=queue, usage={CPU: amount}, admitted=float(number), priority=number % 3
                )
            )
    return tree, admitted


def plain_free(members: Sequence[CohortMember], held: dict[str, int], name: str) -> int:
    """What is free, by the recursive formulas and nothing remembered: the oracle."""
    by_name = {member.name: member for member in members}
    below = {name: [m for m in members if m.parent == name] for name in by_name}

    def pool(at: str) -> int:
        return by_name[at].allotments[CPU].nominal + sum(pool(m.name) - kept(m.name) for m in below[at])

    def kept(at: str) -> int:
        lend = by_name[at].allotments[CPU].lending_limit
        return 0 if lend is None else max(0, pool(at) - lend)

    def usage(at: str) -> int:
        return held.get(at, 0) + sum(max(0, usage(m.name) - kept(m.name)) for m in below[at])

    def free(at: str) -> int:
        above = by_name[at].parent
        if not above:
            return pool(at) - usage(at)
        rest, limit = free(above), by_name[at].allotments[CPU].borrowing_limit
        if limit is not None:
            rest = min(rest, pool(at) - kept(at) - max(0, usage(at) - kept(at)) + limit)
        return max(0, kept(at) - usage(at)) + rest

    return free(name)


@given(plans())
@settings(max_examples=200, deadline=None)
def test_what_is_free_is_what_the_formulas_say(plan: Plan) -> None:
    tree, admitted = filled(plan)
    held: dict[str, int] = {}
    for workload in admitted:
        held[workload.queue] = held.get(workload.queue, 0) + workload.usage.get(CPU, 0)
    for name in tree.nodes:
        assert tree[name].free(CPU) == plain_free(plan.members, held, name)


@given(plans())
@settings(max_examples=150, deadline=None)
def test_nothing_is_created_and_nobody_exceeds_a_limit(plan: Plan) -> None:
    tree, admitted = filled(plan)
    total = sum(member.allotments[CPU].nominal for member in plan.members)
    assert sum(workload.usage.get(CPU, 0) for workload in admitted) <= total
    for member in plan.members:
        node, allotment = tree[member.name], member.allotments[CPU]
        assert 0 <= node.used(CPU) <= node.capacity(CPU)
        if allotment.borrowing_limit is not None:
            assert node.used(CPU) <= node.nominal(CPU) + allotment.borrowing_limit
        if node.is_queue:
            assert node.free(CPU) >= 0


@given(plans())
@settings(max_examples=150, deadline=None)
def test_a_part_that_is_lent_to_nobody_is_there_whatever_others_do(plan: Plan) -> None:
    tree, _ = filled(plan)
    for node in tree.queues():
        assert node.free(CPU) >= node.own_free(CPU)


@given(plans())
@settings(max_examples=100, deadline=None)
def test_what_is_taken_and_given_back_leaves_no_trace(plan: Plan) -> None:
    tree, admitted = filled(plan)
    for workload in admitted:
        tree.give(workload.queue, workload.usage)
    assert all(node.used(CPU) == 0 for node in tree.nodes.values())


@given(plans(), st.randoms())
@settings(max_examples=100, deadline=None)
def test_the_order_of_siblings_is_irrelevant(plan: Plan, dice) -> None:
    shuffled = list(plan.members)
    dice.shuffle(shuffled)
    one, _ = filled(plan)
    other, _ = filled(Plan(tuple(shuffled), plan.steps))
    assert {n: (x.free(CPU), x.used(CPU), share_of(x)) for n, x in one.nodes.items()} == {
        n: (x.free(CPU), x.used(CPU), share_of(x)) for n, x in other.nodes.items()
    }


@given(plans(), st.sampled_from(QUEUES), st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_the_level_of_borrowing_only_rises_as_others_take_more(plan: Plan, queue: str, amount: int) -> None:
    tree, before = CohortTree(plan.members), 0
    for other, more in plan.steps:
        level, _ = borrow_level(tree[queue], CPU, amount)
        assert level >= before
        before = level
        if tree.fits(other, {CPU: more}):
            tree.take(other, {CPU: more})


ANY = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY)


@given(plans(), st.sampled_from(QUEUES))
@settings(max_examples=200, deadline=None)
def test_borrowers_return_what_a_lender_asks_for(plan: Plan, queue: str) -> None:
    tree, admitted = filled(plan)
    node = tree[queue]
    is_flat = node.parent is not None and node.parent.parent is None
    mine = min(node.nominal(CPU) - node.used(CPU), node.capacity(CPU))
    if mine <= 0 or not is_flat or any(other.parent is not node.parent for other in tree.queues()):
        return  # in a deeper tree a whole branch may be within its own
    workload = Workload(uid="w", queue=queue, usage={CPU: mine}, priority=5)
    found = victims(tree, workload, [CPU], admitted, {queue: ANY})
    assert found or tree.fits(queue, workload.usage)


@pytest.mark.parametrize("search", [victims, fair_victims], ids=["classic", "fair"])
@given(plans(), st.sampled_from(QUEUES), st.integers(1, 8))
@settings(max_examples=150, deadline=None)
def test_victims_make_room_are_needed_and_are_never_of_queues_within_their_own(
    search, plan: Plan, queue: str, amount: int
) -> None:
    tree, admitted = filled(plan)
    workload = Workload(uid="w", queue=queue, usage={CPU: amount}, priority=1)
    if tree.fits(queue, workload.usage):
        return
    before = {name: node.used(CPU) for name, node in tree.nodes.items()}
    found = search(tree, workload, [CPU], admitted, {queue: ANY})
    assert before == {name: node.used(CPU) for name, node in tree.nodes.items()}
    for other, _ in found:
        assert other.queue == queue or tree[other.queue].used(CPU) > tree[other.queue].nominal(CPU)
        tree.give(other.queue, other.usage)
    assert not found or tree.fits(queue, workload.usage)


@given(
    plans(),
    st.sampled_from(
        [
            (PreemptionStrategy.FINAL,),
            (PreemptionStrategy.INITIAL,),
            (PreemptionStrategy.FINAL, PreemptionStrategy.INITIAL),
        ]
    ),
)
@settings(max_examples=60, deadline=None)
def test_preemption_by_shares_comes_to_an_end(plan: Plan, rules: tuple[PreemptionStrategy, ...]) -> None:
    """No new work, and everybody who was sent away asks again: the evictions are few, and then there are none."""
    tree = CohortTree(plan.members)
    waiting = [
        Workload(uid=f"w{number}", queue=queue, usage={CPU: amount})
        for number, (queue, amount) in enumerate(plan.steps)
        if amount
    ]
    running, evictions = list[Workload](), 0
    policies = dict.fromkeys(QUEUES, PreemptionPolicy(within=Within.NEVER, reclaim=Reclaim.ANY))
    is_moving = True
    while is_moving:
        is_moving = False
        for workload in sorted(waiting, key=lambda one: one.uid):
            gone = () if tree.fits(workload.queue, workload.usage) else fair_victims(
                tree, workload, [CPU], running, policies, rules
            )  # fmt: skip
            if not gone and not tree.fits(workload.queue, workload.usage):
                continue
            for other, _ in gone:
                tree.give(other.queue, other.usage)
                running.remove(other)
                waiting.append(other)
                evictions += 1
            tree.take(workload.queue, workload.usage)
            waiting.remove(workload)
            running.append(workload)
            is_moving = True
            assert evictions <= 20 * len(plan.steps) ** 2, "workloads chase one another for ever"
            break
