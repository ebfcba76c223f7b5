"""The storage of a scenario: Kubernetes' objects by kind and name, so that a story about volumes reads like its cluster.

    storage:
      StorageClass:
        local: {provisioner: kubernetes.io/no-provisioner, volumeBindingMode: WaitForFirstConsumer}
      PersistentVolume:
        v1: {spec: {capacity: {storage: 10Gi}, storageClassName: local}, labels: {topology.kubernetes.io/zone: a}}
      PersistentVolumeClaim:
        data: {spec: {storageClassName: local}}
      ResourceSlice:
        n1: {driver: gpu.example.com, devices: {gpu-0: {memory: 80Gi, model: A}, gpu-1: {}}}
      ResourceClaim:
        mine: {requests: {gpu: {deviceClassName: gpu, count: 2}}}
      CSINode:
        n1: {spec: {drivers: [{name: ebs.csi.aws.com, allocatable: {count: 2}}]}}

A task's `volumes` are those of a pod; `claim: data` is short for a volume of that claim. An entry of null is removed.
Devices are told in a shorter way than Kubernetes' (`_slice`, `_claim_spec`), whose own fields may be written too. A pod's own
claims, by `resourceClaimTemplateName`, are made when it comes.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from hekla.api.csi import CSIDriver, CSINode, CSIStorageCapacity, VolumeAttachment
from hekla.api.devices import DeviceClass, ResourceClaim, ResourceClaimTemplate, ResourceSlice
from hekla.api.meta import Resource
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from hekla.api.volcano.shard import NodeShard
from hekla.dialects.device_objects import DeviceObjects
from hekla.dialects.shards import NodeShards, Sharding
from hekla.dialects.storage import Storage
from hekla.dialects.surroundings import EmptySurroundings
from hekla.placement.cluster import Cluster
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
        NodeShard,
        DeviceClass,
        ResourceSlice,
        ResourceClaim,
        ResourceClaimTemplate,
    )
}
_NAMESPACED = (PersistentVolumeClaim, CSIStorageCapacity, ResourceClaim, ResourceClaimTemplate)


class ScenarioStorage(Storage, DeviceObjects, EmptySurroundings):
    """What the pods of a scenario are surrounded by."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.shards = NodeShards(Sharding())
        self._templates: dict[str, ResourceClaimTemplate] = {}
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
            "NodeShard": self.shards.put,
            "DeviceClass": self.put_device_class,
            "ResourceSlice": lambda old, new: self.put_slice(self._cluster, old, new),
            "ResourceClaim": lambda old, new: self.put_resource_claim(self._cluster, old, new),
            "ResourceClaimTemplate": self._put_template,
        }
        for kind in put:
            for name, fields in (objects.get(kind) or {}).items():
                new = _object(_KINDS[kind], name, fields) if fields is not None else None
                put[kind](self._known.get((kind, name)), new)
                self._known[kind, name] = new

    def of_node(self, name: str) -> dict[str, Any]:
        """What objects around a node say of it."""
        return {"volume_limits": self.volume_limits(name), "shard": self.shards.side_of(name)}

    def _put_template(self, old: ResourceClaimTemplate | None, new: ResourceClaimTemplate | None) -> None:
        if new is not None:
            self._templates[new.metadata.name] = new
        elif old is not None:
            self._templates.pop(old.metadata.name, None)

    def own_claims(self, pod: str, entries: Any) -> list[dict[str, str]]:
        """Make the claims that a pod has by templates; what its status says of them."""
        made = []
        for entry in entries:
            template = self._templates.get(entry.get("resourceClaimTemplateName", ""))
            if template is None:
                continue
            name = f"{pod}-{entry['name']}"
            if self.resource_claim("default", name) is None:
                owners = [{"kind": "Pod", "name": pod, "uid": pod, "controller": True}]
                metadata = {"name": name, "namespace": "default", "ownerReferences": owners}
                new = msgspec.convert({"metadata": metadata, "spec": template.spec.spec}, ResourceClaim)
                self.put_resource_claim(self._cluster, None, new)
            made.append({"name": entry["name"], "resourceClaimName": name})
        return made

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
    namespace = "default" if kind in _NAMESPACED else ""
    if kind is ResourceSlice and "spec" not in body:
        body = {"spec": _slice(name, body)}
    elif kind is ResourceClaimTemplate:
        body = {"spec": {"spec": _claim_spec(body)}}
    elif kind is ResourceClaim:
        body = {"spec": _claim_spec(body), "status": _claim_status(body)}
    elif kind is NodeShard:
        body = {"spec": {"nodesDesired": body.get("desired", [])}, "status": {"nodesInUse": body.get("inUse", [])}}
    elif kind is DeviceClass:
        body = {"spec": {"selectors": _selectors(body)}}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    return msgspec.convert({"metadata": metadata, **body}, kind)


def _slice(name: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """`{driver: d, devices: {gpu-0: {model: A, memory: 80Gi}}}` is of the node of the slice's name, unless it says otherwise:
    text and numbers are attributes, quantities with a unit are capacity.
    """  # fmt: skip
    rest = {key: value for key, value in told.items() if key not in {"devices", "pool"}}
    reach = (
        {} if rest.keys() & {"nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection"} else {"nodeName": name}
    )
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1, **told.get("pool", {})}
    return {
        **rest,
        **reach,
        "pool": pool,
        "devices": [_device(one, facts or {}) for one, facts in told["devices"].items()],
    }


_DEVICE_FIELDS = {"consumesCounters", "nodeName", "nodeSelector", "allNodes", "taints", "attributes", "capacity"}


def _device(name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    device: dict[str, Any] = {"name": name, "attributes": {}, "capacity": {}}
    for key, value in facts.items():
        if key in _DEVICE_FIELDS:
            device[key] = value
        elif isinstance(value, str) and re.fullmatch(r"\d+[KMGT]i", value):
            device["capacity"][key] = {"value": value}
        else:
            kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string"
            device["attributes"][key] = {kind: value}
    return device


def _claim_spec(told: Mapping[str, Any]) -> dict[str, Any]:
    """`{requests: {gpu: {deviceClassName: gpu}}, constraints: [...]}`; a request may have `firstAvailable`, by name."""
    requests = []
    for name, fields in (told.get("requests") or {}).items():
        if "firstAvailable" in fields:
            choices = [{"name": one, **_asked(asked)} for one, asked in fields["firstAvailable"].items()]
            requests.append({"name": name, "firstAvailable": choices})
        else:
            requests.append({"name": name, "exactly": _asked(fields)})
    return {"devices": {"requests": requests, "constraints": told.get("constraints") or []}}


def _asked(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {**{key: value for key, value in fields.items() if key != "cel"}, "selectors": _selectors(fields)}


def _selectors(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """`cel` is an expression, or several."""
    told = fields.get("cel") or []
    return [{"cel": {"expression": one}} for one in ([told] if isinstance(told, str) else told)]


def _claim_status(told: Mapping[str, Any]) -> dict[str, Any]:
    """`allocated: {gpu: [driver/pool/device]}` by request; it may be used on the node `usedOn`."""
    if "allocated" not in told:
        return {}
    results = [
        {"request": request, **dict(zip(("driver", "pool", "device"), one.split("/"), strict=True))}
        for request, devices in told["allocated"].items()
        for one in devices
    ]
    where = (
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [told["usedOn"]]}]}
        if "usedOn" in told
        else None
    )
    selector = {"nodeSelectorTerms": [where]} if where else None
    return {"allocation": {"devices": {"results": results}, "nodeSelector": selector}}
