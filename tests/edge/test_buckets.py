"""Token buckets: what passes in any time never exceeds the burst and what flowed in, debts included."""

import math

from hypothesis import given
from hypothesis import strategies as st

from hekla.edge.buckets import Bucket


def test_a_bucket_is_full_at_first_and_refills_with_time():
    bucket = Bucket(amount=10, period_s=1.0, now=0.0)
    assert bucket.take(10, 0.0)
    assert not bucket.take(1, 0.0)
    assert bucket.take(5, 0.5)
    assert not bucket.take(1, 0.5)


def test_what_is_settled_afterwards_leaves_a_debt():
    bucket = Bucket(amount=10, period_s=1.0, now=0.0)
    bucket.settle(25, 0.0)
    assert not bucket.take(1, 1.0)
    assert bucket.wait_s(1, 1.0) == 0.6
    assert bucket.take(1, 1.6)


def test_more_than_the_bucket_holds_never_passes():
    assert Bucket(amount=10, period_s=60.0, now=0.0).wait_s(11, 0.0) == math.inf


def test_a_clock_that_goes_back_gives_nothing():
    bucket = Bucket(amount=10, period_s=1.0, now=5.0)
    bucket.take(10, 5.0)
    assert not bucket.take(1, 4.0)
    assert bucket.take(1, 5.2)


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(0, 30), st.booleans()), max_size=60))
def test_never_more_passes_than_the_burst_and_what_flowed_in(steps):
    bucket, now, passed, forced = Bucket(amount=20, period_s=2.0, now=0.0), 0.0, 0, 0
    for pause, units, is_settled in steps:
        now += pause
        if is_settled:
            bucket.settle(units, now)
            forced += units
        elif bucket.take(units, now):
            passed += units
            assert passed + forced <= 20 + now * 10 + 1e-6
