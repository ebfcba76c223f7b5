"""Keeps a volume claim while a pod uses it, and a volume while a claim is bound to it: deletion waits, then goes on.

Admission puts the finalizers on; the node agent provisions and releases the volumes themselves.
"""

from collections.abc import Iterator
from datetime import datetime

from hekla.api.meta import Resource
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim
from hekla.controlplane.pod_state import has_ended
from hekla.kube.commands import Command, Patch, target_of
from hekla.kube.reconcile import World, reconciler

CLAIM_FINALIZER = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER = "kubernetes.io/pv-protection"


def _claims_of(pod: Pod) -> Iterator[tuple[str, str]]:
    """The claims that a pod mounts."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield pod.metadata.namespace, volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield pod.metadata.namespace, f"{pod.metadata.name}-{volume.name}"


def _is_leaving(obj: Resource, world: World) -> bool:
    return obj.metadata.deletion_timestamp is not None


@reconciler(PersistentVolumeClaim, concerns=_is_leaving, wakes={Pod: _claims_of}, name="pvc-protection")
def reconcile_claim_protection(claim: PersistentVolumeClaim, world: World, now: datetime) -> Iterator[Command]:
    """Let a leaving claim go when no pod on a node uses it."""
    meta = claim.metadata
    if meta.deletion_timestamp is None or CLAIM_FINALIZER not in meta.finalizers:
        return
    # A pod without a node cannot start any more: a leaving claim is not mounted.
    users = (
        pod for pod in world.list(Pod, meta.namespace)
        if pod.spec.node_name and not has_ended(pod) and (meta.namespace, meta.name) in _claims_of(pod)
    )  # fmt: skip
    if next(users, None) is None:
        yield _without(claim, CLAIM_FINALIZER)


@reconciler(PersistentVolume, concerns=_is_leaving, name="pv-protection")
def reconcile_volume_protection(volume: PersistentVolume, world: World, now: datetime) -> Iterator[Command]:
    """Let a leaving volume go when it is bound to no claim."""
    meta = volume.metadata
    if meta.deletion_timestamp is None or VOLUME_FINALIZER not in meta.finalizers:
        return
    if volume.status is None or volume.status.phase != "Bound":
        yield _without(volume, VOLUME_FINALIZER)


def _without(obj: Resource, finalizer: str) -> Command:
    rest = [one for one in obj.metadata.finalizers if one != finalizer]
    return Patch(target_of(obj), {"metadata": {"finalizers": rest or None}}, is_guarded=True)
