"""The hard constraints of Kubernetes: may this node take the pod at all? One file of `filters/` for each.

Resources are not asked here: the engine itself sees to it that nothing is overfull. One taste lives here, since it is
decided with a constraint: of the nodes that reach a free volume for a claim, those whose volume fits it best.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from hekla.placement.bookkeeping.free_volumes import tightness
from hekla.placement.bookkeeping.tallies import Tallies
from hekla.placement.columns import FloatArray, Nodes
from hekla.placement.constraint import Constraints
from hekla.placement.filters import devices, pod_affinity, ports, schedulable, selectors, spread, taints, volumes
from hekla.placement.framework import Refused, plugin
from hekla.placement.model import Task
from hekla.placement.registry import ArgumentError, as_bool, as_float


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

    node_volume_limits: bool = True
    """How many volumes of a driver a node can attach."""

    volume_zone: bool = True
    """Zones and regions of volumes."""

    volume_binding: bool = True
    """Volumes that only some nodes reach, free volumes for claims, and claims and disks that are not shared."""

    dynamic_resources: bool = True
    """Devices that resource claims ask for."""

    volumebinding_weight: float = 1.0
    """How much it counts that free volumes are used well."""

    volumebinding_shape: tuple[tuple[float, float], ...] = ((0.0, 0.0), (100.0, 10.0))
    """How well, from 0 to 10, by the percentage of a free volume that a claim asks for."""

    follows_tallies = True
    """Asked by the placer: what it says of pods that wish for no company changes with the tallies that they ask alone."""

    @property
    def keeps_apart(self) -> bool:
        """Asked by the placer: whether pods that repel one another are kept apart."""
        return self.pod_affinity

    @property
    def keeps_even(self) -> bool:
        """Asked by the placer: whether domains are kept even."""
        return self.pod_topology_spread

    def refuse(self, nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
        """In kube-scheduler's order, so that the reasons told are the same."""
        yield from schedulable.refuse(nodes, constraints)
        if self.taint_toleration:
            yield from taints.refuse(nodes, constraints)
        if self.node_affinity:
            yield from selectors.refuse(nodes, constraints)
        if self.volume_zone:
            yield from volumes.refuse_zones(nodes, constraints)
        if self.volume_binding:
            yield from volumes.refuse(nodes, constraints)

    def refuse_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> Iterator[Refused]:
        """In kube-scheduler's order."""
        if self.node_ports:
            yield from ports.refuse_live(nodes, tallies, task)
        if self.volume_binding:
            yield from volumes.refuse_in_use(nodes, tallies, task)
        if self.node_volume_limits:
            yield from volumes.refuse_beyond_limits(nodes, tallies, task)
        if self.volume_binding:
            yield from volumes.refuse_live(nodes, tallies, task)
        if self.dynamic_resources:
            yield from devices.refuse_live(nodes, tallies, task)
        if self.pod_topology_spread:
            yield from spread.refuse_live(nodes, tallies, task)
        if self.pod_affinity:
            yield from pod_affinity.refuse_live(nodes, tallies, task)

    def score_live(self, nodes: Nodes, tallies: Tallies, task: Task) -> FloatArray | None:
        """How well free volumes would be used, times its weight."""
        claims = task.shape.constraints.unbound_claims
        if not claims or not self.volume_binding or self.volumebinding_weight <= 0:
            return None
        percent = np.array([at for at, _ in self.volumebinding_shape], np.float32)
        points = np.array([score for _, score in self.volumebinding_shape], np.float32) / np.float32(_MOST_POINTS)

        def shape(share: FloatArray) -> FloatArray:
            bent: FloatArray = np.interp(share * 100, percent, points).astype(np.float32)
            return bent

        return tightness(nodes, claims, tallies.given, shape) * np.float32(self.volumebinding_weight)

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `predicate.NodeAffinityEnable` and its siblings."""
        keys = {
            "node_affinity": "NodeAffinityEnable", "node_ports": "NodePortsEnable",
            "taint_toleration": "TaintTolerationEnable", "pod_affinity": "PodAffinityEnable",
            "pod_topology_spread": "PodTopologySpreadEnable", "node_volume_limits": "NodeVolumeLimitsEnable",
            "volume_zone": "VolumeZoneEnable", "volume_binding": "VolumeBindingEnable",
            "dynamic_resources": "DynamicResourceAllocationEnable",
        }  # fmt: skip
        switches = {
            field: as_bool(f"predicate.{key}", arguments.get(f"predicate.{key}", True)) for field, key in keys.items()
        }
        weight = as_float("volumebinding.weight", arguments.get("volumebinding.weight", cls.volumebinding_weight))
        shape = arguments.get("volumebinding.shape")
        bent = cls.volumebinding_shape if shape is None else _shape(shape)
        return cls(**switches, volumebinding_weight=weight, volumebinding_shape=bent)


_MOST_POINTS = 10


def _shape(told: Any) -> tuple[tuple[float, float], ...]:
    """Points of a line, as kube-scheduler is told them: `[{utilization: 0, score: 0}, {utilization: 100, score: 10}]`."""
    try:
        points = tuple((as_float("at", point["utilization"]), as_float("score", point["score"])) for point in told)
    except (TypeError, KeyError, ArgumentError):
        points = ()
    is_rising = all(first[0] < second[0] for first, second in pairwise(points))
    is_within = all(0 <= at <= 100 and 0 <= score <= _MOST_POINTS for at, score in points)
    if not points or not is_rising or not is_within:
        raise ArgumentError(
            f"volumebinding.shape is {told!r}; expected a list of {{utilization: 0..100, score: 0..{_MOST_POINTS}}}, "
            "utilization rising"
        )
    return points
