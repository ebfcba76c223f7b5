"""Preemption by fair shares: specification quota-gpu 1.10 and the cases of 9.4 (27 to 34)."""

from collections import Counter
from fractions import Fraction

import pytest

from hekla.quota.cohort import Allotment, CohortMember, CohortTree
from hekla.quota.fair_victims import BOTH, PreemptionStrategy, fair_victims
from hekla.quota.victims import PreemptionPolicy, Reclaim, Within, Workload

CPU = ("default", "cpu")
POLICY = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY)


def member(name, parent="", nominal=0, weight=1, *, cohort=False):
    return CohortMember(
        name=name,
        parent=parent,
        allotments={CPU: Allotment(nominal=nominal)},
        weight=Fraction(weight),
        is_queue=not cohort,
    )


def loads(text: str) -> list[Workload]:
    """`a: 1 1 1, b: 2` are workloads a1, a2, a3 and b1 in thousandths, admitted one after the other."""
    made = []
    for part in text.split(",") if text else ():
        queue, _, amounts = part.strip().partition(":")
        for number, amount in enumerate(amounts.split(), 1):
            usage = {CPU: int(float(amount) * 1000)}
            made.append(Workload(uid=f"{queue}{number}", queue=queue, usage=usage, admitted=float(len(made))))
    return made


def search(members, running, asking, amount, rules=BOTH) -> dict[str, str]:
    tree = CohortTree(members)
    admitted = loads(running)
    for other in admitted:
        tree.take(other.queue, other.usage)
    workload = Workload(uid="w", queue=asking, usage={CPU: int(amount * 1000)})
    before = {name: dict(node.usage) for name, node in tree.nodes.items()}
    found = fair_victims(tree, workload, [CPU], admitted, {asking: POLICY}, rules)
    assert {name: +Counter(node.usage) for name, node in tree.nodes.items()} == {
        name: +Counter(usage) for name, usage in before.items()
    }, "the tree was left changed"
    return {other.uid: str(reason) for other, reason in found}


def base(*weights: int) -> list[CohortMember]:
    return [member(name, "all", 3000, weight) for name, weight in zip("abc", weights or (1, 1, 1), strict=True)]


RECLAIMED, FAIR = "InCohortReclamation", "InCohortFairSharing"

# (members, running, who asks, how much, how many victims of which queue with which reason)
CASES = {
    "31 from different queues, if the largest share becomes smaller": (
        [*base()], "b: 5, c: 4", "a", 2, {"b": (1, RECLAIMED)},
    ),
    "27 nominal quota comes back from whoever uses the most": (
        base(), "a: 1 1 1, b: 1 1 1 1 1, c: 1", "c", 1, {"b": (1, RECLAIMED)},
    ),
    "27 borrowable quota comes back from whoever uses the most": (base(), "a: 1 1 1, b: 1 1 1 1 1, c: 1", "a", 1, {"b": (1, FAIR)}),
    "28 not when it would turn the imbalance around": (base(), "a: 1 1 1, b: 1 1 1 1 1, c: 1", "a", 2, {}),
    "29 a huge one goes if there is no other way": (base(), "b: 9", "a", 2, {"b": (1, RECLAIMED)}),
    "30 not the one that would leave the asker with the largest share": (
        base(), "b: 2 1 2, c: 1", "a", 3.5, {"b": (1, FAIR)},
    ),
    "32 a queue with more weight may preempt more": (
        base(2, 1, 1), "a: 1 1 1, b: 1 1 1 1 1 1", "a", 2, {"b": (2, FAIR)},
    ),
    "33 anything that a queue without weight borrows may be preempted": (base(1, 0, 1), "a: 1 1 1, b: 1 1 1 1 1 1", "a", 1, {"b": (1, FAIR)}),
    "33 the nominal quota of a queue without weight may not": (base(1, 0, 1), "a: 1 1 1 1 1 1, b: 1 1 1", "a", 1, {}),
    "33 a queue without weight that borrows takes nothing from one with": (base(0, 1, 1), "a: 1 1 1, b: 1 1 1 1 1 1", "a", 1, {}),
    "nobody takes from queues within their quota": (base(), "a: 1 1 1, b: 3, c: 3", "a", 1, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_who_gives_back(case: str) -> None:
    members, running, asking, amount, expected = CASES[case]
    found = search(members, running, asking, amount)
    told: dict[str, tuple[int, str]] = {}
    for uid, reason in found.items():
        told[uid[0]] = (told.get(uid[0], (0, ""))[0] + 1, reason)
    assert told == expected


def test_of_several_sizes_the_one_goes_that_leaves_its_queue_no_poorer_than_the_asker() -> None:
    # 30: without one of its large ones b would borrow nothing, and less than a that takes it
    assert set(search(base(), "b: 2 1 2, c: 1", "a", 3.5)) == {"b2"}


def test_a_borrowing_queue_in_a_branch_that_does_not_borrow_is_protected() -> None:
    # 34
    members = [
        member("a", "root", 0), member("x", "side", 0), member("y", "side", 5000), member("side", "root", cohort=True),
        member("root", nominal=3000, cohort=True),
    ]  # fmt: skip
    assert search(members, "a: 3, x: 2 3", "a", 1) == {}


def test_the_second_rule_alone_compares_with_the_share_before() -> None:
    # 29: a queue that borrows 6 of 9 gives back its only workload to one that will borrow 1
    members = [*base(), member("d", "all", 0)]
    running = "b: 9"
    assert search(members, running, "d", 1, (PreemptionStrategy.FINAL,)) == {}
    assert set(search(members, running, "d", 1, (PreemptionStrategy.INITIAL,))) == {"b1"}


def test_preemption_reaches_across_branches_where_their_shares_part() -> None:
    members = [
        member("a", "left", 1000), member("b", "left", 1000), member("x", "right", 1000), member("y", "right", 1000),
        member("left", "root", cohort=True), member("right", "root", cohort=True), member("root", nominal=2000, cohort=True),
    ]  # fmt: skip
    # the right branch borrows both units of the root; the left takes one back
    assert search(members, "a: 1, b: 1, x: 1 1 1, y: 1", "a", 1) == {"x3": FAIR}
