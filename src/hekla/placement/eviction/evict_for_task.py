"""Make room for one task by evicting others: the least harm that will do, on the node where it is least.

For each node in the order of harm (`victim_pool.py`) the plug-ins are asked who may go, victims are evicted one by one
until the task fits, with its queue's share and its filters looked at as they will then be; then whoever is not needed
after all is spared, the most valuable first. A gang that could not go on without the victim goes whole or not at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hekla.placement.columns import BoolArray
from hekla.placement.eviction.eligibility import Right
from hekla.placement.eviction.future_fit import will_fit, will_have_devices
from hekla.placement.eviction.victim_order import in_order_of_eviction, is_candidate
from hekla.placement.eviction.victim_pool import Group, VictimPool
from hekla.placement.framework import Preemptable, TellsApart
from hekla.placement.model import Job, Task
from hekla.placement.queue import Queue
from hekla.placement.session import Session
from hekla.placement.statement import Statement

MOST_TRIED = 1000
"""Nodes on which room is tried to be made for one task; the next cycle may try again."""

Unit = Sequence[Task]
"""Tasks that go together: one that its gang can spare, or a gang."""


class Manner(NamedTuple):
    """How an action evicts."""

    action: str
    right: Right
    keeps_gangs: bool = True
    """Whether a gang goes whole where it could not go on; else it is left below its minimum."""

    looks_at: int = 0
    """How many nodes are tried out before the one of least harm is taken; 0 takes the first that will do."""


class RoomMaker:
    """Makes room for the tasks of one queue's jobs, in one cycle."""

    def __init__(
        self, session: Session, queue: Queue, manner: Manner, *, among: Sequence[Job] | None = None
    ) -> None:  # fmt: skip
        """`among` are the jobs that may lose tasks, where not all there are."""
        self._session, self._cluster, self._eligibility = session, session.cluster, session.eligibility
        self._placer = session.policy.placer
        self._queue, self._manner, self._among = queue, manner, among
        self._pool: VictimPool | None = None
        self._gone: dict[str, Task] = {}
        """Tasks that the pool takes for gone, by uid."""

        self._groups: dict[Any, BoolArray] = {}
        self._allowed: BoolArray = np.zeros(0, np.bool_)
        self._job_key: Any = ()
        self._barren: dict[Any, set[int]] = {}
        """Rows on which no room could be made for tasks like this."""

    def begin(self, job: Job) -> None:
        """A job's turn begins: what was tried for the one before and taken back is as it was."""
        if self._pool is None:
            self._pool = self._new_pool(job)
        self._job_key = (self._session.job_key(job)[:-2], job.spec.priority)
        leaving = self._cluster.leaving
        self._pool.mark([self._gone.pop(uid) for uid in self._gone.keys() - leaving.keys()], there=True)
        gone = {uid: leaving[uid] for uid in leaving.keys() - self._gone.keys()}
        self._pool.mark(gone.values(), there=False)
        self._gone.update(gone)

    def make_room(self, statement: Statement, task: Task, *, within: Job | None = None) -> bool:
        """Promise a task a place, with evictions where they are needed; of `within` alone if a job is given."""
        assert self._pool is not None, "begin comes first"
        with self._cluster.looking_ahead():
            if within is None and self._take_free(statement, task):
                return True
            return self._evict(statement, task, within)

    def _take_free(self, statement: Statement, task: Task) -> bool:
        """Promise a place where room is, or will be, without evicting anybody further."""
        nodes, shape = self._cluster.nodes, task.shape
        room = (nodes.future_idle()[shape.resources] >= shape.amounts[:, None]).all(axis=0)
        rows = np.flatnonzero(room & self._placer.lets_in(task))
        if not len(rows) or self._why_not(task):
            return False
        likes = self._placer.likes(shape)
        for row in rows[np.lexsort((-nodes.rank()[rows], -likes[rows]))].tolist():
            if will_have_devices(self._cluster, task, row):
                statement.pipeline(task, row)
                return True
        return False

    def _evict(self, statement: Statement, task: Task, within: Job | None) -> bool:
        assert self._pool is not None
        key = (self._job_key, task.shape, within and within.uid, task.spec.priority)
        groups, is_clean = self._which(task, within), not statement.evictions
        barren = self._barren.setdefault(key, set()) if is_clean else set(self._barren.get(key, ()))
        open_rows = self._placer.open_rows(task.shape)
        rows = self._pool.cheapest(task.shape, groups, open_rows, self._placer.likes(task.shape))
        worth = [(row, least) for row, least in rows if row not in barren][:MOST_TRIED]
        self._allowed = groups
        if self._manner.looks_at:
            return self._least_harm(statement, task, [row for row, _ in worth[: self._manner.looks_at]])
        return self._first_of_least_harm(statement, task, worth, barren)

    def _first_of_least_harm(
        self, statement: Statement, task: Task, worth: Sequence[tuple[int, int]], barren: set[int]
    ) -> bool:
        """Evict on the first node where nobody more important goes than amounts alone ask for, which is nearly always the first.

        Where somebody more important stands in the way, as a pod that keeps this one at a distance does, the nodes follow on which
        no such victim is foreseen.
        """
        assert self._pool is not None
        best: tuple[int, int, int, list[Unit]] | None = None
        for number, (row, least) in enumerate(worth):
            if best is not None and best[0] <= least:
                break
            start, units = statement.savepoint, self._enough(statement, task, row)
            if units is None:
                barren.add(row)
                continue
            highest = self._pool.class_of(victim for unit in units for victim in unit)
            if highest <= least:
                statement.pipeline(task, row, evicted=bool(units))
                return True
            self._back_to(statement, start)
            best = min(best or (highest, number, row, units), (highest, number, row, units))
        if best is None:
            return False
        _, _, row, units = best
        self._replay(statement, statement.savepoint, task, units)
        statement.pipeline(task, row, evicted=bool(units))
        return True

    def _least_harm(self, statement: Statement, task: Task, rows: Sequence[int]) -> bool:
        """Try several nodes out and take the one of least harm: whose most important victim matters least, then all of
        them together, then the fewest, then where that victim has run for the shortest time.
        """  # fmt: skip
        found: list[tuple[Any, int, list[Unit]]] = []
        for number, row in enumerate(rows):
            start = statement.savepoint
            units = self._enough(statement, task, row)
            if units is not None:
                found.append((_harm(units, number), row, units))
            self._back_to(statement, start)
        if not found:
            return False
        _, row, units = min(found)
        for unit in units:
            self._send_away(statement, task, unit)
        statement.pipeline(task, row, evicted=bool(units))
        return True

    def _enough(self, statement: Statement, task: Task, row: int) -> list[Unit] | None:
        """Evict who must go from a row for a task, and nobody else; None, and nothing done, if that is not enough."""
        start, gone = statement.savepoint, list[Unit]()
        for victim in self._victims(task, row):
            if victim.is_leaving or not (unit := self._unit(task, victim)):
                continue
            self._send_away(statement, task, unit)
            gone.append(unit)
            if self._fits(task, row):
                return self._spared(statement, start, task, row, gone)
        self._back_to(statement, start)
        return None

    def _victims(self, task: Task, row: int) -> Sequence[Task]:
        """Who may go from a row, in order."""
        assert self._pool is not None
        candidates = [victim for victim in self._pool.at(row, self._allowed) if is_candidate(victim)]
        if task.is_best_effort:
            candidates = [victim for victim in candidates if victim.is_best_effort]
        return self._eligibility.evictable(self._manner.right, task, candidates) if candidates else ()

    def _unit(self, task: Task, victim: Task) -> Unit:
        """The victim, with its gang if that could not go on without it; nobody if the gang may not go."""
        job, session = victim.job, self._session
        assert job is not None
        if not self._manner.keeps_gangs or not session.is_whole(job) or session.stays_whole(job, victim):
            return [victim]
        if job is task.job:
            return []
        others = [one for one in job.tasks.values() if one.row >= 0 and not one.is_leaving and one is not victim]
        running = [one for one in others if not one.is_claim]
        assert self._pool is not None
        rank = self._pool.rank
        if not all(is_candidate(one) and one.uid in rank for one in running):
            return []
        together = [victim, *sorted(running, key=lambda one: rank[one.uid])]
        claims = [one for one in others if one.is_claim]
        if claims and self._eligibility.would_do(job, together):
            claims = []  # what it was promised is enough to start again with
        whole = [*together, *claims]
        return whole if self._eligibility.may_go_whole(self._manner.right, task, whole) else []

    def _spared(self, statement: Statement, start: int, task: Task, row: int, gone: list[Unit]) -> list[Unit]:
        """Let those stay who are not needed after all, the most valuable first; the last one is needed, or it would not fit."""
        for unit in reversed(gone[:-1]):
            fewer = [one for one in gone if one is not unit]
            self._replay(statement, start, task, fewer)
            if self._fits(task, row):
                gone = fewer
            else:
                self._replay(statement, start, task, gone)
        return gone

    def _replay(self, statement: Statement, start: int, task: Task, units: Sequence[Unit]) -> None:
        self._back_to(statement, start)
        for unit in units:
            self._send_away(statement, task, unit)

    def _send_away(self, statement: Statement, task: Task, unit: Unit) -> None:
        assert self._pool is not None
        for victim in unit:
            if victim.is_claim:
                statement.forsake(victim)
                continue
            statement.evict(victim, self._reason(task, victim), task.job, self._manner.action)
            self._gone[victim.uid] = victim
        self._pool.mark(unit, there=False)

    def _back_to(self, statement: Statement, savepoint: int) -> None:
        assert self._pool is not None
        back = statement.evictions_since(savepoint)
        statement.back_to_savepoint(savepoint)
        self._pool.mark(back, there=True)
        for victim in back:
            self._gone.pop(victim.uid, None)

    def _fits(self, task: Task, row: int) -> bool:
        """Whether a task would fit a row when all who are leaving have left, and its queue's share."""
        return will_fit(self._cluster, self._placer, task, row) and not self._why_not(task)

    def _why_not(self, task: Task) -> object:
        assert task.job is not None
        return self._session.why_not_allocatable(task.job, task)

    def _which(self, task: Task, within: Job | None) -> BoolArray:
        """Which groups of the pool may go for a task, as far as one task of each can tell.  # [group]"""
        assert self._pool is not None
        job = task.job
        assert job is not None
        key = (self._job_key, task.shape, task.spec.priority) if within is None else (within.uid, task.uid)
        known = self._groups.get(key)
        if known is None:
            known = self._groups[key] = self._pool.which(lambda group: self._may_go(task, group, within))
        before = self._eligibility.before(job)
        if within is None:
            mine = self._pool.groups_of({job.party, *before})
            known = known & ~mine
        return known

    def _may_go(self, task: Task, group: Group, within: Job | None) -> bool:
        assert task.job is not None
        victim, sample = group
        if within is not None:
            if victim is not within or sample.spec.priority >= task.spec.priority:
                return False
        elif victim.spec.queue == task.job.spec.queue and victim.spec.priority > task.job.spec.priority:
            return False
        return bool(self._eligibility.voted(self._manner.right, task, [sample]))

    def _new_pool(self, job: Job) -> VictimPool:
        """All who could go: of the same queue to preempt, of other queues that give back to reclaim."""
        queues, mine = self._cluster.queues, self._queue.name
        jobs = self._cluster.jobs.values() if self._among is None else self._among
        if self._manner.right is Preemptable:
            jobs = [one for one in jobs if one.spec.queue == mine]
        else:
            lending = {name for name, queue in queues.items() if name != mine and queue.is_reclaimable}
            jobs = [one for one in jobs if one.spec.queue in lending]
        tasks = (task for one in jobs if one.may_lose for task in one.tasks.values() if is_candidate(task))
        told = self._session.policy.asked(TellsApart)  # type: ignore[type-abstract]  # a Protocol is what is asked for
        return VictimPool(
            self._cluster.nodes,
            in_order_of_eviction(self._session, job, tasks),
            lambda victim: tuple(plugin.apart(self._session, victim) for plugin in told),
        )

    def _reason(self, task: Task, victim: Task) -> str:
        """In the words of the event that the victim's owner reads."""
        job, other = task.job, victim.job
        assert job is not None
        assert other is not None
        if job is other:
            return f'makes room for pod "{task.key}" of the same job, of priority {task.spec.priority}'
        if self._manner.right is Preemptable:
            return f'makes room for job "{job.key}" of priority {job.spec.priority} in queue "{job.spec.queue}"'
        return f'makes room for job "{job.key}": queue "{job.spec.queue}" takes back what queue "{other.spec.queue}" borrowed'


def _harm(units: Sequence[Unit], number: int) -> tuple[Any, ...]:
    victims = [victim for unit in units for victim in unit]
    priorities = [victim.job.spec.priority for victim in victims if victim.job is not None]
    most = max(priorities, default=0)
    started = [v.spec.started or 0.0 for v in victims if v.job is not None and v.job.spec.priority == most]
    return most, sum(priorities), len(victims), -min(started, default=0.0), number


def manner_of(action: str, right: Right, arguments: Mapping[str, Any], *, nodes: int) -> Manner:
    """How an action evicts by its arguments."""
    looks_at = 0
    if arguments.get("enableTopologyAwarePreemption", False):
        share = nodes * int(arguments.get("minCandidateNodesPercentage", 10)) // 100
        least, most = arguments.get("minCandidateNodesAbsolute", 1), arguments.get("maxCandidateNodesAbsolute", 100)
        looks_at = max(min(max(share, int(least)), int(most), nodes), 1)
    return Manner(action, right, bool(arguments.get("keepGangsWhole", True)), looks_at)
