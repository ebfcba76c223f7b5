"""What is wrong with claims of devices, their templates and classes; `device_slices.py` has what drivers offer."""

from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
)
from hekla.apiserver.validation import names

_MODES = ("All", "ExactCount")
_EFFECTS = ("NoExecute", "NoSchedule", "None")
_OPERATORS = ("Equal", "Exists")
_LONGEST_DRIVER = 63
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_NOT_A_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
_NOT_QUALIFIED = "a fully qualified name must be a domain and a name separated by a slash"


def default_claim(claim: Document) -> None:
    """One device of each."""
    _default_devices(claim.setdefault("spec", {}).setdefault("devices", {}))


def default_claim_template(template: Document) -> None:
    """The same in a template."""
    _default_devices(template.setdefault("spec", {}).setdefault("spec", {}).setdefault("devices", {}))


def _default_devices(devices: Document) -> None:
    for request in devices.get("requests") or ():
        for one in (*filter(None, (request.get("exactly"),)), *(request.get("firstAvailable") or ())):
            one["allocationMode"] = one.get("allocationMode") or "ExactCount"
            if one["allocationMode"] == "ExactCount":
                one["count"] = one.get("count") or 1
            for toleration in one.get("tolerations") or ():
                toleration["operator"] = toleration.get("operator") or "Equal"


def check_claim(claim: Document) -> list[FieldError]:
    """A claim."""
    return _check_devices(claim.get("spec", {}).get("devices") or {}, "spec.devices")


def check_claim_template(template: Document) -> list[FieldError]:
    """A template of claims."""
    devices = template.get("spec", {}).get("spec", {}).get("devices") or {}
    return _check_devices(devices, "spec.spec.devices")


def check_spec_kept(new: Document, old: Document) -> list[FieldError]:
    """What is claimed stays."""
    return [] if new.get("spec") == old.get("spec") else [invalid("spec", new.get("spec"), IMMUTABLE)]


def check_device_class(device_class: Document) -> list[FieldError]:
    """A class of devices."""
    spec = device_class.get("spec", {})
    errors = _check_selectors(spec.get("selectors") or (), "spec.selectors")
    for index, one in enumerate(spec.get("config") or ()):
        errors += _check_opaque(one, f"spec.config[{index}]")
    name = spec.get("extendedResourceName")
    if name is not None and ("/" not in name or names.qualified_name(name)):
        errors.append(invalid("spec.extendedResourceName", name, "must be a valid extended resource name"))
    return errors


def _check_devices(devices: Document, path: str) -> list[FieldError]:
    errors, seen, known = list[FieldError](), set[str](), set[str]()
    for index, request in enumerate(devices.get("requests") or ()):
        where, name = f"{path}.requests[{index}]", request.get("name", "")
        if name in seen:
            errors.append(duplicate(where, name))
        seen.add(name)
        known |= {name, *(f"{name}/{one.get('name', '')}" for one in request.get("firstAvailable") or ())}
        errors += _check_request(request, where)
    for index, one in enumerate(devices.get("constraints") or ()):
        errors += _check_constraint(one, known, f"{path}.constraints[{index}]")
    for index, one in enumerate(devices.get("config") or ()):
        where = f"{path}.config[{index}]"
        errors += _check_names_of(one.get("requests") or (), known, f"{where}.requests") + _check_opaque(one, where)
    return errors


