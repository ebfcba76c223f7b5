"""Which objects a label selector means, and which number a percentage does."""

import math

from hekla.api.scalars import IntOrString
from hekla.api.selectors import LabelSelector, LabelSelectorRequirement
from hekla.lib.digits import whole_number


def selects(selector: LabelSelector | None, labels: dict[str, str]) -> bool:
    """Whether the selector matches; an empty one matches everything, an absent one nothing."""
    if selector is None:
        return False
    return selector.match_labels.items() <= labels.items() and all(
        _holds(requirement, labels) for requirement in selector.match_expressions
    )


def _holds(requirement: LabelSelectorRequirement, labels: dict[str, str]) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def resolve(value: IntOrString | None, total: int, *, round_up: bool) -> int:
    """A number as it is, or a percentage of `total`; 0 for an absent or unreadable one."""
    if value is None:
        return 0
    if isinstance(value, int):
        return value
    percent = whole_number(value[:-1])
    if not value.endswith("%") or percent is None:
        return 0
    exact = percent * total
    return math.ceil(exact / 100) if round_up else exact // 100
