"""What is wrong with slices of resources: the devices that a driver offers on a node."""

import re
from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    required,
    too_long,
    too_many,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.device_parts import (
    check_attribute_name,
    check_driver,
    check_each,
    check_named,
    check_pool_name,
    check_taint,
)
from hekla.apiserver.validation.selectors import check_node_selector

_MOST_DEVICES, _MOST_WITH_TAINTS, _MOST_FACTS, _MOST_TAINTS = 128, 64, 32, 16
_MOST_SETS, _MOST_CONSUMED, _LONGEST_TEXT = 8, 2, 64
_PLACES = ("nodeName", "nodeSelector", "allNodes", "perDeviceNodeSelection")
_ONE_PLACE = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"
_ONE_PLACE_EACH = (
    "exactly one of `nodeName`, `nodeSelector`, or `allNodes` is required when `perDeviceNodeSelection` is set to true"
    " in the ResourceSlice spec"
)
_NOT_EACH = (
    "`nodeName`, `nodeSelector` and `allNodes` can only be set if `perDeviceNodeSelection` is set to true in the"
    " ResourceSlice spec"
)
_KINDS = ("string", "int", "bool", "version")
_SEMVER = re.compile(
    r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)
_KEPT = ("driver", "nodeName")


def check_slice(resource_slice: Document) -> list[FieldError]:
    """A slice."""
    spec = resource_slice.get("spec", {})
    devices, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    errors = check_driver(spec.get("driver", ""), "spec.driver") + _check_pool(spec.get("pool") or {}, "spec.pool")
    errors += _check_places(spec, "spec", "must be either unset or set to a non-empty string")
    terms = (spec.get("nodeSelector") or {}).get("nodeSelectorTerms") or None
    if spec.get("nodeSelector") is not None and len(terms or ()) != 1:
        errors.append(invalid("spec.nodeSelector.nodeSelectorTerms", terms, "must have exactly one node selector term"))
    said = _said(spec, _PLACES)
    if not said:
        errors.append(required("spec", _ONE_PLACE))
    elif len(said) > 1:
        errors.append(invalid("spec", _listed(said), f"{_ONE_PLACE}, but multiple fields are set"))
    if devices and counters:
        errors.append(invalid("spec", "", "only one of `sharedCounters` or `devices` is allowed"))
    errors += check_named(counters, "name", _MOST_SETS, "spec.sharedCounters")
    return errors + _check_devices(devices, is_placed_each=bool(spec.get("perDeviceNodeSelection")))


def warn_of_slice(resource_slice: Document, is_new: bool) -> list[str]:
    """A driver with capitals in its name."""
    name = resource_slice.get("spec", {}).get("driver", "")
    said = f'spec.driver: driver names should be lowercase; "{name}" contains uppercase characters'
    return [said] if name != name.lower() else []


def check_slice_update(new: Document, old: Document) -> list[FieldError]:
    """A slice is of one driver, one pool and one node."""
    wanted, before = new.get("spec", {}), old.get("spec", {})
    errors = [invalid(f"spec.{key}", wanted.get(key), IMMUTABLE) for key in _KEPT if wanted.get(key) != before.get(key)]
    name = (wanted.get("pool") or {}).get("name", "")
    if name != (before.get("pool") or {}).get("name", ""):
        errors.append(invalid("spec.pool.name", name, IMMUTABLE))
    return errors


def _check_pool(pool: Document, path: str) -> list[FieldError]:
    errors = check_pool_name(pool.get("name", ""), f"{path}.name")
    if pool.get("resourceSliceCount", 0) <= 0:
        errors.append(
            invalid(f"{path}.resourceSliceCount", pool.get("resourceSliceCount", 0), "must be greater than zero")
        )
    if pool.get("generation", 0) < 0:
        errors.append(invalid(f"{path}.generation", pool["generation"], "must be greater than or equal to zero"))
    return errors


