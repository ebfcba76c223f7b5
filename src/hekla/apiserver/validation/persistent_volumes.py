"""What is wrong with persistent volumes; `storage.py` has claims and classes."""

from collections.abc import Callable, Sequence
from typing import Final

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    FieldError,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_long,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.paths import check_no_backsteps
from hekla.apiserver.validation.quantities import check_greater_than_zero
from hekla.apiserver.validation.selectors import check_node_selector
from hekla.apiserver.validation.storage import VOLUME_MODES, check_modes

HOST_PATH_TYPES = ("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket")
_POLICIES = ("Delete", "Recycle", "Retain")
_MOUNT_OPTIONS = "volume.beta.kubernetes.io/mount-options"
_SOURCES = (
    "hostPath", "gcePersistentDisk", "awsElasticBlockStore", "glusterfs", "flocker", "nfs", "rbd", "quobyte", "cephfs",
    "iscsi", "cinder", "fc", "flexVolume", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume",
    "azureDisk", "scaleIO", "local", "storageos", "csi",
)  # fmt: skip
_SECRETS = ("controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef")
_LONGEST_DRIVER = 63
_MOST_LUNS = 255
_FIXED = "spec.persistentvolumesource is immutable after creation"


def check_volume(volume: Document) -> list[FieldError]:
    """A volume: how much, where, for whom."""
    spec = volume.get("spec", {})
    errors = [] if spec.get("accessModes") else [required("spec.accessModes")]
    errors += check_modes(spec.get("accessModes", []), "spec.accessModes")
    errors += _check_capacity(spec.get("capacity") or {}, "spec.capacity")
    if spec.get("persistentVolumeReclaimPolicy", "") not in ("", *_POLICIES):
        policy = spec["persistentVolumeReclaimPolicy"]
        errors.append(not_supported("spec.persistentVolumeReclaimPolicy", policy, _POLICIES))
    if "nodeAffinity" in spec:
        errors += _check_affinity(spec["nodeAffinity"], "spec.nodeAffinity")
    errors += _check_sources(spec) + _check_class(spec)
    if "hostPath" in spec and _MOUNT_OPTIONS in volume["metadata"].get("annotations", {}):
        said = "may not specify mount options for this volume type"
        errors.append(forbidden_field(f"metadata.annotations.{_MOUNT_OPTIONS}", said))
    if "volumeMode" in spec and spec["volumeMode"] not in VOLUME_MODES:
        errors.append(not_supported("spec.volumeMode", spec["volumeMode"], VOLUME_MODES))
    return errors


def _check_capacity(capacity: dict[str, str], path: str) -> list[FieldError]:
    errors = [] if capacity else [required(path)]
    if set(capacity) != {"storage"}:
        errors.append(not_supported(path, capacity or None, ("storage",)))
    for name, amount in sorted(capacity.items()):
        errors += [invalid(f"{path}[{name}]", name, said) for said in names.qualified_name(name)]
        errors += check_greater_than_zero(amount, f"{path}[{name}]")
    return errors


def _check_affinity(affinity: Document, path: str) -> list[FieldError]:
    if "required" not in affinity:
        return [required(f"{path}.required", "must specify required node constraints")]
    return check_node_selector(affinity["required"], f"{path}.required")


def _check_class(spec: Document) -> list[FieldError]:
    errors, name = list[FieldError](), spec.get("storageClassName")
    if name:
        errors += [invalid("spec.storageClassName", name, said) for said in names.dns_subdomain(name)]
    if "volumeAttributesClassName" not in spec:
        return errors
    path, name = "spec.volumeAttributesClassName", spec["volumeAttributesClassName"]
    if name:
        errors += [invalid(path, name, said) for said in names.dns_subdomain(name)]
    else:
        errors.append(required(path, "an empty string is disallowed"))
    if "csi" not in spec:
        errors.append(required("spec.csi", "has to be specified when using volumeAttributesClassName"))
    return errors


