"""Digits that somebody wrote are a number, or they are not; they never raise."""

import pytest

from hekla.lib.digits import whole_number


@pytest.mark.parametrize(("text", "wanted"), [("0", 0), ("007", 7), ("9" * 18, 10**18 - 1)])
def test_digits_are_a_number(text: str, wanted: int) -> None:
    assert whole_number(text) == wanted


@pytest.mark.parametrize("text", ["", "-1", "+1", " 1", "1.0", "\u0663", "\u00b2", "9" * 19, "9" * 5000])
def test_what_is_none_is_none(text: str) -> None:
    assert whole_number(text) is None
