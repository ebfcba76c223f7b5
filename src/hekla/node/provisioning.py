"""Decides how claims get volumes: the default local provisioner, and binding to volumes that people made.

Pure: a reconciler for `hekla.kube.runtime`. A claim of class `standard` waits for its first consumer
(`WaitForFirstConsumer`): the scheduler writes the node it chose into the annotation `volume.kubernetes.io/selected-node`,
or, where it does not, the pod that uses the claim shows it by being bound.
`volume_directories.py` makes and removes the directories.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import PurePosixPath

import msgspec

from hekla.api.meta import Document
from hekla.api.nodes import Node
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volumes import PersistentVolumeClaimTemplate
from hekla.kube.commands import Command, Create, Delete, Event, Patch, SetStatus, target_of
from hekla.kube.reconcile import Reconciler, World, reconciler
from hekla.lib import quantity

PROVISIONER = "hekla.dev/local"
DEFAULT_CLASS = "standard"
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
"""On a volume that nobody had kept for its claim: it is everybody's again if the claim takes another."""
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


def default_storage_class() -> Document:
    """The StorageClass that the embedded mode creates at its first start."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": DEFAULT_CLASS, "annotations": {IS_DEFAULT: "true"}},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def local_provisioner(directory: str) -> Reconciler:
    """The reconciler of claims; volumes are directories below `directory`."""

    @reconciler(
        PersistentVolumeClaim,
        reads=(PersistentVolume, StorageClass, Pod, Node),
        wakes={Pod: _claims_of_pod, PersistentVolume: _claim_of_volume},
        name="local_provisioner",
    )
    def reconcile_claim(claim: PersistentVolumeClaim, world: World, now: datetime) -> Iterator[Command]:
        yield from _reconcile(claim, world, directory)

    return reconcile_claim


def _reconcile(claim: PersistentVolumeClaim, world: World, directory: str) -> Iterator[Command]:
    if claim.metadata.deletion_timestamp:
        return
    if claim.spec.volume_name:
        yield from _finish_binding(claim, world)
        return
    found = _fitting_volume(claim, world)
    if found is not None:
        yield from _bind(claim, found)
        return
    if not claim.status.phase:
        yield SetStatus(target_of(claim), {"phase": "Pending"})
    storage = world.get(StorageClass, "", _class_of(claim, world))
    if storage is None or storage.provisioner != PROVISIONER:
        return
    node = ""
    if storage.volume_binding_mode == "WaitForFirstConsumer":
        node = claim.metadata.annotations.get(SELECTED_NODE) or _node_of_consumer(claim, world)
        if not node:
            message = "waiting for first consumer to be created before binding"
            yield Event(target_of(claim), "WaitForFirstConsumer", message)
            return
    yield Create(PersistentVolume, volume_document(claim, storage, directory, node))


def volume_document(claim: PersistentVolumeClaim, storage: StorageClass, directory: str, node: str) -> Document:
    """The volume made for a claim."""
    name = f"pvc-{claim.metadata.uid}"
    spec: Document = {
        "capacity": {"storage": _requested(claim)},
        "accessModes": claim.spec.access_modes or ["ReadWriteOnce"],
        "persistentVolumeReclaimPolicy": storage.reclaim_policy or "Delete",
        "storageClassName": storage.metadata.name,
        "volumeMode": "Filesystem",
        "claimRef": _reference(claim),
    }
    path = str(PurePosixPath(directory) / name)
    if node:
        expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
        terms = [{"matchExpressions": [expression]}]
        spec |= {"local": {"path": path}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    else:
        # every virtual node is this machine, so a volume that was bound at once is reached from all of them
        spec |= {"hostPath": {"path": path, "type": "DirectoryOrCreate"}}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {PROVISIONED_BY: PROVISIONER}},
        "spec": spec,
    }


def _bind(claim: PersistentVolumeClaim, volume: PersistentVolume) -> Iterator[Command]:
    """The volume first, guarded, so that two claims cannot both get it; then the claim."""
    if volume.spec.claim_ref is None or volume.spec.claim_ref.uid != claim.metadata.uid:
        told = {"metadata": {"annotations": {BOUND_BY_CONTROLLER: "yes"}}} if volume.spec.claim_ref is None else {}
        yield Patch(target_of(volume), {"spec": {"claimRef": _reference(claim)}, **told}, is_guarded=True)
    patch = {"spec": {"volumeName": volume.metadata.name, "storageClassName": volume.spec.storage_class_name or None}}
    yield Patch(target_of(claim), {**patch, "metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}})


def _finish_binding(claim: PersistentVolumeClaim, world: World) -> Iterator[Command]:
    volume = world.get(PersistentVolume, "", claim.spec.volume_name)
    if volume is None:
        if claim.status.phase == "Bound":
            yield from _lost(
                claim, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
            )
        return
    reference = volume.spec.claim_ref
    meta = claim.metadata
    is_named = reference is not None and (reference.namespace, reference.name) == (meta.namespace, meta.name)
    if reference is None or (is_named and not reference.uid):
        yield Patch(target_of(volume), {"spec": {"claimRef": _reference(claim)}}, is_guarded=True)
        return
    if reference.uid != meta.uid:
        if claim.status.phase == "Bound":
            message = "Two claims are bound to the same volume, this one is bound incorrectly"
            yield from _lost(claim, "ClaimMisbound", message)
        elif claim.status.phase != "Lost":
            message = f'volume "{volume.metadata.name}" already bound to a different claim.'
            yield Event(target_of(claim), "FailedBinding", message, "Warning")
        return
    if volume.status.phase != "Bound":
        yield SetStatus(target_of(volume), {"phase": "Bound"})
    if claim.status.phase != "Bound":
        status = {"phase": "Bound", "accessModes": volume.spec.access_modes, "capacity": dict(volume.spec.capacity)}
        yield SetStatus(target_of(claim), status)


def _lost(claim: PersistentVolumeClaim, reason: str, message: str) -> Iterator[Command]:
    yield SetStatus(target_of(claim), {"phase": "Lost"})
    yield Event(target_of(claim), reason, message, "Warning")


def _fitting_volume(claim: PersistentVolumeClaim, world: World) -> PersistentVolume | None:
    """The volume kept for this claim, or the smallest free one that fits."""
    fitting = [each for each in world.list(PersistentVolume) if _fits(claim, each, world)]
    reserved = [each for each in fitting if each.spec.claim_ref is not None]
    chosen = reserved or sorted(fitting, key=lambda each: quantity.to_int(each.spec.capacity.get("storage", "0")))
    return chosen[0] if chosen else None


def _fits(claim: PersistentVolumeClaim, volume: PersistentVolume, world: World) -> bool:
    reference = volume.spec.claim_ref
    if reference is not None:
        is_named = (reference.namespace, reference.name) == (claim.metadata.namespace, claim.metadata.name)
        return is_named and reference.uid in ("", claim.metadata.uid) and not volume.metadata.deletion_timestamp
    return (
        volume.status.phase in ("", "Available")
        and not volume.metadata.deletion_timestamp
        and volume.spec.storage_class_name == _class_of(claim, world)
        and set(claim.spec.access_modes) <= set(volume.spec.access_modes)
        and quantity.to_int(volume.spec.capacity.get("storage", "0")) >= quantity.to_int(_requested(claim))
        and _is_selected(claim, volume)
    )


def _is_selected(claim: PersistentVolumeClaim, volume: PersistentVolume) -> bool:
    wanted = claim.spec.selector.match_labels if claim.spec.selector else {}
    return all(volume.metadata.labels.get(key) == value for key, value in wanted.items())


def _class_of(claim: PersistentVolumeClaim, world: World) -> str:
    if claim.spec.storage_class_name:
        return claim.spec.storage_class_name
    defaults = [
        each.metadata.name for each in world.list(StorageClass) if each.metadata.annotations.get(IS_DEFAULT) == "true"
    ]
    return defaults[0] if defaults else ""


def _node_of_consumer(claim: PersistentVolumeClaim, world: World) -> str:
    for pod in world.list(Pod, claim.metadata.namespace):
        if pod.spec.node_name and claim.metadata.name in claim_names(pod):
            return pod.spec.node_name
    return ""


def claim_names(pod: Pod) -> list[str]:
    """The claims a pod uses, those made for it included."""
    names = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            names.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            names.append(f"{pod.metadata.name}-{volume.name}")
    return names


def _claims_of_pod(pod: Pod) -> Iterator[tuple[str, str]]:
    yield from ((pod.metadata.namespace, name) for name in claim_names(pod))


def _claim_of_volume(volume: PersistentVolume) -> Iterator[tuple[str, str]]:
    if volume.spec.claim_ref is not None:
        yield volume.spec.claim_ref.namespace, volume.spec.claim_ref.name


def _requested(claim: PersistentVolumeClaim) -> str:
    wanted = claim.spec.resources.requests if claim.spec.resources else {}
    return wanted.get("storage", "1Gi")


def _reference(claim: PersistentVolumeClaim) -> Document:
    meta = claim.metadata
    return {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": meta.namespace, "name": meta.name,
        "uid": meta.uid,
    }  # fmt: skip


@reconciler(
    PersistentVolume, reads=(PersistentVolumeClaim,), wakes={PersistentVolumeClaim: lambda claim: _volume_of(claim)}
)
def reconcile_volume(volume: PersistentVolume, world: World, now: datetime) -> Iterator[Command]:
    """Release a volume whose claim is gone; delete it if its policy says so (its directory follows)."""
    reference = volume.spec.claim_ref
    if volume.metadata.deletion_timestamp:
        return
    if reference is None or not reference.uid:  # free, or kept by name for a claim that has not taken it yet
        if volume.status.phase != "Available":
            yield SetStatus(target_of(volume), {"phase": "Available"})
        return
    claim = world.get(PersistentVolumeClaim, reference.namespace, reference.name)
    is_ours = volume.metadata.annotations.get(PROVISIONED_BY) == PROVISIONER
    if claim is not None and claim.metadata.uid == reference.uid:
        is_elsewhere = claim.spec.volume_name not in ("", volume.metadata.name)
        if not is_elsewhere:
            return
        if not (is_ours and volume.spec.persistent_volume_reclaim_policy == "Delete"):
            yield from _unbind(volume)
            return
    if volume.status.phase not in ("Released", "Failed"):
        yield SetStatus(target_of(volume), {"phase": "Released"})
    yield from _reclaim(volume, is_ours=is_ours)


def _unbind(volume: PersistentVolume) -> Iterator[Command]:
    """Its claim took another: free, or kept by name, as it was before."""
    if BOUND_BY_CONTROLLER in volume.metadata.annotations:
        patch: Document = {"spec": {"claimRef": None}, "metadata": {"annotations": {BOUND_BY_CONTROLLER: None}}}
    else:
        patch = {"spec": {"claimRef": {"uid": None}}}
    yield Patch(target_of(volume), patch, is_guarded=True)


def _reclaim(volume: PersistentVolume, *, is_ours: bool) -> Iterator[Command]:
    """Delete what we made. What people made is theirs to empty: where they ask for that, the volume has failed, in Kubernetes' words."""
    policy = volume.spec.persistent_volume_reclaim_policy
    if is_ours and policy == "Delete":
        yield Delete(target_of(volume), "its claim is gone and its reclaim policy is Delete")
    elif policy == "Recycle":
        yield from _failed(volume, "VolumeFailedRecycle", "No recycler plugin found for the volume!")
    elif policy == "Delete" and PROVISIONED_BY not in volume.metadata.annotations:
        name = volume.metadata.name
        why = f'error getting deleter volume plugin for volume "{name}": no deletable volume plugin matched'
        yield from _failed(volume, "VolumeFailedDelete", why)


