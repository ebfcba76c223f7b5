"""Keeps out of the log what may be a secret that a client wrote where a name belongs: a key as a template, a token in a path.

A sentence that refuses repeats what was asked, for who asked; the log is read by others. Ids of sessions stay: the log is searched for them.
"""

import re
from typing import Final

SHOWN: Final = 4
"""Characters of it that stay, to tell one from another."""
_WORD = re.compile(r"eyJ[\w.-]{8,}|[A-Za-z0-9]{20,}")
"""Tokens have dots and dashes in them, names too: those only behind what every token begins with."""
_SESSION = re.compile(r"[a-z2-7]{26}")


def unsaid(text: str) -> str:
    """The same, but for the most of long words of letters and digits that are no session's id: `e2b_b819...`."""
    return _WORD.sub(_shortened, text)


def _shortened(found: re.Match[str]) -> str:
    word = found[0]
    if (word.isalpha() and (word.islower() or word.isupper())) or _SESSION.fullmatch(word):
        return word
    return f"{word[:SHOWN]}..."
