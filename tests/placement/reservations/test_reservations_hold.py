"""Reservations on generated worlds: off they are not there at all, and what they cost less by changes nothing of what they
decide. (`tests/properties/test_reservation.py` has what they promise.)
"""  # fmt: skip

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement.model import Job
from hekla.placement.reservations import book, planning_budget
from hekla.placement.reservations.eventual_fit import InTheEnd
from hekla.placement.reservations.expected_ends import Ends
from hekla.placement.reservations.forecast import expected_start, tried_on_a_copy
from hekla.placement.reservations.forecast_equal_pods import End, KeptForJob
from hekla.placement.session import Session
from placement.reservations.reservationkit import Life, Plan, fits, plans

ANY = plans() | plans(at_the_door=True)
BOUNDS = ("MOST_PLANS", "FROM_THE_START", "AGAIN_FIRST")
FACTORS = st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=3)


@given(ANY, FACTORS)
@settings(max_examples=60, deadline=None)
def test_off_nothing_is_decided_by_estimates_and_nobody_opens_a_book(plan: Plan, times_as_long: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(book.Book, "__init__", lambda *_: pytest.fail("somebody keeps room though nobody asked"))
        said = Life(plan, times_as_long=times_as_long, reserves=False)
        said.run()
        unsaid = Life(plan, times_as_long=times_as_long, reserves=False, says_how_long=False)
        unsaid.run()
    assert said.binds == unsaid.binds
    assert said.told == {}


@given(ANY, FACTORS)
@settings(max_examples=60, deadline=None)
def test_where_nobody_says_how_long_pods_run_it_is_as_if_it_were_off(plan: Plan, times_as_long: list[float]) -> None:
    on = Life(plan, times_as_long=times_as_long, says_how_long=False)
    on.run()
    off = Life(plan, times_as_long=times_as_long, says_how_long=False, reserves=False)
    off.run()
    assert on.binds == off.binds


@given(ANY, FACTORS)
@settings(max_examples=60, deadline=None)
def test_that_gangs_alike_are_planned_once_changes_no_decision(plan: Plan, times_as_long: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for bound in BOUNDS:
            patch.setattr(book, bound, 1000)
        one = Life(plan, times_as_long=times_as_long)
        one.run()
        patch.setattr(planning_budget, "kind_of", lambda _session, _job: None)
        other = Life(plan, times_as_long=times_as_long)
        other.run()
    assert (one.binds, one.told) == (other.binds, other.told)


@given(ANY, FACTORS)
@settings(max_examples=60, deadline=None)
def test_however_few_plans_a_cycle_makes_what_was_told_holds_and_whatever_fits_starts(
    plan: Plan, times_as_long: list[float]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for bound in BOUNDS:
            patch.setattr(book, bound, 1)
        true, wrong = Life(plan), Life(plan, times_as_long=times_as_long)
        true.run()
        wrong.run()
    for uid, start in true.told.items():
        assert true.started[uid] <= start
    if not plan.is_outside or all(fits(plan, number) for number in range(len(plan.jobs))):
        assert {f"j{number}" for number in range(len(plan.jobs)) if fits(plan, number)} <= wrong.started.keys()
    assert not plan.is_outside or wrong.world.cluster.reservations == {}


@given(ANY, FACTORS)
@settings(max_examples=60, deadline=None)
def test_where_a_look_says_that_there_will_be_no_room_there_is_no_plan(plan: Plan, times_as_long: list[float]) -> None:
    look, init = InTheEnd.may_fit, InTheEnd.__init__
    asked: dict[int, tuple[Session, Sequence[End], Sequence[KeptForJob]]] = {}

    def made(room: InTheEnd, session: Session, ends: Sequence[End], others: Sequence[KeptForJob]) -> None:
        asked[id(room)] = session, ends, others
        init(room, session, ends, others)

    def checked(room: InTheEnd, job: Job) -> bool:
        session, ends, others = asked[id(room)]
        may_fit = look(room, job)
        assert may_fit or expected_start(session, job, ends, others) is None
        assert may_fit or tried_on_a_copy(session, job, ends, others) is None
        return may_fit

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InTheEnd, "__init__", made)
        patch.setattr(InTheEnd, "may_fit", checked)
        Life(plan, times_as_long=times_as_long).run()


@given(ANY, FACTORS)
@settings(max_examples=30, deadline=None)
def test_expected_ends_that_are_kept_in_order_are_those_that_would_be_found_anew(
    plan: Plan, times_as_long: list[float]
) -> None:
    note = Ends.note

    def noted(ends: Ends, job: Job) -> None:
        note(ends, job)
        assert ends.in_order == Ends(**of_whom[id(ends)]).in_order

    of_whom: dict[int, dict[str, Any]] = {}
    init = Ends.__init__

    def made(ends: Ends, session: Session, default_s: float | None) -> None:
        of_whom[id(ends)] = {"session": session, "default_s": default_s}
        init(ends, session, default_s)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ends, "__init__", made)
        patch.setattr(Ends, "note", noted)
        Life(plan, times_as_long=times_as_long).run()
