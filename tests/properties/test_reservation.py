"""While estimates hold, whoever is let in beside a reservation never makes its job start later than it was told first."""

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from placement.reservations.reservationkit import Life, Plan, fits, plans

QUEUE_AT_ITS_SHARE = Plan((2, 6), ((0, 1, 1, 1), (0, 3, 2, 3), (2, 1, 2, 3), (3, 1, 1, 1)), is_outside=True, most=6)
"""Room was kept for one cycle for a job at the door whose queue holds all that it deserves, and then for one behind it."""


@given(plans() | plans(at_the_door=True))
@example(QUEUE_AT_ITS_SHARE)
@settings(max_examples=40, deadline=None)
def test_nobody_who_is_let_in_delays_a_reservation(plan: Plan) -> None:
    life = Life(plan)
    life.run()
    for uid, start in life.told.items():
        assert life.started[uid] <= start, f"{uid} was to start at {start} and started at {life.started[uid]}"


@given(plans() | plans(at_the_door=True))
@settings(max_examples=30, deadline=None)
def test_whatever_fits_the_empty_cluster_starts_some_day(plan: Plan) -> None:
    fitting = [number for number in range(len(plan.jobs)) if fits(plan, number)]
    # Who is in and can never start keeps others out where what is in counts: that is overcommit, in all schedulers.
    assume(not plan.is_outside or len(fitting) == len(plan.jobs))
    life = Life(plan)
    life.run()
    assert {f"j{number}" for number in fitting} <= life.started.keys()


@given(plans() | plans(at_the_door=True))
@settings(max_examples=20, deadline=None)
def test_the_same_story_is_told_twice_alike(plan: Plan) -> None:
    one, other = Life(plan), Life(plan)
    one.run()
    other.run()
    assert (one.started, one.told) == (other.started, other.told)


@given(plans() | plans(at_the_door=True))
@settings(max_examples=20, deadline=None)
def test_in_which_order_things_became_known_makes_no_difference(plan: Plan) -> None:
    one, other = Life(plan), Life(plan, backwards=True)
    one.run()
    other.run()
    assert (one.started, one.told) == (other.started, other.told)


LOST_TO_ITS_OWN_SHARE = Plan(
    (2, 2, 4, 4), ((0, 1, 5, 1), (0, 2, 2, 3), (0, 1, 1, 1), (0, 1, 1, 1), (0, 1, 2, 2), (4, 1, 2, 3), (0, 1, 2, 2)),
    is_outside=True, most=11,
)  # fmt: skip
"""Room that had been told of was given up since the queue had its share, though no other queue waited for any."""


@given(plans() | plans(at_the_door=True), st.lists(st.sampled_from([0.1, 1.0, 3.0, 20.0]), min_size=1, max_size=4))
@example(LOST_TO_ITS_OWN_SHARE, [3.0])
@settings(max_examples=60, deadline=None)
def test_a_reservation_is_late_by_no_more_than_who_was_there_when_it_was_to_start(
    plan: Plan, times_as_long: list[float]
) -> None:
    life = Life(plan, times_as_long=times_as_long)
    life.run()
    for uid, told in life.told.items():
        there = (life.end_of(other) for other, started in life.started.items() if started < told)
        assert life.started[uid] <= max(told, *there), f"{uid} was to start at {told}"


@given(plans(), st.lists(st.sampled_from([0.1, 0.5, 1.0, 3.0, 20.0]), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_however_wrong_estimates_are_whatever_fits_starts_and_no_room_is_kept_in_the_end(
    plan: Plan, times_as_long: list[float]
) -> None:
    life = Life(plan, times_as_long=times_as_long)
    life.run()
    assert {f"j{number}" for number in range(len(plan.jobs)) if fits(plan, number)} <= life.started.keys()
    assert life.world.cluster.reservations == {}
