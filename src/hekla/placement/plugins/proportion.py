"""Queues share the cluster by weight; what one does not need, the others get.

    deserved    by water-filling over the queues that have pods (`quota/water_fill.py`)
    order       higher priority first, then the smaller  held / deserved
    a queue may take what keeps it within what it deserves, and admit what keeps it within what it may ever hold

So nobody borrows beyond what is deserved: idle shares are dealt out before. Where a queue deserves all there is of a
resource, only the nodes bound it, and they say so better.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from hekla.placement.bookkeeping.ledger import Account
from hekla.placement.constraint import Refusal
from hekla.placement.framework import Key, Opinion, Vote, plugin
from hekla.placement.model import Job, Task
from hekla.placement.queue import Queue
from hekla.placement.queueing.projected_use import ProjectedUse
from hekla.placement.session import Session
from hekla.quota.amounts import Amounts, added, bounded
from hekla.quota.fairness import has_all, reclaimable, use_of
from hekla.quota.tree import Quota, QuotaTree
from hekla.quota.verdict import CLOSED, OVER_LIMIT, OVER_SHARE, insufficient
from hekla.quota.water_fill import Claim, water_fill


@dataclass(frozen=True, slots=True)
class Shares:
    """What queues may count on in one session."""

    tree: QuotaTree
    deserved: Mapping[str, Amounts]
    bounds: Mapping[str, Amounts]
    """Of what a queue deserves, the resources where that holds it back: it asks for more, and there is more."""


_FREE: Amounts = {}


@plugin
@dataclass(frozen=True, kw_only=True)
class Proportion:
    """Deals the cluster out by weight."""

    knows_shares = True
    """Asked by `eviction/eligibility.py`: what it says of reclaiming holds in every tier."""

    judges_entry_alike = True
    """Asked by `enqueue`: jobs of one queue that ask for the same minimum hear the same."""

    minds_room = True
    """Asked by `enqueue`: what a queue holds already is no reason to keep a job out for which its own lower priorities
    would go, or for which others would give back what the queue deserves."""

    reads_accounts = True
    """Asked by `queueing/lookahead.py`: what it says of a queue's turn follows from the accounts of queues."""

    def open(self, session: Session) -> Shares:
        """Deal anew: what queues ask for has changed."""
        cluster, total = session.cluster, session.cluster.nodes.totals()
        tree = QuotaTree((_quota(queue) for queue in cluster.queues.values()), total)
        accounts = {name: account for name, account in cluster.ledger.accounts.items() if name in cluster.queues}
        claims = [_claim(cluster.queues[name], account, tree) for name, account in accounts.items()]
        deserved = water_fill(total, claims)
        bounds = {name: _bounds(deserved[name], accounts[name], total) for name in accounts}
        return Shares(tree, deserved, bounds)

    def queue_key(self, session: Session, queue: Queue) -> Key:
        """Priority, then how much of its share it has."""
        deserved = session.opened(self).deserved.get(queue.name, _FREE)
        return (-queue.priority, use_of(_account(session, queue).held, deserved))

    def queue_keys(self, session: Session, queue: Queue, growth: ProjectedUse) -> Sequence[Iterable[Any]]:
        """The same as it will hold more and more."""
        deserved = session.opened(self).deserved.get(queue.name, _FREE)
        return repeat(-queue.priority), growth.uses(_account(session, queue).held, deserved)

    def is_overused(self, session: Session, queue: Queue) -> bool:
        """Whether it holds all that it deserves, and deserves less than it asks for."""
        shares = session.opened(self)
        if not shares.bounds.get(queue.name):
            return False
        return has_all(_account(session, queue).held, shares.deserved[queue.name])

    def allowance(self, session: Session, queue: Queue, task: Task, wanted: int) -> int:
        """As many as stay within what the queue deserves."""
        bounds = session.opened(self).bounds.get(queue.name)
        if not bounds:
            return wanted
        held = _account(session, queue).held
        for name, amount in bounded(task.shape.request):
            if name in bounds:
                wanted = min(wanted, (bounds[name] - held[name]) // amount)
        return max(wanted, 0)

    def why_not_allocatable(self, session: Session, queue: Queue, task: Task) -> Refusal | None:
        """In Volcano's words."""
        bounds = session.opened(self).bounds.get(queue.name, _FREE)
        no = insufficient(OVER_SHARE, queue.name, task.shape.request, _account(session, queue).held, bounds)
        return Refusal(no.code, no.sentence) if no is not None else None

    def why_not_preemptive(self, session: Session, queue: Queue, task: Task) -> Refusal | None:
        """A queue may reclaim what it deserves."""
        if not queue.is_open:
            return Refusal(CLOSED, f'queue "{queue.name}" is not open')
        return self.why_not_allocatable(session, queue, task)

    def reclaimable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Tasks of queues that hold more than they deserve of something the task has, until they do not any more.

        (In Volcano of anything: there a queue loses tasks that do not bring it nearer to its share.)
        """
        deserved, held, chosen = session.opened(self).deserved, dict[str, dict[str, int]](), list[Task]()
        for victim in victims:
            assert victim.job is not None
            queue = victim.job.spec.queue
            left = held.setdefault(queue, dict(session.cluster.ledger.of(queue).held))
            over, request = reclaimable(left, deserved.get(queue, _FREE)), dict(bounded(victim.shape.request))
            kept = session.cluster.queues[queue].guarantee
            is_kept = any(left.get(name, 0) - request.get(name, 0) < least for name, least in kept.items())
            if over.keys() & request.keys() and not is_kept:
                chosen.append(victim)
                for name, amount in victim.shape.request.items():
                    left[name] = left.get(name, 0) - amount
        return chosen

    def is_entitled(self, session: Session, job: Job) -> bool:
        """Whether the queue's promises, with the job's minimum, are within what it would deserve if it asked for them."""
        cluster, name = session.cluster, job.spec.queue
        tree, total = session.opened(self).tree, cluster.nodes.totals()
        promised = added(
            (_account(session, cluster.queues[name]).firm, session.entered.in_queue(name), job.spec.min_resources or {})
        )
        accounts = {name: cluster.ledger.of(name), **cluster.ledger.accounts}
        claims = [
            _claim(cluster.queues[one], account, tree) for one, account in accounts.items() if one in cluster.queues
        ]
        asking = [replace(c, request=_most(c.request, promised)) if c.name == name else c for c in claims]
        share = water_fill(total, asking)[name]
        return all(amount <= share.get(resource, 0) for resource, amount in bounded(promised))

    def may_enqueue(self, session: Session, job: Job) -> Opinion:
        """Whether the queue's promises, this one included, stay within what it may ever hold."""
        queue = session.cluster.queues[job.spec.queue]
        if not queue.is_open:
            return Opinion(Vote.REJECT, f'queue "{queue.name}" is not open')
        if job.spec.min_resources is None:
            return Opinion(Vote.PERMIT)
        share = session.opened(self).tree.shares[queue.name]
        promised = added((_account(session, queue).firm, session.entered.in_queue(queue.name)))
        no = insufficient(OVER_LIMIT, queue.name, job.spec.min_resources, promised, share.ceiling)
        return Opinion(Vote.REJECT, no.sentence) if no is not None else Opinion(Vote.PERMIT)


def _account(session: Session, queue: Queue) -> Account:
    return session.cluster.ledger.of(queue.name)


def _quota(queue: Queue) -> Quota:
    """Without its parent: proportion knows no tree."""
    return Quota(name=queue.name, guarantee=queue.guarantee, limit=queue.capability)


def _claim(queue: Queue, account: Account, tree: QuotaTree) -> Claim:
    share = tree.shares[queue.name]
    return Claim(
        name=queue.name, weight=queue.weight, request=+account.asked, guarantee=share.guarantee, ceiling=share.ceiling,
        rank=(queue.created, queue.name),
    )  # fmt: skip


def _most(one: Amounts, other: Amounts) -> Amounts:
    return {name: max(one.get(name, 0), other.get(name, 0)) for name in one.keys() | other.keys()}


def _bounds(deserved: Amounts, account: Account, total: Amounts) -> Amounts:
    return {
        name: share for name, share in deserved.items() if share < account.asked[name] and share < total.get(name, 0)
    }
