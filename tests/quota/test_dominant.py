"""Dominant shares: the golden values of specification quota-gpu 1.10 and 9.4 (26)."""

from fractions import Fraction

import pytest

from hekla.quota.cohort import UNLIMITED, Allotment, CohortMember, CohortTree
from hekla.quota.dominant import climbing, share_of

GPU = ("default", "gpu")


def member(name, parent="", nominal=0, weight="1", borrow=None, *, cohort=False):
    allotment = Allotment(nominal=nominal, borrowing_limit=borrow)
    return CohortMember(
        name=name, parent=parent, allotments={GPU: allotment}, weight=Fraction(weight), is_queue=not cohort
    )


# (members, usage of a, shares as status tells them)
SHARES = {
    "nothing borrowed": ([member("a", "c", 5), member("b", "c", 5)], 5, {"a": 0}),
    "two of ten": ([member("a", "c", 5), member("b", "c", 5)], 7, {"a": 200}),
    "twice the weight, half the share": ([member("a", "c", 5, "2"), member("b", "c", 5)], 7, {"a": 100}),
    "half the weight, twice the share": ([member("a", "c", 5, "0.5"), member("b", "c", 5)], 7, {"a": 400}),
    "no weight": ([member("a", "c", 5, "0"), member("b", "c", 5)], 7, {"a": UNLIMITED}),
    "no weight, nothing borrowed": ([member("a", "c", 5, "0"), member("b", "c", 5)], 5, {"a": 0}),
    "rounded up": ([member("a", "c", 500), member("b", "c", 1000)], 501, {"a": 1}),
    "of what is without limit": ([member("a", "c", 5), member("b", "c", UNLIMITED)], 7, {"a": 1}),
    "a cohort with twice the weight": (
        [member("a", "child", 5), member("child", "root", weight="2", cohort=True), member("root", nominal=45, cohort=True)],
        10, {"a": 100, "child": 50},
    ),
    "a borrowing limit makes less lendable below": (
        [member("a", "child"), member("child", "root", borrow=10, weight="1", cohort=True), member("root", nominal=50, cohort=True)],
        10, {"a": 1000, "child": 200},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SHARES, ids=str)
def test_shares(case: str) -> None:
    members, usage, expected = SHARES[case]
    made = CohortTree(members)
    made.take("a", {GPU: usage})
    assert {name: share_of(made[name]).told for name in expected} == expected


def test_the_resource_of_which_most_is_borrowed_counts() -> None:
    cpu = ("default", "cpu")
    quota = {GPU: Allotment(nominal=1), cpu: Allotment(nominal=10)}
    made = CohortTree(
        [CohortMember(name="a", parent="c", allotments=quota), CohortMember(name="b", parent="c", allotments=quota)]
    )
    made.take("a", {GPU: 2, cpu: 12})
    assert share_of(made["a"]).told == 500


def test_flavors_of_one_resource_add_up() -> None:
    spot, fixed = ("spot", "gpu"), ("reserved", "gpu")
    quota = {spot: Allotment(nominal=4), fixed: Allotment(nominal=6)}
    made = CohortTree(
        [CohortMember(name="a", parent="c", allotments={}), CohortMember(name="b", parent="c", allotments=quota)]
    )
    made.take("a", {spot: 1, fixed: 1})
    assert share_of(made["a"]).told == 200


def test_a_usage_that_is_looked_at_beforehand_gives_the_share_that_it_will_have() -> None:
    members = [
        member("a", "child", 5), member("b", "child", 5), member("child", "root", cohort=True), member("root", nominal=20, cohort=True)
    ]  # fmt: skip
    made = CohortTree(members)
    before = [share_of(node, usage) for node, usage in climbing(made["a"], {GPU: 13})]
    made.take("a", {GPU: 13})
    assert before == [share_of(made[name]) for name in ("a", "child", "root")]
