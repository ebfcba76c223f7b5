"""Admission to a tree of lenders: turns, strict queues, shapes that wait together, preemption; 9.1 (2, 4, 5, 7) and 9.5."""

from fractions import Fraction

import pytest

from hekla.quota.admission import Admission, Admit, Preempt, Wait
from hekla.quota.cohort import Allotment, CohortMember, CohortTree
from hekla.quota.partial import largest_part
from hekla.quota.victims import PreemptionPolicy, Reclaim, Within, Workload

CPU = ("default", "cpu")


def member(name, parent="", nominal=0, weight=1, borrow=None, *, cohort=False):
    allotment = Allotment(nominal=nominal, borrowing_limit=borrow)
    return CohortMember(
        name=name, parent=parent, allotments={CPU: allotment}, weight=Fraction(weight), is_queue=not cohort
    )


def load(uid, queue, cpu, priority=0, since=0.0):
    return Workload(uid=uid, queue=queue, usage={CPU: cpu}, priority=priority, since=since)


PAIR = (member("a", "c", 4000), member("b", "c", 4000))


def told(admission: Admission) -> list[str]:
    """A pass in words: `+a1` is admitted, `-b1` must go for `!a1`, `?a1` waits."""
    words = []
    for decision in admission.decide():
        match decision:
            case Admit(workload):
                words.append(f"+{workload.uid}")
            case Preempt(workload, targets):
                words += [f"!{workload.uid}", *(f"-{other.uid}" for other, _ in targets)]
            case Wait(workload):
                words.append(f"?{workload.uid}")
    return words


def run(members, loads, **options) -> list[str]:
    admission = Admission(CohortTree(members), **options)
    for one in loads:
        admission.submit(one)
    return told(admission)


