"""NodeShards: which nodes a scheduler works on where several share a cluster, and how nodes change hands.

    available   what our shard desires, but for what others still have in use

Everybody takes away from what others have told to be in use, so a node is never in two schedulers' hands; it may be in none
for a moment. What we have in use is told (`status_patch`) when nothing that was decided by what we had is under way.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from hekla.api.meta import Document
from hekla.api.volcano.shard import NodeShard
from hekla.placement.constraint import Refusal
from hekla.placement.shard import OTHER_SHARD, ShardSide


class ShardingMode(StrEnum):
    """What nodes outside our shard are to us."""

    NONE = "none"
    """As good as any: shards are not heeded."""

    SOFT = "soft"
    """Used when no node of our shard will do."""

    HARD = "hard"
    """Not used."""


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """How a scheduler heeds shards."""

    mode: ShardingMode = ShardingMode.NONE
    name: str = "volcano"
    """The NodeShard that is ours."""


HEEDLESS = Sharding()
"""No shards are heeded."""


class NodeShards:
    """The shards that there are, and what follows for nodes."""

    def __init__(self, sharding: Sharding) -> None:
        self._sharding = sharding
        self._shards: dict[str, NodeShard] = {}
        self._ours: frozenset[str] = frozenset()

    def side_of(self, node: str) -> ShardSide:
        """Where a node stands."""
        mode = self._sharding.mode
        if mode is ShardingMode.NONE or node in self._ours:
            return ShardSide.OURS
        return ShardSide.SHUT if mode is ShardingMode.HARD else ShardSide.BESIDE

    def put(self, old: NodeShard | None, new: NodeShard | None) -> Iterable[str]:
        """A shard came, changed or went; the nodes that changed sides."""
        known = new or old
        assert known is not None
        if new is not None:
            self._shards[new.metadata.name] = new
        else:
            self._shards.pop(known.metadata.name, None)
        before, self._ours = self._ours, self._available()
        return sorted(before ^ self._ours)

    @property
    def refusal(self) -> Refusal:
        """What is to be said of nodes that are not ours: that there is no shard of ours is another fault than that they are not in it."""
        name = self._sharding.name
        if name in self._shards or self._sharding.mode is not ShardingMode.HARD:
            return OTHER_SHARD
        hint = "create it, or run the scheduler with --scheduler-sharding-mode=none"
        return Refusal(
            OTHER_SHARD.code,
            f'node(s) could not be used as the scheduler\'s NodeShard "{name}" does not exist ({hint})',
        )

    def status_patch(self, now: str) -> Document | None:
        """A merge patch of our shard's status that tells what we have in use; None where that is told, or there is none."""
        own = self._shards.get(self._sharding.name)
        if own is None or self._sharding.mode is ShardingMode.NONE:
            return None
        told, desired = own.status, set(own.spec.nodes_desired)
        in_use = sorted(self._ours)
        to_remove, to_add = sorted(self._ours - desired), sorted(desired - self._ours)
        if (sorted(told.nodes_in_use), told.nodes_to_remove, told.nodes_to_add) == (in_use, to_remove, to_add):
            return None
        meta = {"resourceVersion": own.metadata.resource_version}
        status = {"nodesInUse": in_use, "nodesToRemove": to_remove, "nodesToAdd": to_add, "lastUpdateTime": now}
        return {"metadata": meta, "status": status}

    def _available(self) -> frozenset[str]:
        own = self._shards.get(self._sharding.name)
        if own is None:
            return frozenset()
        taken = {node for shard in self._shards.values() if shard is not own for node in shard.status.nodes_in_use}
        return frozenset(own.spec.nodes_desired) - taken
