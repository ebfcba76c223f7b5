"""Dominant resource fairness: who holds the least of what it holds most of goes first.

share(job) = max over resources of held / total
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hekla.placement.framework import Key, plugin
from hekla.placement.model import Job, Task
from hekla.placement.queue import Queue
from hekla.placement.queueing.projected_use import ProjectedUse
from hekla.placement.session import Session
from hekla.quota.fairness import dominant_share
from hekla.quota.hierarchical_drf import Branch, Leaf, Path, order, tree_of


class Branches:
    """The tree of queues and jobs in one session, weighed anew whenever something was placed."""

    def __init__(self, session: Session) -> None:
        self._cluster = session.cluster
        self._jobs = [job for job in session.cluster.jobs.values() if job.spec.queue in session.cluster.queues]
        self._weighed_at = -1
        self._root = Branch()

    def key(self, queue: Queue) -> Key:
        """The sort key of a queue."""
        changes = self._cluster.ledger.changes
        if self._weighed_at != changes:
            queues = self._cluster.queues
            leaves = ((_path(queues[job.spec.queue]), Leaf(job.holding, job.asking)) for job in self._jobs)
            self._root, self._weighed_at = tree_of(leaves, self._cluster.nodes.totals()), changes
        return order(self._root, _path(queue))


CLOSE = 1e-6
"""Shares that differ by less are equal, as in Volcano."""


@plugin
@dataclass(frozen=True, kw_only=True)
class Drf:
    """Orders jobs by share, and queues too if they are a tree."""

    hierarchy: bool = False
    """Whether queues are ordered, by the tree of their annotations."""

    @property
    def reads_accounts(self) -> bool:
        """Asked by `queueing/lookahead.py`: a tree is weighed by what jobs hold, and else queues are not weighed here."""
        return not self.hierarchy

    def open(self, session: Session) -> Branches:
        """The tree as it is now."""
        return Branches(session)

    def queue_key(self, session: Session, queue: Queue) -> Key:
        """The path's shares from the top down."""
        return (session.opened(self).key(queue),) if self.hierarchy else ()

    def queue_keys(self, session: Session, queue: Queue, growth: ProjectedUse) -> Sequence[Iterable[Any]] | None:
        """Nothing to say, but of a tree, where what others hold counts too."""
        return None if self.hierarchy else ()

    orders_waiting_by = ()
    """Asked by `queueing/kept_lines.py`: no field decides the key of a lone job that waits, which holds nothing."""

    def job_key(self, session: Session, job: Job) -> Key:
        """The smaller share first."""
        held = job.holding
        return (dominant_share(held, session.cluster.nodes.totals()) if held else 0.0,)

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task]:
        """Tasks of jobs that would hold no less without them than the task's job would with it."""
        assert task.job is not None
        total, left = session.cluster.nodes.totals(), dict[str, Mapping[str, int]]()
        mine = dominant_share(_changed(task.job.holding, task, 1), total)
        chosen = []
        for victim in victims:
            job = victim.job
            assert job is not None
            left[job.uid] = _changed(left.get(job.uid, job.holding), victim, -1)
            if mine <= dominant_share(left[job.uid], total) + CLOSE:
                chosen.append(victim)
        return chosen

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Where queues are a tree, tasks of queues that would still come after the task's own without them."""
        if not self.hierarchy:
            return None
        queues, ahead = session.cluster.queues, WithoutThem(session, task)
        assert task.job is not None
        mine, chosen = _path(queues[task.job.spec.queue]), []
        for victim in victims:
            assert victim.job is not None
            root = ahead.tree(victim)
            if order(root, mine) < order(root, _path(queues[victim.job.spec.queue])):
                ahead.lose(victim)
                chosen.append(victim)
        return chosen


class WithoutThem:
    """The tree of queues as it would be with a task more, and without some victims."""

    def __init__(self, session: Session, task: Task) -> None:
        self._cluster = session.cluster
        self._changes: dict[str, Mapping[str, int]] = {}
        assert task.job is not None
        self._changes[task.job.uid] = _changed(task.job.holding, task, 1)

    def tree(self, victim: Task) -> Branch:
        """Without this one too."""
        cluster, queues = self._cluster, self._cluster.queues
        held = {**self._changes, **self._without(victim)}
        jobs = [job for job in cluster.jobs.values() if job.spec.queue in queues]
        leaves = ((_path(queues[job.spec.queue]), Leaf(held.get(job.uid, job.holding), job.asking)) for job in jobs)
        return tree_of(leaves, cluster.nodes.totals())

    def lose(self, victim: Task) -> None:
        """Let a victim go."""
        self._changes.update(self._without(victim))

    def _without(self, victim: Task) -> Mapping[str, Mapping[str, int]]:
        job = victim.job
        assert job is not None
        return {job.uid: _changed(self._changes.get(job.uid, job.holding), victim, -1)}


def _path(queue: Queue) -> Path:
    return queue.path or ((queue.name, queue.weight),)


def _changed(held: Mapping[str, int], task: Task, number: int) -> Mapping[str, int]:
    """What is held with one task more, or less."""
    request = task.shape.request
    return {name: held.get(name, 0) + request.get(name, 0) * number for name in held.keys() | request.keys()}
