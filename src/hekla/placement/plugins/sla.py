"""Nobody waits for ever: a job that has waited as long as it was promised to wait at most is let in.

    goes first       the smaller  created + waiting time;  jobs without one come last
    may be promised  room that is being freed, once it has waited so long
    may enter        once it has waited so long, whatever plug-ins of later tiers say; until then sla has no opinion

The waiting time is the job's own (annotation `sla-waiting-time`), else the plug-in's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Self

from hekla.placement.framework import Key, Opinion, Vote, plugin
from hekla.placement.model import Job
from hekla.placement.registry import as_seconds_above_0
from hekla.placement.session import Session


@plugin
@dataclass(frozen=True, kw_only=True)
class Sla:
    """Lets jobs in that have waited long enough."""

    waiting_s: float = inf
    """How long a job without a waiting time of its own waits at most."""

    orders_waiting_by = ("created", "patience_s")
    """Asked by `queueing/kept_lines.py`: these fields decide the key of a lone job that waits."""

    def job_key(self, session: Session, job: Job) -> Key:
        """When the job should be in."""
        return (self._due(job),)

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """Permits once the time has come, and has the session look again then."""
        due = self._due(job)
        if session.wall_s >= due:
            return Opinion(Vote.PERMIT)
        session.look_again(due)
        return Opinion(Vote.ABSTAIN)

    def is_pipelined(self, session: Session, job: Job) -> Opinion:
        """Permits promises once the job has waited long enough, whatever plug-ins of later tiers say."""
        return Opinion(Vote.PERMIT if session.wall_s >= self._due(job) else Vote.ABSTAIN)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `sla-waiting-time`, a duration like `1h30m`."""
        text = arguments.get("sla-waiting-time")
        return cls() if text is None else cls(waiting_s=as_seconds_above_0("sla-waiting-time", text))

    def _due(self, job: Job) -> float:
        patience = job.spec.patience_s
        return job.spec.created + (self.waiting_s if patience is None else patience)
