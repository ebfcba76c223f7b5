"""Large jobs do not starve: room is reserved for those that do not fit, and filled by who is gone before it is needed.

    depth 1     only the job that needs most has a reservation: as much is filled as can be (EASY backfill)
    depth n     so do the next ones: who waits knows when it starts, and less is filled (conservative backfill)

How long jobs run is what they say (`hekla.dev/running-estimate`, or `runningEstimate` of a Volcano Job), else what the
plug-in is told; a job of which nobody knows ends never, so it fills nothing and makes room for nobody. The rules stand in
`placement/reservations/book.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hekla.placement.framework import plugin
from hekla.placement.model import Job
from hekla.placement.registry import as_seconds_from_0, as_whole
from hekla.placement.reservations.book import Book, Terms
from hekla.placement.session import Session

MOST_RESERVATIONS = 64


@plugin
@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Keeps room for jobs that wait for much of it."""

    depth: int = 1
    """For how many jobs at a time."""

    after_s: float = 0.0
    """How long a job must have waited before anything is reserved for it."""

    estimate_s: float | None = None
    """How long jobs run that do not say so; None: nobody knows."""

    keeps_reservations: bool = True
    """Asked by `allocate`: whether there is a book to look into."""

    def open(self, session: Session) -> Book:
        """The book as it stands."""
        return Book(session, Terms(depth=self.depth, after_s=self.after_s, estimate_s=self.estimate_s))

    def keeps_room(self, session: Session, job: Job) -> bool:
        """Whether a job that nothing but want of room keeps out may enter, since its room is kept."""
        return session.opened(self).lets_in(job)

    def kept_from(self, session: Session, job: Job) -> Mapping[str, int]:
        """How much of what is idle is kept for others, as far as a job has to heed it."""
        book = session.opened(self)
        return book.kept_idle(heeded) if (heeded := book.heeded(job)) else {}

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From `depth`, a number, and `after` and `defaultEstimate`, durations like `10m`."""
        after, estimate = arguments.get("after"), arguments.get("defaultEstimate")
        return cls(
            depth=as_whole("depth", arguments.get("depth", 1), low=1, high=MOST_RESERVATIONS),
            after_s=0.0 if after is None else as_seconds_from_0("after", after),
            estimate_s=None if estimate is None else as_seconds_from_0("defaultEstimate", estimate),
        )
