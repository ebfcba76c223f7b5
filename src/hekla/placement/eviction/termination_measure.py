# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""The measure that evictions lower: why they come to an end in a world in which nothing arrives.

    measure = (what plug-ins may still have leave for nobody's sake,
               pairs of jobs of which neither has made way for the other,
               for each job, those that go before others first: its tasks without a place, by task priority, high first)

Compared from the left, in whole numbers that do not fall below 0. Every eviction for a job lowers it (`precedence.py` says
why, and `Statement.commit` asserts it of each statement); every look of a plug-in after which pods leave for nobody's sake
lowers the first number (`Victims` in `framework.py`). Placing tasks lowers it too, or leaves it. So only news raise it: jobs,
nodes and measurements that come, tasks that end, promises that cannot be kept, and time that passes over a limit.
"""

from collections import Counter
from typing import NamedTuple

from hekla.placement.cluster import Cluster
from hekla.placement.eviction.precedence import Party
from hekla.placement.framework import Victims
from hekla.placement.session import Session


class Measure(NamedTuple):
    """A place in a well-founded order: comparing two says which world has fewer evictions before it."""

    departures: int
    strangers: int
    without_place: tuple[tuple[int, ...], ...]
    """By job, and by task priority."""


def measure(session: Session) -> Measure:
    """The measure of a session's world."""
    cluster = session.cluster
    departures = 0
    for plugin in session.policy.asked(Victims):
        departures += plugin.to_leave(session)
    parties = {job.party for job in cluster.jobs.values()}
    known = {(second, first) for second, first, _ in cluster.precedence.pairs() if {first, second} <= parties}
    strangers = len(parties) * (len(parties) - 1) - len(known)
    return Measure(departures, strangers, _without_place(cluster, parties))


def _without_place(cluster: Cluster, parties: set[Party]) -> tuple[tuple[int, ...], ...]:
    waiting: dict[Party, Counter[int]] = {party: Counter() for party in parties}
    for job in cluster.jobs.values():
        for task in job.tasks.values():
            has_place = task.row >= 0 and not task.is_leaving
            waiting[job.party][task.spec.priority] += int(not has_place)
    # Who goes before a job also goes before all who come after it, so fewer go before it.
    in_order = sorted(parties, key=lambda party: (len(cluster.precedence.before(party)), party))
    return tuple(tuple(waiting[party][p] for p in sorted(waiting[party], reverse=True)) for party in in_order)
