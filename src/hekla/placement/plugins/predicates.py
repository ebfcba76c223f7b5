"""The hard constraints of Kubernetes: may this node take the pod at all? One file of `filters/` for each.

Resources are not asked here: the engine itself sees to it that nothing is overfull.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from hekla.placement.columns import Nodes
from hekla.placement.constraint import Constraints
from hekla.placement.filters import pod_affinity, ports, schedulable, selectors, spread, taints, volumes
from hekla.placement.framework import Refused, plugin
from hekla.placement.model import Task
from hekla.placement.registry import as_bool
from hekla.placement.tallies import Tallies


@plugin
@dataclass(frozen=True, kw_only=True)
class Predicates:
    """Refuses nodes as kube-scheduler does; each kind of refusal can be switched off."""

    node_affinity: bool = True
    """Node selector and required node affinity."""

    node_ports: bool = True
    """Host ports."""

    taint_toleration: bool = True
    """Taints that keep pods away."""

    pod_affinity: bool = True
    """Required affinity and anti-affinity between pods."""

    pod_topology_spread: bool = True
    """Topology spread constraints that must hold."""

    volume_binding: bool = True
    """Volumes that only some nodes reach, and claims that one pod at a time may use."""

    follows_tallies = True
    """Asked by the placer: what it says of pods that wish for no company changes with the tallies that they ask alone."""

    @property
    def keeps_apart(self) -> bool:
        """Asked by the placer: whether pods that repel one another are kept apart."""
        return self.pod_affinity

    def refuse(self, nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
        """In kube-scheduler's order, so that the reasons told are the same."""
        yield from schedulable.refuse(nodes, constraints)
        if self.taint_toleration:
            yield from taints.refuse(nodes, constraints)
        if self.node_affinity:
            yield from selectors.refuse(nodes, constraints)
        if self.volume_binding:
            yield from volumes.refuse(nodes, constraints)

    def refuse_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
        """In kube-scheduler's order."""
        if self.node_ports:
            yield from ports.refuse_live(nodes, tallies, task)
        if self.volume_binding:
            yield from volumes.refuse_live(nodes, tallies, task)
        if self.pod_topology_spread:
            yield from spread.refuse_live(nodes, tallies, task)
        if self.pod_affinity:
            yield from pod_affinity.refuse_live(nodes, tallies, task)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `predicate.NodeAffinityEnable` and its siblings."""
        keys = {
            "node_affinity": "NodeAffinityEnable", "node_ports": "NodePortsEnable",
            "taint_toleration": "TaintTolerationEnable", "pod_affinity": "PodAffinityEnable",
            "pod_topology_spread": "PodTopologySpreadEnable", "volume_binding": "VolumeBindingEnable",
        }  # fmt: skip
        return cls(
            **{
                field: as_bool(f"predicate.{key}", arguments.get(f"predicate.{key}", True))
                for field, key in keys.items()
            }
        )
