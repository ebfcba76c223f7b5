"""Decayed use over time: specification quota-gpu 1.11 and 2.7, and what an integral must satisfy."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hekla.quota.decay import ONE, Past, faded

HOUR = 3_600_000_000


@pytest.mark.parametrize(("hours", "factor"), [(0, ONE), (1, ONE // 2), (2, ONE // 4), (60, 1), (61, 0), (-1, ONE)])
def test_whole_half_lives_halve_exactly(hours: int, factor: int) -> None:
    assert faded(hours * HOUR, HOUR) == factor


@given(st.integers(0, 200 * HOUR))
@settings(max_examples=200)
def test_factors_agree_with_what_a_float_says(elapsed: int) -> None:
    assert faded(elapsed, HOUR) / ONE == pytest.approx(2.0 ** -(elapsed / HOUR), rel=1e-8, abs=1e-17)


def test_without_half_life_it_is_a_sum() -> None:
    past = Past(0, {}, {"gpu": 4}).changed(HOUR, 0, {"gpu": 1})
    assert past.until(3 * HOUR, 0) == {"gpu": 6 * HOUR}


def test_what_is_held_for_ever_comes_to_rest_at_half_life_over_ln_2() -> None:
    assert Past(0, {}, {"gpu": 1}).until(100 * HOUR, HOUR)["gpu"] == pytest.approx(HOUR / math.log(2), rel=1e-9)


def test_a_past_of_one_half_life_counts_half() -> None:
    stopped = Past(0, {"gpu": 1000}, {})
    assert stopped.until(HOUR, HOUR) == {"gpu": 500}


def test_a_clock_that_goes_back_changes_nothing() -> None:
    past = Past(5 * HOUR, {"gpu": 1000}, {"gpu": 2})
    assert past.until(4 * HOUR, HOUR) == {"gpu": 1000}


changes = st.lists(st.tuples(st.integers(1, HOUR), st.integers(0, 64)), min_size=1, max_size=8)


@given(changes, st.integers(1, 10 * HOUR))
@settings(max_examples=100)
def test_asking_in_between_changes_nothing(steps: list[tuple[int, int]], half_life: int) -> None:
    one = other = Past()
    now = 0
    for elapsed, held in steps:
        other.until(now + elapsed // 2, half_life)
        other = other.changed(now + elapsed // 2, half_life, other.held)
        now += elapsed
        one, other = (past.changed(now, half_life, {"gpu": held}) for past in (one, other))
    assert one == other


@given(changes, st.integers(1, 10 * HOUR), st.integers(0, HOUR))
@example([(1, 34)], 25_769_803_777, 6)  # one microsecond short of the first step
@settings(max_examples=100)
def test_it_is_what_the_integral_says_and_never_negative(
    steps: list[tuple[int, int]], half_life: int, more: int
) -> None:  # fmt: skip
    past, now, parts = Past(), 0, list[tuple[int, int, int]]()
    held_now = 0
    for elapsed, held in steps:
        parts.append((now, now + elapsed, held_now))
        now += elapsed
        past, held_now = past.changed(now, half_life, {"gpu": held}), held
    parts.append((now, now + more, held_now))
    end, rate = now + more, math.log(2) / half_life
    expected = sum(
        held * (math.exp(-(end - b) * rate) - math.exp(-(end - a) * rate)) / rate for a, b, held in parts if held
    )
    had = past.until(end, half_life).get("gpu", 0)
    assert had >= 0
    resolution_us = half_life / 2**32  # times are told apart in steps of so much
    rounding = sum(100 + held * resolution_us for _, _, held in parts)
    assert had == pytest.approx(expected, rel=1e-5, abs=rounding)
