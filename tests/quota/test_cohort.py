"""The quota tree: specification quota-gpu 1.7 and the cases of 9.1, in numbers."""

from collections.abc import Mapping

import pytest

from hekla.quota.cohort import UNLIMITED, Allotment, CohortMember, CohortTree, borrow_level

CPU = ("default", "cpu")


def member(
    name: str, parent: str = "", nominal: int = 0, borrow: int | None = None, lend: int | None = None, *, cohort=False
):
    allotment = Allotment(nominal=nominal, borrowing_limit=borrow, lending_limit=lend)
    return CohortMember(name=name, parent=parent, allotments={CPU: allotment}, is_queue=not cohort)


def tree(*members: CohortMember, **usage: int) -> CohortTree:
    made = CohortTree(members)
    for name, amount in usage.items():
        made.take(name, {CPU: amount})
    return made


# What is free to a, and the most it could hold: (members, usage, free, capacity)
FREE = {
    "alone it has its nominal quota": ([member("a", nominal=5)], {"a": 2}, 3, 5),
    "in a cohort it may take what others leave": ([member("a", "c", 5), member("b", "c", 5)], {"b": 2}, 8, 10),
    "a borrowing limit bounds it": ([member("a", "c", 5, borrow=1), member("b", "c", 5)], {}, 6, 6),
    "a borrowing limit bounds what is left too": ([member("a", "c", 5, borrow=2), member("b", "c", 5)], {"a": 4}, 3, 7),
    "a lending limit keeps the rest at home": ([member("a", "c", 5), member("b", "c", 5, lend=2)], {}, 7, 7),
    "of a queue with a lending limit the own part is used first": (
        [member("a", "c", 5, lend=2), member("b", "c", 5)], {"a": 1, "b": 2}, 7, 10,
    ),
    "what a queue uses of its own part takes nothing from the cohort": (
        [member("a", "c", 5), member("b", "c", 5, lend=2)], {"b": 3}, 7, 7,
    ),
    "what it uses beyond does": ([member("a", "c", 5), member("b", "c", 5, lend=2)], {"b": 4}, 6, 7),
    "the cohort's own quota is there for all": ([member("c", nominal=7, cohort=True), member("a", "c")], {}, 7, 7),
    "a cut below what is held is a negative number": ([member("a", nominal=3)], {"a": 5}, -2, 3),
    "a lender that was cut leaves less than nothing": ([member("a", "c"), member("b", "c", 3)], {"b": 5}, -2, 3),
    "hierarchical: what cousins leave": (
        [member("a", "left", 1), member("b", "right", 4), member("left", "top", cohort=True), member("right", "top", cohort=True)],
        {"b": 1}, 4, 5,
    ),
    "hierarchical: a cohort's lending limit holds for cousins": (
        [member("a", "left", 1), member("b", "right", 4), member("left", "top", cohort=True), member("right", "top", lend=1, cohort=True)],
        {}, 2, 2,
    ),
    "hierarchical: a cohort's borrowing limit holds for all below": (
        [member("a", "left", 1), member("b", "right", 9), member("left", "top", borrow=2, cohort=True), member("right", "top", cohort=True)],
        {}, 3, 3,
    ),
    "without limit stays without limit": ([member("a", "c", 5), member("b", "c", UNLIMITED)], {}, UNLIMITED, UNLIMITED),
}  # fmt: skip


@pytest.mark.parametrize("case", FREE, ids=str)
def test_what_is_free(case: str) -> None:
    members, usage, free, capacity = FREE[case]
    node = tree(*members, **usage)["a"]
    assert (node.free(CPU), node.capacity(CPU)) == (free, capacity)


def test_a_usage_is_booked_where_it_was_taken_and_given_back_there() -> None:
    made = tree(member("a", "c", 5, lend=2), member("b", "c", 5))
    seen = []
    for amount in (2, 2, 4):
        made.take("a", {CPU: amount})
        seen.append((made["a"].used(CPU), made["c"].used(CPU)))
    for amount in (3, 3, 2):
        made.give("a", {CPU: amount})
        seen.append((made["a"].used(CPU), made["c"].used(CPU)))
    assert seen == [(2, 0), (4, 1), (8, 5), (5, 2), (2, 0), (0, 0)]


HIERARCHY = (
    member("a", "left", 2), member("b", "left", 2), member("d", "right", 2),
    member("left", "top", cohort=True), member("right", "top", cohort=True), member("top", nominal=1, cohort=True),
)  # fmt: skip

