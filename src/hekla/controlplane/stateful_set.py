"""Reconciles StatefulSet: pods with ordinals, stable names and volumes, started and replaced in order.

Each template is remembered as a ControllerRevision, whose name is a label on the pods made from it. `OrderedReady`
acts on one pod at a time; `Parallel` on all at once. Updates go from the highest ordinal down to the partition.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolumeClaim
from hekla.controlplane.owning import claim, claimed, controller_reference
from hekla.controlplane.pod_state import available_in_s, has_ended, is_leaving, is_ready, is_running_and_ready
from hekla.controlplane.selecting import resolve
from hekla.controlplane.statuses import set_status
from hekla.controlplane.templates import pod_document, revision_hash
from hekla.controlplane.views import ControllerRevision, StatefulSet
from hekla.kube.commands import Command, Create, Delete, Event, Patch, RequeueAfter, target_of
from hekla.kube.reconcile import World, reconciler

REVISION_LABEL = "controller-revision-hash"
POD_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
INDEX_LABEL = "apps.kubernetes.io/pod-index"

MAX_BURST = 500
"""Pods that one look makes where they need not wait for one another; the next goes on."""


@dataclass(frozen=True)
class Revisions:
    """The template that runs and the one that pods are moved to; the same where no update is under way."""

    current: str
    update: str
    templates: dict[str, Document]


@reconciler(StatefulSet, owns=(Pod, ControllerRevision), reads=(PersistentVolumeClaim,), name="statefulset")
def reconcile_stateful_set(stateful_set: StatefulSet, world: World, now: datetime) -> Iterator[Command]:
    """Bring the pods to their ordinals and revisions, and count them."""
    selector = stateful_set.spec.selector
    yield from claim(stateful_set, selector, Pod, world)
    pods = {pod.metadata.name: pod for pod in claimed(stateful_set, selector, Pod, world)}
    kept = sorted(world.owned(ControllerRevision, stateful_set.metadata.uid), key=lambda one: one.revision)
    revisions, remember = _revisions(stateful_set, kept)
    yield from remember
    if not stateful_set.metadata.deletion_timestamp:
        yield from _act(stateful_set, pods, revisions, world, now)
        yield from _forget(stateful_set, kept, pods, revisions)
    yield from set_status(stateful_set, _status(stateful_set, pods, revisions, now))
    yield from _wait(stateful_set, list(pods.values()), now)


# ---- revisions


def _revisions(stateful_set: StatefulSet, kept: Sequence[ControllerRevision]) -> tuple[Revisions, list[Command]]:
    template = stateful_set.spec.template
    data = {"spec": {"template": {**template, "$patch": "replace"}}}
    update = f"{stateful_set.metadata.name}-{revision_hash(data, stateful_set.status.collision_count)}"
    templates = {one.metadata.name: _template_of(one) for one in kept}
    commands: list[Command] = []
    newest = max((one.revision for one in kept), default=0)
    if update not in templates:
        commands.append(Create(ControllerRevision, _revision_document(stateful_set, update, data, newest + 1)))
    else:
        mine = next(one for one in kept if one.metadata.name == update)
        if mine.revision < newest:
            # A rollback: the old template is the newest wish again.
            commands.append(Patch(target_of(mine), {"revision": newest + 1}))
    templates[update] = template
    current = stateful_set.status.current_revision
    return Revisions(current if current in templates else update, update, templates), commands


def _template_of(revision: ControllerRevision) -> Document:
    template = copy.deepcopy(((revision.data or {}).get("spec") or {}).get("template") or {})
    template.pop("$patch", None)
    return template


def _revision_document(stateful_set: StatefulSet, name: str, data: Document, number: int) -> Document:
    labels = (stateful_set.spec.template.get("metadata") or {}).get("labels") or {}
    return {
        "metadata": {
            "name": name,
            "namespace": stateful_set.metadata.namespace,
            "annotations": dict(stateful_set.metadata.annotations),  # `rollout history` reads its change cause here
            "labels": {**labels, "controller.kubernetes.io/hash": name.rpartition("-")[2]},
            "ownerReferences": [controller_reference(stateful_set)],
        },
        # `$patch: replace` is how `kubectl rollout undo` puts a template back whole.
        "data": data,
        "revision": number,
    }


def _forget(
    stateful_set: StatefulSet, kept: Sequence[ControllerRevision], pods: dict[str, Pod], revisions: Revisions
) -> Iterator[Command]:
    limit = 10 if stateful_set.spec.revision_history_limit is None else stateful_set.spec.revision_history_limit
    used = {revisions.current, revisions.update} | {_revision(pod) for pod in pods.values()}
    unused = [one for one in kept if one.metadata.name not in used]
    for one in unused[: max(0, len(unused) - limit)]:
        yield Delete(target_of(one), reason="more revisions than spec.revisionHistoryLimit")


# ---- pods


def _act(
    stateful_set: StatefulSet, pods: dict[str, Pod], revisions: Revisions, world: World, now: datetime
) -> Iterator[Command]:
    surplus = sorted((name for name in pods if not _is_wanted(stateful_set, name)), key=_ordinal_of, reverse=True)
    is_parallel = stateful_set.spec.pod_management_policy == "Parallel"
    for name in _next_names(stateful_set, pods):
        acted, is_healthy = False, True
        for command in _keep(stateful_set, name, pods.get(name), revisions, world):
            acted = True
            yield command
        pod = pods.get(name)
        is_healthy = pod is not None and not is_leaving(pod) and _is_available(stateful_set, pod, now)
        if not is_parallel and (acted or not is_healthy):
            # In order: nobody behind this one starts or stops before it is ready.
            return
    yield from _shrink(surplus, pods, stateful_set, now, is_parallel=is_parallel)
    if not surplus or is_parallel:
        yield from _update(stateful_set, pods, revisions, now)


def _next_names(stateful_set: StatefulSet, pods: dict[str, Pod]) -> Iterator[str]:
    """The wanted names from the lowest ordinal up: all that there are, and of those that are missing the first MAX_BURST."""
    missing, ordinals = 0, _ordinals(stateful_set)
    for ordinal in ordinals:
        name = _pod_name(stateful_set, ordinal)
        missing += name not in pods
        if missing > MAX_BURST:
            there = (_ordinal_of(one) for one in pods if _is_wanted(stateful_set, one))
            yield from (_pod_name(stateful_set, one) for one in sorted(there) if one > ordinal)
            return
        yield name


def _keep(
    stateful_set: StatefulSet, name: str, pod: Pod | None, revisions: Revisions, world: World
) -> Iterator[Command]:
    """Make one ordinal's pod, or make room for it."""
    if pod is None:
        yield from _make(stateful_set, name, revisions, world)
    elif has_ended(pod) and not is_leaving(pod):
        message = f"StatefulSet {stateful_set.metadata.namespace}/{stateful_set.metadata.name} is recreating failed Pod {name}"
        if pod.status.phase == "Failed":
            yield Event(target_of(stateful_set), "RecreatingFailedPod", message, "Warning")
        yield Delete(target_of(pod), reason="it has ended and a stateful set's pods run for ever")


