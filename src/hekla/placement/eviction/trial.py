"""Whom would an action evict for a job, if it were its turn? Tried on a copy of the cluster, and taken back.

What is found is what the action would do, but for a bound: only the first jobs in the order of eviction are tried.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from hekla.placement.actions.gangpreempt import gang_manner
from hekla.placement.actions.preempt import ask_for_room, may_ask
from hekla.placement.actions.reclaim import ask_back
from hekla.placement.eviction.eligibility import Right
from hekla.placement.eviction.evict_for_gang import GangRoom
from hekla.placement.eviction.evict_for_task import RoomMaker, manner_of
from hekla.placement.eviction.refusals import Census, census
from hekla.placement.framework import Preemptable, Reclaimable
from hekla.placement.model import Job, Task
from hekla.placement.rehearsal import Rehearsal
from hekla.placement.session import Session
from hekla.placement.statement import Statement

FEW_JOBS, MOST_JOBS = 64, 512
"""Jobs that are tried as victims, in the order of eviction: some for each pod that needs room, within these bounds."""

JOBS_PER_POD = 4

EVICTING: Mapping[str, Right] = {
    "preempt": Preemptable, "gangpreempt": Preemptable, "reclaim": Reclaimable, "gangreclaim": Reclaimable,
}  # fmt: skip
"""The actions that evict for others, and by which right."""


def is_for_gangs(action: str) -> bool:
    """Whether an action serves gangs as one."""
    return action.startswith("gang")


class EvictionOutlook(NamedTuple):
    """What an action would do for a job."""

    census: Census
    victims: Sequence[Task]
    """Who would be evicted; nobody if that would not be enough."""


def outlook_of(rehearsal: Rehearsal, job: Job, action: str) -> EvictionOutlook:
    """Whom an action would evict for a job that it would serve, and why others stay."""
    session, right = rehearsal.session(), EVICTING[action]
    arguments = session.policy.arguments.get(action, {})
    session.eligibility.heed_budgets(right, bool(arguments.get("heedDisruptionBudgets", True)))
    asker = next(task for task in session.in_task_order(job.pending()) if not task.spec.preemption_never)
    found = census(session, asker, right, together=is_for_gangs(action))
    # What changes in a trial must be a copy: of those who may lose tasks, too.
    most = min(max(FEW_JOBS, JOBS_PER_POD * session.shortfall(job)), MOST_JOBS)
    among = [rehearsal.job(uid) for uid in islice(found.jobs, most)] if found.may_go else ()
    return EvictionOutlook(found, _victims(rehearsal.session(), job, action, among) if among else ())


def is_served(session: Session, job: Job, action: str) -> bool:
    """Whether an action tries to make room for a job at all: it starves, may ask, and is not left to another action."""
    if job.spec.wants_closeness and not is_for_gangs(action):
        return False
    return may_ask(job) and session.eligibility.is_starving(job)


def _victims(session: Session, job: Job, action: str, among: Sequence[Job]) -> Sequence[Task]:
    right, arguments = EVICTING[action], session.policy.arguments.get(action, {})
    session.eligibility.heed_budgets(right, bool(arguments.get("heedDisruptionBudgets", True)))
    with session.statement() as statement:
        if is_for_gangs(action):
            GangRoom(session, job, gang_manner(session, action, right), among=among).make(statement)
        else:
            _ask(session, statement, job, action, among)
        is_enough = len(statement) > 0 and session.eligibility.is_pipelined(job)
        return [evict.task for evict in statement.evictions] if is_enough else ()


def _ask(session: Session, statement: Statement, job: Job, action: str, among: Sequence[Job]) -> None:
    arguments = session.policy.arguments.get(action, {})
    manner = manner_of(action, EVICTING[action], arguments, nodes=len(session.cluster.nodes))
    maker = RoomMaker(session, session.cluster.queues[job.spec.queue], manner, among=among)
    if EVICTING[action] is Preemptable:
        ask_for_room(session, maker, statement, job)
    else:
        ask_back(session, maker, statement, job)
