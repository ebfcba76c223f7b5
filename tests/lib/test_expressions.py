"""Expressions of strangers: Go's syntax, Go's words, and no way to make the reader wait."""

import pytest

from hekla.lib.expressions import MOST_CHARACTERS, ExpressionError, expression


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(", "missing closing ): `(`"),
        ("[a", "missing closing ]: `[a`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("*a", "missing argument to repetition operator: `*`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("(?=a)", "invalid or unsupported Perl syntax: `(?=`"),
        ("(a)\\1", "invalid escape sequence: `\\1`"),
        ("[z-a]", "invalid character class range: `z-a`"),
        ("\u00e9(", "missing closing ): `\u00e9(`"),
        ("a" * (MOST_CHARACTERS + 1), f"expression is longer than {MOST_CHARACTERS} characters"),
    ],
)
def test_what_go_does_not_read_is_refused_in_its_words(pattern: str, said: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        expression(pattern)
    assert str(refused.value) == said


def test_an_expression_is_found_anywhere_or_is_the_whole() -> None:
    found = expression("(?i)chat/[a-z]+")
    assert found.search("/v1/Chat/completions") is not None
    assert found.fullmatch("/v1/chat/completions") is None
    assert found.fullmatch("chat/completions") is not None
    assert expression("k\u00f6ln").search("in k\u00f6ln") is not None


@pytest.mark.parametrize("pattern", ["^(a+)+$", "(a|aa)+$", "(.*a){20}$", "(x+x+)+y"])
def test_an_expression_that_would_go_back_for_ever_ends(pattern: str) -> None:
    """Python's engine would not be done before the sun is out; the test's own limit of two minutes judges."""
    for text in ("a" * 50_000 + "b", "x" * 50_000):
        assert expression(pattern).search(text) is None
