"""The storage of a scenario: Kubernetes' objects by kind and name, so that a story about volumes reads like its cluster.

    storage:
      StorageClass:
        local: {provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}
      PersistentVolume:
        v1: {spec: {capacity: {storage: 10Gi}, storageClassName: local}, labels: {topology.kubernetes.io/zone: a}}
      PersistentVolumeClaim:
        data: {spec: {storageClassName: local}}
      CSINode:
        n1: {spec: {drivers: [{name: ebs.csi.aws.com, allocatable: {count: 2}}]}}

A task's `volumes` are those of a pod; `claim: data` is short for a volume of that claim. An entry of null is removed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hekla.api.csi import CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment
from hekla.api.meta import Resource
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.dialects.storage import Storage
from hekla.dialects.surroundings import EmptySurroundings
from hekla.placement.model import TaskSpec

_KINDS: Mapping[str, type[Resource]] = {
    kind.__name__: kind
    for kind in (
        CSIDriver,
        CSIStorageCapacity,
        StorageClass,
        PersistentVolume,
        PersistentVolumeClaim,
        CSINode,
        VolumeAttachment,
    )
}


class ScenarioStorage(Storage, EmptySurroundings):
    """What the pods of a scenario are surrounded by."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[tuple[str, str], Any] = {}
        self.told_attachments: set[str] = set()
        self.pods: dict[str, Callable[[], TaskSpec]] = {}
        """How to read each pod anew, by uid."""

    def put_all(self, objects: Mapping[str, Mapping[str, Any]]) -> None:
        """Take over what a story says."""
        put: Mapping[str, Callable[[Any, Any], object]] = {
            "CSIDriver": self.put_driver,
            "CSIStorageCapacity": self.put_capacity,
            "StorageClass": self.put_class,
            "PersistentVolume": self.put_volume,
            "PersistentVolumeClaim": self.put_claim,
            "CSINode": self.put_node,
            "VolumeAttachment": self._put_attachment,
        }
        for kind in put:
            for name, fields in (objects.get(kind) or {}).items():
                new = _object(_KINDS[kind], name, fields) if fields is not None else None
                put[kind](self._known.get((kind, name)), new)
                self._known[kind, name] = new

    def _put_attachment(self, old: VolumeAttachment | None, new: VolumeAttachment | None) -> None:
        self.told_attachments.add(self.put_attachment(old, new))


def pod_volumes(task: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The volumes of a task's pod."""
    told = list(task.get("volumes") or ())
    if "claim" in task:
        told.append({"name": "data", "persistentVolumeClaim": {"claimName": task["claim"]}})
    return [{"name": f"v{number}", **volume} for number, volume in enumerate(told)]


def _object(kind: type[Resource], name: str, fields: Mapping[str, Any]) -> Resource:
    body = dict(fields)
    labels, annotations = body.pop("labels", {}), body.pop("annotations", {})
    namespace = "default" if kind in {PersistentVolumeClaim, CSIStorageCapacity} else ""
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    return msgspec.convert({"metadata": metadata, **body}, kind)
