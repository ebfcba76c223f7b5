"""Classic preemption: specification quota-gpu 1.9 and the cases of 9.3."""

import pytest

from hekla.quota.cohort import Allotment, CohortMember, CohortTree
from hekla.quota.victims import PreemptionPolicy, Reclaim, Within, Workload, victims

CPU, MEMORY = ("default", "cpu"), ("default", "memory")


def member(name, parent="", nominal=0, borrow=None, lend=None, *, cohort=False):
    allotment = Allotment(nominal=nominal, borrowing_limit=borrow, lending_limit=lend)
    return CohortMember(name=name, parent=parent, allotments={CPU: allotment}, is_queue=not cohort)


def load(uid: str, queue: str, cpu: int, priority: int = 0, since: float = 0.0, *, leaving=False) -> Workload:
    return Workload(
        uid=uid, queue=queue, usage={CPU: cpu}, priority=priority, since=since, admitted=since, is_leaving=leaving
    )


def search(members, policy, admitted, workload) -> dict[str, str]:
    tree = CohortTree(members)
    for other in admitted:
        tree.take(other.queue, other.usage)
    before = {name: dict(node.usage) for name, node in tree.nodes.items()}
    found = victims(tree, workload, [CPU], admitted, {workload.queue: policy})
    assert {name: dict(node.usage) for name, node in tree.nodes.items()} == before, "the tree was left changed"
    return {other.uid: str(reason) for other, reason in found}


LOWER = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.LOWER_PRIORITY)
ANY = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY)
NEWER = PreemptionPolicy(within=Within.LOWER_OR_NEWER)
BORROWS = PreemptionPolicy(within=Within.LOWER_PRIORITY, reclaim=Reclaim.ANY, borrows=True, borrow_threshold=0)
ALONE = [member("a", nominal=6)]
PAIR = [member("a", "c", 6), member("b", "c", 6)]
THREE = [*PAIR, member("d", "c", 6)]
DEEP = [
    member("q", "c", 1), member("near", "c", 1), member("c", "r", cohort=True),
    member("q_borrowing", "r", 0), member("r", nominal=0, cohort=True),
]  # fmt: skip

