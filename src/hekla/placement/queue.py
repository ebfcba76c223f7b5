"""Queues as they are written down: their shares and bounds. What they hold is in `bookkeeping/ledger.py`, whose turn it is in `queueing/`."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class NodeGroups:
    """Which groups of nodes a queue uses, and which it keeps off; read by the plug-in `nodegroup`."""

    required: tuple[str, ...] = ()
    preferred: tuple[str, ...] = ()
    shunned: tuple[str, ...] = ()
    """Groups that are never used (required anti-affinity)."""

    disliked: tuple[str, ...] = ()
    """Groups that are used last (preferred anti-affinity)."""

    def __bool__(self) -> bool:
        return bool(self.required or self.preferred or self.shunned or self.disliked)


@dataclass(frozen=True, kw_only=True)
class Queue:
    """A line in which jobs wait, with a share of the cluster."""

    name: str
    weight: int = 1
    priority: int = 0
    parent: str = "root"
    is_open: bool = True
    capability: Mapping[str, int] = field(default_factory=dict)
    """The most it may hold; a resource that is not named is not bounded."""

    guarantee: Mapping[str, int] = field(default_factory=dict)
    """What is kept free for it, whoever else asks."""

    deserved: Mapping[str, int] = field(default_factory=dict)
    """Its own share, which others may borrow while it does not need it."""

    is_reclaimable: bool = True
    """Whether others may take back what it borrowed."""

    is_strict: bool = False
    """Whether nothing behind its head starts while the head waits (see `queueing/strict_fifo.py`)."""

    path: tuple[tuple[str, int], ...] = ()
    """For hierarchical drf: its place below the root, as names with weights; empty if it has none."""

    node_groups: NodeGroups | None = None
    """The groups of nodes it uses; None leaves it to the queue above, where queues are a tree."""

    group_limits: Mapping[str, Mapping[str, int]] | None = field(default_factory=dict)
    """The most it may hold in a group of nodes, by group and resource; None if what it says cannot be read."""

    created: float = 0.0
    uid: str = ""