def _failed(volume: PersistentVolume, reason: str, message: str) -> Iterator[Command]:
    if volume.status.phase == "Released":  # from there, so that both phases are seen
        yield SetStatus(target_of(volume), {"phase": "Failed", "message": message})
        yield Event(target_of(volume), reason, message, "Warning")


def _wants_claims(pod: Pod, world: World) -> bool:
    return any(volume.ephemeral is not None for volume in pod.spec.volumes)


@reconciler(Pod, owns=(PersistentVolumeClaim,), concerns=_wants_claims, name="ephemeral_claims")
def reconcile_ephemeral_claims(pod: Pod, world: World, now: datetime) -> Iterator[Command]:
    """Make the claims of a pod's generic ephemeral volumes; they go with the pod, which owns them."""
    if pod.metadata.deletion_timestamp or pod.status.phase in ("Succeeded", "Failed"):
        return
    for volume in pod.spec.volumes:
        template = volume.ephemeral.volume_claim_template if volume.ephemeral else None
        if template is None:
            continue
        name = f"{pod.metadata.name}-{volume.name}"
        found = world.get(PersistentVolumeClaim, pod.metadata.namespace, name)
        if found is None:
            yield Create(PersistentVolumeClaim, _ephemeral_claim(pod, name, template))
        elif not any(owner.uid == pod.metadata.uid for owner in found.metadata.owner_references):
            message = f'persistentvolumeclaim "{name}" was not made for this pod; rename the volume or delete the claim'
            yield Event(target_of(pod), "EphemeralVolumeConflict", message, "Warning")


def _ephemeral_claim(pod: Pod, name: str, template: PersistentVolumeClaimTemplate) -> Document:
    owner = {
        "apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid, "controller": True,
        "blockOwnerDeletion": True,
    }  # fmt: skip
    spec = msgspec.to_builtins(template.spec)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": name,
            "namespace": pod.metadata.namespace,
            "labels": template.metadata.labels,
            "annotations": template.metadata.annotations,
            "ownerReferences": [owner],
        },
        "spec": {key: value for key, value in spec.items() if value not in (None, "", [], {})},
    }


def _volume_of(claim: PersistentVolumeClaim) -> Iterator[tuple[str, str]]:
    if claim.spec.volume_name:
        yield "", claim.spec.volume_name
