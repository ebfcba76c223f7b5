"""What is wrong with claims, drivers and classes of storage."""

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
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.quantities import NOT_AN_AMOUNT
from hekla.apiserver.validation.selectors import check_label_selector
from hekla.lib import quantity

_MODES = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES = ("Block", "Filesystem")
_GROWTHS = (
    "ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible",
    "NodeResizePending",
)  # fmt: skip
_GROUP_POLICIES = ("File", "None", "ReadWriteOnceWithFSType")
_MOST_PARAMETERS, _MOST_PARAMETER_BYTES = 512, 262_144
_SHORTEST_PERIOD_S, _SHORTEST_TOKEN_S = 10, 600
_ONLY = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"


def check_claim(claim: Document) -> list[FieldError]:
    """A claim."""
    return check_claim_spec(claim.get("spec", {}), "spec")


def check_claim_spec(spec: Document, path: str) -> list[FieldError]:
    """How much, in which way."""
    errors = []
    if not spec.get("accessModes"):
        errors.append(required(f"{path}.accessModes", "at least 1 access mode is required"))
    errors += check_modes(spec.get("accessModes", []), f"{path}.accessModes")
    errors += check_label_selector(spec.get("selector"), f"{path}.selector")
    storage = spec.get("resources", {}).get("requests", {}).get("storage")
    if storage is None:
        errors.append(required(f"{path}.resources[storage]"))
    elif quantity.parse(storage).value <= 0:
        errors.append(invalid(f"{path}.resources[storage]", storage, "must be greater than zero"))
    if spec.get("storageClassName"):
        errors += [
            invalid(f"{path}.storageClassName", spec["storageClassName"], said)
            for said in names.dns_subdomain(spec["storageClassName"])
        ]
    if spec.get("volumeMode", "Filesystem") not in VOLUME_MODES:
        errors.append(not_supported(f"{path}.volumeMode", spec["volumeMode"], VOLUME_MODES))
    name = spec.get("volumeAttributesClassName")
    if name:
        errors += [invalid(f"{path}.volumeAttributesClassName", name, said) for said in names.dns_subdomain(name)]
    return errors + _check_origins(spec, path)


def _check_origins(spec: Document, path: str) -> list[FieldError]:
    source, reference, errors = spec.get("dataSource"), spec.get("dataSourceRef"), list[FieldError]()
    for key in ("dataSource", "dataSourceRef"):
        if key in spec:
            errors += _check_origin(spec[key], f"{path}.{key}")
    if source is not None and reference is not None and _plain(source) != _plain(reference):
        errors.append(invalid(path, {}, "must match dataSourceRef"))
    return errors


def _check_origin(origin: Document, path: str) -> list[FieldError]:
    group, kind = origin.get("apiGroup", ""), origin.get("kind", "")
    errors = [required(f"{path}.{key}") for key in ("name", "kind") if not origin.get(key)]
    if not group and kind != "PersistentVolumeClaim":
        said = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        errors.append(invalid(path, kind, said))
    if group:
        errors += [invalid(f"{path}.apiGroup", group, said) for said in names.dns_subdomain(group)]
    return errors


def _plain(origin: Document) -> tuple[str, str, str]:
    return origin.get("apiGroup", ""), origin.get("kind", ""), origin.get("name", "")


def check_modes(modes: list[str], path: str) -> list[FieldError]:
    """Known ways to use a volume; the one for a single pod stands alone."""
    errors = [not_supported(path, mode, _MODES) for mode in modes if mode not in _MODES]
    if "ReadWriteOncePod" in modes and len(modes) > 1:
        errors.append(forbidden_field(path, "may not use ReadWriteOncePod with other access modes"))
    return errors


def check_claim_update(new: Document, old: Document) -> list[FieldError]:
    """A claim may be bound, and grow once it is."""
    is_bound = old.get("status", {}).get("phase") == "Bound"
    wanted, before = _fixed(new["spec"], is_bound=is_bound), _fixed(old["spec"], is_bound=is_bound)
    if not before.get("volumeName"):
        wanted.pop("volumeName", None)
        if "storageClassName" not in before:
            wanted.pop("storageClassName", None)
    errors = [] if wanted == before else [forbidden_field("spec", _ONLY)]
    shrinks = is_bound and _size(new["spec"]) < _size(old["spec"])
    if shrinks and _size(new["spec"]) <= _storage(
        old.get("status", {}).get("capacity", {})
    ):  # what could not be enlarged so far may be asked for less, not what it is
        said = "field can not be less than status.capacity"
        errors.append(forbidden_field("spec.resources.requests.storage", said))
    if new["spec"].get("volumeMode") != old["spec"].get("volumeMode"):
        errors.append(invalid("volumeMode", new["spec"].get("volumeMode"), IMMUTABLE))
    return errors


def _fixed(spec: Document, *, is_bound: bool) -> Document:
    if not is_bound:
        return dict(spec)
    return {key: value for key, value in spec.items() if key not in ("resources", "volumeAttributesClassName")}


def _size(spec: Document) -> int:
    return _storage(spec.get("resources", {}).get("requests", {}))


def _storage(amounts: Document) -> int:
    return quantity.to_int(amounts.get("storage", "0"))