# (usage, amount asked by a, level, may reclaim)
LEVELS = {
    "within the nominal quota": ({}, 2, 0, True),
    "from a sibling": ({}, 3, 1, True),
    "from the whole tree, beside nobody who could give back": ({}, 5, 2, False),
    "a sibling that uses its own makes it go higher": ({"b": 2}, 3, 2, False),
    "more than there is": ({}, 8, 2, False),
}


@pytest.mark.parametrize("case", LEVELS, ids=str)
def test_how_far_up_something_is_borrowed(case: str) -> None:
    usage, amount, level, may_reclaim = LEVELS[case]
    made = tree(*HIERARCHY, **usage)
    assert borrow_level(made["a"], CPU, amount) == (level, may_reclaim)
    assert made.borrow_level("a", {CPU: amount}) == level


def test_a_queue_without_a_cohort_borrows_from_nobody() -> None:
    assert borrow_level(tree(member("a", nominal=1))["a"], CPU, 5) == (0, False)


def test_a_ring_of_cohorts_is_left_out_and_stops_nobody_else() -> None:
    made = tree(
        member("x", "y", cohort=True), member("y", "x", cohort=True), member("a", "x", 3), member("b", "c", 3)
    )  # fmt: skip
    assert set(made.faults) == {"x", "y", "a"}
    assert "ring" in made.faults["a"].sentence
    assert made["b"].free(CPU) == 3


def test_a_cohort_that_nobody_wrote_down_exists() -> None:
    assert tree(member("a", "c", 1), member("b", "c", 1))["a"].path == "/c/a"


def test_flavors_are_kept_apart() -> None:
    spot, fixed = ("spot", "gpu"), ("reserved", "gpu")
    quota = {spot: Allotment(nominal=8), fixed: Allotment(nominal=2)}
    made = CohortTree([CohortMember(name="a", allotments=quota)])
    made.take("a", {spot: 5})
    assert (made["a"].free(spot), made["a"].free(fixed)) == (3, 2)
    assert not made.fits("a", {spot: 3, fixed: 3})


# 9.1: (members, what a, b and d ask in turn, who gets it)
ADMISSIONS: Mapping[str, tuple[list[CohortMember], list[tuple[str, int]], list[bool]]] = {
    "admit in the same cohort with no borrowing": ([member("a", "c", 5), member("b", "c", 5)], [("a", 5), ("b", 5)], [True, True]),
    "no borrowing that would be too much with what was assigned": (
        [member("a", "c", 5), member("b", "c", 5)], [("a", 7), ("b", 4)], [True, False],
    ),
    "borrowing that is not too much": ([member("a", "c", 5), member("b", "c", 5)], [("a", 6), ("b", 4)], [True, True]),
    "several borrowers never get more than the cohort has": (
        [member("a", "c", 2), member("b", "c", 2), member("d", "c", 6)], [("a", 5), ("b", 5), ("b", 1)], [True, True, False],
    ),
    "beyond a lending limit": ([member("a", "c", 2), member("b", "c", 3, lend=1)], [("a", 4)], [False]),
    "up to a lending limit": ([member("a", "c", 2), member("b", "c", 3, lend=1)], [("a", 3)], [True]),
    "a hierarchical cohort respects lending limits": (
        [member("a", "left", 2), member("b", "right", 3), member("left", "top", cohort=True), member("right", "top", lend=1, cohort=True)],
        [("a", 4), ("a", 3)], [False, True],
    ),
    "a thing that the queue's tree does not have": ([member("a", "c", 0)], [("a", 1), ("a", 0)], [False, True]),
    "nothing at all, where a cut left less than nothing": ([member("a", "c", 0), member("b", "c", UNLIMITED)], [("b", UNLIMITED), ("b", 0)], [True, True]),
    "amounts whose sum is no int64": ([member("a", "c", UNLIMITED), member("b", "c", UNLIMITED)], [("a", UNLIMITED), ("b", 1)], [True, False]),
}  # fmt: skip


@pytest.mark.parametrize("case", ADMISSIONS, ids=str)
def test_admission_in_a_tree(case: str) -> None:
    members, asked, expected = ADMISSIONS[case]
    made, got = tree(*members), []
    for queue, amount in asked:
        got.append(made.fits(queue, {CPU: amount}))
        if got[-1]:
            made.take(queue, {CPU: amount})
    assert got == expected
