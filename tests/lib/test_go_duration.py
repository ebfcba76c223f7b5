from datetime import timedelta

import pytest

from hekla.lib.go_duration import DurationError, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("1h30m", 5400), ("250ms", 0.25), ("-1.5s", -1.5), ("0", 0), ("1h0m0.5s", 3600.5), ("+2m", 120)],
)
def test_go_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "5", "1d", "1h 30m", "s", "1.5.2s", "nan", "inf", "1e400", "１h"])
def test_what_go_does_not_read_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(DurationError, match='is not a duration; write it like "90s", "1h30m" or "250ms"'):
        parse_duration(text)


@pytest.mark.parametrize("text", ["9" * 18 + "h", "9" * 190 + "h", "-" + "9" * 18 + "h", "2562048h"])
def test_what_is_longer_than_any_duration_of_go_is_refused(text: str) -> None:
    with pytest.raises(DurationError, match="is longer than any duration, which is 292 years"):
        parse_duration(text)


def test_a_text_of_many_digits_is_not_looked_into() -> None:
    with pytest.raises(DurationError, match=r'^"1{60}..." is not a duration: it has 250000 characters$'):
        parse_duration("1" * 250_000)
