"""What somebody meant who asked for a model that no route takes: the refusal names the model whose name is most alike.

Clients make up the names they ask for, and a comparison takes some 30 µs: few names are compared, and rarely. A flood of made-up
names is answered without.
"""

import difflib
from collections.abc import Iterable
from itertools import islice

MOST_COMPARED = 64
"""Names that are compared with one that was asked for: the first of about its length."""
LONGER = 6
"""By how many characters a name may be longer or shorter."""
PAUSE_S = 0.01
"""Between two comparisons; whoever asks meanwhile is told nothing."""


class Hints:
    """The hints of one desk."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def about(self, name: str, names: Iterable[str], now: float) -> str:
        """`; did you mean "llama"?`, or nothing."""
        if now < self._next_at:
            return ""
        self._next_at = now + PAUSE_S
        near = nearest(name, names)
        return f'; did you mean "{near}"?' if near else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """The name most like another one; empty if none is. A model may be asked for without its owner, and in any case."""
    whole, bare = name.lower(), _bare(name)
    alike, near = [], []
    for one in names:
        if one.lower() == whole or _bare(one) == bare:
            alike.append(one)
        elif abs(len(one) - len(name)) <= LONGER:
            near.append(one)
    if alike:
        return min(alike)
    by_word = {one.lower(): one for one in islice(near, MOST_COMPARED)}
    found = difflib.get_close_matches(whole, by_word, n=1)
    return by_word[found[0]] if found else ""


def _bare(name: str) -> str:
    """Without the owner before it, in lower case."""
    return name.rpartition("/")[2].lower()
