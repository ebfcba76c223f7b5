"""What the meaning of a pod depends on outside the pod: claims, volumes, storage classes, namespaces, priorities."""

from typing import Protocol

from hekla.api.csi import CSIDriver, CSIStorageCapacity
from hekla.api.devices import DeviceClass, ResourceClaim
from hekla.api.selectors import LabelSelector
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass


class Surroundings(Protocol):
    """A read-only view of the objects around pods."""

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        """A claim, or None."""

    def volume(self, name: str) -> PersistentVolume | None:
        """A volume, or None."""

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        """The volumes of a storage class, in order of name."""

    def storage_class(self, name: str) -> StorageClass | None:
        """A storage class, or None."""

    def csi_driver(self, name: str) -> CSIDriver | None:
        """What a driver of storage is like, or None."""

    def capacities_of_class(self, name: str) -> list[CSIStorageCapacity]:
        """What is told of the room for volumes of a storage class."""

    def resource_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """A claim to devices, or None."""

    def device_class(self, name: str) -> DeviceClass | None:
        """A class of devices, or None."""

    def namespaces(self, selector: LabelSelector) -> frozenset[str]:
        """The names of the namespaces that a selector selects."""

    def priority(self, class_name: str) -> int:
        """The value of a priority class; of the global default for "", else 0."""

    def preemption_policy(self, class_name: str) -> str:
        """What a priority class says about evicting others; "" if nothing."""


class EmptySurroundings:
    """Nothing around: for tests and for what-if questions about pods alone."""

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        """None."""
        return None

    def volume(self, name: str) -> PersistentVolume | None:
        """None."""
        return None

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        """None."""
        return []

    def storage_class(self, name: str) -> StorageClass | None:
        """None."""
        return None

    def csi_driver(self, name: str) -> CSIDriver | None:
        """None."""
        return None

    def capacities_of_class(self, name: str) -> list[CSIStorageCapacity]:
        """None."""
        return []

    def resource_claim(self, namespace: str, name: str) -> ResourceClaim | None:
        """None."""
        return None

    def device_class(self, name: str) -> DeviceClass | None:
        """None."""
        return None

    def namespaces(self, selector: LabelSelector) -> frozenset[str]:
        """None."""
        return frozenset()

    def priority(self, class_name: str) -> int:
        """0."""
        return 0

    def preemption_policy(self, class_name: str) -> str:
        """Nothing."""
        return ""