def _check_sources(spec: Document) -> list[FieldError]:
    present = [key for key in _SOURCES if key in spec]
    if not present:
        return [required("spec", "must specify a volume type")]
    errors = [forbidden_field(f"spec.{key}", "may not specify more than 1 volume type") for key in present[1:]]
    key = present[0]
    source, path = spec[key], f"spec.{key}"
    errors += [required(f"{path}.{name}") for name in _NEEDED.get(key, ()) if not source.get(name)]
    if key in _CHECKS:
        errors += _CHECKS[key](source, path)
    if key == "hostPath" and source.get("path") == "/" and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        said = "may not be 'recycle' for a hostPath mount of '/'"
        errors.append(forbidden_field("spec.persistentVolumeReclaimPolicy", said))
    if key == "local" and "nodeAffinity" not in spec:
        errors.append(required("spec.nodeAffinity", "Local volume requires node affinity"))
    return errors


def _check_host_path(source: Document, path: str) -> list[FieldError]:
    errors = check_no_backsteps(source.get("path", ""), f"{path}.path")
    if source.get("type", "") not in HOST_PATH_TYPES:
        errors.append(not_supported(f"{path}.type", source["type"], HOST_PATH_TYPES))
    return errors


def _check_nfs(source: Document, path: str) -> list[FieldError]:
    where = source.get("path", "")
    return [] if where.startswith("/") else [invalid(f"{path}.path", where, "must be an absolute path")]


def _check_local(source: Document, path: str) -> list[FieldError]:
    return check_no_backsteps(source.get("path", ""), f"{path}.path")


def _check_iscsi(source: Document, path: str) -> list[FieldError]:
    name, lun, errors = source.get("iqn", ""), source.get("lun", 0), list[FieldError]()
    if name and not name.startswith(("iqn.", "eui.", "naa.")):
        errors.append(invalid(f"{path}.iqn", name, "must be valid format"))
    if not 0 <= lun <= _MOST_LUNS:
        errors.append(invalid(f"{path}.lun", lun, f"must be between 0 and {_MOST_LUNS}, inclusive"))
    return errors


def _check_fc(source: Document, path: str) -> list[FieldError]:
    if source.get("targetWWNs") or source.get("wwids"):
        return []
    return [required(f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both")]


def _check_csi(source: Document, path: str) -> list[FieldError]:
    driver = source.get("driver", "")
    errors = [too_long(f"{path}.driver", _LONGEST_DRIVER)] if len(driver) > _LONGEST_DRIVER else []
    if driver:
        errors += [invalid(f"{path}.driver", driver, said) for said in names.dns_subdomain(driver.lower())]
    for key in _SECRETS:
        if key in source:
            errors += _check_secret(source[key], f"{path}.{key}")
    return errors


def _check_secret(reference: Document, path: str) -> list[FieldError]:
    errors = [required(f"{path}.{key}") for key in ("name", "namespace") if not reference.get(key)]
    namespace = reference.get("namespace")
    if namespace:
        errors += [invalid(f"{path}.namespace", namespace, said) for said in names.dns_label(namespace)]
    return errors


_NEEDED: Final[dict[str, Sequence[str]]] = {
    "hostPath": ("path",), "nfs": ("server", "path"), "local": ("path",), "csi": ("driver", "volumeHandle"),
    "iscsi": ("targetPortal", "iqn"), "rbd": ("monitors", "image"), "cephfs": ("monitors",),
    "glusterfs": ("endpoints", "path"),
}  # fmt: skip
_CHECKS: Final[dict[str, Callable[[Document, str], list[FieldError]]]] = {
    "hostPath": _check_host_path,
    "nfs": _check_nfs,
    "local": _check_local,
    "iscsi": _check_iscsi,
    "fc": _check_fc,
    "csi": _check_csi,
}


def check_volume_update(new: Document, old: Document) -> list[FieldError]:
    """Where a volume is stays, and whether it is a device."""
    wanted, before, errors = new["spec"], old["spec"], list[FieldError]()
    if any(_said(wanted.get(key), before.get(key)) != before.get(key) for key in _SOURCES):
        errors.append(forbidden_field("spec.persistentvolumesource", _FIXED))
    if wanted.get("volumeMode") != before.get("volumeMode"):
        errors.append(invalid("volumeMode", wanted.get("volumeMode"), IMMUTABLE))
    return errors


def _said(source: Document | None, before: Document | None) -> Document | None:
    """A source less what may be added to a driver's: the secret by which it is enlarged."""
    if source and before and "controllerExpandSecretRef" in source and "controllerExpandSecretRef" not in before:
        return {key: value for key, value in source.items() if key != "controllerExpandSecretRef"}
    return source
