"""Reconciles Node: one whose lease is stale is unreachable, gets taints, and its pods are evicted in time.

    lease renewed within 50 s, Ready True     no taint
    Ready False                               node.kubernetes.io/not-ready
    lease stale: Ready becomes Unknown        node.kubernetes.io/unreachable

Each taint is there twice: NoSchedule at once, NoExecute for eviction. Pods tolerate the latter for 300 s by default.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta

import msgspec

from hekla.api.coordination import Lease
from hekla.api.meta import Document
from hekla.api.nodes import Node, Taint
from hekla.api.pod_scheduling import Toleration
from hekla.api.pods import Pod
from hekla.controlplane.pod_state import condition, has_ended, is_leaving
from hekla.kube.commands import Command, Delete, Event, Patch, RequeueAfter, SetStatus, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.kube.timestamps import parse_rfc3339, rfc3339

LEASES = "kube-node-lease"
GRACE = timedelta(seconds=50)
NOT_READY, UNREACHABLE = "node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"
PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OURS = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values()})


def _node_of(lease: Lease) -> Iterator[tuple[str, str]]:
    if lease.metadata.namespace == LEASES:
        yield "", lease.metadata.name


@reconciler(Node, reads=(Lease,), name="node-lifecycle")
def reconcile_node(node: Node, world: World, now: datetime) -> Iterator[Command]:
    """Judge the lease, keep the taints, and look again when the lease would be stale."""
    if node.metadata.deletion_timestamp:
        return
    left_s = _lease_left_s(node, world, now)
    conditions = {one.type: one.status for one in node.status.conditions}
    if left_s <= 0 and conditions.get("Ready") != "Unknown":
        # The taints follow when this is seen: they are guarded by the revision that this write changes.
        yield from _declare_unknown(node, now)
        return
    yield from _keep_taints(node, conditions, now)
    if left_s > 0:
        yield RequeueAfter(left_s + 0.1)


def _lease_left_s(node: Node, world: World, now: datetime) -> float:
    lease = world.get(Lease, LEASES, node.metadata.name)
    renewed = parse_rfc3339(lease.spec.renew_time) if lease is not None and lease.spec else None
    heartbeats = [parse_rfc3339(one.last_heartbeat_time) for one in node.status.conditions]
    signs = [
        sign for sign in (renewed, parse_rfc3339(node.metadata.creation_timestamp), *heartbeats) if sign is not None
    ]
    # in this order: nothing can be added to the year 9999
    return (max(signs) - now + GRACE if signs else GRACE).total_seconds()


def _declare_unknown(node: Node, now: datetime) -> Iterator[Command]:
    conditions = []
    for one in node.status.conditions:
        document = {key: value for key, value in msgspec.to_builtins(one).items() if value not in (None, "")}
        document |= {
            "status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": rfc3339(now),
        }  # fmt: skip
        conditions.append(document)
    if not any(one.type == "Ready" for one in node.status.conditions):
        message = "Kubelet never posted node status."
        conditions.append(
            {
                "type": "Ready", "status": "Unknown", "reason": "NodeStatusNeverUpdated", "message": message,
                "lastTransitionTime": rfc3339(now), "lastHeartbeatTime": node.metadata.creation_timestamp,
            }
        )  # fmt: skip
    yield SetStatus(target_of(node), {"conditions": conditions})
    yield Event(target_of(node), "NodeNotReady", f"Node {node.metadata.name} status is now: NodeNotReady")


def _keep_taints(node: Node, conditions: dict[str, str], now: datetime) -> Iterator[Command]:
    wanted = _wanted_taints(node, conditions)
    present = {(taint.key, taint.effect) for taint in node.spec.taints if taint.key in OURS}
    if wanted == present:
        return
    taints: list[Document] = [
        _document(taint) for taint in node.spec.taints if taint.key not in OURS or (taint.key, taint.effect) in wanted
    ]
    for key, effect in sorted(wanted - present):
        taints.append({"key": key, "effect": effect, "timeAdded": rfc3339(now)})
    # Guarded: people taint nodes too, and a list is replaced whole.
    yield Patch(target_of(node), {"spec": {"taints": taints or None}}, is_guarded=True)


def _wanted_taints(node: Node, conditions: dict[str, str]) -> set[tuple[str, str]]:
    wanted = {(taint, "NoSchedule") for kind, taint in PRESSURES.items() if conditions.get(kind) == "True"}
    if node.spec.unschedulable:
        wanted.add((UNSCHEDULABLE, "NoSchedule"))
    key = {"False": NOT_READY, "Unknown": UNREACHABLE, "": NOT_READY}.get(conditions.get("Ready", ""))
    if key:
        wanted |= {(key, "NoSchedule"), (key, "NoExecute")}
    return wanted


def _document(taint: Taint) -> Document:
    return {key: value for key, value in msgspec.to_builtins(taint).items() if value not in (None, "")}


# ---- eviction by taints


def _pods_on(node: Node, world: World) -> Iterator[tuple[str, str]]:
    if any(taint.effect == "NoExecute" for taint in node.spec.taints):
        for pod in world.placed(Pod, node.metadata.name):
            yield pod.metadata.namespace, pod.metadata.name


def _is_on_tainted_node(pod: Pod, world: World) -> bool:
    node = world.get(Node, "", pod.spec.node_name) if pod.spec.node_name else None
    return node is not None and any(taint.effect == "NoExecute" for taint in node.spec.taints)


@reconciler(Pod, concerns=_is_on_tainted_node, finds={Node: _pods_on}, name="taint-eviction")
def reconcile_tainted_pod(pod: Pod, world: World, now: datetime) -> Iterator[Command]:
    """Delete a pod when it no longer tolerates its node; say on an unreachable node that it is not ready."""
    node = world.get(Node, "", pod.spec.node_name) if pod.spec.node_name else None
    if node is None or has_ended(pod):
        return
    yield from _mark_not_ready(pod, node, now)
    if is_leaving(pod):
        return
    patience_s = min(
        (_patience_s(pod, taint, now) for taint in node.spec.taints if taint.effect == "NoExecute"), default=None
    )
    if patience_s is None or patience_s == float("inf"):
        return
    if patience_s > 0:
        yield RequeueAfter(patience_s + 0.1)
        return
    yield Event(
        target_of(pod), "TaintManagerEviction", f"Marking for deletion Pod {pod.metadata.namespace}/{pod.metadata.name}"
    )
    yield Delete(target_of(pod), reason=f"it does not tolerate a taint of node {node.metadata.name}")


def _mark_not_ready(pod: Pod, node: Node, now: datetime) -> Iterator[Command]:
    """Whoever cannot be reached must not be sent requests: endpoints follow the Ready condition."""
    ready = condition(pod, "Ready")
    if ready is None or ready.status != "True":
        return
    if not any(taint.key == UNREACHABLE for taint in node.spec.taints):
        return
    conditions = []
    for one in pod.status.conditions:
        document = {key: value for key, value in msgspec.to_builtins(one).items() if value not in (None, "", 0)}
        if one.type == "Ready":
            document |= {"status": "False", "reason": "NodeNotReady", "lastTransitionTime": rfc3339(now)}
        conditions.append(document)
    yield SetStatus(target_of(pod), {"conditions": conditions})


def _patience_s(pod: Pod, taint: Taint, now: datetime) -> float:
    """How long the pod still tolerates a taint: infinity if for ever, 0 if not at all."""
    matching = [one for one in pod.spec.tolerations if _tolerates(one, taint)]
    if not matching:
        return 0.0
    limits = [one.toleration_seconds for one in matching if one.toleration_seconds is not None]
    if len(limits) < len(matching):
        return float("inf")
    since = parse_rfc3339(taint.time_added) or now
    return max(0.0, (since + timedelta(seconds=max(0, min(limits))) - now).total_seconds())


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value
