"""Names of headers as text: peers send the same few hundred over and over, so those are decoded once.

`requests.py` reads the names that clients send, `client_connection.py` those that servers answer with.
"""

from typing import Final

KNOWN: dict[bytes, str] = {}
"""Names by the bytes they came in. Look here first: a call for every header costs more than the look."""

_MOST_KNOWN: Final = 1024  # beyond it, and for names that are long, names are decoded anew each time
_LONGEST_KNOWN: Final = 64


def header_name(raw: bytes) -> str:
    """A name in lower case, remembered if there is room."""
    name = raw.decode("latin-1").lower()
    if len(KNOWN) < _MOST_KNOWN and len(raw) <= _LONGEST_KNOWN:
        KNOWN[raw] = name
    return name
