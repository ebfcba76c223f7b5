"""Cron schedules: when something is due, and when next. Five fields, `@daily` and its like, or `@every 90s`.

Kubernetes' CronJob and Volcano's stand on it. A schedule is read in a time zone; times go in and out as UTC.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from croniter import CroniterError, croniter

from hekla.lib.go_duration import DurationError, parse_duration

EVERY = "@every "
WORDS = frozenset({"@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"})
MANY = 100
"""Missed times are counted up to here: who slept for a year need not know how often he was missed."""


class ScheduleError(ValueError):
    """A schedule that cannot be read; the text says why."""


@dataclass(frozen=True)
class Due:
    """What a schedule asks for at a moment."""

    at: datetime | None
    """The latest time that has passed since it was last looked at; None if there is none."""

    following: datetime
    """The next time."""

    missed: int
    """How many times have passed; one more than `MANY` for any greater number."""


def due(schedule: str, zone: tzinfo, *, since: datetime, now: datetime) -> Due:
    """What is due at `now` of the times after `since`. Raises ScheduleError.

    `@every` counts from `since`, so whoever asks gives the time that was last served.
    """
    if schedule.startswith(EVERY):
        return _due_by_interval(_interval(schedule), since, now)
    check(schedule)
    try:
        following: datetime = croniter(schedule, now.astimezone(zone)).get_next(datetime)
        previous: datetime = croniter(schedule, following).get_prev(datetime)
    except CroniterError as error:  # a schedule without any time, such as the 30th of February
        raise ScheduleError(str(error)) from None
    if not since < previous <= now:
        return Due(None, following.astimezone(UTC), 0)
    missed = 0
    for time in _times_after(schedule, since.astimezone(zone)):
        if time > now or missed > MANY:
            break
        missed += 1
    return Due(previous.astimezone(UTC), following.astimezone(UTC), missed)


def check(schedule: str) -> None:
    """Raise ScheduleError if a schedule cannot be read."""
    if schedule.startswith(EVERY):
        _interval(schedule)
    elif schedule.startswith("@"):
        if schedule not in WORDS:
            raise ScheduleError(f"unrecognized descriptor: {schedule}")
    elif len(schedule.split()) != 5:
        raise ScheduleError(f"expected exactly 5 fields, found {len(schedule.split())}: {schedule}")
    elif not croniter.is_valid(schedule):
        raise ScheduleError(f"a field is out of its range or not readable: {schedule}")


def _interval(schedule: str) -> timedelta:
    text = schedule.removeprefix(EVERY).strip()
    try:
        every = parse_duration(text)
    except DurationError as error:
        raise ScheduleError(f"failed to parse duration {schedule}: {error}") from None
    if every < timedelta(seconds=1):
        raise ScheduleError(f"{schedule}: the interval must be at least a second")
    return timedelta(seconds=int(every.total_seconds()))


def _due_by_interval(every: timedelta, since: datetime, now: datetime) -> Due:
    passed = max(0, (now - since) // every)
    at = since + passed * every
    return Due(at.astimezone(UTC) if passed else None, (at + every).astimezone(UTC), min(passed, MANY + 1))


def _times_after(schedule: str, since: datetime) -> Iterator[datetime]:
    times = croniter(schedule, since)
    while True:
        yield times.get_next(datetime)
