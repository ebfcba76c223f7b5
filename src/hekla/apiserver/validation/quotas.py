"""What is wrong with resource quotas and limit ranges."""

from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import IMMUTABLE, Cause, FieldError, forbidden_field, invalid, required
from hekla.apiserver.validation import names
from hekla.lib import quantity

_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_WHOLE = frozenset({
    "pods", "resourcequotas", "services", "replicationcontrollers", "secrets", "configmaps", "persistentvolumeclaims",
    "services.nodeports", "services.loadbalancers",
})  # fmt: skip
_STANDARD = frozenset({
    *_COMPUTE, *_WHOLE, "requests.storage", "storage", *(f"{kind}.{name}" for kind in ("requests", "limits") for name in _COMPUTE),
})  # fmt: skip
_SCOPES = (
    "Terminating", "NotTerminating", "BestEffort", "NotBestEffort", "PriorityClass", "CrossNamespacePodAffinity",
    "VolumeAttributesClass",
)  # fmt: skip
_OF_PODS = frozenset(
    {"pods", *(f"{head}{name}" for head in ("", "requests.", "limits.") for name in ("cpu", "memory"))}
)
_OPPOSITES = (("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating"))
_ONLY_EXISTS = (
    "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating,"
    " ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity"
)
_LIMIT_TYPES = ("Pod", "Container", "PersistentVolumeClaim")
_BOUNDS = ("min", "defaultRequest", "default", "max")
_TOLD_AT = {
    ("min", "defaultRequest"): ("defaultRequest", True),
    ("min", "default"): ("default", False),
    ("default", "max"): ("default", True),
}
"""Of two bounds in the wrong order: at which of them Kubernetes says so if not the lower, and whether it shows the higher."""


def check_quota(quota: Document) -> list[FieldError]:
    """A resource quota: amounts of known resources, and scopes that fit them."""
    spec = quota.get("spec", {})
    hard, errors = spec.get("hard", {}), list[FieldError]()
    for name, amount in sorted(hard.items()):
        errors += _check_hard(name, amount, f"spec.hard[{name}]")
    scopes = spec.get("scopes") or []
    for scope in scopes:
        errors += _check_scope(scope, hard, scopes, "spec.scopes", scopes)
    errors += _check_opposites(scopes, scopes)
    wanted = spec.get("scopeSelector", {}).get("matchExpressions") or ()
    for one in wanted:
        errors += _check_requirement(one, hard, spec["scopeSelector"])
    return errors + _check_opposites([one.get("scopeName", "") for one in wanted], scopes)


def check_quota_update(new: Document, old: Document) -> list[FieldError]:
    """What a quota counts stays."""
    scopes, before = new.get("spec", {}).get("scopes") or [], old.get("spec", {}).get("scopes") or []
    return [] if set(scopes) == set(before) else [invalid("spec.scopes", scopes or None, IMMUTABLE)]


def _check_hard(name: str, amount: str, path: str) -> list[FieldError]:
    errors = [invalid(path, name, said) for said in names.qualified_name(name)]
    if "/" not in name and name not in _STANDARD and not name.startswith(("hugepages-", "requests.hugepages-")):
        if not errors:
            errors.append(invalid(path, name, "must be a standard resource type or fully qualified"))
        errors.append(invalid(path, name, "must be a standard resource for quota"))
    if amount.startswith("-"):
        errors.append(invalid(path, amount, "must be greater than or equal to 0"))
    if (name in _WHOLE or name.startswith("count/")) and quantity.parse(amount).value.denominator != 1:
        errors.append(invalid(path, amount, "must be an integer"))
    return errors


def _check_scope(scope: str, hard: Document, shown: object, path: str, scopes: Sequence[str]) -> list[FieldError]:
    errors = [] if scope in _SCOPES else [invalid(path, scopes, "unsupported scope")]
    errors += [
        invalid(path, shown, "unsupported scope applied to resource") for name in sorted(hard) if not _fits(scope, name)
    ]
    return errors


def _fits(scope: str, name: str) -> bool:
    """Whether a scope may narrow the counting of a resource; resources of others are not asked."""
    if name not in _STANDARD:
        return True
    match scope:
        case "BestEffort":
            return name == "pods"
        case "VolumeAttributesClass":
            return name in ("persistentvolumeclaims", "requests.storage")
        case "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity":
            return name in _OF_PODS
        case _:
            return True


def _check_opposites(named: Sequence[str], scopes: Sequence[str]) -> list[FieldError]:
    return [
        invalid("spec.scopes", list(scopes), "conflicting scopes")
        for one, other in _OPPOSITES
        if one in named and other in named
    ]


