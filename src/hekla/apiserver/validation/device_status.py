"""What is wrong with the status of a claim of devices: what it was given, who uses it, what drivers say of its devices."""

from collections.abc import Sequence
from ipaddress import ip_interface

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_many,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.device_claims import check_names_of, check_opaque, requests_of
from hekla.apiserver.validation.device_parts import MOST_REQUESTS, check_driver, check_each, check_pool_name
from hekla.apiserver.validation.selectors import check_node_selector

_MOST_RESULTS, _MOST_CONSUMERS = 32, 256
_SOURCES = ("FromClaim", "FromClass")
_NOT_A_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
_NOT_CIDR = "must be a valid address in CIDR form, (e.g. 10.9.8.7/24 or 2001:db8::1/64)"


def check_claim_status(new: Document, old: Document) -> list[FieldError]:
    """Of a claim: what it has been given stays the same until it is given up."""
    status, path = new.get("status") or {}, "status"
    allocation, before = status.get("allocation"), (old.get("status") or {}).get("allocation")
    known = requests_of(new.get("spec", {}).get("devices") or {})
    errors = _check_consumers(status.get("reservedFor") or (), f"{path}.reservedFor", is_given=allocation is not None)
    if allocation is not None:
        errors += _check_allocation(allocation, known, f"{path}.allocation")
        if before is not None and allocation != before:
            errors.append(invalid(f"{path}.allocation", allocation, IMMUTABLE))
    return errors + _check_devices(status.get("devices") or (), _given(status), f"{path}.devices")


def forget_what_was_given_up(new: Document, old: Document) -> None:
    """What drivers say of devices goes with them."""
    gone = _given(old.get("status") or {}) - _given(new.get("status") or {})
    if gone and (said := new["status"].get("devices")):
        new["status"]["devices"] = [one for one in said if _device_of(one) not in gone]


def _given(status: Document) -> set[tuple[str, ...]]:
    devices = (status.get("allocation") or {}).get("devices") or {}
    return {_device_of(one) for one in devices.get("results") or ()}


def _check_consumers(consumers: Sequence[Document], path: str, *, is_given: bool) -> list[FieldError]:
    if len(consumers) > _MOST_CONSUMERS:
        return [too_many(path, len(consumers), _MOST_CONSUMERS)]
    errors, seen = list[FieldError](), set[str]()
    for index, one in enumerate(consumers):
        if (uid := one.get("uid", "")) in seen:
            errors.append(duplicate(f"{path}[{index}]", uid))
            continue
        seen.add(uid)
        errors += [required(f"{path}[{index}].{key}") for key in ("resource", "name", "uid") if not one.get(key)]
    if consumers and not is_given:
        errors.append(forbidden_field(path, "may not be specified when `allocated` is not set"))
    return errors


def _check_allocation(allocation: Document, known: frozenset[str], path: str) -> list[FieldError]:
    devices, selector = allocation.get("devices") or {}, allocation.get("nodeSelector")
    errors = check_each(
        devices.get("results") or (), _MOST_RESULTS, f"{path}.devices.results",
        lambda one, where: _check_result(one, known, where),
    )  # fmt: skip
    errors += check_each(
        devices.get("config") or (), 2 * MOST_REQUESTS, f"{path}.devices.config",
        lambda one, where: _check_config(one, known, where),
    )  # fmt: skip
    return errors + (check_node_selector(selector, f"{path}.nodeSelector") if selector is not None else [])


def _check_result(one: Document, known: frozenset[str], path: str) -> list[FieldError]:
    request, device = one.get("request", ""), one.get("device", "")
    errors = [
        invalid(f"{path}.request", request, said) for part in request.split("/", 1) for said in names.dns_label(part)
    ]
    if request not in known:
        errors.append(invalid(f"{path}.request", request, _NOT_A_REQUEST))
    errors += check_driver(one.get("driver", ""), f"{path}.driver")
    errors += check_pool_name(one.get("pool", ""), f"{path}.pool")
    return errors + [invalid(f"{path}.device", device, said) for said in names.dns_label(device)]


def _check_config(one: Document, known: frozenset[str], path: str) -> list[FieldError]:
    source, errors = one.get("source", ""), list[FieldError]()
    if not source:
        errors.append(required(f"{path}.source"))
    elif source not in _SOURCES:
        errors.append(not_supported(f"{path}.source", source, _SOURCES))
    return errors + check_names_of(one.get("requests") or (), known, f"{path}.requests") + check_opaque(one, path)


def _check_devices(devices: Sequence[Document], given: set[tuple[str, ...]], path: str) -> list[FieldError]:
    """What drivers say, of devices that the claim has."""
    seen, errors = set[tuple[str, ...]](), list[FieldError]()
    for index, one in enumerate(devices):
        where, device = f"{path}[{index}]", _device_of(one)
        if device in seen:
            errors.append(duplicate(where, _shown(device)))
            continue
        seen.add(device)
        if device not in given:
            errors.append(invalid(where, _shown(device), "must be an allocated device in the claim"))
        for at, address in enumerate((one.get("networkData") or {}).get("ips") or ()):
            if not _is_cidr(address):
                errors.append(invalid(f"{where}.networkData.ips[{at}]", address, _NOT_CIDR))
    return errors


def _device_of(one: Document) -> tuple[str, ...]:
    return tuple(one.get(key, "") for key in ("driver", "pool", "device", "shareID"))


def _shown(device: tuple[str, ...]) -> Document:
    return dict(zip(("driver", "pool", "device"), device, strict=False))


def _is_cidr(text: str) -> bool:
    try:
        ip_interface(text)
    except ValueError:
        return False
    return "/" in text
