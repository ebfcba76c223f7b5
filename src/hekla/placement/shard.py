"""Which side of a sharded cluster a node is on, as one of several schedulers sees it."""

from enum import Enum

from hekla.placement.constraint import Refusal

OTHER_SHARD = Refusal("node-shard", "node(s) were not in the scheduler's shard")


class ShardSide(Enum):
    """Where a node stands; without shards all are ours."""

    OURS = "ours"
    BESIDE = "beside"
    """In no shard of ours: used when no node of ours will do."""

    SHUT = "shut"
    """In no shard of ours, and not to be used."""
