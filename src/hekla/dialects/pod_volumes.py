"""Which nodes a pod's volumes allow, what they take there, and whether they allow any node yet.

A bound claim allows the nodes that reach its volume, in the volume's zones. An unbound one whose class waits for its
first consumer allows the nodes of a free volume that would do, or the class's topologies where there is room enough; any
other unbound claim must be bound first. `storage.py` keeps the claims and volumes.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from hekla.api.csi import CSIStorageCapacity
from hekla.api.pod_scheduling import NodeSelectorTerm
from hekla.api.pods import Pod
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.dialects.drivers import disks_of, driver_of, driver_of_class, driver_of_disk
from hekla.dialects.node_terms import label_requirements, node_term, selects
from hekla.dialects.surroundings import Surroundings
from hekla.lib import quantity
from hekla.placement.constraint import Disk, FreeVolume, NodeTerm, Operator, Refusal, Requirement, UnboundClaim
from hekla.placement.filters.volumes import NO_VOLUME, PLACE_KEYS

SELECTED_NODE = "volume.kubernetes.io/selected-node"
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ONE_POD = "ReadWriteOncePod"

AnyOf = tuple[NodeTerm, ...]
"""Terms of which one must hold."""


@dataclass(frozen=True, kw_only=True)
class VolumeDemands:
    """What a pod's volumes demand."""

    terms: tuple[AnyOf, ...] = ()
    zones: tuple[tuple[str, tuple[str, ...]], ...] = ()
    storage: tuple[AnyOf, ...] = ()
    unbound: tuple[UnboundClaim, ...] = ()
    attached: tuple[tuple[str, str], ...] = ()
    """Driver and volume. A claim's volume goes by the claim: so it has one name before and after it is bound."""

    disks: tuple[Disk, ...] = ()
    exclusive: tuple[str, ...] = ()
    blocked: Refusal | None = None


NO_DEMANDS = VolumeDemands()


def volume_demands(pod: Pod, around: Surroundings) -> VolumeDemands:
    """The demands of all volumes of a pod; the first claim that blocks it decides."""
    if not has_demands(pod):
        return NO_DEMANDS
    found = [_claim_demands(pod, name, around) for name in claim_names(pod)]
    blocked = next((one for one in found if one.blocked is not None), None)
    return blocked if blocked is not None else _together([*found, _own_disks(pod)])


def has_demands(pod: Pod) -> bool:
    """Whether a pod's volumes demand anything of nodes."""
    return bool(pod.spec.volumes) and any(
        v.persistent_volume_claim or v.ephemeral or v.gce_persistent_disk or v.aws_elastic_block_store or v.iscsi or v.rbd
        for v in pod.spec.volumes
    )  # fmt: skip


def claim_names(pod: Pod) -> Iterator[str]:
    """The claims a pod uses, those made for it (`<pod>-<volume>`) included."""
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield volume.persistent_volume_claim.claim_name
        elif volume.ephemeral is not None:
            yield f"{pod.metadata.name}-{volume.name}"


def waits_for_consumer(claim: PersistentVolumeClaim, around: Surroundings) -> bool:
    """Whether a claim is bound only once a node has been chosen for its first pod."""
    if claim.spec.volume_name:
        return False
    storage_class = around.storage_class(claim.spec.storage_class_name)
    return storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer"


def is_bound_by_us(claim: PersistentVolumeClaim, around: Surroundings) -> bool:
    """Whether nobody but the scheduler gives a claim one of the free volumes: its class has no provisioner."""
    storage_class = around.storage_class(claim.spec.storage_class_name)
    return storage_class is not None and storage_class.provisioner == NO_PROVISIONER


