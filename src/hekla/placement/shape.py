"""Shapes: pods that ask for the same and demand the same are decided together.

A shape is interned once per cluster; masks, scores and indexes are kept per shape (`node_selection/placer.py`), not per pod.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hekla.placement.columns import IntArray
from hekla.placement.constraint import Constraints
from hekla.placement.devices.shares import GPU_MILLI


@dataclass(eq=False, slots=True, weakref_slot=True)
class Shape:
    """What equal pods ask for and demand. Compared by identity."""

    constraints: Constraints
    request: Mapping[str, int]
    """Amounts by resource, one of `pods` included."""

    resources: IntArray
    """Indices of the requested resources, in order, and of what it is counted as beyond its request."""

    amounts: IntArray
    by_index: Mapping[int, int]
    """The amounts by index."""

    kind: tuple[Constraints, tuple[int, ...]]
    """What feasibility (amounts aside) and the weights of a score may depend on: demands, and which resources."""

    uses: int = 0
    """How often a pod of this shape was placed or refused: an index is worth its memory from the second time."""

    is_best_effort: bool = field(init=False)
    """Whether it asks for nothing but a place."""

    gpu_milli: int = field(init=False)
    """Thousandths of GPUs, of which it needs to be told which (`devices/shares.py`)."""

    def __post_init__(self) -> None:
        self.is_best_effort = not any(amount for name, amount in self.request.items() if name != "pods")
        self.gpu_milli = self.request.get(GPU_MILLI, 0)

    def asks(self, resource: str) -> bool:
        """Whether it asks for some of this resource."""
        return self.request.get(resource, 0) > 0

    def adding(self, resource: int) -> int:
        """What such a pod would add to a resource of a node."""
        return self.by_index.get(resource, 0)