def _make(stateful_set: StatefulSet, name: str, revisions: Revisions, world: World) -> Iterator[Command]:
    ordinal = _ordinal_of(name)
    for claim_name, document in _claims(stateful_set, name):
        if world.get(PersistentVolumeClaim, stateful_set.metadata.namespace, claim_name) is None:
            whose = f"Pod {name} in StatefulSet {stateful_set.metadata.name}"
            words = (
                f"Create Claim {claim_name} {whose} success",
                f"Create Claim {claim_name} for {whose} failed error",
            )
            # a claim that outlives its pod has no controller, so the announcement is told where to go
            mine = target_of(stateful_set)
            yield Create(PersistentVolumeClaim, document, is_announced=True, announced_as=words, announced_to=mine)
    is_old = ordinal < _partition(stateful_set) + _start(stateful_set) and revisions.current != revisions.update
    revision = revisions.current if is_old else revisions.update
    pod = pod_document(stateful_set, revisions.templates[revision], name=name)
    labels = {POD_NAME_LABEL: name, REVISION_LABEL: revision, INDEX_LABEL: str(ordinal)}
    pod["metadata"]["labels"] = {**pod["metadata"].get("labels", {}), **labels}
    spec = pod["spec"]
    spec["hostname"] = name
    if stateful_set.spec.service_name:
        spec["subdomain"] = stateful_set.spec.service_name
    mounted = [(template["metadata"]["name"], claim_name) for template, (claim_name, _) in zip(
        stateful_set.spec.volume_claim_templates, _claims(stateful_set, name), strict=True
    )]  # fmt: skip
    if mounted:
        names = {volume for volume, _ in mounted}
        others = [volume for volume in spec.get("volumes") or () if volume["name"] not in names]
        spec["volumes"] = others + [
            {"name": volume, "persistentVolumeClaim": {"claimName": claim_name}} for volume, claim_name in mounted
        ]
    said = f"Pod {name} in StatefulSet {stateful_set.metadata.name}"
    words = (f"Create {said} successful", f"Create {said} failed error")
    yield Create(Pod, pod, is_announced=True, announced_as=words)


def _claims(stateful_set: StatefulSet, pod_name: str) -> list[tuple[str, Document]]:
    """The volume claims of one pod, by name. They outlive it, unless the retention policy says otherwise."""
    found = []
    policy = stateful_set.spec.persistent_volume_claim_retention_policy
    for template in stateful_set.spec.volume_claim_templates:
        said = template.get("metadata") or {}
        name = f"{said['name']}-{pod_name}"
        selector = stateful_set.spec.selector
        metadata: Document = {
            "name": name,
            "namespace": stateful_set.metadata.namespace,
            "labels": {**(said.get("labels") or {}), **(selector.match_labels if selector else {})},
        }
        if said.get("annotations"):
            metadata["annotations"] = said["annotations"]
        if policy is not None and policy.when_deleted == "Delete":
            metadata["ownerReferences"] = [controller_reference(stateful_set)]
        found.append((name, {"metadata": metadata, "spec": copy.deepcopy(template.get("spec") or {})}))
    return found


