"""Lists page by page: a token names the last row that was shown, so that rows that come and go meanwhile shift nothing."""

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import TypeVar

from hekla.sandbox.sessions.limits import RefusedError

Row = TypeVar("Row")


def page_of(rows: Sequence[Row], token: str, limit: int, *, key: Callable[[Row], str]) -> tuple[list[Row], str]:
    """The rows after a token, and the token of the next page; empty: there is none."""
    start = 0
    if token:
        after, place = _read(token)
        keys = [key(row) for row in rows]
        # where the row is gone, the place it had is as good
        start = keys.index(after) + 1 if after in keys else min(place, len(rows))
    shown = list(rows[start : start + limit])
    if start + limit >= len(rows) or not shown:
        return shown, ""
    return shown, base64.urlsafe_b64encode(f"{start + limit}:{key(shown[-1])}".encode()).decode().rstrip("=")


def _read(token: str) -> tuple[str, int]:
    try:
        place, colon, after = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode().partition(":")
        if colon and place.isdigit():
            return after, int(place)
    except (binascii.Error, UnicodeDecodeError, ValueError):
        pass
    raise RefusedError(400, "token", "the token of the page is none that was given out")
