"""A configuration at work on one cluster: plug-ins in tiers, and the placer that has learnt their opinions.

It lives as long as the configuration does; `session.py` is one cycle of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from hekla.placement.cluster import Cluster
from hekla.placement.placer import Placer

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

        self._asked: dict[type, list[Any]] = {}
        self.placer = Placer(cluster, self.plugins)
        cluster.take_queues_as_tree(any(getattr(plugin, "takes_queues_as_tree", False) for plugin in self.plugins))

    def asked(self, point: type[T]) -> list[T]:
        """The plug-ins that implement an extension point, in order."""
        found = self._asked.get(point)
        if found is None:  # every cycle asks, and checking a Protocol looks at every name of a class
            found = self._asked[point] = [plugin for plugin in self.plugins if isinstance(plugin, point)]
        return found
