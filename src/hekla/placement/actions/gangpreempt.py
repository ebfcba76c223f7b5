"""Make room for whole gangs that starve by evicting jobs of a lower priority in the same queue.

Gangs that wish to be close together, or whose sub-gangs do, are served here and not by `preempt`: all that a gang needs
to start is promised at once, in one domain of the network (`eviction/evict_for_gang.py`), or nobody goes for it. Other gangs are
served the same way in the cluster as a whole.
"""

from collections.abc import Iterator

from hekla.placement.action import action
from hekla.placement.actions.preempt import conclude, starving_jobs
from hekla.placement.eviction.eligibility import Right
from hekla.placement.eviction.evict_for_gang import GangManner, GangRoom
from hekla.placement.framework import Preemptable
from hekla.placement.model import Job
from hekla.placement.queueing.turns import Turns
from hekla.placement.session import Session
from hekla.placement.statement import Decision

MOST_DOMAINS = 8
"""In how many domains room is tried to be made for a gang, unless `maxDomains` says otherwise."""


@action
def gangpreempt(session: Session) -> Iterator[Decision]:
    """Evict for gangs that starve, and yield what was decided."""
    yield from make_room_for_gangs(session, "gangpreempt", Preemptable)


def make_room_for_gangs(session: Session, action: str, right: Right) -> Iterator[Decision]:
    """Serve the gangs that starve in their turn, each whole or not at all."""
    arguments, manner = session.policy.arguments.get(action, {}), gang_manner(session, action, right)
    session.eligibility.heed_budgets(right, bool(arguments.get("heedDisruptionBudgets", True)))
    in_vain, is_changed = list[Job](), False
    for job in Turns(session, starving_jobs(session, action), heeds_shares=right is not Preemptable):
        if not session.eligibility.is_starving(job):
            continue  # what was decided for others has helped it
        with session.statement() as statement:
            GangRoom(session, job, manner).make(statement)
            decisions = list(conclude(session, statement, job, action))
        if statement.is_committed:
            is_changed = True
        else:
            in_vain.append(job)
        yield from decisions
    for job in in_vain if not is_changed else ():
        session.bar(job, action)  # trying out the others was no news for it


def gang_manner(session: Session, action: str, right: Right) -> GangManner:
    """How an action evicts for gangs by its arguments."""
    allows_whole = bool(session.policy.arguments.get(action, {}).get("allowWholeBundle", True))
    return GangManner(action, right, _most_domains(session, action), allows_whole)


def _most_domains(session: Session, action: str) -> int:
    """The lower of what the action and the plug-in for networks say."""
    limits = [getattr(plugin, "most_domains", None) for plugin in session.policy.plugins]
    given = session.policy.arguments.get(action, {}).get("maxDomains", MOST_DOMAINS)
    most = min([int(given) or MOST_DOMAINS, *(int(limit) for limit in limits if limit is not None)])
    return max(most, 1)
