"""What a quota answers when it says no: a code for programs and a sentence for people.

Codes start in lower case: they are more precise than the reason in a PodGroup's condition, which stays Volcano's.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from hekla.quota.amounts import Amounts, bounded, told

OVER_LIMIT = "overLimit"
"""The queue, or one above it, would hold more than its limit, or touch what is kept for others."""

OVER_SHARE = "overShare"
"""The queue would hold more than its share while others ask for theirs."""

NOT_A_LEAF = "notALeaf"
"""The queue has queues below it: jobs belong into those."""

BROKEN_TREE = "brokenTree"
"""The queue is part of a ring, or a queue above it does not exist."""

CLOSED = "queueClosed"
"""The queue takes no work."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a queue may not have something."""

    code: str
    sentence: str


def insufficient(code: str, queue: str, asked: Amounts, taken: Amounts, bound: Amounts) -> Denial | None:
    """A denial that names each resource of which `taken` and `asked` exceed the bound, in Volcano's words; None if none does."""
    lacking = [
        name for name, amount in sorted(bounded(asked)) if name in bound and taken.get(name, 0) + amount > bound[name]
    ]
    if not lacking:
        return None
    figures = (f"insufficient {name}{_figures(name, queue, asked, taken, bound)}" for name in lacking)
    return Denial(code, f"queue resource quota insufficient: {', '.join(figures)}")


def _figures(name: str, queue: str, asked: Amounts, taken: Amounts, bound: Amounts) -> str:
    held, most = told(name, taken.get(name, 0)), told(name, bound[name])
    return f' ({told(name, asked[name])} asked, {held} of {most} taken in queue "{queue}")'


def joined(denials: Iterable[Denial | None]) -> Denial | None:
    """The first denial, if any."""
    return next((denial for denial in denials if denial is not None), None)