def _shrink(
    surplus: Sequence[str], pods: dict[str, Pod], stateful_set: StatefulSet, now: datetime, *, is_parallel: bool
) -> Iterator[Command]:
    """Delete pods beyond the replicas, from the highest ordinal; in order, the next waits until this one is gone."""
    for name in surplus:
        pod = pods[name]
        if not is_leaving(pod):
            yield from _delete(stateful_set, pod, "its ordinal is beyond spec.replicas")
        if not is_parallel:
            return


def _update(stateful_set: StatefulSet, pods: dict[str, Pod], revisions: Revisions, now: datetime) -> Iterator[Command]:
    """Delete outdated pods from the highest ordinal down to the partition; they come back with the new template."""
    strategy = stateful_set.spec.update_strategy
    if strategy.type == "OnDelete":
        return
    rolling = strategy.rolling_update
    replicas = _replicas(stateful_set)
    allowed = max(1, resolve(rolling.max_unavailable, replicas, round_up=True)) if rolling else 1
    there = (pod for name, pod in pods.items() if _is_wanted(stateful_set, name))
    unavailable = replicas - sum(_is_available(stateful_set, pod, now) for pod in there)
    first = _partition(stateful_set) + _start(stateful_set)
    for ordinal in reversed(_ordinals(stateful_set)):
        pod = pods.get(_pod_name(stateful_set, ordinal))
        if ordinal < first or pod is None:
            return
        if _revision(pod) == revisions.update and not is_leaving(pod):
            if not _is_available(stateful_set, pod, now) and allowed == 1:
                return
            continue
        if is_leaving(pod):
            continue
        is_down = not _is_available(stateful_set, pod, now)
        if unavailable >= allowed and not is_down:
            return
        unavailable += not is_down
        yield from _delete(stateful_set, pod, "its template is outdated")


def _delete(stateful_set: StatefulSet, pod: Pod, reason: str) -> Iterator[Command]:
    yield Delete(target_of(pod), reason=reason)
    said = f"Delete Pod {pod.metadata.name} in StatefulSet {stateful_set.metadata.name} successful"
    yield Event(target_of(stateful_set), "SuccessfulDelete", said)


# ---- status


def _status(stateful_set: StatefulSet, pods: dict[str, Pod], revisions: Revisions, now: datetime) -> Document:
    alive = [pod for pod in pods.values() if not has_ended(pod)]
    staying = [pod for pod in alive if not is_leaving(pod)]
    ready = sum(is_running_and_ready(pod) for pod in alive)
    updated = sum(_revision(pod) == revisions.update for pod in staying)
    current_revision = revisions.current
    if (
        updated == len(staying) == ready == _replicas(stateful_set)
        and stateful_set.spec.update_strategy.type != "OnDelete"
    ):
        current_revision = revisions.update
    return {
        "observedGeneration": stateful_set.metadata.generation,
        "replicas": len(alive),
        "readyReplicas": ready or None,
        "availableReplicas": sum(_is_available(stateful_set, pod, now) for pod in alive),
        "currentReplicas": sum(_revision(pod) == current_revision for pod in staying) or None,
        "updatedReplicas": updated or None,
        "currentRevision": current_revision,
        "updateRevision": revisions.update,
        "collisionCount": stateful_set.status.collision_count,
    }


def _wait(stateful_set: StatefulSet, pods: Sequence[Pod], now: datetime) -> Iterator[Command]:
    waits = [wait_s for pod in pods if (wait_s := available_in_s(pod, stateful_set.spec.min_ready_seconds, now))]
    if waits:
        yield RequeueAfter(min(waits) + 0.1)


# ---- small readings


def _is_available(stateful_set: StatefulSet, pod: Pod, now: datetime) -> bool:
    if pod.status.phase != "Running" or not is_ready(pod):
        return False
    return available_in_s(pod, stateful_set.spec.min_ready_seconds, now) == 0


def _replicas(stateful_set: StatefulSet) -> int:
    return 1 if stateful_set.spec.replicas is None else stateful_set.spec.replicas


def _start(stateful_set: StatefulSet) -> int:
    return stateful_set.spec.ordinals.start if stateful_set.spec.ordinals else 0


def _ordinals(stateful_set: StatefulSet) -> range:
    return range(_start(stateful_set), _start(stateful_set) + _replicas(stateful_set))


def _partition(stateful_set: StatefulSet) -> int:
    rolling = stateful_set.spec.update_strategy.rolling_update
    return rolling.partition or 0 if rolling else 0


def _pod_name(stateful_set: StatefulSet, ordinal: int) -> str:
    return f"{stateful_set.metadata.name}-{ordinal}"


def _ordinal_of(name: str) -> int:
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() else -1


def _is_wanted(stateful_set: StatefulSet, name: str) -> bool:
    ordinal = _ordinal_of(name)
    return ordinal in _ordinals(stateful_set) and name == _pod_name(stateful_set, ordinal)


def _revision(pod: Pod) -> str:
    return pod.metadata.labels.get(REVISION_LABEL, "")
