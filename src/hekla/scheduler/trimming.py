"""What of an object decides where pods run, as a small document: a snapshot keeps this and leaves the rest behind.

Environment, commands, volumes' secrets, owners, who wrote which field and annotations of others stay where they are.
Fields that equal their default are not written, so that what is read back is the same object to the last field.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct

from hekla.api.containers import Container, ContainerPort
from hekla.api.core import Namespace
from hekla.api.csi import CSIDriver, CSIDriverSpec, CSINode, CSINodeDriver, CSIStorageCapacity, VolumeAttachment
from hekla.api.devices import DeviceAllocationResult, DeviceClassSpec, ResourceClaimStatus
from hekla.api.meta import Document, ObjectMeta, OwnerReference, Resource
from hekla.api.nodes import NodeCondition, NodeSpec, NodeStatus
from hekla.api.pods import Pod, PodCondition, PodSpec, PodStatus
from hekla.api.policy import PodDisruptionBudgetStatus
from hekla.api.scheduling import PriorityClass
from hekla.api.selectors import ObjectReference
from hekla.api.storage import (
    AzureDiskVolumeSource,
    CinderPersistentVolumeSource,
    CSIPersistentVolumeSource,
    PersistentVolumeClaimStatus,
    PersistentVolumeSpec,
    PersistentVolumeStatus,
    StorageClass,
    VsphereVirtualDiskVolumeSource,
)
from hekla.api.volcano.scheduling import PodGroupStatus, QueueSpec, QueueStatus
from hekla.api.volumes import (
    AWSElasticBlockStoreVolumeSource,
    EphemeralVolumeSource,
    GCEPersistentDiskVolumeSource,
    PersistentVolumeClaimVolumeSource,
    Volume,
)

KEPT: Mapping[type, frozenset[str]] = {
    ObjectMeta: frozenset({
        "name", "namespace", "uid", "creation_timestamp", "deletion_timestamp", "generation", "labels", "annotations",
        "owner_references",
    }),
    OwnerReference: frozenset({"uid", "controller"}),
    Namespace: frozenset({"api_version", "kind", "metadata"}),
    PriorityClass: frozenset({"api_version", "kind", "metadata", "global_default", "preemption_policy", "value"}),
    PodSpec: frozenset({
        "affinity", "containers", "host_network", "init_containers", "node_name", "node_selector", "overhead",
        "preemption_policy", "priority", "priority_class_name", "resource_claims", "resources", "scheduler_name",
        "scheduling_gates", "termination_grace_period_seconds", "tolerations", "topology_spread_constraints", "volumes",
    }),
    PodStatus: frozenset({"phase", "conditions", "nominated_node_name", "resource_claim_statuses", "start_time"}),
    PodCondition: frozenset({"type", "status", "last_transition_time"}),
    Container: frozenset({"image", "ports", "resources", "restart_policy"}),
    ContainerPort: frozenset({"container_port", "host_ip", "host_port", "protocol"}),
    Volume: frozenset({
        "name", "persistent_volume_claim", "ephemeral", "aws_elastic_block_store", "gce_persistent_disk", "iscsi", "rbd",
    }),
    AWSElasticBlockStoreVolumeSource: frozenset({"volume_id"}),
    GCEPersistentDiskVolumeSource: frozenset({"pd_name", "read_only"}),
    PersistentVolumeClaimVolumeSource: frozenset({"claim_name"}),
    EphemeralVolumeSource: frozenset(),  # its claim stands for itself
    NodeSpec: frozenset({"taints", "unschedulable"}),
    NodeStatus: frozenset({"allocatable", "capacity", "conditions", "images"}),
    NodeCondition: frozenset({"type", "status"}),
    PodGroupStatus: frozenset({"phase"}),
    QueueSpec: frozenset({
        "affinity", "capability", "dequeue_strategy", "deserved", "guarantee", "parent", "priority", "reclaimable", "type",
        "weight",
    }),
    QueueStatus: frozenset({"state"}),
    StorageClass: frozenset({
        "api_version", "kind", "metadata", "allowed_topologies", "provisioner", "volume_binding_mode",
    }),
    PersistentVolumeSpec: frozenset({
        "access_modes", "aws_elastic_block_store", "azure_disk", "capacity", "cinder", "claim_ref", "csi",
        "gce_persistent_disk", "node_affinity", "storage_class_name", "volume_mode", "vsphere_volume",
    }),
    CSIPersistentVolumeSource: frozenset({"driver"}),
    # That a volume is of one of these clouds is all that counts.
    AzureDiskVolumeSource: frozenset(), CinderPersistentVolumeSource: frozenset(),
    VsphereVirtualDiskVolumeSource: frozenset(),
    CSIDriver: frozenset({"api_version", "kind", "metadata", "spec"}),
    CSIDriverSpec: frozenset({"storage_capacity"}),
    CSINode: frozenset({"api_version", "kind", "metadata", "spec"}),
    CSINodeDriver: frozenset({"allocatable", "name"}),
    CSIStorageCapacity: frozenset({
        "api_version", "kind", "metadata", "capacity", "maximum_volume_size", "node_topology", "storage_class_name",
    }),
    VolumeAttachment: frozenset({"api_version", "kind", "metadata", "spec"}),
    DeviceClassSpec: frozenset({"selectors"}),
    ResourceClaimStatus: frozenset({"allocation"}),
    DeviceAllocationResult: frozenset({"results"}),
    PersistentVolumeStatus: frozenset({"phase"}),
    PersistentVolumeClaimStatus: frozenset({"phase"}),
    ObjectReference: frozenset({"namespace", "name"}),
    PodDisruptionBudgetStatus: frozenset({
        "current_healthy", "desired_healthy", "disruptions_allowed", "expected_pods", "observed_generation",
    }),
}  # fmt: skip
"""By type, the fields that are kept; of a type that is not listed, all."""

OUR_DOMAINS = ("volcano.sh", "hekla.dev", "scheduling.k8s.io")
"""Annotations under these domains, and those below them, may decide."""

OUR_ANNOTATIONS = frozenset({"sla-waiting-time", "volume.kubernetes.io/selected-node"})

TOLD_CONDITIONS = frozenset({("node", "Ready"), ("pod", "PodScheduled")})
"""Conditions that somebody asks about."""


def trimmed(obj: Resource, images: frozenset[str] | None = None) -> Document:
    """What of an object decides; `images` are those that pods name, None keeps all that nodes report."""
    kind = type(obj).kind_info
    found: Document = _document(obj)
    status = found.get("status", {})
    if "images" in status and images is not None:
        kept = [image for image in status["images"] if images & set(image.get("names", ()))]
        found["status"] = {**status, "images": kept}
    return {**found, "apiVersion": kind.api_version, "kind": kind.kind}


def images_of(pods: list[Pod]) -> frozenset[str]:
    """The images that pods name: nodes report hundreds, of which these alone are looked at."""
    return frozenset(container.image for pod in pods for container in pod.spec.containers)


def decides(annotation: str) -> bool:
    """Whether the scheduler may heed an annotation."""
    domain = annotation.partition("/")[0]
    return annotation in OUR_ANNOTATIONS or any(domain == one or domain.endswith(f".{one}") for one in OUR_DOMAINS)


def _document(value: Any) -> Any:
    if isinstance(value, ObjectMeta):
        return _metadata(value)
    if isinstance(value, Struct):
        return {
            name: _document(part)
            for field, name, is_default in _fields(type(value))
            if not is_default(part := getattr(value, field))
        }
    if isinstance(value, list):
        return [_document(part) for part in value if not _is_silent(part)]
    if isinstance(value, dict):
        return {key: _document(part) for key, part in value.items()}
    return msgspec.to_builtins(value)


def _metadata(meta: ObjectMeta) -> Document:
    found: Document = {
        name: _document(part)
        for field, name, is_default in _fields(ObjectMeta)
        if not is_default(part := getattr(meta, field))
    }
    found.pop("annotations", None)
    ours = {key: text for key, text in meta.annotations.items() if decides(key)}
    return {**found, "annotations": ours} if ours else found


def _is_silent(part: Any) -> bool:
    """Conditions that nobody asks about, volumes that bind a pod to no place, owners that do not control."""
    match part:
        case NodeCondition():
            return ("node", part.type) not in TOLD_CONDITIONS
        case PodCondition():
            return ("pod", part.type) not in TOLD_CONDITIONS
        case OwnerReference():
            return not part.controller
        case Volume():
            return part.persistent_volume_claim is None and part.ephemeral is None
    return False


@cache
def _fields(kind: type) -> tuple[tuple[str, str, Callable[[Any], bool]], ...]:
    """Of a type: the fields that are kept, their names on the wire, and whether a value is the default."""
    kept = KEPT.get(kind)
    return tuple(
        (field.name, field.encode_name, _is_default(field))
        for field in msgspec.structs.fields(kind)
        if kept is None or field.name in kept
    )


def _is_default(field: Any) -> Callable[[Any], bool]:
    if field.default is NODEFAULT and field.default_factory is NODEFAULT:
        return _is_never
    default = field.default if field.default is not NODEFAULT else field.default_factory()
    return lambda value: bool(value is default or value == default)


def _is_never(_value: Any) -> bool:
    return False
