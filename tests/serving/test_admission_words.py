"""Whether durations and percentages read and print as Go's do."""

import pytest

from hekla.serving.admission_words import check_int_or_percent, check_period, denial, go_duration, scaled, unscalable


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (1860, "31m0s"), (3600, "1h0m0s"), (1.5, "1.5s"), (0.25, "250ms"), (-1, "-1s"), (90, "1m30s")],
)
def test_durations_print_as_gos(seconds: float, shown: str) -> None:
    assert go_duration(seconds) == shown


def test_percentages_round_as_they_are_asked_to() -> None:
    assert (scaled("30%", 4), scaled("30%", 4, rounds_up=True), scaled(3, 4), scaled("x", 4)) == (1, 2, 3, None)
    assert unscalable("x").endswith("string is not a percentage")
    assert unscalable("x%").endswith('strconv.Atoi: parsing "x": invalid syntax')


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (-1, "Invalid value: -1: must be a non-negative integer"),
        ("5", "a valid percent string must be a numeric string followed by an ending '%'"),
        ("101%", 'Invalid value: "101%": must be a valid percent value (0-100)'),
        (f"{'9' * 5000}%", "must be a valid percent value (0-100)"),
    ],
)
def test_what_is_neither_a_count_nor_a_percentage_is_refused(value: int | str, said: str) -> None:
    (error,) = check_int_or_percent("f", value)
    assert said in error.message


def test_periods_are_half_an_hour_at_most() -> None:
    assert check_period("f", "30m", "too long") == []
    assert check_period("f", None, "too long") == []
    (error,) = check_period("f", "31m", "too long")
    assert (error.field, error.message) == ("f", "Invalid value: 31m0s: too long")
    assert "write it like" in check_period("f", "soon", "too long")[0].message


def test_a_denial_lists_all_that_is_wrong() -> None:
    errors = [*check_int_or_percent("a", -1), *check_int_or_percent("b", -2)]
    first, second = "  - a: Invalid value: -1: must be a non-negative integer", "  - b: Invalid value: -2: must be"
    assert denial(errors).startswith(f"validation failed:\n{first}\n{second}")
    assert denial(errors, joint="").startswith(f"validation failed: {first}{second}")
    assert denial([]) == ""
