"""Dealing in rounds: specification quota-gpu 2.3 with its golden figures, and 9.7 (47 to 50)."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.quota.over_quota import Want, divide, divide_tree
from hekla.quota.over_quota_order import QueueStanding, may_take_back, turn_of

GPU = 1000  # a GPU in the unit that amounts are counted in


def want(name: str, deserved=2.0, weight=2, request=6.0, limit=-1.0, priority=100, usage="0", created=0.0) -> Want:
    return Want(
        name=name, deserved=_milli(deserved), weight=weight, request=_milli(request), limit=_milli(limit), priority=priority,
        usage=Fraction(usage), created=created,
    )  # fmt: skip


def _milli(amount: float) -> int:
    return -1 if amount == -1 else round(amount * GPU)


# 2.3 and 9.7 (47): (GPUs, queues, shares, what is left)
DIVISIONS = {
    "more than all ask for": (15, [want("a"), want("b")], [6, 6], 3),
    "as much as all ask for": (12, [want("a"), want("b")], [6, 6], 0),
    "by weights 1:3": (8, [want("a", weight=1), want("b", weight=3)], [3, 5], 0),
    "a limit on the first": (12, [want("a", limit=5), want("b")], [5, 6], 1),
    "by weights 1:4, in whole GPUs": (11, [want("a", weight=1, request=10), want("b", weight=4, request=10)], [3, 8], 0),
    "the odd one goes to the older": (11, [want("a", created=1), want("b", created=2)], [6, 5], 0),
    "the odd one goes to the older, wherever that stands": (11, [want("a", created=2), want("b", created=1)], [5, 6], 0),
    "priority does not touch what is deserved": (4, [want("a", priority=1), want("b", priority=2)], [2, 2], 0),
    "priority goes before in what is not": (6, [want("a", priority=1), want("b", priority=2)], [2, 4], 0),
    "priority beats weight": (6, [want("a", weight=100, priority=1), want("b", weight=1, priority=2)], [2, 4], 0),
    "the remainder is dealt out between priorities too": (
        5, [want("a", request=5, priority=2, created=1), want("b", request=5, priority=2, created=2), want("d", 1, request=0, priority=1)],
        [3, 2, 0], 0,
    ),
    "three of equal weight": (9999, [want(n, 1000, request=9999) for n in "abc"], [3333] * 3, 0),
    "weights 6:2:1 and nothing deserved": (
        9999, [want("a", 0, 6, 9999), want("b", 0, 2, 9999), want("c", 0, 1, 9999)], [6666, 2222, 1111], 0,
    ),
    "fractions that are asked for are kept": (
        45, [want("a", request=32.55), want("b", request=9.5), want("c", request=1.65, limit=2)], [32.55, 9.5, 1.65], 1.3,
    ),
    "deserved is given though there is not as much": (1, [want("a"), want("b")], [2, 2], 0),
    "all is deserved": (7, [want("a", -1, request=6), want("b", 0, request=6)], [6, 1], 0),
    "without weight only what is deserved": (9, [want("a", weight=0), want("b", weight=1)], [2, 6], 1),
    "a past of more than its weight costs a queue its part": (
        8, [want("a", 0, 1, 9, usage="3/4"), want("b", 0, 1, 9, usage="1/4")], [2, 6], 0,
    ),
    "a past as large as its weight changes nothing": (
        8, [want("a", 0, 1, 9, usage="1/2"), want("b", 0, 1, 9, usage="1/2")], [4, 4], 0,
    ),
    "a past of everything costs all of it": (8, [want("a", 0, 1, 9, usage="1"), want("b", 0, 1, 9, usage="0")], [0, 8], 0),
}  # fmt: skip


@pytest.mark.parametrize("case", DIVISIONS, ids=str)
def test_a_resource_is_dealt_out(case: str) -> None:
    total, wants, shares, left = DIVISIONS[case]
    given_out, rest = divide(total * GPU, wants, unit=GPU)
    assert ([given_out[one.name] / GPU for one in wants], rest / GPU) == (shares, left)


# 9.7 (47), cpu in milli units
CPU_DIVISIONS = {
    "what is asked for": (3000, [(3000, 3000, 2000)], [2000], 1000),
    "deserved though there is not as much": (1000, [(3000, 3000, 2000)], [2000], 0),
    "one deserves nothing and has no weight": (10000, [(5000, 5000, 10000), (0, 0, 5000)], [10000, 0], 0),
    "all deserve more than there is": (10000, [(5000, 5000, 5000)] * 3, [5000] * 3, 0),
    "one may have what the others leave": (10000, [(5000, 5000, 7000), (5000, 5000, 2000), (5000, 5000, 2000)], [6000, 2000, 2000], 0),
    "nobody leaves anything": (10000, [(5000, 5000, 7000), (5000, 5000, 5000), (5000, 5000, 2000)], [5000, 5000, 2000], 0),
}  # fmt: skip


@pytest.mark.parametrize("case", CPU_DIVISIONS, ids=str)
def test_cpu_is_dealt_out_alike(case: str) -> None:
    total, queues, shares, left = CPU_DIVISIONS[case]
    wants = [Want(name=f"q{n}", deserved=d, weight=w, request=r) for n, (d, w, r) in enumerate(queues)]
    given_out, rest = divide(total, wants)
    assert (list(given_out.values()), rest) == (shares, left)


def test_what_a_department_gets_is_dealt_out_among_its_projects() -> None:
    tree = [
        Want(name="left", deserved=4, weight=1), Want(name="right", deserved=4, weight=1),
        Want(name="a", parent="left", deserved=2, weight=1, request=9), Want(name="b", parent="left", deserved=2, weight=3, request=9),
        Want(name="c", parent="right", deserved=4, weight=1, request=2),
    ]  # fmt: skip
    assert divide_tree(12, tree) == {"left": 10, "right": 2, "a": 4, "b": 6, "c": 2}


def test_a_ring_of_queues_gets_nothing_and_stops_nobody() -> None:
    tree = [Want(name="x", parent="y", request=5), Want(name="y", parent="x"), Want(name="a", weight=1, request=5)]
    assert divide_tree(8, tree) == {"a": 5}


wants = st.lists(
    st.builds(
        Want, name=st.uuids().map(str), deserved=st.integers(0, 20), weight=st.integers(0, 5), request=st.integers(0, 40),
        limit=st.one_of(st.just(-1), st.integers(0, 30)), priority=st.integers(1, 3), created=st.integers(0, 3).map(float),
        usage=st.sampled_from([Fraction(0), Fraction(1, 4), Fraction(1)]),
    ),
    min_size=1, max_size=6, unique_by=lambda one: one.name,
)  # fmt: skip


@given(st.integers(0, 100), wants, st.sampled_from([1, 3]), st.randoms())
@settings(max_examples=150, deadline=None)
def test_sums_are_kept_limits_hold_and_order_is_irrelevant(total: int, made: list[Want], unit: int, dice) -> None:
    shares, left = divide(total, made, unit=unit)
    firm = sum(min(one.deserved, one.requestable) for one in made)
    assert left >= 0
    assert sum(shares.values()) + left == max(total, firm)
    for one in made:
        assert min(one.deserved, one.requestable) <= shares[one.name] <= one.requestable
    shuffled = list(made)
    dice.shuffle(shuffled)
    assert divide(total, shuffled, unit=unit) == (shares, left)


@given(st.integers(0, 100), wants)
@settings(max_examples=100, deadline=None)
def test_nothing_is_left_while_somebody_with_weight_wants_more(total: int, made: list[Want]) -> None:
    plain = [Want(**{**{f: getattr(one, f) for f in Want.__slots__}, "usage": Fraction(0)}) for one in made]
    shares, left = divide(total, plain)
    assert not left or all(shares[one.name] == one.requestable for one in plain if one.weight)


# 9.7 (50)
def standing(name: str, held=0, deserved=0, fair=0, parent="", firm=0, **fields) -> QueueStanding:
    return QueueStanding(
        name=name, parent=parent, held={"gpu": held}, held_firm={"gpu": firm}, deserved={"gpu": deserved},
        fair={"gpu": fair}, **fields,
    )  # fmt: skip


ORDERS = {
    "whoever is above its fair share goes last": (standing("a", 5, 2, 4, priority=200), standing("b", 3, 2, 4), "b"),
    "within what it deserves goes before priority": (standing("a", 2, 2, 6, priority=200), standing("b", 1, 2, 6), "b"),
    "even before one that lacks more of its fair share": (standing("a", 20, 2, 99, priority=1), standing("b", 0, 2, 2, priority=0), "b"),
    "at its fair share it is not above": (standing("a", 4, 2, 4), standing("b", 3, 2, 4, priority=50), "a"),
    "priority": (standing("a", 1, 4, 4), standing("b", 2, 4, 4, priority=200), "b"),
    "who has no share at all comes last": (standing("a", 0, 0, 0), standing("b", 0, 1, 1), "b"),
    "the smaller part of its share": (standing("a", 2, 4, 4), standing("b", 2, 8, 8), "b"),
    "without a bound, the part of all there is": (standing("a", 6, -1, 9, limit={"gpu": -1}), standing("b", 2, 4, 8), "b"),
    "age": (standing("a", 1, 4, 4, created=2.0), standing("b", 1, 4, 4, created=1.0), "b"),
}  # fmt: skip


@pytest.mark.parametrize("case", ORDERS, ids=str)
def test_which_queue_is_next(case: str) -> None:
    one, other, first = ORDERS[case]
    turns = {queue.name: turn_of(queue, {"gpu": 1}, ["gpu"], total={"gpu": 10}) for queue in (one, other)}
    assert min(turns, key=turns.__getitem__) == first


def test_a_queue_that_needs_none_of_a_resource_is_no_later_for_it() -> None:
    without = QueueStanding(name="a", held={"gpu": 1}, deserved={"gpu": 1}, fair={"gpu": 4})
    both = QueueStanding(name="b", held={"gpu": 3, "cpu": 1}, deserved={"gpu": 1, "cpu": 1}, fair={"gpu": 4, "cpu": 2})
    resources, total = ["gpu", "cpu"], {"gpu": 8, "cpu": 8}
    assert turn_of(without, {"gpu": 1}, resources, total=total) < turn_of(both, {"gpu": 1}, resources, total=total)


def test_a_queue_that_would_hold_what_it_has_no_share_of_comes_last() -> None:
    of_cpu = QueueStanding(name="a", held={}, fair={"cpu": 8}, deserved={})
    of_both = QueueStanding(name="b", held={"gpu": 3, "cpu": 3}, fair={"gpu": 4, "cpu": 4}, deserved={})
    resources, total = ["gpu", "cpu"], {"gpu": 8, "cpu": 8}
    assert turn_of(of_both, {"gpu": 1}, resources, total=total) < turn_of(of_cpu, {"gpu": 1}, resources, total=total)


# 9.7 (48, 49): (queues, asks a, victims by queue, preemptible, allowed)
DEPARTMENTS = [
    standing("d1", 2, 4, 4),
    standing("d2", 6, 4, 4),
    standing("a", 2, 4, 4, "d1"),
    standing("b", 6, 4, 4, "d2"),
]
TAKES = {
    "below its fair share, from one above": ([standing("a", 2, 3, 4), standing("b", 6, 3, 4)], 2, [("b", 2)], True, True),
    "it would be above its fair share": ([standing("a", 4, 3, 4), standing("b", 6, 3, 4)], 1, [("b", 1)], True, False),
    "the other is not above": ([standing("a", 2, 3, 4), standing("b", 4, 4, 4)], 1, [("b", 1)], True, False),
    "owed what it deserves, from one above what that deserves": (
        [standing("a", 0, 2, 2), standing("b", 4, 2, 4)], 2, [("b", 2)], True, True,
    ),
    "the last victim may take it below its fair share, none after that": (
        [standing("a", 0, 2, 4), standing("b", 5, 4, 4)], 4, [("b", 2), ("b", 2)], True, False,
    ),
    "what cannot be preempted must be deserved": ([standing("a", 1, 1, 4, firm=1), standing("b", 6, 3, 4)], 1, [("b", 1)], False, False),
    "and may be taken back for when it is": ([standing("a", 0, 1, 4), standing("b", 6, 3, 4)], 1, [("b", 1)], False, True),
    "between departments": (DEPARTMENTS, 2, [("b", 2)], True, True),
    "a department above its share takes nothing": (
        [standing("d1", 4, 4, 4), standing("d2", 6, 4, 4), standing("a", 2, 4, 4, "d1"), standing("b", 6, 4, 4, "d2")], 1, [("b", 1)], True, False,
    ),
    "both departments within what they deserve": (
        [standing("d1", 2, 4, 4), standing("d2", 4, 4, 4), standing("a", 2, 4, 4, "d1"), standing("b", 4, 2, 2, "d2")], 1, [("b", 1)], True, False,
    ),
    "within a department that is full its projects are compared": (
        [standing("d1", 8, 4, 4), standing("a", 2, 4, 4, "d1"), standing("b", 6, 4, 4, "d1")], 1, [("b", 1)], True, True,
    ),
    "a department above its share takes from one that is further above": (
        [standing("d1", 4, 4, 4), standing("d2", 7, 3, 3), standing("a", 0, 1, 1, "d1"), standing("b", 7, 3, 3, "d2")],
        1, [("b", 1)], True, True,
    ),
    "what goes in its own department makes that less full": (
        [standing("d1", 4, 4, 4), standing("d2", 6, 4, 4), standing("a", 0, 2, 2, "d1"), standing("n", 4, 2, 2, "d1"),
         standing("b", 6, 4, 4, "d2")],
        2, [("n", 2), ("b", 1)], True, True,
    ),
    "a department may have no more of what cannot be preempted than it deserves": (
        [standing("d1", 5, 3, 5, firm=3), standing("a", 2, 2, 3, "d1"), standing("b", 3, 2, 2, "d1")], 1, [("b", 1)], False, False,
    ),
    "nor may what cannot be preempted take a queue above its fair share": (
        [standing("a", 4, 2, 4), standing("b", 9, 4, 4)], 1, [("b", 1)], False, False,
    ),
    "no sibling gives to a department that has no share": (
        [standing("d1", 0, 0, 0), standing("d2", 9, 1, 1), standing("a", 0, 1, 1, "d1"), standing("b", 9, 1, 1, "d2")],
        1, [("b", 1)], True, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKES, ids=str)
def test_who_may_take_back(case: str) -> None:
    queues, asked, victims, is_preemptible, expected = TAKES[case]
    by_name = {queue.name: queue for queue in queues}
    gone = [(queue, {"gpu": amount}) for queue, amount in victims]
    assert may_take_back(by_name, "a", {"gpu": asked}, gone, is_preemptible=is_preemptible) is expected


def test_how_full_siblings_are_of_what_nobody_asks_for_or_gives_does_not_count() -> None:
    # 49
    queues = {
        "d1": QueueStanding(name="d1", held={"gpu": 4, "cpu": 3}, fair={"gpu": 4, "cpu": 1}, deserved={"gpu": 4}),
        "d2": QueueStanding(name="d2", held={"gpu": 7, "cpu": 1}, fair={"gpu": 3, "cpu": 1}, deserved={"gpu": 3}),
        "a": standing("a", 1, 1, 2, "d1"),
        "b": standing("b", 7, 3, 3, "d2"),
    }
    assert may_take_back(queues, "a", {"gpu": 1}, [("b", {"gpu": 1})])
    assert not may_take_back(queues, "a", {"gpu": 1}, [("b", {"gpu": 1, "cpu": 1})])


def test_a_queue_gives_back_for_being_above_its_share_of_anything() -> None:
    # 49
    asker = QueueStanding(name="a", deserved={"gpu": 2, "cpu": 2}, fair={"gpu": 2, "cpu": 2})
    giver = QueueStanding(name="b", deserved={"gpu": 2, "cpu": 2}, fair={"gpu": 2, "cpu": 2}, held={"gpu": 1, "cpu": 3})
    assert may_take_back({"a": asker, "b": giver}, "a", {"gpu": 1}, [("b", {"gpu": 1, "cpu": 1})])


def test_who_holds_too_much_of_anything_takes_nothing_back() -> None:
    asker = QueueStanding(name="a", deserved={"gpu": 2}, fair={"gpu": 2}, held={"cpu": 9})
    giver = QueueStanding(name="b", deserved={"gpu": 2, "cpu": 9}, fair={"gpu": 2, "cpu": 9}, held={"gpu": 4, "cpu": 1})
    assert not may_take_back({"a": asker, "b": giver}, "a", {"gpu": 1}, [("b", {"gpu": 1, "cpu": 1})])


def test_nothing_is_taken_back_by_or_from_a_queue_that_nobody_knows() -> None:
    queues = {"a": standing("a", 0, 2, 2), "b": standing("b", 4, 2, 2)}
    assert not may_take_back(queues, "x", {"gpu": 1}, [("b", {"gpu": 1})])
    assert not may_take_back(queues, "a", {"gpu": 1}, [("x", {"gpu": 1})])
