"""What is wrong with resource names and amounts."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required
from hekla.apiserver.validation import names
from hekla.lib import quantity

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})
_STANDARD_ELSEWHERE = frozenset({
    "requests.cpu", "requests.memory", "requests.ephemeral-storage", "limits.cpu", "limits.memory",
    "limits.ephemeral-storage", "pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps",
    "persistentvolumeclaims", "storage", "requests.storage", "services.nodeports", "services.loadbalancers",
})  # fmt: skip
"""What is a resource in a quota or of a claim, and none of a container."""

NOT_AN_AMOUNT = "must be a valid resource quantity"
_HUGE, _QUOTA = "hugepages-", "requests."


def check_container_resources(resources: Document, path: str) -> list[FieldError]:
    """Limits, requests, and that requests stay below limits."""
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    errors: list[FieldError] = []
    for name in sorted(limits):
        errors += _check_amount(name, limits[name], f"{path}.limits")
    for name in sorted(requests):
        errors += _check_amount(name, requests[name], f"{path}.requests")
        errors += _check_against_limit(name, requests[name], limits.get(name), path)
    named = limits.keys() | requests.keys()
    if any(name.startswith(_HUGE) for name in named) and not named & {"cpu", "memory"}:
        errors.append(forbidden_field(path, "HugePages require cpu or memory"))
    return errors


def check_pod_resources(spec: Document, path: str) -> list[FieldError]:
    """What a pod asks for as a whole: processors, memory and huge pages. Whether its containers fit into it is not asked here."""
    resources = spec["resources"]
    errors = [forbidden_field(f"{path}.claims", "claims may not be set for Resources at pod-level")] if "claims" in resources else []  # fmt: skip
    for key in ("limits", "requests"):
        errors += [
            not_supported(f"{path}.{key}[{name}]", name, ("cpu", "hugepages-", "memory"))
            for name in sorted(resources.get(key, {}))
            if name not in ("cpu", "memory") and not name.startswith(_HUGE)
        ]
    return errors or check_container_resources(resources, path)


def check_not_negative(amount: str, path: str) -> list[FieldError]:
    """An amount of zero or more."""
    if amount.startswith("-"):
        return [invalid(path, amount, "must be greater than or equal to 0")]
    return []


def check_greater_than_zero(amount: str, path: str) -> list[FieldError]:
    """An amount that there is something of; one below zero is said to be wrong in two ways."""
    value = quantity.parse(amount).value
    errors = [invalid(path, quantity.to_int(amount), NOT_AN_AMOUNT)] if value < 0 else []
    return errors + ([invalid(path, amount, "must be greater than zero")] if value <= 0 else [])


def is_extended(name: str) -> bool:
    """Whether a resource is one that a device plug-in brings: whole units, never overcommitted."""
    return "/" in name and not name.startswith(("kubernetes.io/", "requests."))


def _check_amount(name: str, amount: str, path: str) -> list[FieldError]:
    if name in _STANDARD and not amount.startswith("-"):  # nearly all there is
        return []
    where = f"{path}[{name}]"
    errors = [invalid(where, name, said) for said in names.qualified_name(name)]
    if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE):
        if not errors and name not in _STANDARD_ELSEWHERE:
            errors.append(invalid(where, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid(where, name, "must be a standard resource for containers"))
    elif (
        "/" in name
        and "kubernetes.io/" not in name
        and (name.startswith(_QUOTA) or names.qualified_name(_QUOTA + name))
    ):
        errors.append(invalid(where, name, "doesn't follow extended resource name standard"))
    errors += check_not_negative(amount, where)
    if is_extended(name) and quantity.parse(amount).value.denominator != 1:
        errors.append(invalid(where, amount, "must be an integer"))
    if name.startswith(_HUGE) and not _is_multiple(amount, name.removeprefix(_HUGE)):
        errors.append(invalid(where, amount, f"{amount} is not positive integer multiple of {name}"))
    return errors


def _is_multiple(amount: str, page: str) -> bool:
    try:
        size = quantity.parse(page).value
    except quantity.QuantityError:
        return False
    return size > 0 and (quantity.parse(amount).value / size).denominator == 1 and not amount.startswith("-")


def _check_against_limit(name: str, amount: str, limit: str | None, path: str) -> list[FieldError]:
    is_fixed = is_extended(name) or name.startswith(_HUGE)
    if limit is None:
        return [required(f"{path}.limits", "Limit must be set for non overcommitable resources")] if is_fixed else []
    if amount == limit:
        return []
    wanted, bound = quantity.parse(amount).value, quantity.parse(limit).value
    if not is_fixed and wanted.numerator * bound.denominator <= bound.numerator * wanted.denominator:
        return []  # nearly always; comparing fractions takes ten times as long
    if is_fixed and wanted != bound:
        return [invalid(f"{path}.requests", amount, f"must be equal to {name} limit of {limit}")]
    if wanted > bound:
        return [invalid(f"{path}.requests", amount, f"must be less than or equal to {name} limit of {limit}")]
    return []
