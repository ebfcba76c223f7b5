"""Numbers that somebody wrote as plain digits: in annotations, names, percentages."""

MOST_DIGITS = 18
"""What fits 64 bits. Python reads 4,300 and raises beyond, so that a long annotation of anybody's was a mistake of the reader's."""


def whole_number(text: str) -> int | None:
    """The number that ASCII digits say, without a sign; None: it is none, or longer than any that is meant."""
    return int(text) if len(text) <= MOST_DIGITS and text.isascii() and text.isdigit() else None
