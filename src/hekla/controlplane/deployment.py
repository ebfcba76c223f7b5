"""Reconciles Deployment: one replica set per template, replaced step by step. `rollout.py` has the arithmetic.

The replica set whose template is the deployment's own is the new one; a rollback makes an old one new again, with a
new revision. Conditions are in `deployment_status.py`, the pods themselves in `replica_set.py`.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from hekla.api.meta import Document
from hekla.api.pods import Pod
from hekla.controlplane.deployment_status import status_of
from hekla.controlplane.owning import claim, claimed, controller_reference
from hekla.controlplane.replica_set import wanted_replicas
from hekla.controlplane.rollout import ReplicaShare, bounds, grown, proportional, shrunk
from hekla.controlplane.statuses import set_status
from hekla.controlplane.templates import template_hash, with_label, without_label
from hekla.controlplane.views import Deployment, ReplicaSet
from hekla.kube.commands import Command, Create, Delete, Event, Patch, target_of
from hekla.kube.reconcile import World, reconciler
from hekla.lib.digits import whole_number

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
REVISION_HISTORY = "deployment.kubernetes.io/revision-history"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAX_REPLICAS = "deployment.kubernetes.io/max-replicas"
NOT_COPIED = frozenset(
    {"kubectl.kubernetes.io/last-applied-configuration", REVISION, REVISION_HISTORY, DESIRED, MAX_REPLICAS}
)


@reconciler(Deployment, owns=(ReplicaSet,), reads=(Pod,), name="deployment")
def reconcile_deployment(deployment: Deployment, world: World, now: datetime) -> Iterator[Command]:
    """Find or make the new replica set, move pods to it, and say how far that is."""
    yield from claim(deployment, deployment.spec.selector, ReplicaSet, world)
    sets = sorted(claimed(deployment, deployment.spec.selector, ReplicaSet, world), key=_age)
    new = _new_set(deployment, sets)
    old = [one for one in sets if one is not new]
    if not deployment.metadata.deletion_timestamp:
        yield from _roll(deployment, new, old, world)
        yield from _forget_history(deployment, old)
    status, later = status_of(deployment, new, sets, now, made=_made(deployment, new, old))
    yield from set_status(deployment, status)
    yield from later


def _roll(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet], world: World) -> Iterator[Command]:
    if _is_resized(deployment, [*old, *([new] if new else [])]):
        yield from _resize(deployment, new, old)
    elif deployment.spec.paused:
        return
    elif new is None:  # as `_made` says
        yield from _start(deployment, old, world)
    else:
        yield from _mark_revision(deployment, new, old)
        yield from _step(deployment, new, old, world)


# ---- the new replica set


def _new_set(deployment: Deployment, sets: Sequence[ReplicaSet]) -> ReplicaSet | None:
    template = without_label(deployment.spec.template, HASH_LABEL)
    return next((one for one in sets if without_label(one.spec.template, HASH_LABEL) == template), None)


def _made(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> str:
    """The name of the replica set that this round makes, if it makes one."""
    is_at_rest = deployment.spec.paused or deployment.metadata.deletion_timestamp
    if new is not None or is_at_rest or _is_resized(deployment, old):
        return ""
    return f"{deployment.metadata.name}-{_hash(deployment)}"


def _hash(deployment: Deployment) -> str:
    return template_hash(deployment.spec.template, deployment.status.collision_count)


def _start(deployment: Deployment, old: Sequence[ReplicaSet], world: World) -> Iterator[Command]:
    """Make the replica set of a template that is new."""
    hashed = _hash(deployment)
    surge, _ = bounds(deployment.spec.strategy, _replicas(deployment))
    replicas = grown(
        ReplicaShare("", 0, 0), [_share(one) for one in old], replicas=_replicas(deployment), max_surge=surge
    )  # fmt: skip
    if deployment.spec.strategy.type == "Recreate" and _has_old_pods(old, world):
        replicas = 0
    revision = str(_last_revision(old) + 1)
    yield Create(ReplicaSet, _replica_set_document(deployment, hashed, replicas, revision))
    yield from _set_revision(deployment, revision)
    name = f"{deployment.metadata.name}-{hashed}"
    yield _scaled_event(deployment, "up", name, 0, replicas)


def _replica_set_document(deployment: Deployment, hashed: str, replicas: int, revision: str) -> Document:
    selector = deployment.spec.selector
    assert selector is not None, "the API server requires a selector"
    labels = (deployment.spec.template.get("metadata") or {}).get("labels") or {}
    expressions = [
        {"key": one.key, "operator": one.operator, **({"values": one.values} if one.values else {})}
        for one in selector.match_expressions
    ]
    chosen: Document = {"matchLabels": {**selector.match_labels, HASH_LABEL: hashed}}
    if expressions:
        chosen["matchExpressions"] = expressions
    annotations = {**_copied_annotations(deployment), **_size_annotations(deployment), REVISION: revision}
    spec: Document = {
        "replicas": replicas,
        "selector": chosen,
        "template": with_label(deployment.spec.template, HASH_LABEL, hashed),
    }
    if deployment.spec.min_ready_seconds:
        spec["minReadySeconds"] = deployment.spec.min_ready_seconds
    return {
        "metadata": {
            "name": f"{deployment.metadata.name}-{hashed}",
            "namespace": deployment.metadata.namespace,
            "labels": {**labels, HASH_LABEL: hashed},
            "annotations": annotations,
            "ownerReferences": [controller_reference(deployment)],
        },
        "spec": spec,
    }


def _mark_revision(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet]) -> Iterator[Command]:
    """The new set carries the highest revision: after a rollback it gets one more and remembers those it had."""
    current = _revision(new)
    wanted = max(current, _last_revision(old) + 1) if old else max(current, 1)
    annotations: Document = {
        key: value for key, value in _copied_annotations(deployment).items()
        if new.metadata.annotations.get(key) != value
    }  # fmt: skip
    if wanted != current:
        annotations[REVISION] = str(wanted)
        history = new.metadata.annotations.get(REVISION_HISTORY, "")
        if current:
            annotations[REVISION_HISTORY] = f"{history},{current}".strip(",")
    patch: Document = {"metadata": {"annotations": annotations}} if annotations else {}
    if new.spec.min_ready_seconds != deployment.spec.min_ready_seconds:
        patch["spec"] = {"minReadySeconds": deployment.spec.min_ready_seconds}
    if patch:
        yield Patch(target_of(new), patch)
    yield from _set_revision(deployment, str(wanted))


def _set_revision(deployment: Deployment, revision: str) -> Iterator[Command]:
    if deployment.metadata.annotations.get(REVISION) != revision:
        yield Patch(target_of(deployment), {"metadata": {"annotations": {REVISION: revision}}})


# ---- moving pods


def _step(deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet], world: World) -> Iterator[Command]:
    if deployment.spec.strategy.type == "Recreate":
        yield from _step_recreate(deployment, new, old, world)
        return
    replicas = _replicas(deployment)
    surge, unavailable = bounds(deployment.spec.strategy, replicas)
    mine, others = _share(new), [_share(one) for one in old]
    size = grown(mine, others, replicas=replicas, max_surge=surge)
    if size != mine.replicas:
        yield from _scale(deployment, new, size)
        return
    sizes = shrunk(mine, others, replicas=replicas, max_unavailable=unavailable)
    for one in old:
        if one.metadata.name in sizes:
            yield from _scale(deployment, one, sizes[one.metadata.name])


def _step_recreate(
    deployment: Deployment, new: ReplicaSet, old: Sequence[ReplicaSet], world: World
) -> Iterator[Command]:
    for one in old:
        if wanted_replicas(one):
            yield from _scale(deployment, one, 0)
    if not _has_old_pods(old, world) and wanted_replicas(new) != _replicas(deployment):
        yield from _scale(deployment, new, _replicas(deployment))


def _has_old_pods(old: Sequence[ReplicaSet], world: World) -> bool:
    """Whether a pod of an older template may still run: Recreate promises that two versions never meet."""
    return any(
        wanted_replicas(one)
        or any(p.status.phase not in ("Succeeded", "Failed") for p in world.owned(Pod, one.metadata.uid))
        for one in old
    )


def _is_resized(deployment: Deployment, sets: Sequence[ReplicaSet]) -> bool:
    """Whether spec.replicas has changed since the sets in use were last scaled."""
    desired = str(_replicas(deployment))
    return any(wanted_replicas(one) > 0 and one.metadata.annotations.get(DESIRED, desired) != desired for one in sets)


def _resize(deployment: Deployment, new: ReplicaSet | None, old: Sequence[ReplicaSet]) -> Iterator[Command]:
    replicas = _replicas(deployment)
    active = [one for one in (*old, *([new] if new else [])) if wanted_replicas(one)]
    if len(active) == 1 and (active[0] is new or deployment.spec.paused or new is None):
        yield from _scale(deployment, active[0], replicas)
        return
    surge, _ = bounds(deployment.spec.strategy, replicas)
    if deployment.spec.strategy.type == "Recreate":
        sizes = {one.metadata.name: replicas if one is new else 0 for one in active}
    else:
        sizes = proportional([_share(one) for one in active], replicas=replicas, max_surge=surge)
    for one in active:
        yield from _scale(deployment, one, sizes[one.metadata.name])


def _scale(deployment: Deployment, one: ReplicaSet, size: int) -> Iterator[Command]:
    before = wanted_replicas(one)
    patch: Document = {}
    if size != before:
        patch["spec"] = {"replicas": size}
    annotations = _size_annotations(deployment)
    if annotations.items() - one.metadata.annotations.items():
        patch["metadata"] = {"annotations": annotations}
    if not patch:
        return
    yield Patch(target_of(one), patch)
    if size != before:
        yield _scaled_event(deployment, "up" if size > before else "down", one.metadata.name, before, size)


def _forget_history(deployment: Deployment, old: Sequence[ReplicaSet]) -> Iterator[Command]:
    limit = 10 if deployment.spec.revision_history_limit is None else deployment.spec.revision_history_limit
    if deployment.spec.paused:
        return
    empty = [
        one for one in sorted(old, key=_revision)
        if not wanted_replicas(one) and not one.status.replicas and not one.metadata.deletion_timestamp
        and one.status.observed_generation >= one.metadata.generation
    ]  # fmt: skip
    for one in empty[: max(0, len(empty) - limit)]:
        yield Delete(target_of(one), reason="more old replica sets than spec.revisionHistoryLimit")


# ---- small readings


def _share(one: ReplicaSet) -> ReplicaShare:
    base = whole_number(one.metadata.annotations.get(MAX_REPLICAS, "")) or 0
    return ReplicaShare(one.metadata.name, wanted_replicas(one), one.status.available_replicas, base)


def _replicas(deployment: Deployment) -> int:
    return 1 if deployment.spec.replicas is None else deployment.spec.replicas


def _size_annotations(deployment: Deployment) -> dict[str, str]:
    replicas = _replicas(deployment)
    surge, _ = bounds(deployment.spec.strategy, replicas)
    return {DESIRED: str(replicas), MAX_REPLICAS: str(replicas + surge)}


def _copied_annotations(deployment: Deployment) -> dict[str, str]:
    return {key: value for key, value in deployment.metadata.annotations.items() if key not in NOT_COPIED}


def _revision(one: ReplicaSet) -> int:
    return whole_number(one.metadata.annotations.get(REVISION, "")) or 0


def _last_revision(sets: Sequence[ReplicaSet]) -> int:
    return max((_revision(one) for one in sets), default=0)


def _age(one: ReplicaSet) -> tuple[str, str]:
    return one.metadata.creation_timestamp or "", one.metadata.name


def _scaled_event(deployment: Deployment, direction: str, name: str, before: int, after: int) -> Event:
    message = f"Scaled {direction} replica set {name} from {before} to {after}"
    return Event(target_of(deployment), "ScalingReplicaSet", message)
