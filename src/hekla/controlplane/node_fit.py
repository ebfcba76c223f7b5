"""Whether a template's pod may run on a node at all: selector, required affinity, taints. For daemon sets.

`placement` asks the same of columns for real scheduling; here it is one node and one document.
"""

from typing import Any

from hekla.api.meta import Document
from hekla.api.nodes import Node, Taint


def may_run(spec: Document, node: Node) -> bool:
    """Whether the pod's spec allows the node, its taints included."""
    return matches(spec, node) and all(_is_tolerated(taint, spec) for taint in node.spec.taints)


def may_stay(spec: Document, node: Node) -> bool:
    """Whether a pod that runs there already may go on: only NoExecute drives it away."""
    return matches(spec, node) and all(
        taint.effect != "NoExecute" or _is_tolerated(taint, spec) for taint in node.spec.taints
    )


def matches(spec: Document, node: Node) -> bool:
    """Whether selector and required affinity fit, taints aside."""
    name = spec.get("nodeName")
    if name and name != node.metadata.name:
        return False
    if not (spec.get("nodeSelector") or {}).items() <= node.metadata.labels.items():
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return any(_term(term, node) for term in required.get("nodeSelectorTerms") or ())


def _term(term: Document, node: Node) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    return all(_holds(one, node.metadata.labels) for one in expressions) and all(
        _holds(one, {"metadata.name": node.metadata.name}) for one in fields
    )


def _holds(one: Document, values: dict[str, str]) -> bool:
    value, wanted = values.get(one["key"]), one.get("values") or []
    match one["operator"]:
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(operator, value, wanted)
    return False


def _compares(operator: str, value: str | None, wanted: list[Any]) -> bool:
    try:
        have, limit = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return have > limit if operator == "Gt" else have < limit


def _is_tolerated(taint: Taint, spec: Document) -> bool:
    return taint.effect == "PreferNoSchedule" or any(_tolerates(one, taint) for one in spec.get("tolerations") or ())


def _tolerates(toleration: Document, taint: Taint) -> bool:
    if toleration.get("effect") not in (None, "", taint.effect):
        return False
    if toleration.get("key") not in (None, "", taint.key):
        return False
    if toleration.get("operator") == "Exists":
        return True
    return bool(toleration.get("key")) and (toleration.get("value") or "") == taint.value