# (members, policy, admitted, workload, victims with reasons)
CASES = {
    "preempt the lowest priority": (
        ALONE, LOWER, [load("low", "a", 2, -1), load("mid", "a", 2), load("high", "a", 2, 1)], load("w", "a", 2, 1),
        {"low": "InClusterQueue"},
    ),
    "preempt several": (
        ALONE, LOWER, [load("low", "a", 2, -1), load("mid", "a", 2), load("high", "a", 2, 1)], load("w", "a", 3, 1),
        {"low": "InClusterQueue", "mid": "InClusterQueue"},
    ),
    "nobody of lower priority": (ALONE, LOWER, [load("mid", "a", 6)], load("w", "a", 1), {}),
    "not enough of lower priority": (ALONE, LOWER, [load("low", "a", 3, -1), load("mid", "a", 3)], load("w", "a", 4), {}),
    "a small one is put back when a large one had to go too": (
        ALONE, LOWER, [load("low", "a", 1, -2), load("mid", "a", 4, -1), load("high", "a", 1, 0)], load("w", "a", 4, 0),
        {"mid": "InClusterQueue"},
    ),
    "newer ones of equal priority": (
        ALONE, NEWER, [load("old", "a", 2, 0, 1), load("new", "a", 2, 0, 3), load("newest", "a", 2, 0, 4)], load("w", "a", 2, 0, 2),
        {"newest": "InClusterQueue"},
    ),
    "whoever is leaving goes first": (
        ALONE, LOWER, [load("low", "a", 2, -2), load("mid", "a", 4, -1, leaving=True)], load("w", "a", 2, 0),
        {"mid": "InClusterQueue"},
    ),
    "reclaim from a borrower": (
        PAIR, LOWER, [load("a1", "a", 2), load("b1", "b", 4, -1), load("b2", "b", 3), load("b3", "b", 3, 1)], load("w", "a", 3),
        {"b1": "InCohortReclamation"},
    ),
    "no workloads of queues that do not borrow": (
        PAIR, ANY, [load("a1", "a", 4), load("b1", "b", 6, -1)], load("w", "a", 4), {},
    ),
    "not enough are borrowing": (PAIR, ANY, [load("b1", "b", 6, -1), load("b2", "b", 1, -1), load("a1", "a", 5)], load("w", "a", 4), {}),
    "not from equal priority where only lower may be": (
        PAIR, LOWER, [load("b1", "b", 4), load("b2", "b", 4), load("a1", "a", 2)], load("w", "a", 4), {},
    ),
    "from any priority where any may be": (
        PAIR, ANY, [load("b1", "b", 4, 0, 1), load("b2", "b", 4, 1, 2), load("a1", "a", 2)], load("w", "a", 4),
        {"b1": "InCohortReclamation"},
    ),
    "own queue only, when it would borrow": (
        PAIR, ANY, [load("low", "a", 4, -1), load("b1", "b", 6), load("a1", "a", 2)], load("w", "a", 4), {"low": "InClusterQueue"},
    ),
    "borrow within the cohort: below the threshold and of lower priority": (
        THREE, BORROWS, [load("b1", "b", 6, -1), load("b2", "b", 6, -1), load("a1", "a", 6)], load("w", "a", 4, 1),
        {"b1": "InCohortReclaimWhileBorrowing"},
    ),
    "borrow within the cohort: above the threshold": (
        THREE, BORROWS, [load("b1", "b", 6, 1), load("b2", "b", 6, 1), load("a1", "a", 6, 2)], load("w", "a", 4, 2), {},
    ),
    "borrow within the cohort: above the threshold, but no borrowing needed": (
        THREE, BORROWS, [load("b1", "b", 6, 1), load("b2", "b", 6, 1), load("d1", "d", 5)], load("w", "a", 6, 2),
        {"b1": "InCohortReclamation"},
    ),
    "borrow within the cohort: not of higher priority": (
        THREE, BORROWS, [load("b1", "b", 6, 3), load("b2", "b", 6, 3), load("a1", "a", 6, 1)], load("w", "a", 4, 1), {},
    ),
    "hierarchical advantage, at equal priority": (
        DEEP, ANY, [load("far", "q_borrowing", 2)], load("w", "q", 2), {"far": "InCohortReclamation"},
    ),
    "a branch within its own quota is left alone": (
        [member("q", "c", 0), member("n", "c", 2), member("c", "r", cohort=True), member("x", "d", 0), member("y", "d", 3), member("d", "r", cohort=True)],
        ANY, [load("x1", "x", 3), load("n1", "n", 2)], load("w", "q", 1), {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_who_is_preempted(case: str) -> None:
    members, policy, admitted, workload, expected = CASES[case]
    assert search(members, policy, admitted, workload) == expected


def test_only_those_that_use_what_is_lacking_are_asked() -> None:
    quota = {CPU: Allotment(nominal=4), MEMORY: Allotment(nominal=4)}
    tree = CohortTree([CohortMember(name="a", allotments=quota)])
    of_memory = Workload(uid="m", queue="a", usage={MEMORY: 4}, priority=-2)
    of_cpu = Workload(uid="c", queue="a", usage={CPU: 4}, priority=-1)
    for other in (of_memory, of_cpu):
        tree.take("a", other.usage)
    found = victims(tree, load("w", "a", 2), [CPU], [of_memory, of_cpu], {"a": LOWER})
    assert [other.uid for other, _ in found] == ["c"]


def test_a_further_condition_makes_more_go() -> None:
    tree = CohortTree(ALONE)
    admitted = [load("x", "a", 3, -2), load("y", "a", 3, -1)]
    for other in admitted:
        tree.take("a", other.usage)
    found = victims(tree, load("w", "a", 1), [CPU], admitted, {"a": LOWER}, fits=lambda: tree["a"].used(CPU) == 0)
    assert [other.uid for other, _ in found] == ["x", "y"]
