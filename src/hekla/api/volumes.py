"""The volumes of a pod and where containers see them.

`storage.py` holds the claims and the volumes behind them.
"""

from msgspec import Struct, field

from hekla.api.meta import ObjectMeta
from hekla.api.scalars import wire_names
from hekla.api.selectors import LabelSelector, LocalObjectReference, TypedLocalObjectReference, TypedObjectReference


class KeyToPath(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One key of a config map or secret, and the file it becomes."""

    key: str = ""
    mode: int | None = None
    path: str = ""


class ObjectFieldSelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A field of the pod itself, such as `metadata.name`."""

    api_version: str = ""
    field_path: str = ""


class ResourceFieldSelector(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A request or a limit of a container, divided by `divisor`."""

    container_name: str = ""
    divisor: str = ""
    resource: str = ""


class HostPathVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A path of the node's own file system."""

    path: str = ""
    type: str = ""


class EmptyDirVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A directory that lives as long as the pod; medium Memory keeps it in RAM."""

    medium: str = ""
    size_limit: str = ""


class SecretVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The keys of a secret as files."""

    default_mode: int | None = None
    items: list[KeyToPath] = []
    optional: bool = False
    secret_name: str = ""


class ConfigMapVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The keys of a config map as files."""

    default_mode: int | None = None
    items: list[KeyToPath] = []
    name: str = ""
    optional: bool = False


class DownwardAPIVolumeFile(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """One file made of the pod's own fields."""

    field_ref: ObjectFieldSelector | None = None
    mode: int | None = None
    path: str = ""
    resource_field_ref: ResourceFieldSelector | None = None


class DownwardAPIVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Files made of the pod's own fields."""

    default_mode: int | None = None
    items: list[DownwardAPIVolumeFile] = []


class PersistentVolumeClaimVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A claim of the same namespace."""

    claim_name: str = ""
    read_only: bool = False


class NFSVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A directory of an NFS server."""

    path: str = ""
    read_only: bool = False
    server: str = ""


class CSIVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A volume that a CSI driver makes for this pod alone."""

    driver: str = ""
    fs_type: str = ""
    node_publish_secret_ref: LocalObjectReference | None = None
    read_only: bool = False
    volume_attributes: dict[str, str] = {}


class ImageVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The content of an image as a read-only directory."""

    pull_policy: str = ""
    reference: str = ""


class SecretProjection(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Keys of a secret within a projected volume."""

    items: list[KeyToPath] = []
    name: str = ""
    optional: bool = False


class ConfigMapProjection(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Keys of a config map within a projected volume."""

    items: list[KeyToPath] = []
    name: str = ""
    optional: bool = False


class DownwardAPIProjection(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Fields of the pod within a projected volume."""

    items: list[DownwardAPIVolumeFile] = []


class ServiceAccountTokenProjection(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A token of the pod's service account, renewed before it expires."""

    audience: str = ""
    expiration_seconds: int | None = None
    path: str = ""


class ClusterTrustBundleProjection(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Trust anchors by name or by signer."""

    label_selector: LabelSelector | None = None
    name: str = ""
    optional: bool = False
    path: str = ""
    signer_name: str = ""


class PodCertificateProjection(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A key and a certificate chain issued to the pod."""

    certificate_chain_path: str = ""
    credential_bundle_path: str = ""
    key_path: str = ""
    key_type: str = ""
    max_expiration_seconds: int = 0
    signer_name: str = ""
    user_annotations: dict[str, str] = {}


class VolumeProjection(Struct, kw_only=True, frozen=True, rename=wire_names(downward_api="downwardAPI"), gc=False):
    """One source of a projected volume."""

    cluster_trust_bundle: ClusterTrustBundleProjection | None = None
    config_map: ConfigMapProjection | None = None
    downward_api: DownwardAPIProjection | None = None
    pod_certificate: PodCertificateProjection | None = None
    secret: SecretProjection | None = None
    service_account_token: ServiceAccountTokenProjection | None = None


class ProjectedVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Several sources in one directory."""

    default_mode: int | None = None
    sources: list[VolumeProjection] = []


class VolumeResourceRequirements(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """How much storage is asked for and allowed."""

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}


class PersistentVolumeClaimSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What is wanted of a volume: size, class, access modes."""

    access_modes: list[str] = []
    data_source: TypedLocalObjectReference | None = None
    data_source_ref: TypedObjectReference | None = None
    resources: VolumeResourceRequirements | None = None
    selector: LabelSelector | None = None
    storage_class_name: str = ""
    volume_attributes_class_name: str = ""
    volume_mode: str = ""
    volume_name: str = ""


class PersistentVolumeClaimTemplate(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A claim to be made for the pod."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: PersistentVolumeClaimSpec = field(default_factory=PersistentVolumeClaimSpec)


class EphemeralVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A claim made with the pod and removed with it."""

    volume_claim_template: PersistentVolumeClaimTemplate | None = None


class GCEPersistentDiskVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A disk of Google's cloud."""

    fs_type: str = ""
    partition: int = 0
    pd_name: str = ""
    read_only: bool = False


class AWSElasticBlockStoreVolumeSource(
    Struct, kw_only=True, frozen=True, rename=wire_names(volume_id="volumeID"), gc=False
):
    """A disk of Amazon's cloud."""

    fs_type: str = ""
    partition: int = 0
    read_only: bool = False
    volume_id: str = ""


class ISCSIVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A disk that is reached by iSCSI; what a session needs is left to the node."""

    iqn: str = ""
    lun: int = 0
    read_only: bool = False
    target_portal: str = ""


class RBDVolumeSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """An image of a Ceph cluster."""

    image: str = ""
    monitors: list[str] = []
    pool: str = ""
    read_only: bool = False


class Volume(Struct, kw_only=True, frozen=True, rename=wire_names(downward_api="downwardAPI"), gc=False):
    """A named volume with exactly one source."""

    aws_elastic_block_store: AWSElasticBlockStoreVolumeSource | None = None
    config_map: ConfigMapVolumeSource | None = None
    csi: CSIVolumeSource | None = None
    downward_api: DownwardAPIVolumeSource | None = None
    empty_dir: EmptyDirVolumeSource | None = None
    ephemeral: EphemeralVolumeSource | None = None
    gce_persistent_disk: GCEPersistentDiskVolumeSource | None = None
    host_path: HostPathVolumeSource | None = None
    image: ImageVolumeSource | None = None
    iscsi: ISCSIVolumeSource | None = None
    name: str = ""
    nfs: NFSVolumeSource | None = None
    persistent_volume_claim: PersistentVolumeClaimVolumeSource | None = None
    projected: ProjectedVolumeSource | None = None
    rbd: RBDVolumeSource | None = None
    secret: SecretVolumeSource | None = None


class VolumeMount(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Where a container sees a volume."""

    mount_path: str = ""
    mount_propagation: str = ""
    name: str = ""
    read_only: bool = False
    recursive_read_only: str = ""
    sub_path: str = ""
    sub_path_expr: str = ""


class VolumeDevice(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """Where a container sees a block device."""

    device_path: str = ""
    name: str = ""
