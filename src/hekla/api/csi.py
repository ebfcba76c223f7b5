"""What drivers of storage say: what each is like, what a node can attach, what is attached, and what room is left where.

`storage.py` has the volumes themselves. Only what decides where a pod may run is typed.
"""

from msgspec import Struct, field

from hekla.api.meta import Resource, Scope, resource
from hekla.api.selectors import LabelSelector


class CSIDriverSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What a driver is like."""

    attach_required: bool | None = None
    storage_capacity: bool | None = None
    """Whether it publishes the room that is left, as CSIStorageCapacity objects."""


@resource("storage.k8s.io/v1", plural="csidrivers", scope=Scope.CLUSTER)
class CSIDriver(Resource, kw_only=True, frozen=True, rename="camel"):
    """A driver of storage that the cluster has."""

    spec: CSIDriverSpec = field(default_factory=CSIDriverSpec)


class VolumeNodeResources(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What a driver can do on a node."""

    count: int | None = None
    """How many volumes it can attach; None: as many as one likes."""


class CSINodeDriver(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """A driver on a node."""

    allocatable: VolumeNodeResources | None = None
    name: str = ""
    topology_keys: list[str] = []


class CSINodeSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The drivers of a node."""

    drivers: list[CSINodeDriver] = []


@resource("storage.k8s.io/v1", plural="csinodes", scope=Scope.CLUSTER)
class CSINode(Resource, kw_only=True, frozen=True, rename="camel"):
    """The drivers of storage of the node of the same name."""

    spec: CSINodeSpec = field(default_factory=CSINodeSpec)


class VolumeAttachmentSource(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """The volume that is attached."""

    persistent_volume_name: str | None = None


class VolumeAttachmentSpec(Struct, kw_only=True, frozen=True, rename="camel", gc=False):
    """What is attached where, and by which driver."""

    attacher: str = ""
    node_name: str = ""
    source: VolumeAttachmentSource = field(default_factory=VolumeAttachmentSource)


@resource("storage.k8s.io/v1", plural="volumeattachments", scope=Scope.CLUSTER, has_status=True)
class VolumeAttachment(Resource, kw_only=True, frozen=True, rename="camel"):
    """A volume that is, or is to be, attached to a node."""

    spec: VolumeAttachmentSpec = field(default_factory=VolumeAttachmentSpec)


@resource("storage.k8s.io/v1", plural="csistoragecapacities")
class CSIStorageCapacity(Resource, kw_only=True, frozen=True, rename="camel"):
    """The room that is left in a part of the cluster for volumes of a class."""

    capacity: str | None = None
    maximum_volume_size: str | None = None
    node_topology: LabelSelector | None = None
    """The nodes that reach it; None: none does."""

    storage_class_name: str = ""