def _check_requirement(one: Document, hard: Document, selector: Document) -> list[FieldError]:
    path, scope, operator = "spec.scopeSelector.matchExpressions", one.get("scopeName", ""), one.get("operator", "")
    values, errors = one.get("values"), list[FieldError]()
    if scope not in _SCOPES:
        errors.append(invalid(f"{path}.scopeName", scope, "unsupported scope"))
    else:
        errors += _check_scope(scope, hard, selector, path, [])
        if scope not in ("PriorityClass", "VolumeAttributesClass") and operator != "Exists":
            errors.append(invalid(f"{path}.operator", operator, _ONLY_EXISTS))
    if operator in ("In", "NotIn"):
        if not values:
            said = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"
            errors.append(required(f"{path}.values", said))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            said = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"
            errors.append(invalid(f"{path}.values", values, said))
    else:
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    return errors


def check_limit_range(limit_range: Document) -> list[FieldError]:
    """Least, default and most in their order."""
    errors, seen = list[FieldError](), set[str]()
    for index, item in enumerate(limit_range.get("spec", {}).get("limits") or ()):
        where, kind = f"spec.limits[{index}]", item.get("type", "")
        said = names.qualified_name(kind)
        errors += [invalid(f"{where}.type", kind, one) for one in said]
        if not said and "/" not in kind and kind not in _LIMIT_TYPES:
            errors.append(invalid(f"{where}.type", kind, "must be a standard limit type or fully qualified"))
        if kind in seen:
            errors.append(FieldError(Cause.DUPLICATE, f"{where}.type", f'Duplicate value: "{kind}"'))
        seen.add(kind)
        errors += _check_item(item, kind, where)
    return errors


def _check_item(item: Document, kind: str, path: str) -> list[FieldError]:
    errors = list[FieldError]()
    if kind == "Container":
        for key in (*_BOUNDS, "maxLimitRequestRatio"):
            for name in sorted(item.get(key, {})):
                errors += _check_container_resource(name, f"{path}.{key}[{name}]")
    if kind == "Pod":
        said = "may not be specified when `type` is 'Pod'"
        errors += [forbidden_field(f"{path}.{key}", said) for key in ("default", "defaultRequest") if item.get(key)]
    if kind == "PersistentVolumeClaim" and not any("storage" in item.get(key, {}) for key in ("min", "max")):
        said = "either minimum or maximum storage value is required, but neither was provided"
        errors.append(required(f"{path}.limits", said))
    return errors + _check_bounds(item, path) + _check_ratios(item, path)


def _check_container_resource(name: str, path: str) -> list[FieldError]:
    if "/" in name or name in _COMPUTE or name.startswith("hugepages-"):
        return []
    errors = list[FieldError]()
    if name not in _STANDARD:
        errors.append(invalid(path, name, "must be a standard resource type or fully qualified"))
    return [*errors, invalid(path, name, "must be a standard resource for containers")]


def _check_ratios(item: Document, path: str) -> list[FieldError]:
    errors = list[FieldError]()
    for name, text in sorted(item.get("maxLimitRequestRatio", {}).items()):
        where, ratio = f"{path}.maxLimitRequestRatio[{name}]", quantity.parse(text).value
        if ratio < 1:
            errors.append(invalid(where, text, f"ratio {text} is less than 1"))
        least, most = item.get("min", {}).get(name), item.get("max", {}).get(name)
        if least is not None and most is not None and quantity.parse(least).value:
            bound = quantity.parse(most).value / quantity.parse(least).value
            if ratio > bound:
                errors.append(invalid(where, text, f"ratio {text} is greater than max/min = {float(bound):f}"))
    return errors


def _check_bounds(item: Document, path: str) -> list[FieldError]:
    errors = []
    said = {"min": "min", "defaultRequest": "default request", "default": "default", "max": "max"}
    for index, low in enumerate(_BOUNDS):
        for high in _BOUNDS[index + 1 :]:
            for name, amount in sorted(item.get(low, {}).items()):
                bound = item.get(high, {}).get(name)
                if bound is None or quantity.parse(amount).value <= quantity.parse(bound).value:
                    continue
                at, shows_bound = _TOLD_AT.get((low, high), (low, False))
                limit = "default limit" if (low, high) == ("defaultRequest", "default") else said[high]
                sentence = f"{said[low]} value {amount} is greater than {limit} value {bound}"
                errors.append(invalid(f"{path}.{at}[{name}]", bound if shows_bound else amount, sentence))
    return errors
