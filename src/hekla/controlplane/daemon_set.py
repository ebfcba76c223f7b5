"""Reconciles DaemonSet: one pod on every node that its template allows. The scheduler binds each to its node.

A pod names its node by required affinity, so it goes through the same scheduling, quota and events as any other.
"""

import copy
from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.controlplane.node_fit import may_run, may_stay
from hekla.controlplane.owning import claim, claimed, controller_reference, delete_surplus
from hekla.controlplane.pod_state import available_in_s, has_ended, is_leaving, is_ready
from hekla.controlplane.selecting import resolve
from hekla.controlplane.statuses import set_status
from hekla.controlplane.templates import pod_document, revision_hash
from hekla.controlplane.views import ControllerRevision, DaemonSet
from hekla.kube.commands import Command, Create, Delete, Event, target_of
from hekla.kube.reconcile import World, reconciler

REVISION_LABEL = "controller-revision-hash"
TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)
"""A daemon stays where other pods are driven away: it often is what repairs the node."""


def _all_sets(node: Node, world: World) -> Iterator[tuple[str, str]]:
    """Every daemon set is concerned by every node."""
    for daemon_set in world.list(DaemonSet):
        yield daemon_set.metadata.namespace, daemon_set.metadata.name


@reconciler(DaemonSet, owns=(Pod, ControllerRevision), finds={Node: _all_sets}, name="daemonset")
def reconcile_daemon_set(daemon_set: DaemonSet, world: World, now: datetime) -> Iterator[Command]:
    """Make missing pods, delete those on wrong nodes, roll outdated ones, and count."""
    selector = daemon_set.spec.selector
    yield from claim(daemon_set, selector, Pod, world)
    pods = claimed(daemon_set, selector, Pod, world)
    nodes = world.list(Node)
    spec = _spec(daemon_set)
    data = {"spec": {"template": {**daemon_set.spec.template, "$patch": "replace"}}}
    hashed = revision_hash(data, daemon_set.status.collision_count)
    yield from _remember(daemon_set, world, data, hashed)
    by_node = _by_node(pods)
    if not daemon_set.metadata.deletion_timestamp:
        yield from _place(daemon_set, nodes, by_node, spec, hashed)
        yield from _roll(daemon_set, nodes, by_node, spec, hashed, now)
    yield from set_status(daemon_set, _status(daemon_set, nodes, by_node, spec, hashed, now))


def _spec(daemon_set: DaemonSet) -> Document:
    """The template's pod spec with the tolerations that every daemon gets."""
    spec = copy.deepcopy(daemon_set.spec.template.get("spec") or {})
    added = [{"key": key, "operator": "Exists", "effect": effect} for key, effect in TOLERATED]
    if spec.get("hostNetwork"):
        added.append({"key": "node.kubernetes.io/network-unavailable", "operator": "Exists", "effect": "NoSchedule"})
    present = spec.get("tolerations") or []
    spec["tolerations"] = [*present, *(one for one in added if one not in present)]
    return spec


def _remember(daemon_set: DaemonSet, world: World, data: Document, hashed: str) -> Iterator[Command]:
    kept = sorted(world.owned(ControllerRevision, daemon_set.metadata.uid), key=lambda one: one.revision)
    name = f"{daemon_set.metadata.name}-{hashed}"
    labels = (daemon_set.spec.template.get("metadata") or {}).get("labels") or {}
    if all(one.metadata.name != name for one in kept):
        metadata = {
            "name": name,
            "namespace": daemon_set.metadata.namespace,
            "annotations": dict(daemon_set.metadata.annotations),  # `rollout history` reads its change cause here
            "labels": {**labels, REVISION_LABEL: hashed},
            "ownerReferences": [controller_reference(daemon_set)],
        }
        number = max((one.revision for one in kept), default=0) + 1
        yield Create(ControllerRevision, {"metadata": metadata, "data": data, "revision": number})
    limit = 10 if daemon_set.spec.revision_history_limit is None else daemon_set.spec.revision_history_limit
    old = [one for one in kept if one.metadata.name != name]
    for one in old[: max(0, len(old) - limit)]:
        yield Delete(target_of(one), reason="more revisions than spec.revisionHistoryLimit")


def _by_node(pods: Sequence[Pod]) -> dict[str, list[Pod]]:
    by_node: dict[str, list[Pod]] = {}
    for pod in pods:
        by_node.setdefault(_node_of(pod), []).append(pod)
    return by_node


