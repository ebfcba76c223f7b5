"""A claim that names no storage class gets the cluster's default one; claims and volumes are protected while in use."""

from dataclasses import dataclass
from typing import ClassVar

from hekla.apiserver.admission import AdmissionRequest, Operation, Reader

IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"


@dataclass(frozen=True)
class DefaultStorageClass:
    """Sets spec.storageClassName of new claims."""

    name: str = "DefaultStorageClass"
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New claims."""
        is_claim = request.kind.resource == "persistentvolumeclaims" and not request.subresource
        return request.operation is Operation.CREATE and is_claim

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Take the newest class that is marked as the default; an empty name means "no class" and is kept."""
        assert request.object is not None
        if request.object["spec"].get("storageClassName") is not None:
            return
        classes = [
            one
            for one in reader.list("storageclasses.storage.k8s.io")
            if (one["metadata"].get("annotations") or {}).get(IS_DEFAULT) == "true"
        ]
        if classes:
            newest = max(classes, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"]))
            request.object["spec"]["storageClassName"] = newest["metadata"]["name"]

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""


@dataclass(frozen=True)
class StorageProtection:
    """Puts the finalizer on claims and volumes that keeps them while a pod uses them."""

    name: str = "StorageObjectInUseProtection"
    is_by_kind: ClassVar[bool] = True

    def wants(self, request: AdmissionRequest) -> bool:
        """New claims and volumes."""
        return request.operation is Operation.CREATE and request.kind.resource in _FINALIZERS

    def mutate(self, request: AdmissionRequest, reader: Reader) -> None:
        """Add the finalizer once."""
        assert request.object is not None
        finalizer = _FINALIZERS[request.kind.resource]
        held = request.object["metadata"].get("finalizers") or []
        if finalizer not in held:
            request.object["metadata"]["finalizers"] = [*held, finalizer]

    def validate(self, request: AdmissionRequest, reader: Reader) -> None:
        """All is said before."""


_FINALIZERS = {
    "persistentvolumeclaims": "kubernetes.io/pvc-protection",
    "persistentvolumes": "kubernetes.io/pv-protection",
}
