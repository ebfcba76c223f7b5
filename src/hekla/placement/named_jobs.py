"""Sentences that name jobs, for readers who may not know the jobs of all namespaces: to them the others are not named.

    n1 is reserved for ml/big, which is to start in 12 min
    n1 is reserved for a job of another namespace, which is to start in 12 min

Whoever decides does not know who reads, so it keeps the names apart from the words around them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

ANOTHER_JOB = "a job of another namespace"


@dataclass(frozen=True, slots=True)
class NamedJob:
    """A job's name within a sentence: `ml/big`."""

    told: str
    quote: str = ""
    """What stands around the name, if it may be read."""

    def told_to(self, may_see: Callable[[str], bool]) -> str:
        """The name, if the reader may see what is in its namespace."""
        return f"{self.quote}{self.told}{self.quote}" if may_see(self.told.partition("/")[0]) else ANOTHER_JOB


Telling = tuple[str | NamedJob, ...]
"""A sentence, in pieces."""


def told_to(telling: Telling, may_see: Callable[[str], bool]) -> str:
    """The sentence, for somebody who may see what is in these namespaces."""
    return "".join(piece if isinstance(piece, str) else piece.told_to(may_see) for piece in telling)


def joined(separator: str, tellings: Sequence[Telling]) -> Telling:
    """Sentences one after the other."""
    pieces: Iterable[Telling] = ((separator, *one) for one in tellings)
    return tuple(piece for one in pieces for piece in one)[1:]