def _node_of(pod: Pod) -> str:
    """The node a pod runs on or is meant for."""
    if pod.spec.node_name:
        return pod.spec.node_name
    required = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    selector = required.required_during_scheduling_ignored_during_execution if required else None
    for term in selector.node_selector_terms if selector else ():
        for field in term.match_fields:
            if field.key == "metadata.name" and field.values:
                return field.values[0]
    return ""


def _place(
    daemon_set: DaemonSet, nodes: Sequence[Node], by_node: dict[str, list[Pod]], spec: Document, hashed: str
) -> Iterator[Command]:
    for node in nodes:
        present = by_node.get(node.metadata.name, [])
        alive = [pod for pod in present if not has_ended(pod)]
        for pod in present:
            if has_ended(pod) and not is_leaving(pod):
                if pod.status.phase == "Failed":
                    message = f"Found failed daemon pod {pod.metadata.namespace}/{pod.metadata.name} on node {node.metadata.name}, will try to kill it"
                    yield Event(target_of(daemon_set), "FailedDaemonPod", message, "Warning")
                yield from delete_surplus(daemon_set, [pod], "a daemon runs for ever, and it has ended")
        if not present and may_run(spec, node):
            yield Create(Pod, _pod(daemon_set, spec, node.metadata.name, hashed), is_announced=True)
        surplus = alive[1:] if may_stay(spec, node) else alive
        staying = [pod for pod in surplus if not is_leaving(pod)]
        yield from delete_surplus(daemon_set, staying, "the node has one already, or the template no longer allows it")
    known = {node.metadata.name for node in nodes}
    for name, pods in by_node.items():
        if name not in known:
            for pod in pods:
                if not is_leaving(pod):
                    yield Delete(target_of(pod), reason=f"node {name} is gone")


def _pod(daemon_set: DaemonSet, spec: Document, node: str, hashed: str) -> Document:
    pod = pod_document(daemon_set, {**daemon_set.spec.template, "spec": spec})
    pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), REVISION_LABEL: hashed}
    affinity = pod["spec"].setdefault("affinity", {}).setdefault("nodeAffinity", {})
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    # Replaces the template's own terms: they have been checked, and this node satisfies them.
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    return pod


def _roll(
    daemon_set: DaemonSet,
    nodes: Sequence[Node],
    by_node: dict[str, list[Pod]],
    spec: Document,
    hashed: str,
    now: datetime,
) -> Iterator[Command]:
    strategy = daemon_set.spec.update_strategy
    if strategy.type == "OnDelete":
        return
    wanted = [node.metadata.name for node in nodes if may_run(spec, node)]
    rolling = strategy.rolling_update
    allowed = max(1, resolve(rolling.max_unavailable, len(wanted), round_up=True)) if rolling else 1
    down = sum(not any(_is_available(daemon_set, pod, now) for pod in by_node.get(name, ())) for name in wanted)
    for name in wanted:
        for pod in by_node.get(name, ()):
            if is_leaving(pod) or pod.metadata.labels.get(REVISION_LABEL) == hashed:
                continue
            is_down = not _is_available(daemon_set, pod, now)
            if not is_down and down >= allowed:
                return
            down += not is_down
            yield from delete_surplus(daemon_set, [pod], "its template is outdated")


def _is_available(daemon_set: DaemonSet, pod: Pod, now: datetime) -> bool:
    return not is_leaving(pod) and available_in_s(pod, daemon_set.spec.min_ready_seconds, now) == 0


def _status(
    daemon_set: DaemonSet,
    nodes: Sequence[Node],
    by_node: dict[str, list[Pod]],
    spec: Document,
    hashed: str,
    now: datetime,
) -> Document:
    wanted = {node.metadata.name for node in nodes if may_run(spec, node)}
    placed = [pods[0] for name, pods in by_node.items() if name in wanted]
    available = sum(_is_available(daemon_set, pod, now) for pod in placed)
    return {
        "observedGeneration": daemon_set.metadata.generation,
        "desiredNumberScheduled": len(wanted),
        "currentNumberScheduled": len(placed),
        "numberMisscheduled": sum(
            name not in wanted and any(not has_ended(pod) for pod in pods) for name, pods in by_node.items()
        ),
        "numberReady": sum(is_ready(pod) for pod in placed),
        "numberAvailable": available or None,
        "numberUnavailable": (len(wanted) - available) or None,
        "updatedNumberScheduled": sum(pod.metadata.labels.get(REVISION_LABEL) == hashed for pod in placed) or None,
    }
