from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.lib.schedule import MANY, ScheduleError, check, due

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MOMENTS = st.integers(0, 2 * 365 * 24 * 3600).map(lambda later_s: NOON + timedelta(seconds=later_s))


def at_noon(schedule, ago, zone=UTC):
    return due(schedule, zone, since=NOON - ago, now=NOON)


def test_the_latest_time_that_was_missed_is_due():
    asked = at_noon("*/15 * * * *", timedelta(minutes=40))
    assert (asked.at, asked.following, asked.missed) == (NOON, NOON + timedelta(minutes=15), 3)


def test_nothing_is_due_twice():
    assert at_noon("0 * * * *", timedelta(0)).at is None


def test_missed_times_are_counted_to_a_hundred_and_one():
    assert at_noon("* * * * *", timedelta(days=30)).missed == MANY + 1


def test_intervals_count_from_what_was_served_last():
    asked = at_noon("@every 1h30m", timedelta(hours=4))
    assert (asked.at, asked.missed) == (NOON - timedelta(hours=1), 2)
    assert asked.following == NOON + timedelta(minutes=30)
    assert at_noon("@every 1h", timedelta(minutes=59)).at is None


def test_a_schedule_is_read_in_its_zone_over_the_change_to_summer_time():
    berlin = ZoneInfo("Europe/Berlin")
    for day, hour in ((28, 6), (29, 5)):  # summer time began on 29 March 2026
        now = datetime(2026, 3, day, hour, 0, 30, tzinfo=UTC)
        asked = due("0 7 * * *", berlin, since=now - timedelta(hours=12), now=now)
        assert asked.at == datetime(2026, 3, day, hour, tzinfo=UTC)


@pytest.mark.parametrize(
    "schedule", ["", "* * * *", "61 * * * *", "@sometimes", "@every soon", "@every 0s", "0 0 30 2 *"]
)
def test_what_cannot_be_read_is_refused(schedule):
    with pytest.raises(ScheduleError):
        due(schedule, UTC, since=NOON, now=NOON)


@given(st.sampled_from(["* * * * *", "0 3 * * 1", "@hourly", "30 2 * * *", "@every 7m"]), MOMENTS, MOMENTS)
def test_the_next_time_lies_ahead_and_the_due_one_behind(schedule, since, now):
    check(schedule)
    asked = due(schedule, ZoneInfo("Europe/Berlin"), since=min(since, now), now=now)
    assert asked.following > now
    assert asked.at is None or min(since, now) < asked.at <= now
    assert (asked.at is None) == (asked.missed == 0)
