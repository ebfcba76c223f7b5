"""Annotations that scheduler plug-ins read of pods, PodGroups and Queues."""

import json
from collections.abc import Mapping
from math import isfinite

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.volcano import scheduling
from hekla.dialects.eviction_terms import YES
from hekla.dialects.pod_requests import amounts
from hekla.dialects.timestamps import seconds
from hekla.lib.quantity import QuantityError
from hekla.placement.bookkeeping.measured_usage import NodeUsage
from hekla.placement.queue import NodeGroups

ZONE_KEY, PREEMPTABLE_KEY = "volcano.sh/revocable-zone", "volcano.sh/preemptable"
ANY_ZONE = "*"
"""The one value of a pod's zone that Volcano takes: every zone."""

USAGE_KEY = "hekla.dev/node-usage"
"""How busy a node is, in percent, as JSON: `{"cpu": 43.5, "memory": 70, "time": "2026-11-21T12:00:00Z"}`."""

_OF_PODS = ("volcano.sh/resource-strategy-scoring-type", "volcano.sh/resource-strategy-weight")
_OF_GROUPS = (
    PREEMPTABLE_KEY, ZONE_KEY, "volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable",
    "volcano.sh/task-topology-affinity", "volcano.sh/task-topology-anti-affinity",
    "volcano.sh/task-topology-task-order",
)  # fmt: skip
_LIMITS_KEY = "volcano.sh/nodegroup-resource-limits"


def pod_traits(pod: Pod) -> tuple[tuple[str, str], ...]:
    """What plug-ins read of a pod."""
    annotations = pod.metadata.annotations
    if not annotations:
        return ()
    found = [(key, annotations[key]) for key in _OF_PODS if key in annotations]
    if _zone(annotations):
        found.append((ZONE_KEY, ANY_ZONE))
    return tuple(found)


def group_traits(annotations: Mapping[str, str]) -> dict[str, str]:
    """What plug-ins read of a gang."""
    return {key: annotations[key] for key in _OF_GROUPS if key in annotations} if annotations else {}


def node_groups(queue: scheduling.Queue) -> NodeGroups | None:
    """The groups of nodes that a queue uses; None if it says nothing."""
    affinity = queue.spec.affinity
    if affinity is None:
        return None
    near, apart = affinity.node_group_affinity, affinity.node_group_anti_affinity
    return NodeGroups(
        required=tuple(near.required_during_scheduling_ignored_during_execution) if near else (),
        preferred=tuple(near.preferred_during_scheduling_ignored_during_execution) if near else (),
        shunned=tuple(apart.required_during_scheduling_ignored_during_execution) if apart else (),
        disliked=tuple(apart.preferred_during_scheduling_ignored_during_execution) if apart else (),
    )


def group_limits(annotations: Mapping[str, str]) -> dict[str, dict[str, int]] | None:
    """The most that a queue may hold in a group of nodes, by group and resource; None if it cannot be read."""
    text = annotations.get(_LIMITS_KEY)
    if not text:
        return {}
    try:
        return {str(group): amounts(limits) for group, limits in json.loads(text).items()}
    except (ValueError, AttributeError, QuantityError):
        return None


def _zone(annotations: Mapping[str, str]) -> bool:
    """Whether a pod may run on nodes that it can be driven from: it says so, or may be evicted anyway."""
    if ZONE_KEY in annotations:
        return annotations[ZONE_KEY] == ANY_ZONE
    return annotations.get(PREEMPTABLE_KEY) in YES


def node_usage(node: Node) -> NodeUsage | None:
    """What somebody has measured of a node and written on it; None for nothing, or for what cannot be read."""
    text = node.metadata.annotations.get(USAGE_KEY)
    if not text:
        return None
    try:
        told = json.loads(text)
        usage = NodeUsage(cpu=float(told["cpu"]), memory=float(told["memory"]), at_s=seconds(str(told["time"])))
    except (ValueError, TypeError, KeyError):
        return None
    return usage if isfinite(usage.cpu) and isfinite(usage.memory) and usage.at_s > 0 else None
