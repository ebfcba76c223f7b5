"""What is wrong with claims of devices, their templates and classes.

`device_slices.py` has what drivers offer, `device_status.py` what claims were given.
"""

import json
from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    IMMUTABLE,
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.device_parts import (
    EFFECTS,
    MOST_REQUESTS,
    check_attribute_name,
    check_driver,
    check_each,
)
from hekla.apiserver.validation.metadata import check_annotations, check_labels

_MODES = ("All", "ExactCount")
_OPERATORS = ("Equal", "Exists")
_MOST_CHOICES = 8
_LONGEST_EXPRESSION = _LONGEST_PARAMETERS = 10 * 1024
_TAKEN_OVER = ("labels", "annotations")
_ONE_KIND = "exactly one of `exactly` or `firstAvailable` is required"
_NOT_A_REQUEST = "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'"
_NOT_EXTENDED = "must be a valid extended resource name"


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
    spec = template.get("spec", {})
    metadata = spec.get("metadata") or {}
    errors = [
        forbidden_field(f"spec.metadata.{key}", "cannot be set") for key, value in metadata.items()
        if value and key not in _TAKEN_OVER
    ]  # fmt: skip
    errors += check_labels(metadata.get("labels") or {}, "spec.metadata.labels")
    errors += check_annotations(metadata.get("annotations") or {}, "spec.metadata.annotations")
    return errors + _check_devices(spec.get("spec", {}).get("devices") or {}, "spec.spec.devices")


def check_spec_kept(new: Document, old: Document) -> list[FieldError]:
    """What is claimed stays."""
    return [] if new.get("spec") == old.get("spec") else [invalid("spec", new.get("spec"), IMMUTABLE)]


def check_device_class(device_class: Document) -> list[FieldError]:
    """A class of devices."""
    spec = device_class.get("spec", {})
    errors = check_each(spec.get("selectors") or (), MOST_REQUESTS, "spec.selectors", _check_selector)
    errors += check_each(spec.get("config") or (), MOST_REQUESTS, "spec.config", check_opaque)
    name = spec.get("extendedResourceName")
    if name is not None and not _is_extended(name):
        errors.append(invalid("spec.extendedResourceName", name, _NOT_EXTENDED))
    return errors


def _is_extended(name: str) -> bool:
    """Whether a resource is neither Kubernetes' own nor called as quotas call it."""
    is_own = "/" not in name or "kubernetes.io/" in name or name.startswith("requests.")
    return not is_own and not names.qualified_name(f"requests.{name}")


def _check_devices(devices: Document, path: str) -> list[FieldError]:
    requests, known, seen = devices.get("requests") or (), requests_of(devices), set[str]()
    errors = check_each(requests, MOST_REQUESTS, f"{path}.requests", _check_request)
    for index, request in enumerate(requests[:MOST_REQUESTS]):
        if (name := request.get("name", "")) in seen:
            errors.append(duplicate(f"{path}.requests[{index}]", name))
        seen.add(name)
    errors += check_each(
        devices.get("constraints") or (), MOST_REQUESTS, f"{path}.constraints",
        lambda one, where: _check_constraint(one, known, where),
    )  # fmt: skip
    return errors + check_each(
        devices.get("config") or (), MOST_REQUESTS, f"{path}.config",
        lambda one, where: check_names_of(one.get("requests") or (), known, f"{where}.requests") + check_opaque(one, where),
    )  # fmt: skip


def requests_of(devices: Document) -> frozenset[str]:
    """How the requests of a claim are called, and their choices."""
    return frozenset(
        name for one in devices.get("requests") or ()
        for name in (one.get("name", ""), *(f"{one.get('name', '')}/{c.get('name', '')}" for c in one.get("firstAvailable") or ()))
    )  # fmt: skip


def _check_request(request: Document, path: str) -> list[FieldError]:
    name, exactly, others = request.get("name", ""), request.get("exactly"), request.get("firstAvailable") or ()
    errors = [invalid(f"{path}.name", name, said) for said in names.dns_label(name)]
    if exactly is not None and others:
        errors.append(invalid(path, request, f"{_ONE_KIND}, but multiple fields are set"))
    elif exactly is None and not others:
        errors.append(required(path, _ONE_KIND))
    elif exactly is not None:
        errors += _check_wanted(exactly, f"{path}.exactly")
    if exactly is None and len(others) > _MOST_CHOICES:
        return [*errors, too_many(f"{path}.firstAvailable", len(others), _MOST_CHOICES)]
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
    errors += check_each(one.get("selectors") or (), MOST_REQUESTS, f"{path}.selectors", _check_selector)
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
    if effect and effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    value = toleration.get("value", "")
    if operator == "Exists" and value:
        return [*errors, invalid(f"{path}.value", value, "must be empty for operator `Exists`")]
    return errors + [invalid(f"{path}.value", value, said) for said in names.label_value(value)]


def _check_selector(one: Document, path: str) -> list[FieldError]:
    """That it has an expression: whether it can be evaluated is seen when devices are looked for."""
    if one.get("cel") is None:
        return [required(f"{path}.cel")]
    expression = one["cel"].get("expression")
    if not expression:
        return [required(f"{path}.cel.expression")]
    is_long = len(expression.encode()) > _LONGEST_EXPRESSION
    return [too_long(f"{path}.cel.expression", _LONGEST_EXPRESSION)] if is_long else []


def _check_constraint(one: Document, known: frozenset[str], path: str) -> list[FieldError]:
    errors = check_names_of(one.get("requests") or (), known, f"{path}.requests")
    keys = [key for key in ("matchAttribute", "distinctAttribute") if one.get(key) is not None]
    if not keys:
        said = 'exactly one of "matchAttribute" or "distinctAttribute" is required, but multiple fields are set'
        errors.append(required(path, said))
    for key in keys:
        errors += check_attribute_name(one[key], f"{path}.{key}", is_whole=True)
    return errors


def check_names_of(requests: Sequence[str], known: frozenset[str], path: str) -> list[FieldError]:
    """Names of requests of a claim."""
    if len(requests) > MOST_REQUESTS:
        return [too_many(path, len(requests), MOST_REQUESTS)]
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


def check_opaque(one: Document, path: str) -> list[FieldError]:
    """How a device is to be set up: what its driver alone understands."""
    opaque, where = one.get("opaque"), f"{path}.opaque.parameters"
    if opaque is None:
        return [required(f"{path}.opaque")]
    errors = check_driver(opaque.get("driver", ""), f"{path}.opaque.driver")
    parameters = opaque.get("parameters")
    if parameters is None:
        return [*errors, required(where)]
    if not isinstance(parameters, dict):
        return [*errors, invalid(where, "<value omitted>", "must be a valid JSON object")]
    size = len(json.dumps(parameters, separators=(",", ":"), ensure_ascii=False).encode())
    return [*errors, too_long(where, _LONGEST_PARAMETERS)] if size > _LONGEST_PARAMETERS else errors