def would_do(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether a free volume is large enough and offers what the claim wants."""
    holder = volume.spec.claim_ref
    if holder is not None and (holder.namespace, holder.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    if volume.metadata.deletion_timestamp or (volume.status.phase not in {"", "Available"} and holder is None):
        return False
    if (volume.spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
        return False
    if claim.spec.selector is not None and not selects(claim.spec.selector, volume.metadata.labels):
        return False
    return _size(volume) >= _requested(claim) and set(claim.spec.access_modes) <= set(volume.spec.access_modes)


def handed_out(
    claims: Iterable[PersistentVolumeClaim], volumes: Iterable[PersistentVolume]
) -> dict[str, PersistentVolume]:
    """Which claim, by name, gets which of the volumes that were given to their pod: the largest claim chooses first."""
    left = sorted(volumes, key=lambda volume: (_size(volume), volume.metadata.name))
    found = dict[str, PersistentVolume]()
    for claim in sorted(claims, key=_requested, reverse=True):
        fitting = next((volume for volume in left if would_do(volume, claim)), None)
        if fitting is not None:
            found[claim.metadata.name] = fitting
            left.remove(fitting)
    return found


def claim_id(namespace: str, name: str) -> str:
    """What a claim's volume is called among those that are attached."""
    return f"{namespace}/{name}"


def _together(demands: Iterable[VolumeDemands]) -> VolumeDemands:
    """All demands as one."""
    parts: dict[str, Any] = {
        field.name: tuple(one for found in demands for one in getattr(found, field.name))
        for field in fields(VolumeDemands)
        if field.name != "blocked"
    }
    parts["attached"] = tuple(sorted(set(parts["attached"])))
    parts["unbound"] = tuple(
        sorted(parts["unbound"], key=lambda one: (one.storage_class, len(one.choices), -one.requested))
    )
    return VolumeDemands(**parts)


def _own_disks(pod: Pod) -> VolumeDemands:
    attached = (driver_of_disk(volume) for volume in pod.spec.volumes)
    return VolumeDemands(
        disks=tuple(disk for volume in pod.spec.volumes for disk in disks_of(volume)),
        attached=tuple(one for one in attached if one is not None),
    )


def _claim_demands(pod: Pod, name: str, around: Surroundings) -> VolumeDemands:
    namespace = pod.metadata.namespace
    claim = around.claim(namespace, name)
    if claim is None:
        return _blocked("claim-missing", f'persistentvolumeclaim "{name}" not found')
    if claim.metadata.deletion_timestamp:
        return _blocked("claim-leaving", f'persistentvolumeclaim "{name}" is being deleted')
    exclusive = (f"{namespace}/{name}",) if ONE_POD in claim.spec.access_modes else ()
    if claim.spec.volume_name:
        volume = around.volume(claim.spec.volume_name)
        if volume is None:
            lost = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{claim.spec.volume_name}"'
            return _blocked("volume-missing", lost)
        own = VolumeDemands(terms=_reach(volume), zones=_zones(volume), exclusive=exclusive)
        return _together((own, _attached(driver_of(volume.spec), namespace, name)))
    storage_class = around.storage_class(claim.spec.storage_class_name)
    if storage_class is None or storage_class.volume_binding_mode != "WaitForFirstConsumer":
        return _blocked("claim-unbound", "pod has unbound immediate PersistentVolumeClaims")
    unbound = _unbound(claim, storage_class, around)
    if unbound.blocked is not None:
        return unbound
    own = VolumeDemands(exclusive=exclusive)
    return _together((own, unbound, _attached(driver_of_class(storage_class.provisioner), namespace, name)))


def _attached(driver: str, namespace: str, name: str) -> VolumeDemands:
    return VolumeDemands(attached=((driver, claim_id(namespace, name)),)) if driver else NO_DEMANDS


def _unbound(claim: PersistentVolumeClaim, storage_class: StorageClass, around: Surroundings) -> VolumeDemands:
    """Of a claim that waits for its first consumer: the node chosen before, free volumes, or the class's topologies."""
    chosen = claim.metadata.annotations.get(SELECTED_NODE)
    if chosen:
        here = NodeTerm(names=(Requirement("metadata.name", Operator.IN, (chosen,)),))
        return VolumeDemands(terms=((here,),))
    if storage_class.provisioner == NO_PROVISIONER:
        return _from_free_volumes(claim, around)
    topologies = tuple(_topology(e.match_label_expressions) for e in storage_class.allowed_topologies)
    return VolumeDemands(terms=(topologies,) if topologies else (), storage=_roomy(claim, storage_class, around))


def _from_free_volumes(claim: PersistentVolumeClaim, around: Surroundings) -> VolumeDemands:
    name = claim.spec.storage_class_name
    fitting = [volume for volume in around.volumes_of_class(name) if would_do(volume, claim)]
    kept = [volume for volume in fitting if volume.spec.claim_ref is not None]
    fitting = sorted(kept or fitting, key=lambda volume: (_size(volume), volume.metadata.name))
    if not fitting:
        return VolumeDemands(blocked=NO_VOLUME)
    choices = tuple(
        FreeVolume(volume.metadata.name, _size(volume), next(iter(_reach(volume)), None)) for volume in fitting
    )
    return VolumeDemands(unbound=(UnboundClaim(name, _requested(claim), choices),))


def _roomy(claim: PersistentVolumeClaim, storage_class: StorageClass, around: Surroundings) -> tuple[AnyOf, ...]:
    """The nodes from which a driver that tells its room has enough; nothing if the driver does not tell, or all have."""
    driver = around.csi_driver(storage_class.provisioner)
    if driver is None or not driver.spec.storage_capacity:
        return ()
    terms = list[NodeTerm]()
    for told in around.capacities_of_class(storage_class.metadata.name):
        if told.node_topology is None or not _has_room(told, _requested(claim)):
            continue
        requirements = label_requirements(told.node_topology)
        if not requirements:
            return ()
        terms.append(NodeTerm(labels=requirements))
    return (tuple(terms),)


def _has_room(told: CSIStorageCapacity, requested: int) -> bool:
    """Whether a volume fits; the largest size of one volume counts where it is told."""
    most = told.maximum_volume_size if told.maximum_volume_size is not None else told.capacity
    return most is not None and quantity.to_int(most) >= requested


def _topology(expressions: list) -> NodeTerm:  # type: ignore[type-arg]  # TopologySelectorLabelRequirement
    return NodeTerm(labels=tuple(Requirement(e.key, Operator.IN, tuple(e.values)) for e in expressions))


def _reach(volume: PersistentVolume) -> tuple[AnyOf, ...]:
    """The nodes that reach a volume: one list of terms, or none at all for a volume that is reached everywhere."""
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return ()
    terms: list[NodeSelectorTerm] = affinity.required.node_selector_terms
    return (tuple(node_term(term) for term in terms),)


def _zones(volume: PersistentVolume) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The zones and regions that a volume's labels name; several are written `a__b`."""
    labels = volume.metadata.labels
    return tuple((key, tuple(sorted(set(labels[key].split("__"))))) for key in PLACE_KEYS if labels.get(key))


def _size(volume: PersistentVolume) -> int:
    return quantity.to_int(volume.spec.capacity.get("storage", "0"))


def _requested(claim: PersistentVolumeClaim) -> int:
    return quantity.to_int(claim.spec.resources.requests.get("storage", "0")) if claim.spec.resources else 0


def _blocked(code: str, sentence: str) -> VolumeDemands:
    return VolumeDemands(blocked=Refusal(code, sentence))
