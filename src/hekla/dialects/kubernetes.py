"""Nodes and pods as the engine's nodes and tasks.

`pod_requests.py` and `pod_constraints.py` do the arithmetic and the demands, `pod_template.py` does them once for many pods;
`volcano.py` knows gangs and queues; `feed.py` keeps a whole cluster up to date.
"""

from collections.abc import Mapping

import msgspec

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.dialects.eviction_terms import course
from hekla.dialects.pod_requests import amounts
from hekla.dialects.pod_template import template
from hekla.dialects.surroundings import Surroundings
from hekla.dialects.timestamps import seconds
from hekla.lib.quantity import QuantityError
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Effect, Taint
from hekla.placement.model import TaskSpec, TaskStatus
from hekla.placement.shard import ShardSide

GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")

_STATUS = {
    "Running": TaskStatus.RUNNING,
    "Succeeded": TaskStatus.SUCCEEDED,
    "Failed": TaskStatus.FAILED,
    "Unknown": TaskStatus.UNKNOWN,
}


def node_spec(
    node: Node, volume_limits: Mapping[str, int] | None = None, shard: ShardSide = ShardSide.OURS
) -> NodeSpec:
    """A node's facts, what its drivers of storage can attach, and its side of a sharded cluster. A node without a Ready condition counts as ready: nobody has said otherwise."""
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "True")
    return NodeSpec(
        name=node.metadata.name,
        allocatable=_readable(node.status.allocatable or node.status.capacity),
        labels=node.metadata.labels,
        taints=tuple(Taint(t.key, t.value, Effect(t.effect)) for t in node.spec.taints if t.effect in set(Effect)),
        is_schedulable=not node.spec.unschedulable,
        is_ready=ready == "True" and not node.metadata.deletion_timestamp,
        images={name: image.size_bytes for image in node.status.images for name in image.names},
        volume_limits=volume_limits or {},
        shard=shard,
    )


def task_spec(pod: Pod, around: Surroundings) -> TaskSpec:
    """A pod's facts. One that cannot be understood is blocked with the reason, and blocks nobody else."""
    meta = pod.metadata
    return msgspec.structs.replace(
        template(pod, around),
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        labels=meta.labels,
        created=seconds(meta.creation_timestamp),
        node=pod.spec.node_name,
        status=task_status(pod),
        **course(pod),
    )


def task_status(pod: Pod) -> TaskStatus:
    """Where a pod stands."""
    phase = pod.status.phase
    if phase in {"Succeeded", "Failed"}:
        return _STATUS[phase]
    if pod.metadata.deletion_timestamp:
        return TaskStatus.RELEASING
    if not pod.spec.node_name:
        return TaskStatus.PENDING
    return _STATUS.get(phase, TaskStatus.BOUND)


def group_name(pod: Pod) -> str:
    """The PodGroup a pod belongs to; "" if to none."""
    annotations = pod.metadata.annotations
    if not annotations:
        return ""
    return next((annotations[key] for key in GROUP_ANNOTATIONS if annotations.get(key)), "")


def _readable(allocatable: dict[str, str]) -> dict[str, int]:
    """Amounts; a resource whose quantity cannot be read, or is negative, is one that the node does not have."""
    readable: dict[str, int] = {}
    for name, text in allocatable.items():
        try:
            readable |= {key: max(value, 0) for key, value in amounts({name: text}).items()}
        except QuantityError:
            continue
    return readable