def check_claim_status(new: Document, old: Document) -> list[FieldError]:
    """Amounts that are none below zero, and the ways in which a claim grows."""
    status, errors = new.get("status", {}), list[FieldError]()
    for name, amount in sorted(status.get("capacity", {}).items()):
        if quantity.parse(amount).value < 0:
            errors.append(invalid(f"status.capacity[{name}]", quantity.to_int(amount), NOT_AN_AMOUNT))
    errors += [
        not_supported("status.allocatedResources", name, ("storage",))
        for name in sorted(status.get("allocatedResources", {}))
        if name != "storage"
    ]
    for name, growth in sorted(status.get("allocatedResourceStatuses", {}).items()):
        if growth not in _GROWTHS:
            errors.append(not_supported("status.allocatedResourceStatuses", name, _GROWTHS))
    return errors


def check_storage_class(storage_class: Document) -> list[FieldError]:
    """A storage class."""
    provisioner = storage_class.get("provisioner", "").lower()
    errors = [] if provisioner else [required("provisioner")]
    if provisioner:
        errors += [invalid("provisioner", provisioner, said) for said in names.qualified_name(provisioner)]
    errors += _check_parameters(storage_class.get("parameters", {}), "parameters")
    mode = storage_class.get("volumeBindingMode")
    if mode not in ("Immediate", "WaitForFirstConsumer"):
        errors.append(not_supported("volumeBindingMode", mode, ("Immediate", "WaitForFirstConsumer")))
    policy = storage_class.get("reclaimPolicy")
    if policy not in ("", "Delete", "Retain"):
        errors.append(not_supported("reclaimPolicy", policy, ("Delete", "Retain")))
    return errors + _check_topologies(storage_class.get("allowedTopologies", []), "allowedTopologies")


def _check_parameters(parameters: dict[str, str], path: str) -> list[FieldError]:
    if len(parameters) > _MOST_PARAMETERS:
        return [too_long(path, _MOST_PARAMETERS)]
    errors = [invalid(path, "", "field can not be empty.")] if "" in parameters else []
    size = sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items())
    return errors + ([too_long(path, _MOST_PARAMETER_BYTES)] if size > _MOST_PARAMETER_BYTES else [])


def _check_topologies(terms: list[Document], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), list[dict[str, set[str]]]()
    for index, term in enumerate(terms):
        where, said = f"{path}[{index}].matchLabelExpressions", dict[str, set[str]]()
        for at, one in enumerate(term.get("matchLabelExpressions") or ()):
            errors += _check_topology(one, f"{where}[{at}]", said)
        if not said or said in seen:
            errors.append(duplicate(where, ""))
        seen.append(said)
    return errors


def _check_topology(one: Document, path: str, said: dict[str, set[str]]) -> list[FieldError]:
    key, values = one.get("key", ""), one.get("values") or []
    errors = [] if values else [required(f"{path}.values")]
    for index, value in enumerate(values):
        if value in values[:index]:
            errors.append(duplicate(f"{path}.values[{index}]", value))
    errors += [invalid(f"{path}.key", key, wrong) for wrong in names.label_key(key)]
    if key in said:
        errors.append(duplicate(f"{path}.key", key))
    said[key] = set(values)
    return errors


def check_storage_class_update(new: Document, old: Document) -> list[FieldError]:
    """A class keeps what its volumes were made by."""
    keys = ("parameters", "provisioner", "reclaimPolicy", "volumeBindingMode")
    return [invalid(key, new.get(key), IMMUTABLE) for key in keys if new.get(key) != old.get(key)]


def check_csi_driver(driver: Document) -> list[FieldError]:
    """A driver: how it mounts, which tokens it asks for."""
    spec, errors = driver.get("spec", {}), list[FieldError]()
    if spec.get("fsGroupPolicy") not in _GROUP_POLICIES:
        errors.append(not_supported("spec.fsGroupPolicy", spec.get("fsGroupPolicy", ""), _GROUP_POLICIES))
    errors += [
        not_supported("spec.volumeLifecycleModes", mode, ("Persistent", "Ephemeral"))
        for mode in spec.get("volumeLifecycleModes", ())
        if mode not in ("Persistent", "Ephemeral")
    ]
    period_s = spec.get("nodeAllocatableUpdatePeriodSeconds", _SHORTEST_PERIOD_S)
    if period_s < _SHORTEST_PERIOD_S:
        said = f"must be greater than or equal to {_SHORTEST_PERIOD_S} seconds"
        errors.append(invalid("spec.nodeAllocatableUpdatePeriodSeconds", period_s, said))
    return errors + _check_tokens(spec.get("tokenRequests", []), "spec.tokenRequests")


def _check_tokens(requests: list[Document], path: str) -> list[FieldError]:
    errors, seen = list[FieldError](), set[str]()
    for index, one in enumerate(requests):
        where, audience, life_s = f"{path}[{index}]", one.get("audience", ""), one.get("expirationSeconds")
        if audience in seen:
            errors.append(duplicate(f"{where}.audience", audience))
        seen.add(audience)
        if life_s is not None and life_s < _SHORTEST_TOKEN_S:
            errors.append(
                invalid(f"{where}.expirationSeconds", life_s, "may not specify a duration less than 10 minutes")
            )
        if life_s is not None and life_s > 1 << 32:
            said = "may not specify a duration larger than 2^32 seconds"
            errors.append(invalid(f"{where}.expirationSeconds", life_s, said))
    return errors
