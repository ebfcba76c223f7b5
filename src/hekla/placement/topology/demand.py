"""What tasks that must be together ask of a domain, and how many of them each domain has room for.

The room of a domain is a sum over its nodes of how many pods each could take: exact for pods of one shape, never too
small for mixed ones. So a domain that is ruled out here need not be tried, and of equal pods the first that is not
ruled out takes them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hekla.placement.columns import BoolArray, IntArray
from hekla.placement.model import Task
from hekla.placement.node_selection.placer import Placer
from hekla.placement.topology.tree import Tree


@dataclass(frozen=True)
class Demand:
    """So many of these tasks, which wait, are needed."""

    tasks: Sequence[Task]
    needed: int

    @property
    def request(self) -> dict[str, int]:
        """What the first tasks that make up the need ask for."""
        total: Counter[str] = Counter()
        for shape, number in Counter(task.shape for task in self.tasks[: self.needed]).items():
            for name, amount in shape.request.items():
                total[name] += amount * number
        return total


@dataclass(frozen=True)
class Room:
    """What each domain has room for."""

    pods: IntArray  # [domain] how many of the tasks, at most
    is_enough: BoolArray  # [domain] False where the need certainly cannot be met


def room_for(demand: Demand, tree: Tree, placer: Placer) -> Room:
    """How many tasks each domain could take, and whether that may be enough."""
    shapes = Counter(task.shape for task in demand.tasks)
    pods = np.zeros(len(tree.names), np.int64)
    is_enough = np.ones(len(tree.names), np.bool_)
    for shape, number in shapes.items():
        slots = tree.sums(placer.slots(shape))
        is_enough &= slots >= demand.needed - (len(demand.tasks) - number)
        pods += np.minimum(slots, number)
    return Room(pods, is_enough & (pods >= demand.needed))
