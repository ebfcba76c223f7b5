"""How many pods each replica set of a deployment should have: the arithmetic of rolling updates. Pure numbers.

total of all sets     <= replicas + max_surge
available in all sets >= replicas - max_unavailable
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hekla.api.apps import DeploymentStrategy
from hekla.controlplane.selecting import resolve


@dataclass(frozen=True)
class ReplicaShare:
    """One replica set in the arithmetic."""

    name: str
    replicas: int
    available: int
    max_at_last_scale: int = 0
    """The deployment's replicas + surge when this set was last scaled; the base of its proportion."""


def bounds(strategy: DeploymentStrategy, replicas: int) -> tuple[int, int]:
    """(max_surge, max_unavailable) in pods. Surge rounds up, unavailable down; both 0 would never move."""
    if strategy.type == "Recreate":
        return 0, replicas
    rolling = strategy.rolling_update
    surge = resolve(rolling.max_surge, replicas, round_up=True) if rolling else 0
    unavailable = resolve(rolling.max_unavailable, replicas, round_up=False) if rolling else 0
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return surge, min(unavailable, replicas)


def grown(new: ReplicaShare, old: Sequence[ReplicaShare], *, replicas: int, max_surge: int) -> int:
    """How many pods the new set may have now."""
    if new.replicas >= replicas:
        return replicas
    total = new.replicas + sum(share.replicas for share in old)
    room = replicas + max_surge - total
    return new.replicas + max(0, min(room, replicas - new.replicas))


def shrunk(new: ReplicaShare, old: Sequence[ReplicaShare], *, replicas: int, max_unavailable: int) -> dict[str, int]:
    """What remains of the old sets, oldest first in `old`: the broken pods go first, then what availability allows."""
    min_available = replicas - max_unavailable
    total = new.replicas + sum(share.replicas for share in old)
    budget = total - min_available - max(0, new.replicas - new.available)
    if budget <= 0:
        return {}
    left = {share.name: share for share in old}
    for share in old:
        gone = min(budget, max(0, share.replicas - share.available))
        left[share.name] = replace(share, replicas=share.replicas - gone)
        budget -= gone
    spare = new.available + sum(share.available for share in old) - min_available
    for name, share in left.items():
        gone = min(max(0, spare), share.replicas)
        left[name] = replace(share, replicas=share.replicas - gone)
        spare -= gone
    return {share.name: left[share.name].replicas for share in old if left[share.name].replicas != share.replicas}


def proportional(shares: Sequence[ReplicaShare], *, replicas: int, max_surge: int) -> dict[str, int]:
    """Spread a change of `replicas` in the middle of a rollout over all sets by their size; the largest gets the rest."""
    total = sum(share.replicas for share in shares)
    allowed = replicas + max_surge if replicas > 0 else 0
    to_add = allowed - total
    # Growing favours the largest set, and so does shrinking: it has most to give.
    ordered = sorted(shares, key=lambda share: -share.replicas)
    sizes, added = {}, 0
    for share in ordered:
        part = _part(share, allowed, to_add - added) if to_add else 0
        sizes[share.name] = share.replicas + part
        added += part
    return _with_rest(sizes, to_add - added)


def _with_rest(sizes: dict[str, int], rest: int) -> dict[str, int]:
    """What rounding has left over goes to the first; what the first cannot give, the next ones do."""
    for name, size in sizes.items():
        sizes[name] = max(0, size + rest)
        rest -= sizes[name] - size
    return sizes


def _part(share: ReplicaShare, allowed: int, left: int) -> int:
    base = share.max_at_last_scale or allowed
    if not share.replicas or not base:
        return 0
    part = round(share.replicas * allowed / base) - share.replicas
    return min(part, left) if left > 0 else max(part, left)
