"""What is wrong with resource names and amounts."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, invalid, required
from hekla.apiserver.validation import names
from hekla.lib import quantity

_STANDARD = frozenset({"cpu", "memory", "ephemeral-storage"})


def check_container_resources(resources: Document, path: str) -> list[FieldError]:
    """Limits, requests, and that requests stay below limits."""
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    errors: list[FieldError] = []
    for name in sorted(limits):
        errors += _check_amount(name, limits[name], f"{path}.limits")
    for name in sorted(requests):
        errors += _check_amount(name, requests[name], f"{path}.requests")
        errors += _check_against_limit(name, requests[name], limits.get(name), path)
    return errors


def check_amounts(amounts: dict[str, str], path: str) -> list[FieldError]:
    """A map from resources to amounts that must not be negative."""
    errors = []
    for name, amount in sorted(amounts.items()):
        errors += [invalid(f"{path}[{name}]", name, said) for said in names.qualified_name(name)]
        errors += check_not_negative(amount, f"{path}[{name}]")
    return errors


def check_not_negative(amount: str, path: str) -> list[FieldError]:
    """An amount of zero or more."""
    if amount.startswith("-"):
        return [invalid(path, amount, "must be greater than or equal to 0")]
    return []


def is_extended(name: str) -> bool:
    """Whether a resource is one that a device plug-in brings: whole units, never overcommitted."""
    return "/" in name and not name.startswith(("kubernetes.io/", "requests."))


def _check_amount(name: str, amount: str, path: str) -> list[FieldError]:
    if name in _STANDARD and not amount.startswith("-"):  # nearly all there is
        return []
    errors = [invalid(f"{path}[{name}]", name, said) for said in names.qualified_name(name)]
    if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
        errors.append(invalid(f"{path}[{name}]", name, "must be a standard resource for containers"))
    errors += check_not_negative(amount, f"{path}[{name}]")
    if is_extended(name) and quantity.parse(amount).value.denominator != 1:
        errors.append(invalid(f"{path}[{name}]", amount, "must be an integer"))
    return errors


def _check_against_limit(name: str, amount: str, limit: str | None, path: str) -> list[FieldError]:
    is_fixed = is_extended(name) or name.startswith("hugepages-")
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
