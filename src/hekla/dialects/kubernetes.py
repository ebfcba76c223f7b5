"""Nodes and pods as the engine's nodes and tasks.

`pod_requests.py` and `pod_constraints.py` do the arithmetic and the demands; `volcano.py` knows gangs and queues;
`feed.py` keeps a whole cluster up to date.
"""

from collections import OrderedDict
from collections.abc import Mapping

import msgspec

from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.dialects.eviction_terms import course, terms
from hekla.dialects.pod_constraints import pod_constraints
from hekla.dialects.pod_requests import amounts, pod_limits, pod_request
from hekla.dialects.pod_volumes import claim_names
from hekla.dialects.surroundings import Surroundings
from hekla.dialects.timestamps import seconds
from hekla.dialects.traits import pod_traits
from hekla.lib.quantity import QuantityError
from hekla.placement.columns import NodeSpec
from hekla.placement.constraint import Constraints, Effect, Refusal, Taint
from hekla.placement.model import TaskSpec, TaskStatus

GROUP_ANNOTATIONS = ("scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name")
ROLE_KEY = "volcano.sh/task-spec"
PRIORITY_KEY = "volcano.sh/task-priority"

_STATUS = {
    "Running": TaskStatus.RUNNING,
    "Succeeded": TaskStatus.SUCCEEDED,
    "Failed": TaskStatus.FAILED,
    "Unknown": TaskStatus.UNKNOWN,
}


def node_spec(node: Node) -> NodeSpec:
    """A node's facts. A node without a Ready condition counts as ready: nobody has said otherwise."""
    ready = next((c.status for c in node.status.conditions if c.type == "Ready"), "True")
    return NodeSpec(
        name=node.metadata.name,
        allocatable=_readable(node.status.allocatable or node.status.capacity),
        labels=node.metadata.labels,
        taints=tuple(Taint(t.key, t.value, Effect(t.effect)) for t in node.spec.taints if t.effect in set(Effect)),
        is_schedulable=not node.spec.unschedulable,
        is_ready=ready == "True" and not node.metadata.deletion_timestamp,
        images={name: image.size_bytes for image in node.status.images for name in image.names},
    )


def task_spec(pod: Pod, around: Surroundings) -> TaskSpec:
    """A pod's facts. One that cannot be understood is blocked with the reason, and blocks nobody else."""
    request, limits, constraints = _demands(pod, around)
    meta = pod.metadata
    return TaskSpec(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        request=request,
        limits=limits,
        constraints=constraints,
        labels=meta.labels,
        role=meta.annotations.get(ROLE_KEY) or meta.labels.get(ROLE_KEY, ""),
        priority=_priority(pod),
        created=seconds(meta.creation_timestamp),
        is_gated=bool(pod.spec.scheduling_gates),
        node=pod.spec.node_name,
        status=task_status(pod),
        **terms(pod, around),
        **course(pod),
    )


Demands = tuple[dict[str, int], Mapping[str, int], Constraints]
"""Request, limits and constraints."""

_known_demands: OrderedDict[bytes, Demands] = OrderedDict()
_MOST_KNOWN = 4096
_encode = msgspec.msgpack.Encoder().encode


def _demands(pod: Pod, around: Surroundings) -> Demands:
    """Request and constraints. Pods of one template share them: reading them anew took 30 of 50 us per pod."""
    spec = pod.spec
    if spec.affinity is not None or spec.topology_spread_constraints or any(claim_names(pod)):
        return _read_demands(pod, around)  # depends on namespace, labels or other objects
    parts = [(c.resources, c.ports, c.image, c.restart_policy) for c in (*spec.containers, *spec.init_containers)]
    key = _encode((
        len(spec.containers), parts, spec.node_selector, spec.tolerations, spec.overhead, spec.resources, spec.host_network,
        pod_traits(pod),
    ))  # fmt: skip
    known = _known_demands.get(key)
    if known is None:
        known = _known_demands[key] = _read_demands(pod, around)
        if len(_known_demands) > _MOST_KNOWN:
            _known_demands.popitem(last=False)
    return known


def _read_demands(pod: Pod, around: Surroundings) -> Demands:
    try:
        request = pod_request(pod.spec)
        return request, pod_limits(pod.spec, request), pod_constraints(pod, around)
    except (QuantityError, ValueError) as error:
        return {}, {}, Constraints(blocked=Refusal("invalid-pod", f"pod cannot be understood: {error}"))


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
    return next((annotations[key] for key in GROUP_ANNOTATIONS if annotations.get(key)), "")


def _priority(pod: Pod) -> int:
    text = pod.metadata.annotations.get(PRIORITY_KEY, "")
    if not text:
        return pod.spec.priority or 0  # most pods; raising and catching an error for each took 2 % of a large start
    try:
        return int(text)
    except ValueError:
        return pod.spec.priority or 0


def _readable(allocatable: dict[str, str]) -> dict[str, int]:
    """Amounts; a resource whose quantity cannot be read, or is negative, is one that the node does not have."""
    readable: dict[str, int] = {}
    for name, text in allocatable.items():
        try:
            readable |= {key: max(value, 0) for key, value in amounts({name: text}).items()}
        except QuantityError:
            continue
    return readable
