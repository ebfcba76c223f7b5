"""What is wrong with label selectors and node selectors."""

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, required
from hekla.apiserver.validation import names
from hekla.apiserver.validation.metadata import check_labels

_NEEDS_VALUES = "must be specified when `operator` is 'In' or 'NotIn'"
_TAKES_NO_VALUES = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
_NEEDS_ONE_VALUE = "must be specified single value when `operator` is 'Lt' or 'Gt'"


def check_label_selector(selector: Document | None, path: str) -> list[FieldError]:
    """MatchLabels and matchExpressions."""
    if not selector:
        return []
    errors = check_labels(selector.get("matchLabels", {}), f"{path}.matchLabels")
    for index, one in enumerate(selector.get("matchExpressions", ())):
        errors += _check_expression(one, f"{path}.matchExpressions[{index}]", is_of_nodes=False)
    return errors


def check_node_selector(selector: Document, path: str) -> list[FieldError]:
    """The terms of a required node affinity."""
    terms = selector.get("nodeSelectorTerms") or []
    if not terms:
        return [required(f"{path}.nodeSelectorTerms", "must have at least one node selector term")]
    return [
        error
        for index, term in enumerate(terms)
        for error in check_node_selector_term(term, f"{path}.nodeSelectorTerms[{index}]")
    ]


def check_node_selector_term(term: Document, path: str, *, is_wish: bool = False) -> list[FieldError]:
    """Clauses on labels and fields of nodes; a wish may name values that no label can have."""
    errors = []
    for index, one in enumerate(term.get("matchExpressions", ())):
        errors += _check_expression(one, f"{path}.matchExpressions[{index}]", is_of_nodes=True, is_wish=is_wish)
    for index, one in enumerate(term.get("matchFields", ())):
        where = f"{path}.matchFields[{index}]"
        if one.get("key") != "metadata.name":
            errors.append(invalid(f"{where}.key", one.get("key", ""), "not a valid field selector key"))
        if one.get("operator") not in ("In", "NotIn"):
            errors.append(invalid(f"{where}.operator", one.get("operator", ""), "not a valid selector operator"))
        elif len(one.get("values", ())) != 1:
            errors.append(
                required(
                    f"{where}.values",
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                )
            )
    return errors


def _check_expression(one: Document, path: str, *, is_of_nodes: bool, is_wish: bool = False) -> list[FieldError]:
    operator, values, errors = one.get("operator", ""), one.get("values", []), []
    if operator in ("In", "NotIn"):
        if not values:
            errors.append(required(f"{path}.values", _NEEDS_VALUES))
    elif operator in ("Exists", "DoesNotExist"):
        if values:
            errors.append(forbidden_field(f"{path}.values", _TAKES_NO_VALUES))
    elif is_of_nodes and operator in ("Gt", "Lt"):
        if len(values) != 1:
            errors.append(required(f"{path}.values", _NEEDS_ONE_VALUE))
    else:
        errors.append(invalid(f"{path}.operator", operator, "not a valid selector operator"))
    errors += [invalid(f"{path}.key", one.get("key", ""), said) for said in names.label_key(one.get("key", ""))]
    if not (is_of_nodes and is_wish):
        for index, value in enumerate(values):
            errors += [invalid(f"{path}.values[{index}]", value, said) for said in names.label_value(value)]
    return errors


def matches_labels(selector: Document, labels: dict[str, str]) -> bool:
    """Whether a selector selects labels; an empty one selects everything."""
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(_holds(one, labels) for one in selector.get("matchExpressions", ()))


def _holds(one: Document, labels: dict[str, str]) -> bool:
    key, values = one.get("key", ""), one.get("values", [])
    match one.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
