"""Claims, volumes and classes of storage.

`volumes.py` is how a pod refers to them, `csi.py` what drivers of storage say of nodes.
"""

from msgspec import Struct, field

from hekla.api.meta import Resource, Scope, resource
from hekla.api.pod_scheduling import NodeSelector
from hekla.api.scalars import wire_names
from hekla.api.selectors import ObjectReference, SecretReference
from hekla.api.volumes import (
    AWSElasticBlockStoreVolumeSource,
    GCEPersistentDiskVolumeSource,
    HostPathVolumeSource,
    NFSVolumeSource,
    PersistentVolumeClaimSpec,
)


class PersistentVolumeClaimCondition(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One observation of a claim."""

    last_probe_time: str | None = None
    last_transition_time: str | None = None
    message: str = ""
    reason: str = ""
    status: str = ""
    type: str = ""


class ModifyVolumeStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How a change of attributes goes on."""

    status: str = ""
    target_volume_attributes_class_name: str = ""


class PersistentVolumeClaimStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What was bound to the claim."""

    access_modes: list[str] = []
    allocated_resource_statuses: dict[str, str] = {}
    allocated_resources: dict[str, str] = {}
    capacity: dict[str, str] = {}
    conditions: list[PersistentVolumeClaimCondition] = []
    current_volume_attributes_class_name: str = ""
    modify_volume_status: ModifyVolumeStatus | None = None
    phase: str = ""


@resource("v1", plural="persistentvolumeclaims", short=("pvc",), has_status=True)
class PersistentVolumeClaim(Resource, kw_only=True, frozen=True, rename="camel"):
    """A wish for storage."""

    spec: PersistentVolumeClaimSpec = field(default_factory=PersistentVolumeClaimSpec)
    status: PersistentVolumeClaimStatus = field(default_factory=PersistentVolumeClaimStatus)


class VolumeNodeAffinity(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """From which nodes a volume can be reached."""

    required: NodeSelector | None = None


class LocalVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A directory or a device of one node."""

    fs_type: str = ""
    path: str = ""


class CSIPersistentVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A volume of a CSI driver."""

    controller_expand_secret_ref: SecretReference | None = None
    controller_publish_secret_ref: SecretReference | None = None
    driver: str = ""
    fs_type: str = ""
    node_expand_secret_ref: SecretReference | None = None
    node_publish_secret_ref: SecretReference | None = None
    node_stage_secret_ref: SecretReference | None = None
    read_only: bool = False
    volume_attributes: dict[str, str] = {}
    volume_handle: str = ""


class AzureDiskVolumeSource(Struct, kw_only=True, frozen=True, rename=wire_names(disk_uri="diskURI"), gc=False):
    """A disk of Microsoft's cloud."""

    caching_mode: str | None = None
    disk_name: str = ""
    disk_uri: str = ""
    fs_type: str | None = None
    kind: str | None = None
    read_only: bool | None = None


class CinderPersistentVolumeSource(
    Struct, kw_only=True, frozen=True, rename=wire_names(volume_id="volumeID"), gc=False
):
    """A volume of OpenStack."""

    fs_type: str = ""
    read_only: bool = False
    volume_id: str = ""


class VsphereVirtualDiskVolumeSource(
    Struct, kw_only=True, frozen=True, rename=wire_names(storage_policy_id="storagePolicyID"), gc=False
):
    """A disk of vSphere."""

    fs_type: str = ""
    storage_policy_id: str = ""
    storage_policy_name: str = ""
    volume_path: str = ""


class PersistentVolumeSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What a piece of storage is."""

    access_modes: list[str] = []
    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    azure_disk: AzureDiskVolumeSource | None = None
    capacity: dict[str, str] = {}
    cinder: CinderPersistentVolumeSource | None = None
    claim_ref: ObjectReference | None = None
    csi: CSIPersistentVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    local: LocalVolumeSource | None = None
    mount_options: list[str] = []
    nfs: NFSVolumeSource | None = None
    node_affinity: VolumeNodeAffinity | None = None
    persistent_volume_reclaim_policy: str = ""
    storage_class_name: str = ""
    volume_attributes_class_name: str = ""
    volume_mode: str = ""
    vsphere_volume: VsphereVirtualDiskVolumeSource | None = None


class PersistentVolumeStatus(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Whether the volume is free, bound, released or failed."""

    last_phase_transition_time: str | None = None
    message: str = ""
    phase: str = ""
    reason: str = ""


@resource("v1", plural="persistentvolumes", scope=Scope.CLUSTER, short=("pv",), has_status=True)
class PersistentVolume(Resource, kw_only=True, frozen=True, rename="camel"):
    """A piece of storage."""

    spec: PersistentVolumeSpec = field(default_factory=PersistentVolumeSpec)
    status: PersistentVolumeStatus = field(default_factory=PersistentVolumeStatus)


class TopologySelectorLabelRequirement(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One key and the values allowed for it."""

    key: str = ""
    values: list[str] = []


class TopologySelectorTerm(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Clauses that must all hold."""

    match_label_expressions: list[TopologySelectorLabelRequirement] = []


@resource("storage.k8s.io/v1", plural="storageclasses", scope=Scope.CLUSTER, short=("sc",))
class StorageClass(Resource, kw_only=True, frozen=True, rename="camel"):
    """A kind of storage and who makes it."""

    allow_volume_expansion: bool | None = None
    allowed_topologies: list[TopologySelectorTerm] = []
    mount_options: list[str] = []
    parameters: dict[str, str] = {}
    provisioner: str = ""
    reclaim_policy: str = ""
    volume_binding_mode: str = ""
