"""Which driver attaches a volume: a CSI driver, also for volumes and classes that are told in the old, built-in way.

Kubernetes moved its built-in clouds' volumes to CSI drivers, which attach them under these names ever since.
"""

from hekla.api.storage import PersistentVolumeSpec
from hekla.api.volumes import Volume
from hekla.placement.constraint import Disk

EBS, GCE, AZURE = "ebs.csi.aws.com", "pd.csi.storage.gke.io", "disk.csi.azure.com"
CINDER, VSPHERE = "cinder.csi.openstack.org", "csi.vsphere.vmware.com"

_PROVISIONERS = {
    "kubernetes.io/aws-ebs": EBS, "kubernetes.io/gce-pd": GCE, "kubernetes.io/azure-disk": AZURE,
    "kubernetes.io/cinder": CINDER, "kubernetes.io/vsphere-volume": VSPHERE,
}  # fmt: skip

CLOUD_DRIVERS = frozenset(_PROVISIONERS.values())
"""Drivers that are meant without being named."""


def driver_of_class(provisioner: str) -> str:
    """The driver that attaches the volumes of a class; "" if they are not attached."""
    return _PROVISIONERS.get(provisioner, "" if provisioner.startswith("kubernetes.io/") else provisioner)


def driver_of(volume: PersistentVolumeSpec) -> str:
    """The driver that attaches a volume; "" if it is not attached."""
    if volume.csi is not None:
        return volume.csi.driver
    kinds = {
        EBS: volume.aws_elastic_block_store, GCE: volume.gce_persistent_disk, AZURE: volume.azure_disk,
        CINDER: volume.cinder, VSPHERE: volume.vsphere_volume,
    }  # fmt: skip
    return next((driver for driver, source in kinds.items() if source is not None), "")


def disks_of(volume: Volume) -> tuple[Disk, ...]:
    """What a pod mounts by the disk's own name, under which pods of a node may clash."""
    if volume.gce_persistent_disk is not None:
        gce = volume.gce_persistent_disk
        return (Disk(f"gce/{gce.pd_name}", gce.read_only),)
    if volume.aws_elastic_block_store is not None:
        return (Disk(f"aws/{volume.aws_elastic_block_store.volume_id}"),)
    if volume.iscsi is not None:
        return (Disk(f"iscsi/{volume.iscsi.iqn}", volume.iscsi.read_only),)
    if volume.rbd is not None:
        rbd = volume.rbd
        # The same image if one monitor is the same: it counts under each of them.
        return tuple(
            Disk(f"rbd/{monitor}/{rbd.pool or 'rbd'}/{rbd.image}", rbd.read_only)
            for monitor in sorted(set(rbd.monitors))
        )
    return ()


def driver_of_disk(volume: Volume) -> tuple[str, str] | None:
    """The driver that attaches such a disk, and what it is called; None if it is not attached by one."""
    if volume.gce_persistent_disk is not None:
        return GCE, f"disk/{volume.gce_persistent_disk.pd_name}"
    if volume.aws_elastic_block_store is not None:
        return EBS, f"disk/{volume.aws_elastic_block_store.volume_id}"
    return None
