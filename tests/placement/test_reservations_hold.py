"""Reservations on generated worlds: what they cost less by changes nothing of what they decide."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.placement import plans as plans_of_a_session
from placement.reservationkit import Life, Plan, plans


@given(plans() | plans(at_the_door=True), st.lists(st.sampled_from([0.5, 1.0, 3.0]), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_that_gangs_alike_are_planned_once_changes_no_decision(plan: Plan, times_as_long: list[float]) -> None:
    one = Life(plan, times_as_long=times_as_long)
    one.run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans_of_a_session, "kind_of", lambda _session, _job: None)
        other = Life(plan, times_as_long=times_as_long)
        other.run()
    assert (one.started, one.told) == (other.started, other.told)
