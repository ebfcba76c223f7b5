"""What a queue's tasks hold on each node, for the few queues that are limited on some nodes (plug-in `nodegroup`).

Counted from the moment a queue is asked about, as its tasks come and go; other queues cost nothing.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hekla.placement.columns import Nodes
    from hekla.placement.model import Task


class QueueUse:
    """Amounts in use by queue, resource and node."""

    def __init__(self) -> None:
        self._held: dict[str, NDArray[np.int64]] = {}  # [resource, node]

    def __bool__(self) -> bool:
        return bool(self._held)

    def watch(self, nodes: "Nodes", queue: str, placed: "Iterable[Task]") -> None:
        """Count a queue from now on, beginning with those of its tasks that are placed."""
        self._held[queue] = np.zeros_like(nodes.used)
        for task in placed:
            self.count(nodes, task, 1)

    def forget(self, queue: str) -> None:
        """Count a queue no more."""
        self._held.pop(queue, None)

    def watches(self, queue: str) -> bool:
        """Whether a queue is counted."""
        return queue in self._held

    def count(self, nodes: "Nodes", task: "Task", sign: int) -> None:
        """A task came to its row, or with sign -1 leaves it."""
        assert task.job is not None
        queue = task.job.spec.queue
        if queue in self._held:
            self.of(nodes, queue)[task.shape.resources, task.row] += sign * task.shape.amounts

    def of(self, nodes: "Nodes", queue: str) -> NDArray[np.int64]:
        """What a queue that is counted holds.  # [resource, node]"""
        held = self._held[queue]
        if held.shape != nodes.used.shape:
            larger = np.zeros_like(nodes.used)
            larger[: held.shape[0], : held.shape[1]] = held
            held = self._held[queue] = larger
        return held