def _check_places(holder: Document, path: str, on_empty: str) -> list[FieldError]:
    """Each way to say which nodes reach devices, by itself."""
    errors, node, selector = list[FieldError](), holder.get("nodeName"), holder.get("nodeSelector")
    if node == "":
        errors.append(invalid(f"{path}.nodeName", node, on_empty))
    elif node is not None:
        errors += [invalid(f"{path}.nodeName", node, said) for said in names.dns_subdomain(node)]
    if selector is not None:
        errors += check_node_selector(selector, f"{path}.nodeSelector")
    for key in ("allNodes", "perDeviceNodeSelection"):
        if holder.get(key) is False:
            errors.append(invalid(f"{path}.{key}", False, "must be either unset or set to true"))
    return errors


def _listed(keys: list[str]) -> str:
    return f"{{{', '.join(f'`{key}`' for key in keys)}}}"


def _check_devices(devices: list[Document], *, is_placed_each: bool) -> list[FieldError]:
    is_heavy = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    most = _MOST_WITH_TAINTS if is_heavy else _MOST_DEVICES
    if len(devices) > most:
        return [too_many("spec.devices", len(devices), most)]
    errors, seen = list[FieldError](), set[str]()
    for index, device in enumerate(devices):
        path, name = f"spec.devices[{index}]", device.get("name", "")
        if name in seen:
            errors.append(duplicate(path, name))
            continue
        seen.add(name)
        errors += [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
        errors += _check_facts(device, path)
        errors += check_each(device.get("taints") or (), _MOST_TAINTS, f"{path}.taints", check_taint)
        errors += check_named(
            device.get("consumesCounters") or (), "counterSet", _MOST_CONSUMED, f"{path}.consumesCounters"
        )
        errors += _check_device_place(device, path, is_placed_each=is_placed_each)
    return errors


def _check_device_place(device: Document, path: str, *, is_placed_each: bool) -> list[FieldError]:
    if not is_placed_each:
        return [invalid(path, None, _NOT_EACH)] if any(device.get(key) is not None for key in _PLACES[:3]) else []
    errors, said = _check_places(device, path, "must not be empty"), _said(device, _PLACES[:3])
    if not said:
        errors.append(required(path, _ONE_PLACE_EACH))
    elif len(said) > 1:
        errors.append(invalid(path, _listed(said), _ONE_PLACE_EACH))
    return errors


def _said(holder: Document, keys: Sequence[str]) -> list[str]:
    """Which ways are taken to say which nodes reach devices; an empty selector is one."""
    return [key for key in keys if holder.get(key) or (key == "nodeSelector" and holder.get(key) is not None)]


def _check_facts(device: Document, path: str) -> list[FieldError]:
    """Attributes and capacities."""
    attributes, capacity = device.get("attributes") or {}, device.get("capacity") or {}
    count, errors = len(attributes) + len(capacity), list[FieldError]()
    if count > _MOST_FACTS:
        said = f"the total number of attributes and capacities must not exceed {_MOST_FACTS}"
        errors.append(invalid(path, count, said))
    for key, attribute in attributes.items():
        errors += check_attribute_name(key, f"{path}.attributes") + _check_attribute(
            attribute, f"{path}.attributes[{key}]"
        )
    for key, amount in capacity.items():
        errors += check_attribute_name(key, f"{path}.capacity")
        if amount.get("requestPolicy") is not None and not device.get("allowMultipleAllocations"):
            said = "allowMultipleAllocations must be true"
            errors.append(forbidden_field(f"{path}.capacity[{key}].requestPolicy", said))
    return errors


def _check_attribute(attribute: Document, where: str) -> list[FieldError]:
    kinds = [kind for kind in _KINDS if attribute.get(kind) is not None]
    if len(kinds) != 1 and not attribute.keys() - set(_KINDS):
        return [invalid(where, attribute or "", "exactly one value must be specified")]
    errors = [
        too_long(f"{where}.{kind}", _LONGEST_TEXT)
        for kind in ("string", "version")
        if len(attribute.get(kind) or "") > _LONGEST_TEXT
    ]
    version = attribute.get("version")
    if version is not None and len(version) <= _LONGEST_TEXT and not _SEMVER.fullmatch(version):
        errors.append(invalid(f"{where}.version", version, "must be a string compatible with semver.org spec 2.0.0"))
    return errors
