"""What was planned in one cycle for jobs that wait (`reservations.py`): of jobs alike, one plan that came to nothing stands for all.

Three hundred gangs wider than the cluster are one question, not three hundred (20 ms each on 10,000 nodes). A plan stands while
room is kept for the same jobs and nobody leaves besides: what is placed meanwhile gives back no more than it took.
"""

from collections import Counter
from collections.abc import Callable, Hashable

from hekla.placement.model import Job, JobPhase, TaskStatus
from hekla.placement.session import Session
from hekla.placement.soonest import Expected

Plan = Callable[[Job], Expected | None]
"""Finds out when a job will fit, and where; None if it will not, by all that is known."""


class Plans:
    """The plans of a session."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session, self._plan = session, plan
        self._at = (-1, -1)
        self._never: set[Hashable] = set()
        """Kinds of jobs that will not fit, as things are."""

    def of(self, job: Job, version: int) -> Expected | None:
        """When and where a job will fit; `version` grows when room is kept for others than before."""
        kind = kind_of(self._session, job)
        at = version, self._session.cluster.gains
        if at != self._at:
            self._at = at
            self._never.clear()
        if kind is not None and kind in self._never:
            return None
        found = self._plan(job)
        if found is None and kind is not None:
            self._never.add(kind)
        return found


def kind_of(session: Session, job: Job) -> Hashable:
    """What jobs have in common that fit at one time, or never; None for a job that is alone of its kind: its pods mind where
    others run, or are told apart by labels.
    """  # fmt: skip
    spec, tasks = job.spec, job.tasks
    if spec.subgroups or job.statuses[TaskStatus.PENDING] != len(tasks):
        return None
    for task in tasks.values():
        if task.carriers or task.spec.is_gated or not task.shape.constraints.is_local:
            return None
    roles, traits = frozenset(spec.role_minimums.items()), frozenset(spec.traits.items())
    kind = spec.queue, spec.closeness, roles, traits, session.shortfall(job)
    if tasks:
        alike = Counter((task.shape, task.spec.role, task.spec.priority) for task in tasks.values())
        return kind, frozenset(alike.items())
    if job.phase is not JobPhase.PENDING:  # its pods are about to come, and nobody knows what they ask for
        return None
    return kind, spec.min_available, spec.priority, frozenset((spec.min_resources or {}).items())
