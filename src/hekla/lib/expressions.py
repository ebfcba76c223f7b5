"""Regular expressions that somebody else wrote, matched in time that grows with the text alone: RE2, whose syntax is Go's.

Python's own engine goes back and tries again, so that the author of one route could stop a router with `(a+)+$` and a header
of forty letters. RE2 knows neither look-around nor back-references, and says so when the expression is written.
"""

from functools import lru_cache
from typing import Final, Protocol, cast

import re2

MOST_CHARACTERS: Final = 4096
"""A longer expression is refused: compiling takes memory, up to RE2's own bound of 8 MB."""

_GO_SAYS: Final = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "trailing \\": "trailing backslash at end of expression",
    "no argument for repetition operator": "missing argument to repetition operator",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


class ExpressionError(Exception):
    """An expression that cannot be read, in the words of Go's `regexp`."""


class Expression(Protocol):
    """One that was read."""

    def search(self, text: str) -> object | None:
        """Something where it is found in the text; None: nowhere."""

    def fullmatch(self, text: str) -> object | None:
        """Something where it is the whole text."""


@lru_cache(maxsize=4096)
def expression(pattern: str) -> Expression:
    """Read one; raises ExpressionError."""
    if len(pattern) > MOST_CHARACTERS:
        raise ExpressionError(f"expression is longer than {MOST_CHARACTERS} characters")
    options = re2.Options()
    options.log_errors = False
    try:
        return cast(Expression, re2.compile(pattern, options))
    except re2.error as error:
        raise ExpressionError(_sentence(error.args[0])) from None


def _sentence(said: bytes) -> str:
    """RE2's words, `what: where`, as Go has them."""
    what, _, where = said.decode(errors="replace").partition(": ")
    return f"{_GO_SAYS.get(what, what)}: `{where}`"
