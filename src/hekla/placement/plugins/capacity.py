"""Queues own a share, may use what others leave idle up to a limit, and get their share back by reclaim.

    order       higher priority first, then the smaller  held / deserved;  queues that deserve nothing come last
    a queue may take, and admit, what keeps it and every queue above it within its ceiling (`quota/tree.py`)

In a tree (`enableHierarchy`) two queues are compared where their paths part, and jobs belong into leaves. A job in a
queue with queues below it, or in a broken part of the tree, waits with a reason; all others go on. (The peer stops for
the whole cluster.)
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, Self

from hekla.placement.cluster import ROOT_QUEUE
from hekla.placement.constraint import Refusal
from hekla.placement.devices.claimed import PREFIX, Claimed, asked_beyond
from hekla.placement.framework import Key, Opinion, Vote, plugin
from hekla.placement.model import Job, Task
from hekla.placement.queue import Queue
from hekla.placement.queueing.projected_use import ProjectedUse
from hekla.placement.registry import as_bool, as_whole
from hekla.placement.session import Session
from hekla.quota.amounts import Amounts, added, bounded
from hekla.quota.fairness import use_of
from hekla.quota.reclaim import is_over, may_lose, may_reclaim
from hekla.quota.tree import Quota, QuotaTree, Taken
from hekla.quota.verdict import CLOSED, OVER_LIMIT, OVER_SHARE, Denial, insufficient, joined


@plugin
@dataclass(frozen=True, kw_only=True)
class Capacity:
    """Holds queues to their limits, and knows what they own."""

    knows_shares = True
    """Asked by `eviction/eligibility.py`: what it says of reclaiming holds in every tier."""

    judges_entry_alike = True
    """Asked by `enqueue`: jobs of one queue that ask for the same minimum hear the same."""

    minds_room = True
    """Asked by `enqueue`: what a queue holds already is no reason to keep a job out for which its own lower priorities
    would go, or for which others would give back what the queue deserves."""

    hierarchy: bool = False
    """Whether queues are a tree; else parents are ignored."""

    ancestor_reclaim_level: int = 0
    """How many queues above one that reclaims may stand in for it, if they still deserve more."""

    counts_claims: bool = False
    """Whether a queue's capability bounds the devices that its pods claim, as `deviceclass/NAME`."""

    reads_accounts = True
    """Asked by `queueing/lookahead.py`: what it says of a queue's turn follows from the accounts of queues."""

    @property
    def takes_queues_as_tree(self) -> bool:
        """Asked by the policy: whether a queue's use counts for those above it too."""
        return self.hierarchy

    def open(self, session: Session) -> QuotaTree:
        """The queues as they are now."""
        cluster = session.cluster
        quotas = {name: self._quota(queue) for name, queue in cluster.queues.items()}
        if self.hierarchy and ROOT_QUEUE not in quotas:
            quotas[ROOT_QUEUE] = Quota(name=ROOT_QUEUE)
        return QuotaTree(quotas.values(), cluster.nodes.totals())

    def queue_key(self, session: Session, queue: Queue) -> Key:
        """Priority, then use of what is deserved, from the top down."""
        tree, ledger, queues = session.opened(self), session.cluster.ledger, session.cluster.queues
        levels: list[Key] = []
        for name in tree.path(queue.name) if queue.name in tree.shares else ():
            deserved = tree.shares[name].deserved
            use = use_of(ledger.of(name).held, deserved) if deserved else 1.0
            levels.append((not deserved, use, queues[name].created, name))
        return (-queue.priority, tuple(levels))

    def queue_keys(self, session: Session, queue: Queue, growth: ProjectedUse) -> Sequence[Iterable[Any]] | None:
        """The same as it will hold more and more; nothing below another, for which what others take counts too."""
        tree, name = session.opened(self), queue.name
        path = tree.path(name) if name in tree.shares else ()
        if len(path) > 1:
            return None
        levels: Iterable[Key] = repeat(())
        if path:
            deserved = tree.shares[name].deserved
            held = session.cluster.ledger.of(name).held
            uses = growth.uses(held, deserved) if deserved else repeat(1.0)
            levels = zip(
                zip(repeat(not deserved), uses, repeat(queue.created), repeat(name), strict=False), strict=True
            )
        return repeat(-queue.priority), levels

    def allowance(self, session: Session, queue: Queue, task: Task, wanted: int) -> int:
        """As many as stay within the ceilings."""
        tree = session.opened(self)
        if tree.why_no_jobs(queue.name) is not None:
            return 0
        wanted = tree.allowance(queue.name, task.shape.request, _held(session), wanted)
        return self._devices_allow(session, tree, queue, task, wanted)

    def why_not_allocatable(self, session: Session, queue: Queue, task: Task) -> Refusal | None:
        """In Volcano's words, with the queue that is full: this one or one above."""
        tree = session.opened(self)
        no = tree.why_no_jobs(queue.name) or tree.why_not(queue.name, task.shape.request, _held(session))
        return _refusal(no or self._why_no_devices(session, tree, queue, task))

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """Whether the promises of the queue and of those above, this one included, stay within the ceilings."""
        queue = session.cluster.queues[job.spec.queue]
        if not queue.is_open:
            return Opinion(Vote.REJECT, f'queue "{queue.name}" is not open')
        tree = session.opened(self)
        no = tree.why_no_jobs(queue.name)
        if no is None and job.spec.min_resources is not None:
            no = tree.why_not_promise(queue.name, job.spec.min_resources, self._promised(session, tree))
        return Opinion(Vote.REJECT, no.sentence) if no is not None else Opinion(Vote.PERMIT)

    def why_not_preemptive(self, session: Session, queue: Queue, task: Task) -> Refusal | None:
        """A queue may reclaim within its ceiling, for what it deserves in at least one resource."""
        if not queue.is_open:
            return Refusal(CLOSED, f'queue "{queue.name}" is not open')
        tree = session.opened(self)
        no = tree.why_no_jobs(queue.name)
        if no is None:
            # Its own ceiling alone: those above are looked at when victims, who may be below them too, have gone.
            held, request = session.cluster.ledger.of(queue.name).held, task.shape.request
            no = insufficient(OVER_LIMIT, queue.name, request, held, tree.shares[queue.name].ceiling)
        refusal = _refusal(no)
        level = self.ancestor_reclaim_level if self.hierarchy else 0
        if refusal is None and not may_reclaim(
            session.opened(self), queue.name, task.shape.request, _held(session), level
        ):
            return Refusal(OVER_SHARE, f'queue "{queue.name}" deserves no more of what is asked for')
        return refusal

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Tasks that queues may lose, one after the other, each looked at as if those before were gone."""
        assert task.job is not None
        tree, left, chosen = session.opened(self), dict[str, dict[str, int]](), list[Task]()
        mine = set(tree.ancestors(task.job.spec.queue))
        for victim in victims:
            assert victim.job is not None
            above = [name for name in tree.ancestors(victim.job.spec.queue) if name in tree.shares]
            for name in above:
                left.setdefault(name, dict(session.cluster.ledger.of(name).held))
            if above and self._may_go(tree, left, above, mine, task, victim):
                chosen.append(victim)
                for name in above:
                    for resource, amount in victim.shape.request.items():
                        left[name][resource] = left[name].get(resource, 0) - amount
        return chosen

    def is_entitled(self, session: Session, job: Job) -> bool:
        """Whether the queue's promises, with the job's minimum, are within what it deserves of something it asks for."""
        tree, name = session.opened(self), job.spec.queue
        if tree.why_no_jobs(name) is not None:
            return False
        promised = self._promised(session, tree)
        return may_reclaim(tree, name, job.spec.min_resources or {}, promised)

    def victim_queue_key(self, session: Session, queue: Queue, preemptor: Job) -> Key:
        """In a tree, the queue that is nearest to the one that takes back."""
        if not self.hierarchy:
            return ()
        tree = session.opened(self)
        mine = list(tree.ancestors(preemptor.spec.queue))
        shared = next((place for place, name in enumerate(mine) if name in set(tree.ancestors(queue.name))), len(mine))
        return (shared,)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `ancestorReclaimLevel`, and `enableHierarchy` of the configuration."""
        level = as_whole("ancestorReclaimLevel", arguments.get("ancestorReclaimLevel", 0))
        claims = as_bool(_CLAIMS, arguments.get(_CLAIMS, False))
        hierarchy = as_bool("hierarchy", arguments.get("hierarchy", False))
        return cls(hierarchy=hierarchy, ancestor_reclaim_level=level, counts_claims=claims)

    def _devices_allow(self, session: Session, tree: QuotaTree, queue: Queue, task: Task, wanted: int) -> int:
        """As many as claim no more devices than queues may have."""
        for name, account, bounds in self._bounded_claims(session, tree, queue, task):
            own, common = self._asks(task, account)
            held = added((account.devices, common))
            if insufficient(OVER_LIMIT, name, common, account.devices, bounds) is not None:
                return 0
            fit = [
                (bounds[each] - held.get(each, 0)) // amount
                for each, amount in own.items()
                if amount and each in bounds
            ]
            wanted = min([wanted, *(max(number, 0) for number in fit)])
        return wanted

    def _why_no_devices(self, session: Session, tree: QuotaTree, queue: Queue, task: Task) -> Denial | None:
        return joined(
            insufficient(OVER_LIMIT, name, added(self._asks(task, account)), account.devices, bounds)
            for name, account, bounds in self._bounded_claims(session, tree, queue, task)
        )

    @staticmethod
    def _asks(task: Task, account: Claimed) -> tuple[Amounts, Amounts]:
        assert task.job is not None
        return asked_beyond(task, account.names, list(task.job.tasks.values()))

    def _bounded_claims(
        self, session: Session, tree: QuotaTree, queue: Queue, task: Task
    ) -> Iterator[tuple[str, Claimed, Amounts]]:
        """Each queue, from this one up, that bounds devices, with what is claimed there and the bounds; none for who claims none."""
        if not self.counts_claims or not task.spec.device_claims:
            return
        queues, claimed = session.cluster.queues, None
        for name in tree.ancestors(queue.name):
            limit = queues[name].capability if name in queues else {}
            bounds = {each: amount for each, amount in limit.items() if each.startswith(PREFIX)}
            if bounds:
                cluster = session.cluster
                claimed = claimed or cluster.tallies.inventory.claimed(cluster.tasks, tree.ancestors)
                yield name, claimed.get(name, Claimed()), bounds

    def _may_go(
        self, tree: QuotaTree, left: Mapping[str, Amounts], above: Sequence[str], mine: set[str], task: Task, victim: Task
    ) -> bool:  # fmt: skip
        own = above[0]
        request = victim.shape.request
        if not may_lose(tree.shares[own], left[own], request, task.shape.request):
            return False
        if not self.ancestor_reclaim_level:
            return True
        others = [name for name in above[1:] if name not in mine and tree.quotas[name].parent]
        return all(
            is_over(tree.shares[name], left[name], {r for r, _ in bounded(request)} & tree.shares[name].deserved.keys())
            for name in others
            if tree.shares[name].deserved
        )

    def _promised(self, session: Session, tree: QuotaTree) -> Taken:
        """What queues have promised to jobs, those below them included."""

        def promised(name: str) -> Amounts:
            entered = session.entered
            waiting = (entered.in_queue(q) for q in entered.queues() if name in tree.ancestors(q))
            return added((session.cluster.ledger.of(name).firm, *waiting))

        return promised

    def _quota(self, queue: Queue) -> Quota:
        parent = queue.parent if self.hierarchy and queue.name != ROOT_QUEUE else ""
        return Quota(
            name=queue.name, parent=parent, guarantee=queue.guarantee, deserved=queue.deserved, limit=queue.capability
        )


_CLAIMS = "capacity.DynamicResourceAllocationEnable"


def _held(session: Session) -> Taken:
    ledger = session.cluster.ledger
    return lambda name: ledger.of(name).held


def _refusal(denial: Denial | None) -> Refusal | None:
    return Refusal(denial.code, denial.sentence) if denial is not None else None
