"""Let in a little more than fits, so that the next jobs are ready to start when others end.

a job may enter while  entered + its minimum <= total * factor - in use - kept   for each resource it asks for

What is kept is the part of the idle room that a reservation keeps for others, as far as this job has to heed it: who is
gone before the reserved job starts enters as if it were not there (`placement/reservations/book.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from hekla.placement.amounts import told
from hekla.placement.framework import Opinion, Vote, plugin
from hekla.placement.model import Job
from hekla.placement.registry import as_float
from hekla.placement.session import Session

DEFAULT_FACTOR = 1.2


@plugin
@dataclass(frozen=True, kw_only=True)
class Overcommit:
    """Bounds how much waits inside."""

    judges_entry_alike = True
    """Asked by `enqueue`: jobs of one queue that ask for the same minimum hear the same."""

    minds_room = True
    """Asked by `enqueue`: it rejects for want of room, which others may have to give up."""

    factor: float = DEFAULT_FACTOR
    """How much of the cluster may be spoken for; below 1 means 1.2."""

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """A reject names the resources that are spoken for."""
        wanted = sorted((job.spec.min_resources or {}).items())
        kept = session.kept_from(job)
        lacking = [no for name, amount in wanted if (no := self._lack(session, name, amount, kept.get(name, 0)))]
        if not lacking:
            return Opinion(Vote.PERMIT)
        return Opinion(Vote.REJECT, f"resource in cluster is overused: {', '.join(lacking)}")

    def _lack(self, session: Session, name: str, asked: int, kept: int) -> str:
        """What is lacking of a resource, in words; "" if nothing."""
        nodes = session.cluster.nodes
        total, taken = nodes.total(name), nodes.total_used(name) + session.entered.of(name) + kept
        # In thousandths, so that the bound is exact: a float would lose bytes of a large cluster's memory.
        if taken + asked <= total * round(self.factor * 1000) // 1000:
            return ""
        figures = f"{told(name, asked)} asked, {told(name, taken)} of {told(name, total)} taken"
        figures += f", {told(name, kept)} of it kept for others" if kept else ""
        return f"insufficient {name} ({figures}, overcommit {self.factor:g})"

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `overcommit-factor`."""
        factor = as_float("overcommit-factor", arguments.get("overcommit-factor", DEFAULT_FACTOR))
        return cls(factor=factor if factor >= 1 else DEFAULT_FACTOR)