# (members, workloads, options, decisions)
PASSES = {
    "priority goes before age": ([PAIR[0]], [load("old", "a", 3000, since=1), load("high", "a", 3000, 1, since=2)], {}, ["+high", "?old"]),
    "age goes before the name": ([PAIR[0]], [load("x", "a", 3000, since=2), load("y", "a", 3000, since=1)], {}, ["+y", "?x"]),
    "who does not borrow goes before who does": (
        PAIR, [load("a1", "a", 5000, 9), load("b1", "b", 4000)], {}, ["+b1", "?a1"],
    ),
    "several borrow in one pass while there is enough": (
        (*PAIR, member("d", "c", 4000)), [load("a1", "a", 6000, since=1), load("b1", "b", 6000, since=2)], {}, ["+a1", "+b1"],
    ),
    "and one only where there is not": (PAIR, [load("a1", "a", 5000, since=1), load("b1", "b", 5000, since=2)], {}, ["+a1", "?b1"]),
    "who borrows less far up goes first": (
        (member("a", "left", 1000), member("n", "left", 1000), member("x", "right", 1000), member("left", "r", cohort=True),
         member("right", "r", cohort=True), member("r", nominal=2000, cohort=True)),
        [load("x1", "x", 2000, since=1), load("a1", "a", 2000, since=2)], {}, ["+a1", "+x1"],
    ),
    "a queue is served as long as its quota lasts": (
        PAIR, [load(f"a{n}", "a", 1000, since=n) for n in range(3)], {}, ["+a0", "+a1", "+a2"],
    ),
    "a small one passes a large one that waits": (
        [PAIR[0]], [load("large", "a", 5000, since=1), load("small", "a", 1000, since=2)], {}, ["?large", "+small"],
    ),
    "unless the queue is strict": (
        [PAIR[0]], [load("large", "a", 5000, since=1), load("small", "a", 1000, since=2)], {"strict": ["a"]}, ["?large"],
    ),
    "a strict queue stops nobody else": (
        PAIR, [load("a1", "a", 9000, since=1), load("a2", "a", 1000, since=2), load("b1", "b", 1000, since=3)], {"strict": ["a"]}, ["+b1", "?a1"],
    ),
    "by shares, the smaller share after it goes first": (
        (*PAIR, member("d", "c", 4000)), [load("a1", "a", 8000, 5), load("b1", "b", 6000)], {"by_shares": True}, ["+b1", "?a1"],
    ),
    "by shares, weight counts": (
        (member("a", "c", 2000, 4), member("b", "c", 2000), member("d", "c", 2000)), [load("a1", "a", 4000), load("b1", "b", 4000)],
        {"by_shares": True}, ["+a1", "?b1"],
    ),
    "by shares, who stays within the nominal quota goes first": (
        (*PAIR, member("d", "c", 4000)), [load("a1", "a", 5000, 9), load("b1", "b", 4000)], {"by_shares": True}, ["+b1", "+a1"],
    ),
    "by shares, the branch with the smaller share wins the tournament": (
        (member("a", "left"), member("b", "left"), member("x", "right"), member("left", "r", cohort=True),
         member("right", "r", cohort=True), member("r", nominal=6000, cohort=True)),
        [load("a1", "a", 3000, since=1), load("b1", "b", 2000, since=2), load("x1", "x", 3000, since=3)],
        {"by_shares": True}, ["+b1", "+x1", "?a1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PASSES, ids=str)
def test_a_pass(case: str) -> None:
    members, loads, options, expected = PASSES[case]
    assert run(members, loads, **options) == expected


def test_workloads_of_one_shape_wait_together_and_wake_together() -> None:
    admission = Admission(CohortTree([member("a", nominal=2000)]))
    for number in range(100):
        admission.submit(load(f"w{number:02}", "a", 1000, since=number))
    assert told(admission) == ["+w00", "+w01", "?w02"]
    assert told(admission) == []
    admission.finish("w00")
    assert told(admission) == ["+w02", "?w03"]


def test_what_is_withdrawn_at_the_head_of_a_strict_queue_lets_the_next_one_go() -> None:
    admission = Admission(CohortTree([member("a", nominal=2000)]), strict=["a"])
    admission.submit(load("large", "a", 3000, since=1))
    admission.submit(load("small", "a", 1000, since=2))
    assert told(admission) == ["?large"]
    admission.finish("large")
    assert told(admission) == ["+small"]


# The branch that does not borrow goes first, though the queue in it does: (members, workloads, who is first)
BRANCHES = {
    "two levels": (
        (member("a", "left", 0), member("b", "right", 5000), member("left", "r", 10_000, cohort=True), member("right", "r", cohort=True),
         member("r", nominal=2000, cohort=True)),
        "a1",
    ),
    "three levels": (
        (member("a", "inner", 0), member("b", "right", 5000), member("inner", "left", cohort=True), member("left", "r", 10_000, cohort=True),
         member("right", "r", cohort=True), member("r", nominal=2000, cohort=True)),
        "a1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BRANCHES, ids=str)
def test_by_shares_a_branch_that_stays_within_its_own_goes_before_one_that_borrows(case: str) -> None:
    # 9.4 (35): the queue of a1 borrows from its cohort, which borrows from nobody
    members, first = BRANCHES[case]
    loads = [load("a1", "a", 6000, since=2), load("b1", "b", 6000, 9, since=1)]
    assert run(members, loads, by_shares=True)[0] == f"+{first}"


ANY = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY)


def test_nobody_is_preempted_for_more_than_a_queue_may_count_on() -> None:
    # a would borrow from d even without a1; so it waits for d, and a1 stays
    members = (member("a", "c", 2000), member("d", "c", 4000))
    admission = Admission(CohortTree(members), {"a": PreemptionPolicy(within=Within.LOWER_PRIORITY)})
    for one in (load("a1", "a", 2000), load("d1", "d", 2000, 1)):
        admission.submit(one)
    assert told(admission) == ["+d1", "+a1"]
    admission.submit(load("a2", "a", 3000, 1))
    assert told(admission) == ["?a2"]


LENDERS = {
    "who takes back from everybody keeps nothing": (Reclaim.ANY, ["?a2", "+b1"]),
    "who takes back from lower priorities alone keeps what is free of its own": (
        Reclaim.LOWER_PRIORITY,
        ["?a2", "?b1"],
    ),
    "who never takes back does": (Reclaim.NEVER, ["?a2", "?b1"]),
}


@pytest.mark.parametrize("case", LENDERS, ids=str)
def test_what_is_free_of_a_lender_is_not_lent_in_the_pass_in_which_its_own_workload_has_to_wait(case: str) -> None:
    # 9.1 (6)
    reclaim, expected = LENDERS[case]
    members = (member("a", "c", 2000), member("b", "c", 0))
    admission = Admission(CohortTree(members), {"a": PreemptionPolicy(reclaim=reclaim)})
    admission.submit(load("a1", "a", 1000))
    assert told(admission) == ["+a1"]
    for one in (load("a2", "a", 2000), load("b1", "b", 1000, since=1)):
        admission.submit(one)
    before = dict(admission.tree["c"].usage)
    assert told(admission) == expected
    if reclaim is not Reclaim.ANY:
        assert admission.tree["c"].usage == before, "nothing is kept after the pass"
        assert told(admission) == ["+b1"]
    assert told(admission) == []


def test_a_queue_is_not_kept_from_its_own_and_when_something_is_given_back_its_turn_comes_first() -> None:
    members = (member("a", "c", 3000), member("b", "c", 0))
    admission = Admission(CohortTree(members))
    for one in (load("a1", "a", 1000), load("b1", "b", 1000)):
        admission.submit(one)
    assert told(admission) == ["+a1", "+b1"]
    admission.submit(load("large", "a", 2000, since=1))
    admission.submit(load("small", "a", 500, since=2))
    assert told(admission) == ["?large", "+small"]
    for one in (load("b2", "b", 500, since=3), load("b3", "b", 500, since=4)):
        admission.submit(one)
    admission.finish("b1")  # 1.5 are free: large lacks 0.5, and keeps them from b for this pass
    assert told(admission) == ["?large", "?b2"]
    admission.finish("small")
    assert told(admission) == ["+large", "?b2"]
    assert told(admission) == []


def test_the_head_of_a_strict_queue_keeps_what_is_free_of_its_own_for_as_long_as_it_waits() -> None:
    members = (member("a", "c", 2000), member("b", "c", 0))
    admission = Admission(CohortTree(members), strict=["a"])
    admission.submit(load("a1", "a", 1000))
    admission.submit(load("a2", "a", 2000, since=1))
    assert told(admission) == ["+a1", "?a2"]
    admission.submit(load("b1", "b", 1000, since=2))
    assert [told(admission), told(admission)] == [["?b1"], []]
    admission.finish("a2")
    assert told(admission) == ["+b1"]


@pytest.mark.parametrize("by_shares", [False, True], ids=["classic", "by shares"])
def test_a_lender_gets_its_quota_back_and_nobody_else_takes_it_meanwhile(by_shares: bool) -> None:
    admission = Admission(CohortTree(PAIR), {"a": ANY}, by_shares=by_shares)
    for number in range(4):
        admission.submit(load(f"b{number}", "b", 2000, since=number))
    assert told(admission) == ["+b0", "+b1", "+b2", "+b3"]
    admission.submit(load("a1", "a", 2000, since=9))
    admission.submit(load("b4", "b", 1000, since=5))
    assert told(admission)[:2] == ["!a1", "-b0"]
    admission.requeue("b0")
    assert told(admission)[0] == "+a1"
    assert {w.uid for w in admission.admitted.values()} == {"a1", "b1", "b2", "b3"}


def test_a_search_for_the_same_victims_in_one_pass_finds_others_or_waits() -> None:
    admission = Admission(
        CohortTree((member("a", "c", 2000), member("d", "c", 2000), member("b", "c", 0))), {"a": ANY, "d": ANY}
    )
    for number in range(2):
        admission.submit(load(f"b{number}", "b", 2000, since=number))
    assert told(admission) == ["+b0", "+b1"]
    admission.submit(load("a1", "a", 2000, since=5))
    admission.submit(load("d1", "d", 2000, since=6))
    words = told(admission)
    assert sorted(word for word in words if word[0] == "-") == ["-b0", "-b1"]
    assert sorted(word for word in words if word[0] == "!") == ["!a1", "!d1"]


def test_why_it_waits_is_told_with_what_is_lacking() -> None:
    admission = Admission(CohortTree([member("a", nominal=2000)]))
    admission.submit(load("w1", "a", 1500))
    assert told(admission) == ["+w1"]
    too_much, lacking = (admission.why_not(load("x", "a", cpu)) for cpu in (2500, 1500))
    assert too_much is not None
    assert lacking is not None
    assert too_much.sentence == (
        "insufficient quota for cpu in flavor default, previously considered podsets requests (0) + current podset request "
        "(2500m) > maximum capacity (2)"
    )
    assert lacking.sentence == "insufficient unused quota for cpu in flavor default, 1 more needed"


@pytest.mark.parametrize("by_shares", [False, True], ids=["classic", "by shares"])
def test_who_asks_for_none_of_something_does_not_wait_for_it_to_be_free(by_shares: bool) -> None:
    # 9.1 (8): b holds what it was given before the quota of memory was cut, so that less than nothing of it is free
    memory = ("default", "memory")
    quota = {CPU: Allotment(nominal=4), memory: Allotment(nominal=4)}
    tree = CohortTree([CohortMember(name="a", parent="c", allotments=quota), CohortMember(name="b", parent="c")])
    tree.take("b", {memory: 9})
    admission = Admission(tree, {"a": ANY}, by_shares=by_shares)
    admission.submit(Workload(uid="w", queue="a", usage={CPU: 2, memory: 0}))
    admission.submit(Workload(uid="x", queue="a", usage={CPU: 2, memory: 1}, since=1))
    assert told(admission) == ["+w", "?x"]


# 9.5 (40): (full, least, limit on the sum, found)
PARTS = {
    "down to the sum that fits": ([5, 5, 5, 5], [3, 4, 1, 2], 15, 15),
    "down to the least": ([5, 5, 5, 5], [3, 4, 1, 2], 10, 10),
    "below the least": ([5, 5, 5, 5], [3, 4, 1, 2], 9, None),
    "many pods": ([150_000] * 8, [100_000] * 8, 1_000_000, 1_000_000),
    "nothing can be given up": ([5, 5], [5, 5], 9, None),
}  # fmt: skip


@pytest.mark.parametrize("case", PARTS, ids=str)
def test_the_largest_part_that_fits(case: str) -> None:
    full, least, limit, expected = PARTS[case]
    found = largest_part(full, least, lambda counts: sum(counts) <= limit)
    assert (sum(found) if found is not None else None) == expected
