"""What is wrong with slices of resources: the devices that a driver offers on a node."""

import re

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, FieldError, duplicate, invalid, required, too_long, too_many
from hekla.apiserver.validation import names
from hekla.apiserver.validation.device_claims import check_driver, check_taint

_MOST_DEVICES, _LONGEST_TEXT = 128, 64
_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_PLACE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_KINDS = ("string", "int", "bool", "version")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_KEPT = ("driver", "nodeName", "allNodes")


def check_slice(resource_slice: Document) -> list[FieldError]:
    """A slice."""
    spec = resource_slice.get("spec", {})
    errors = check_driver(spec.get("driver", ""), "spec.driver") + _check_pool(spec.get("pool") or {}, "spec.pool")
    node = spec.get("nodeName")
    if node == "":
        errors.append(invalid("spec.nodeName", node, "must be either unset or set to a non-empty string"))
    elif node is not None:
        errors += [invalid("spec.nodeName", node, said) for said in names.dns_subdomain(node)]
    said = [key for key in _PLACES if spec.get(key)]
    if not said:
        errors.append(required("spec", _ONE_PLACE))
    elif len(said) > 1:
        listed = ", ".join(f"`{key}`" for key in said)
        errors.append(invalid("spec", f"{{{listed}}}", f"{_ONE_PLACE}, but multiple fields are set"))
    return errors + _check_devices(spec.get("devices") or [])


def check_slice_update(new: Document, old: Document) -> list[FieldError]:
    """A slice is of one driver, one pool and one node."""
    wanted, before = new.get("spec", {}), old.get("spec", {})
    errors = [invalid(f"spec.{key}", wanted.get(key), IMMUTABLE) for key in _KEPT if wanted.get(key) != before.get(key)]
    name = (wanted.get("pool") or {}).get("name", "")
    if name != (before.get("pool") or {}).get("name", ""):
        errors.append(invalid("spec.pool.name", name, IMMUTABLE))
    return errors


def _check_pool(pool: Document, path: str) -> list[FieldError]:
    name, errors = pool.get("name", ""), list[FieldError]()
    if not name:
        errors.append(required(f"{path}.name"))
    else:
        errors += [invalid(f"{path}.name", name, said) for part in name.split("/") for said in names.dns_subdomain(part)]  # fmt: skip
    if pool.get("resourceSliceCount", 0) <= 0:
        errors.append(
            invalid(f"{path}.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
        )
    if pool.get("generation", 0) < 0:
        errors.append(invalid(f"{path}.generation", pool["generation"], "must be greater than or equal to zero"))
    return errors


def _check_devices(devices: list[Document]) -> list[FieldError]:
    if len(devices) > _MOST_DEVICES:
        return [too_many("spec.devices", len(devices), _MOST_DEVICES)]
    errors, seen = list[FieldError](), set[str]()
    for index, device in enumerate(devices):
        path, name = f"spec.devices[{index}]", device.get("name", "")
        if name in seen:
            errors.append(duplicate(path, name))
            continue
        seen.add(name)
        errors += [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
        for key, attribute in (device.get("attributes") or {}).items():
            errors += _check_attribute(key, attribute, f"{path}.attributes")
        for at, taint in enumerate(device.get("taints") or ()):
            errors += check_taint(taint, f"{path}.taints[{at}]")
    return errors


def _check_attribute(key: str, attribute: Document, path: str) -> list[FieldError]:
    where, errors = f"{path}[{key}]", list[FieldError]()
    identifier = key.rpartition("/")[2]
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", identifier):
        said = (
            "a valid C identifier must start with alphabetic character or '_', followed by a string of alphanumeric"
            " characters or '_' (e.g. 'my_name',  or 'MY_NAME',  or 'MyName', regex used for validation is"
            " '[A-Za-z_][A-Za-z0-9_]*')"
        )
        errors.append(invalid(path, identifier, said))
    kinds = [kind for kind in _KINDS if attribute.get(kind) is not None]
    if len(kinds) != 1 and not attribute.keys() - set(_KINDS):
        return [*errors, invalid(where, attribute or "", "exactly one value must be specified")]
    for kind in ("string", "version"):
        if len(attribute.get(kind) or "") > _LONGEST_TEXT:
            errors.append(too_long(f"{where}.{kind}", _LONGEST_TEXT))
    version = attribute.get("version")
    if version is not None and len(version) <= _LONGEST_TEXT and not _SEMVER.fullmatch(version):
        errors.append(invalid(f"{where}.version", version, "must be a string compatible with semver.org spec 2.0.0"))
    return errors
