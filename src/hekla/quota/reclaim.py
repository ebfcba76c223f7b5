"""Who may take back what others borrowed, and from whom.

A queue may take back for a request that keeps it within what it deserves in at least one resource it asks for. A pod
may be taken from a queue that keeps its guarantee and holds more than it deserves of something the pod has. A queue that
deserves nothing of what the pod has only borrowed it, so it goes at once.
"""

from hekla.quota.amounts import Amounts, bounded
from hekla.quota.tree import QueueShare, QuotaTree, Taken


def may_reclaim(tree: QuotaTree, name: str, asked: Amounts, taken: Taken, level: int = 0) -> bool:
    """Whether a queue, or one of so many levels above it, stays within what it deserves in a resource asked for."""
    path = tree.path(name)[::-1]
    return any(_is_within(tree.shares[queue], taken(queue), asked) for queue in path[: level + 1])


def may_lose(share: QueueShare, held: Amounts, victim: Amounts, asked: Amounts) -> bool:
    """Whether a queue that holds so much may lose a pod for a request."""
    has = dict(bounded(victim))
    if not has.keys() & dict(bounded(asked)).keys():
        return False  # it would not help
    if any(held.get(name, 0) - victim.get(name, 0) < kept for name, kept in share.guarantee.items()):
        return False
    own = has.keys() & share.deserved.keys()
    return not own or is_over(share, held, own)


def is_over(share: QueueShare, held: Amounts, resources: "set[str] | frozenset[str]") -> bool:
    """Whether a queue holds more than it deserves of one of these resources."""
    return any(held.get(name, 0) > share.deserved.get(name, 0) for name in resources)


def _is_within(share: QueueShare, held: Amounts, asked: Amounts) -> bool:
    return any(
        held.get(name, 0) + amount <= share.deserved[name] for name, amount in bounded(asked) if name in share.deserved
    )