def _check_request(request: Document, path: str) -> list[FieldError]:
    name, exactly, others = request.get("name", ""), request.get("exactly"), request.get("firstAvailable") or ()
    errors = [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
    if exactly is not None and others:
        errors.append(invalid(path, request, f"{_ONE_KIND}, but multiple fields are set"))
    elif exactly is None and not others:
        errors.append(required(path, _ONE_KIND))
    elif exactly is not None:
        errors += _check_wanted(exactly, f"{path}.exactly")
    seen = set[str]()
    for index, one in enumerate(() if exactly is not None else others):
        where, inner = f"{path}.firstAvailable[{index}]", one.get("name", "")
        if inner in seen:
            errors.append(duplicate(where, inner))
        seen.add(inner)
        errors += [invalid(f"{where}.name", inner, said) for said in names.dns_label(inner)]
        errors += _check_wanted(one, where)
    return errors


def _check_wanted(one: Document, path: str) -> list[FieldError]:
    name, mode, count = one.get("deviceClassName", ""), one.get("allocationMode", ""), one.get("count", 0)
    errors = [] if name else [required(f"{path}.deviceClassName")]
    if name:
        errors += [invalid(f"{path}.deviceClassName", name, said) for said in names.dns_subdomain(name)]
    errors += _check_selectors(one.get("selectors") or (), f"{path}.selectors")
    if mode not in _MODES:
        errors.append(not_supported(f"{path}.allocationMode", mode, _MODES))
    elif mode == "All" and count:
        errors.append(invalid(f"{path}.count", count, "must not be specified when allocationMode is 'All'"))
    elif mode == "ExactCount" and count <= 0:
        errors.append(invalid(f"{path}.count", count, "must be greater than zero"))
    for index, toleration in enumerate(one.get("tolerations") or ()):
        errors += _check_toleration(toleration, f"{path}.tolerations[{index}]")
    return errors


def _check_toleration(toleration: Document, path: str) -> list[FieldError]:
    key, operator, effect = (toleration.get(name, "") for name in ("key", "operator", "effect"))
    errors = [invalid(f"{path}.key", key, said) for said in names.label_key(key)] if key else []
    if operator not in _OPERATORS:
        errors.append(not_supported(f"{path}.operator", operator, _OPERATORS))
    if effect and effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    return errors


def _check_selectors(selectors: Sequence[Document], path: str) -> list[FieldError]:
    """That each has an expression: whether it can be evaluated is seen when devices are looked for."""
    errors = list[FieldError]()
    for index, one in enumerate(selectors):
        if one.get("cel") is None:
            errors.append(required(f"{path}[{index}].cel"))
        elif not one["cel"].get("expression"):
            errors.append(required(f"{path}[{index}].cel.expression"))
    return errors


def _check_constraint(one: Document, known: set[str], path: str) -> list[FieldError]:
    errors = _check_names_of(one.get("requests") or (), known, f"{path}.requests")
    keys = [key for key in ("matchAttribute", "distinctAttribute") if one.get(key) is not None]
    if len(keys) != 1:
        said = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        return [*errors, required(path, said)]
    name = one[keys[0]]
    return errors if "/" in name else [*errors, invalid(f"{path}.{keys[0]}", name, _NOT_QUALIFIED)]


def _check_names_of(requests: Sequence[str], known: set[str], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, name in enumerate(requests):
        where = f"{path}[{index}]"
        if name in seen:
            errors.append(duplicate(where, name))
            continue
        seen.add(name)
        errors += [invalid(where, name, said) for part in name.split("/", 1) for said in names.dns_label(part)]
        if name not in known:
            errors.append(invalid(where, name, _NOT_A_REQUEST))
    return errors


def _check_opaque(one: Document, path: str) -> list[FieldError]:
    opaque = one.get("opaque")
    if opaque is None:
        return [required(f"{path}.opaque")]
    errors = check_driver(opaque.get("driver", ""), f"{path}.opaque.driver")
    return errors if opaque.get("parameters") is not None else [*errors, required(f"{path}.opaque.parameters")]


def check_driver(name: str, path: str) -> list[FieldError]:
    """The name of a driver."""
    if not name:
        return [required(path)]
    errors = [too_long(path, _LONGEST_DRIVER)] if len(name) > _LONGEST_DRIVER else []
    return errors + [invalid(path, name, said) for said in names.dns_subdomain(name)]


def check_taint(taint: Document, path: str) -> list[FieldError]:
    """A taint of a device."""
    key, value, effect = (taint.get(name, "") for name in ("key", "value", "effect"))
    errors = [invalid(f"{path}.key", key, said) for said in names.label_key(key)]
    errors += [invalid(f"{path}.value", value, said) for said in names.label_value(value)]
    if not effect:
        errors.append(required(f"{path}.effect"))
    elif effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    return errors
