"""What nodes were measured to use, and when: facts from outside, beside what their pods asked for.

A source in `scheduler/` brings them; the plug-ins `usage` and `rescheduling` read them as columns. What was measured
long ago is not believed: each reader says how old is too old.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hekla.placement.columns import Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """How busy a node was on average over the source's period, in percent of what it has."""

    cpu: float
    memory: float
    at_s: float
    """When it was measured, as objects tell time."""


@dataclass(slots=True, eq=False)
class UsageColumns:
    """The same for all nodes; 0 and -inf where nothing is known."""

    cpu: NDArray[np.float32]  # [node] percent
    memory: NDArray[np.float32]  # [node] percent
    at_s: NDArray[np.float64]  # [node]

    def fresh(self, since_s: float) -> NDArray[np.bool_]:
        """Nodes that were measured since.  # [node]"""
        return self.at_s >= since_s

    def after(self, time_s: float) -> NDArray[np.bool_]:
        """Nodes that were measured later than that.  # [node]"""
        return self.at_s > time_s


class Usages:
    """The last measurement of every node."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with every change."""

        self._by_name: dict[str, NodeUsage] = {}
        self._columns: UsageColumns | None = None
        self._columns_of = (-1, -1)

    @property
    def known(self) -> Mapping[str, NodeUsage]:
        """The last measurement by name of the node."""
        return self._by_name

    def put(self, name: str, usage: NodeUsage | None) -> bool:
        """Note what a node uses; None forgets it; whether that is news."""
        if self._by_name.get(name) == usage:
            return False
        if usage is None:
            del self._by_name[name]
        else:
            self._by_name[name] = usage
        self.version += 1
        return True

    def columns(self, nodes: "Nodes") -> UsageColumns:
        """The measurements by row; made anew when one of them, or a node, has changed."""
        version = (self.version, nodes.version)
        if self._columns is None or self._columns_of != version:
            self._columns, self._columns_of = self._new_columns(nodes), version
        return self._columns

    def _new_columns(self, nodes: "Nodes") -> UsageColumns:
        made = UsageColumns(
            np.zeros(nodes.rows, np.float32), np.zeros(nodes.rows, np.float32), np.full(nodes.rows, -np.inf)
        )
        for name, usage in self._by_name.items():
            row = nodes.row_of.get(name)
            if row is not None:
                made.cpu[row], made.memory[row], made.at_s[row] = usage.cpu, usage.memory, usage.at_s
        return made
