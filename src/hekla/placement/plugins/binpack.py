"""Fill the fullest nodes first, so that whole nodes stay free for large jobs.

    score(node) = weighted mean over the requested resources of (used + request) / allocatable

A resource that a node lacks adds nothing, while its weight still counts: such nodes come last.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from hekla.placement.columns import Nodes
from hekla.placement.framework import plugin
from hekla.placement.node_selection.score import Score, full
from hekla.placement.registry import as_float
from hekla.placement.shape import Shape


@plugin
@dataclass(frozen=True, kw_only=True)
class Binpack:
    """Prefer the nodes that a pod would leave nearly full."""

    weight: float = 1.0
    """How much this plug-in counts beside others."""

    weights: Mapping[str, float] = field(default_factory=lambda: {"cpu": 1.0, "memory": 1.0})
    """How much each resource counts. A resource that is not named, or not asked for, does not count."""

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """The weighted mean of how full the pod would leave what it asks for."""
        return full({name: weight for name, weight in self.weights.items() if shape.asks(name)})

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's spelling: `binpack.cpu`, `binpack.memory`, `binpack.resources: a, b`, `binpack.resources.a`."""
        named = [name.strip() for name in str(arguments.get("binpack.resources", "")).split(",") if name.strip()]
        keys = {"cpu": "binpack.cpu", "memory": "binpack.memory", **{n: f"binpack.resources.{n}" for n in named}}
        return cls(
            weight=as_float("binpack.weight", arguments.get("binpack.weight", 1)),
            weights={name: as_float(key, arguments.get(key, 1)) for name, key in keys.items()},
        )
