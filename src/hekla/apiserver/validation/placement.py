"""What is wrong with a pod's wishes for its place: affinity, tolerations, spread, gates."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    Cause,
    FieldError,
    duplicate,
    forbidden_field,
    invalid,
    not_supported,
    required,
    shown,
)
from hekla.apiserver.validation import names
from hekla.apiserver.validation.selectors import check_label_selector, check_node_selector, check_node_selector_term

_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_REQUIRED, _PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
_WEIGHT = "must be in the range 1-100"


def check_affinity(affinity: Document, path: str) -> list[FieldError]:
    """Nodes and other pods."""
    errors: list[FieldError] = []
    if "nodeAffinity" in affinity:
        errors += _check_node_affinity(affinity["nodeAffinity"], f"{path}.nodeAffinity")
    for key in ("podAffinity", "podAntiAffinity"):
        if key in affinity:
            errors += _check_pod_affinity(affinity[key], f"{path}.{key}")
    return errors


def _check_node_affinity(affinity: Document, path: str) -> list[FieldError]:
    errors = check_node_selector(affinity[_REQUIRED], f"{path}.{_REQUIRED}") if _REQUIRED in affinity else []
    for index, wish in enumerate(affinity.get(_PREFERRED, ())):
        where = f"{path}.{_PREFERRED}[{index}]"
        errors += _check_weight(wish, where)
        errors += check_node_selector_term(wish.get("preference", {}), f"{where}.preference", is_wish=True)
    return errors


def _check_pod_affinity(affinity: Document, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for index, term in enumerate(affinity.get(_REQUIRED, ())):
        errors += _check_pod_term(term, f"{path}.{_REQUIRED}[{index}]")
    for index, wish in enumerate(affinity.get(_PREFERRED, ())):
        where = f"{path}.{_PREFERRED}[{index}]"
        errors += _check_weight(wish, where)
        errors += _check_pod_term(wish.get("podAffinityTerm", {}), f"{where}.podAffinityTerm")
    return errors


def _check_weight(wish: Document, path: str) -> list[FieldError]:
    weight = wish.get("weight", 0)
    return [] if 1 <= weight <= 100 else [invalid(f"{path}.weight", weight, _WEIGHT)]


def _check_pod_term(term: Document, path: str) -> list[FieldError]:
    errors = check_label_selector(term.get("labelSelector"), f"{path}.labelSelector")
    errors += _check_label_keys(term, ("matchLabelKeys", "mismatchLabelKeys"), path)
    errors += check_label_selector(term.get("namespaceSelector"), f"{path}.namespaceSelector")
    for name in term.get("namespaces", ()):
        errors += [invalid(f"{path}.namespace", name, said) for said in names.dns_label(name)]
    key = term.get("topologyKey", "")
    if not key:
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    return errors + [invalid(f"{path}.topologyKey", key, said) for said in names.label_key(key)]


def check_tolerations(tolerations: list[Document], path: str) -> list[FieldError]:
    """Keys, operators, effects."""
    return [error for index, one in enumerate(tolerations) for error in _check_toleration(one, f"{path}[{index}]")]


def _check_toleration(one: Document, path: str) -> list[FieldError]:
    errors = []
    key, operator, effect = one.get("key", ""), one.get("operator", ""), one.get("effect", "")
    if key:
        errors += [invalid(f"{path}.key", key, said) for said in names.label_key(key)]
    elif operator != "Exists":
        said = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(f"{path}.operator", operator, said))
    if "tolerationSeconds" in one and effect != "NoExecute":
        errors.append(invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
    if operator in ("Equal", ""):
        errors += [
            invalid(f"{path}.operator", one.get("value", ""), said) for said in names.label_value(one.get("value", ""))
        ]
    elif operator == "Exists":
        if one.get("value"):
            errors.append(invalid(f"{path}.operator", one["value"], "value must be empty when `operator` is 'Exists'"))
    else:
        allowed = ("Equal", "Exists", "Lt", "Gt") if operator in ("Lt", "Gt") else ("Equal", "Exists")
        errors.append(not_supported(f"{path}.operator", operator, allowed))
    if effect and effect not in _EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, _EFFECTS))
    return errors


def check_spread(constraints: list[Document], path: str) -> list[FieldError]:
    """Skew, key, what to do, each pair once."""
    errors = list[FieldError]()
    pairs = [f"{{{one.get('topologyKey', '')}, {one.get('whenUnsatisfiable', '')}}}" for one in constraints]
    for index, one in enumerate(constraints):
        where = f"{path}[{index}]"
        errors += _check_spread(one, where)
        if pairs[index] in pairs[index + 1 :]:
            errors.append(duplicate(f"{where}.{{topologyKey, whenUnsatisfiable}}", pairs[index]))
    return errors


def _check_spread(one: Document, path: str) -> list[FieldError]:
    errors, what, domains = list[FieldError](), one.get("whenUnsatisfiable", ""), one.get("minDomains")
    if one.get("maxSkew", 0) <= 0:
        errors.append(invalid(f"{path}.maxSkew", one.get("maxSkew", 0), "must be greater than zero"))
    if not one.get("topologyKey"):
        errors.append(required(f"{path}.topologyKey", "can not be empty"))
    if what not in ("DoNotSchedule", "ScheduleAnyway"):
        errors.append(not_supported(f"{path}.whenUnsatisfiable", what, ("DoNotSchedule", "ScheduleAnyway")))
    if domains is not None and domains <= 0:
        errors.append(invalid(f"{path}.minDomains", domains, "must be greater than zero"))
    elif domains is not None and what != "DoNotSchedule":
        said = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {what}"
        errors.append(invalid(f"{path}.minDomains", domains, said))
    errors += [
        not_supported(f"{path}.{key}", one[key], ("Honor", "Ignore"))
        for key in ("nodeAffinityPolicy", "nodeTaintsPolicy")
        if key in one and one[key] not in ("Honor", "Ignore")
    ]
    errors += _check_label_keys(one, ("matchLabelKeys",), path)
    return errors + check_label_selector(one.get("labelSelector"), f"{path}.labelSelector")


def _check_label_keys(term: Document, fields: tuple[str, ...], path: str) -> list[FieldError]:
    """Labels whose values a pod takes from itself."""
    errors, selector = list[FieldError](), term.get("labelSelector")
    for field in fields:
        keys = term.get(field, [])
        if keys and selector is None:
            errors.append(forbidden_field(f"{path}.{field}", "must not be specified when labelSelector is not set"))
        elif keys:
            for index, key in enumerate(keys):
                errors += [invalid(f"{path}.{field}[{index}]", key, said) for said in names.label_key(key)]
    wanted = term.get("matchLabelKeys", [])
    seen = set((selector or {}).get("matchLabels", {}))
    for expression in (selector or {}).get("matchExpressions", ()):
        key = expression.get("key", "")
        if key in wanted and key in seen:
            said = "exists in both matchLabelKeys and labelSelector"
            errors.append(invalid(f"{path}[{wanted.index(key)}]", key, said))
        seen.add(key)
    unwanted = term.get("mismatchLabelKeys", ())
    for index, key in enumerate(wanted):
        if key in unwanted:
            said = "exists in both matchLabelKeys and mismatchLabelKeys"
            errors.append(invalid(f"{path}.matchLabelKeys[{index}]", key, said))
    return errors


def check_gates(gates: list[Document], path: str) -> list[FieldError]:
    """Qualified names, each once."""
    errors, seen = list[FieldError](), set[str]()
    for index, gate in enumerate(gates):
        name = gate.get("name", "")
        errors += [invalid(f"{path}[{index}]", name, said) for said in names.qualified_name(name)]
        if name in seen:
            errors.append(duplicate(f"{path}[{index}]", name))
        seen.add(name)
    return errors


def check_taints(taints: list[Document], path: str) -> list[FieldError]:
    """The taints of a node."""
    errors, seen = list[FieldError](), set[tuple[str, str]]()
    for index, taint in enumerate(taints):
        where, key, effect = f"{path}[{index}]", taint.get("key", ""), taint.get("effect", "")
        errors += [invalid(f"{where}.key", key, said) for said in names.label_key(key)]
        errors += [
            invalid(f"{where}.value", taint["value"], said) for said in names.label_value(taint.get("value", ""))
        ]
        if not effect:
            errors.append(required(f"{where}.effect"))
        elif effect not in _EFFECTS:
            errors.append(not_supported(f"{where}.effect", effect, _EFFECTS))
        if (key, effect) in seen:
            said = "taints must be unique by key and effect pair"
            errors.append(FieldError(Cause.DUPLICATE, where, f"Duplicate value: {shown(taint)}: {said}"))
        seen.add((key, effect))
    return errors
