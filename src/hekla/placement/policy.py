# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""A configuration at work on one cluster: plug-ins in tiers, and the placer that has learnt their opinions.

It lives as long as the configuration does; `session.py` is one cycle of it.
"""

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from hekla.placement.cluster import Cluster
from hekla.placement.framework import Outlook, Reader
from hekla.placement.node_selection.placer import Placer
from hekla.placement.queueing.kept_lines import KeptLines

if TYPE_CHECKING:
    from hekla.placement.session import Session

T = TypeVar("T")
Tiers = Sequence[Sequence[object]]


class Policy:
    """Plug-ins in tiers, for one cluster."""

    def __init__(
        self, cluster: Cluster, tiers: Tiers, arguments: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self.cluster = cluster
        self.tiers = tiers
        self.plugins = [plugin for tier in tiers for plugin in tier]
        self.arguments = arguments or {}
        """Arguments by action."""

        self.actions: Sequence[str] = ()
        """The actions that are at work, as far as it makes a difference to others which are."""

        self._asked: dict[type, list[Any]] = {}
        self._asked_by_tier: dict[type, list[list[Any]]] = {}
        self.placer = Placer(cluster, self.plugins)
        self.kept_lines = KeptLines(self.asked)
        """The lines in which lone jobs wait."""

        self._outlook: tuple[Hashable, ...] = ()
        cluster.keep_arrivals(max((getattr(plugin, "arrivals_s", 0.0) for plugin in self.plugins), default=0.0))
        cluster.let_read(tuple(plugin.read for plugin in self.asked(Reader)))
        cluster.ledger.keep_past(next((p.half_life_s for p in self.plugins if hasattr(p, "half_life_s")), None))
        cluster.take_queues_as_tree(any(getattr(plugin, "takes_queues_as_tree", False) for plugin in self.plugins))

    def know_as(self, other: "Policy") -> None:
        """Take over which plug-ins implement what from a policy of the same plug-ins: finding out takes milliseconds."""
        self._asked, self._asked_by_tier = other._asked, other._asked_by_tier

    def look_around(self, session: "Session") -> None:
        """Take in what time it is and what was measured; what was derived from another outlook is void."""
        nodes = self.cluster.nodes
        nodes.wall_s = session.wall_s
        nodes.notes.clear()
        outlook = tuple(plugin.outlook(session) for plugin in self.asked(Outlook))
        if outlook != self._outlook:
            self._outlook = outlook
            nodes.version += 1
            self.cluster.gains += 1

    def asked(self, point: type[T]) -> list[T]:
        """The plug-ins that implement an extension point, in order."""
        found = self._asked.get(point)
        if found is None:  # every cycle asks, and checking a Protocol looks at every name of a class
            found = self._asked[point] = [plugin for plugin in self.plugins if isinstance(plugin, point)]
        return found

    def asked_by_tier(self, point: type[T]) -> list[list[T]]:
        """The same, tier by tier; a tier in which nobody implements it is empty."""
        found = self._asked_by_tier.get(point)
        if found is None:
            found = self._asked_by_tier[point] = [[p for p in tier if isinstance(p, point)] for tier in self.tiers]
        return found
