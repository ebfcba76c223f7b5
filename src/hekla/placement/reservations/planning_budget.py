"""What was planned in one cycle for jobs that wait (`book.py`): of jobs alike once, and of others not too many.

Three hundred gangs wider than the cluster are one question, not three hundred: a plan that comes to nothing stands for all of
their kind, while room is kept for the same jobs and nobody leaves besides (what is placed meanwhile gives back no more than it
took). If all three hundred differ, a cycle plans for a few of them, so that it is short, and each has its turn:

    never looked at before     by need as the cycle begins, then as they are tried; another cycle is asked for if some are left
    will not fit               at the end of a line; every cycle looks at all whether there would be room in the end
                               (`eventual_fit.py`), and plans for the first of which that is so
"""

from collections import Counter
from collections.abc import Callable, Hashable
from enum import Enum

from hekla.placement.model import Job, JobPhase, TaskStatus
from hekla.placement.reservations.forecast_equal_pods import Expected
from hekla.placement.session import Session

MOST_PLANS = 8
"""So many are made in a cycle for jobs for which nothing is kept; one takes 20 ms on 10,000 nodes."""

FROM_THE_START = 6
"""So many of them as the cycle begins; the others are for those that do not fit when it is their turn."""

AGAIN_FIRST = 2
"""So many of them first, for those that would not fit when they were planned before."""

MOST_LOOKS = 256
"""So many that would not fit, and differ, are looked at in a cycle; of more, those next that were not."""

AGAIN_S = 1.0
"""So long after a cycle that did not reach everybody comes another."""


class Unplanned(Enum):
    """Why there is no plan for a job."""

    NEVER = "it will not fit, by all that is known"
    NOT_YET = "it was not looked at yet"


Plan = Callable[[Job], Expected | None]
"""Finds out when a job will fit, and where; None if it will not, by all that is known."""


class Plans:
    """The plans of a session."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session, self._plan = session, plan
        self._line = session.cluster.out_of_reach
        self._made = 0
        self._at = (-1, -1)
        self._found: set[str] = set()
        """Jobs that will fit one day."""

        self._never: set[Hashable] = set()
        """Kinds of jobs that will not fit, as things are."""

    def of(self, job: Job, version: int, most: int) -> Expected | Unplanned:
        """When and where a job will fit, unless `most` plans were made before; `version` grows when room is kept for others."""
        kind = kind_of(self._session, job)
        at = version, self._session.cluster.gains
        if at != self._at:
            self._at = at
            self._never.clear()
        if kind is None or kind not in self._never:
            if self._made >= most:
                return self._not_yet(job)
            self._made += 1
            found = self._plan(job)
            if found is not None:
                self._line.pop(job.uid, None)
                self._found.add(job.uid)
                return found
            if kind is not None:
                self._never.add(kind)
        self.put_off(job)
        return Unplanned.NEVER

    def has_found(self, job: Job) -> bool:
        """Whether there was a plan for a job in this cycle."""
        return job.uid in self._found

    def put_off(self, job: Job) -> None:
        """Have a job planned again after all others of which it is known that they will not fit."""
        self._line.pop(job.uid, None)
        self._line[job.uid] = None

    def _not_yet(self, job: Job) -> Unplanned:
        if job.uid not in self._line:
            self._session.look_again(self._session.wall_s + AGAIN_S)
        return Unplanned.NOT_YET


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
