"""The fit behind the simulator's calibration: it finds what timings were made of, is never negative, and says how far it errs."""

import os

import pytest
from bench.engine_fit import Fit, beside, fitted, left_out, lone, median_error
from bench.neighbours import Neighbours
from bench.own_clock import OwnClock, before_all_others
from bench.serving_engine import BESIDE, LONE, MOST_TAKEN, too_busy
from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.simulation.engine.shape import StepTime

POINTS = [*map(lone, LONE), *(beside(count, length) for count, length in BESIDE)]


def engine(around_s, fixed_s, prefill_s, attention_s, decode_s, context_s):
    step = StepTime(
        fixed_s=fixed_s, prefill_s=prefill_s, decode_s=decode_s, context_s=context_s, attention_s=attention_s, overlap=0.0
    )  # fmt: skip
    return Fit(step, around_s)


def parts(least, most):
    return st.floats(least, most)


ENGINES = st.builds(
    engine, parts(1e-3, 1e-2), parts(1e-3, 3e-2), parts(2e-5, 1e-3), parts(0, 1e-8), parts(1e-5, 4e-3), parts(0, 1e-6)
)


@settings(max_examples=40)
@given(ENGINES)
def test_an_engine_is_found_again_from_its_timings(real):
    timings = {point: real.foretold(point) for point in POINTS}
    found = fitted(timings)
    for name in ("fixed_s", "prefill_s", "decode_s"):
        assert getattr(found.step, name) == pytest.approx(getattr(real.step, name), rel=1e-3)
    assert median_error(left_out(timings)) < 1e-3


@settings(max_examples=20)
@given(ENGINES, st.lists(st.floats(0.7, 1.4), min_size=len(POINTS), max_size=len(POINTS)))
def test_noise_makes_no_part_negative_and_shows_in_the_error(real, noise):
    timings = {point: real.foretold(point) * factor for point, factor in zip(POINTS, noise, strict=True)}
    found, one = fitted(timings), fitted(timings).step
    assert min(found.around_s, one.fixed_s, one.prefill_s, one.attention_s, one.decode_s, one.context_s) >= 0
    errors = left_out(timings)
    assert set(errors) == set(timings)
    if max(noise) - min(noise) < 1e-9:
        assert median_error(errors) < 1e-3


def test_one_wrong_timing_stands_out():
    real = engine(2e-3, 5e-3, 5e-5, 1e-9, 2e-4, 1e-8)
    timings = {point: real.foretold(point) for point in POINTS}
    timings[POINTS[3]] *= 3
    errors = left_out(timings)
    assert min(errors, key=errors.__getitem__) is POINTS[3]


def test_a_busy_machine_is_told_so():
    said = too_busy([0.5, 0.4, MOST_TAKEN / 2], 4)
    assert said.startswith("no fit: others took 40 % of the processors (median of 3 rounds), and 1 rounds of the 4")


def test_what_others_take_is_a_share():
    watch = Neighbours(lambda: [1 << 30])  # a process that is gone harms nothing
    assert 0.0 <= watch.share() <= 1.5, "processors' clocks are read one after the other"


def test_a_client_that_waits_for_a_processor_is_told_of(monkeypatch):
    told = iter((1.0, 1.5))
    monkeypatch.setattr("bench.own_clock._waited_s", lambda: next(told))
    monkeypatch.setattr("bench.own_clock.time.perf_counter", iter((10.0, 12.0)).__next__)
    assert OwnClock().waited() == pytest.approx(0.25)


def test_who_goes_first_for_a_while_is_as_before_afterwards():
    before = os.sched_getscheduler(0)
    with before_all_others() as is_first:
        first = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
        assert (first == os.SCHED_FIFO) == is_first
    assert os.sched_getscheduler(0) == before
