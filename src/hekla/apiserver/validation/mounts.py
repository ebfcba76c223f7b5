"""What is wrong with how a container mounts the volumes of its pod."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    FieldError,
    forbidden_field,
    invalid,
    not_found_field,
    not_supported,
    required,
)
from hekla.apiserver.validation.paths import check_relative

_PROPAGATIONS = ("Bidirectional", "HostToContainer", "None")
_RECURSIVE = ("Disabled", "Enabled", "IfPossible")
_NOT_A_BLOCK = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"


def check_mounts(container: Document, volumes: dict[str, Document], path: str) -> list[FieldError]:
    """Mounted directories and devices; `volumes` are the pod's that are right, by name."""
    mounts, devices = container.get("volumeMounts", ()), container.get("volumeDevices", ())
    errors = _check_mounts(container, volumes, f"{path}.volumeMounts") if mounts else []
    return errors + (_check_devices(container, volumes, f"{path}.volumeDevices") if devices else [])


def _check_mounts(container: Document, volumes: dict[str, Document], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    devices = container.get("volumeDevices", ())
    for index, mount in enumerate(container["volumeMounts"]):
        where, name, at = f"{path}[{index}]", mount.get("name", ""), mount.get("mountPath", "")
        if not name:
            errors.append(required(f"{where}.name"))
        if name not in volumes:
            errors.append(not_found_field(f"{where}.name", name))
        if not at:
            errors.append(required(f"{where}.mountPath"))
        if at in seen:
            errors.append(invalid(f"{where}.mountPath", at, "must be unique"))
        seen.add(at)
        if any(one.get("name") == name for one in devices):
            errors.append(invalid(f"{where}.name", name, "must not already exist in volumeDevices"))
        if any(one.get("devicePath") == at for one in devices):
            errors.append(invalid(f"{where}.mountPath", at, "must not already exist as a path in volumeDevices"))
        errors += _check_part(mount, where, path)
        if "mountPropagation" in mount or "recursiveReadOnly" in mount:
            errors += _check_modes(mount, container, path)
    return errors


def _check_part(mount: Document, where: str, path: str) -> list[FieldError]:
    part, expression = mount.get("subPath", ""), mount.get("subPathExpr", "")
    errors = check_relative(part, f"{path}.subPath")  # Kubernetes leaves out which of the mounts
    if part and expression:
        errors.append(invalid(f"{where}.subPathExpr", expression, "subPathExpr and subPath are mutually exclusive"))
    return errors + check_relative(expression, f"{path}.subPathExpr")


def _check_modes(mount: Document, container: Document, path: str) -> list[FieldError]:
    propagation, recursive, errors = mount.get("mountPropagation"), mount.get("recursiveReadOnly"), []
    where = f"{path}.mountPropagation"
    if propagation is not None and propagation not in _PROPAGATIONS:
        errors.append(not_supported(where, propagation, _PROPAGATIONS))
    if propagation == "Bidirectional" and not container.get("securityContext", {}).get("privileged"):
        said = "Bidirectional mount propagation is available only to privileged containers"
        errors.append(forbidden_field(where, said))
    where = f"{path}.recursiveReadOnly"
    if recursive in ("Enabled", "IfPossible"):
        if not mount.get("readOnly"):
            errors.append(forbidden_field(where, "may only be specified when readOnly is true"))
        if propagation not in (None, "None"):
            said = "may only be specified when mountPropagation is None or not specified"
            errors.append(forbidden_field(where, said))
    elif recursive not in (None, "Disabled"):
        errors.append(not_supported(where, recursive, _RECURSIVE))
    return errors


def _check_devices(container: Document, volumes: dict[str, Document], path: str) -> list[FieldError]:
    errors, names, seen = list[FieldError](), set[str](), set[str]()
    mounts = container.get("volumeMounts", ())
    for index, device in enumerate(container["volumeDevices"]):
        where, name, at = f"{path}[{index}]", device.get("name", ""), device.get("devicePath", "")
        if not name:
            errors.append(required(f"{where}.name"))
        if name in names:
            errors.append(invalid(f"{where}.name", name, "must be unique"))
        if name not in volumes:
            errors.append(not_found_field(f"{where}.name", name))
        elif not volumes[name].keys() & {"persistentVolumeClaim", "ephemeral"}:
            errors.append(invalid(f"{where}.name", name, _NOT_A_BLOCK))
        errors += _check_device_path(at, seen, f"{where}.devicePath")
        if any(one.get("name") == name for one in mounts):
            errors.append(invalid(f"{where}.name", name, "must not already exist in volumeMounts"))
        if any(one.get("mountPath") == at for one in mounts):
            errors.append(invalid(f"{where}.devicePath", at, "must not already exist as a path in volumeMounts"))
        if name:
            names.add(name)
    return errors


def _check_device_path(at: str, seen: set[str], path: str) -> list[FieldError]:
    errors = [] if at else [required(path)]
    if at in seen:
        errors.append(invalid(path, at, "must be unique"))
    if ".." in at.split("/"):
        errors.append(invalid(path, at, "can not contain backsteps ('..')"))
    else:
        seen.add(at)
    return errors
