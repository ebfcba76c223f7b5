"""What is wrong with when a Job fails or succeeds early: its pod failure policy and its success policy."""

from collections.abc import Sequence

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import (
    Cause,
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    too_long,
    too_many,
)
from hekla.apiserver.validation import names

_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_STATUSES = ("False", "True", "Unknown")
_MOST_RULES, _MOST_CODES, _MOST_CONDITIONS, _LONGEST_INDEXES = 20, 255, 20, 64 * 1024


def check_failure_policy(spec: Document, path: str) -> list[FieldError]:
    """What failures of pods mean for the job."""
    rules = spec.get("podFailurePolicy", {}).get("rules") or ()
    where, pod = f"{path}.podFailurePolicy.rules", spec.get("template", {}).get("spec", {})
    errors = [too_many(where, len(rules), _MOST_RULES)] if len(rules) > _MOST_RULES else []
    known = {one.get("name") for key in ("containers", "initContainers") for one in pod.get(key) or ()}
    for index, rule in enumerate(rules):
        errors += _check_failure_rule(rule, spec, known, f"{where}[{index}]")
    return errors


def _check_failure_rule(rule: Document, spec: Document, known: set[str], path: str) -> list[FieldError]:
    action, errors = rule.get("action", ""), list[FieldError]()
    if not action:
        errors.append(required(f"{path}.action", f"valid values: {_listed(_ACTIONS)}"))
    elif action == "FailIndex" and "backoffLimitPerIndex" not in spec:
        errors.append(invalid(f"{path}.action", action, "requires the backoffLimitPerIndex to be set"))
    elif action not in _ACTIONS:
        errors.append(not_supported(f"{path}.action", action, _ACTIONS))
    codes, conditions = rule.get("onExitCodes"), rule.get("onPodConditions") or ()
    if codes is not None:
        errors += _check_codes(codes, known, f"{path}.onExitCodes")
    if len(conditions) > _MOST_CONDITIONS:
        errors.append(too_many(f"{path}.onPodConditions", len(conditions), _MOST_CONDITIONS))
    for index, pattern in enumerate(conditions):
        where, kind = f"{path}.onPodConditions[{index}]", pattern.get("type", "")
        errors += [invalid(f"{where}.type", kind, said) for said in names.qualified_name(kind)]
        if pattern.get("status", "True") not in _STATUSES:
            errors.append(not_supported(f"{where}.status", pattern["status"], _STATUSES))
    if codes is not None and conditions:
        errors.append(_without_value(path, "specifying both OnExitCodes and OnPodConditions is not supported"))
    elif codes is None and not conditions:
        errors.append(_without_value(path, "specifying one of OnExitCodes and OnPodConditions is required"))
    return errors


def _without_value(path: str, said: str) -> FieldError:
    return FieldError(Cause.INVALID, path, f"Invalid value: {said}")


def _listed(values: Sequence[str]) -> str:
    quoted = " ".join(f'"{value}"' for value in values)
    return f"[{quoted}]"


def _check_codes(codes: Document, known: set[str], path: str) -> list[FieldError]:
    operator, values, errors = codes.get("operator", ""), codes.get("values") or [], list[FieldError]()
    if not operator:
        errors.append(required(f"{path}.operator", f"valid values: {_listed(('In', 'NotIn'))}"))
    elif operator not in ("In", "NotIn"):
        errors.append(not_supported(f"{path}.operator", operator, ("In", "NotIn")))
    name = codes.get("containerName")
    if name is not None and name not in known:
        said = "must be one of the container or initContainer names in the pod template"
        errors.append(invalid(f"{path}.containerName", name, said))
    where = f"{path}.values"
    if not values:
        errors.append(invalid(where, codes.get("values"), "at least one value is required"))
    elif len(values) > _MOST_CODES:
        errors.append(too_many(where, len(values), _MOST_CODES))
    for index, value in enumerate(values):
        if operator == "In" and value == 0:
            errors.append(invalid(f"{where}[{index}]", value, "must not be 0 for the In operator"))
        if value in values[:index]:
            errors.append(duplicate(f"{where}[{index}]", value))
    if values != sorted(values):
        errors.append(invalid(where, values, "must be ordered"))
    return errors


def check_success_policy(spec: Document, path: str) -> list[FieldError]:
    """Which indexes are enough."""
    policy, where = spec.get("successPolicy"), f"{path}.successPolicy"
    if policy is None:
        return []
    rules = policy.get("rules") or []
    if spec.get("completionMode") != "Indexed":
        shown = [{"SucceededIndexes": one.get("succeededIndexes"), "SucceededCount": one.get("succeededCount")} for one in rules]  # fmt: skip
        return [invalid(where, {"Rules": shown or None}, "requires indexed completion mode")]
    if spec.get("completions") is None:
        return []  # which is said already
    errors, where = list[FieldError](), f"{where}.rules"
    if not rules:
        said = "at least one rules must be specified when the successPolicy is specified"
        errors.append(required(where, said))
    if len(rules) > _MOST_RULES:
        errors.append(too_many(where, len(rules), _MOST_RULES))
    for index, rule in enumerate(rules):
        errors += _check_success_rule(rule, spec["completions"], f"{where}[{index}]")
    return errors


def _check_success_rule(rule: Document, completions: int, path: str) -> list[FieldError]:
    indexes, count, errors = rule.get("succeededIndexes"), rule.get("succeededCount"), list[FieldError]()
    if indexes is None and count is None:
        return [required(path, "at least one of succeededCount or succeededIndexes must be specified")]
    total = 0
    if indexes is not None:
        where = f"{path}.succeededIndexes"
        if len(indexes) > _LONGEST_INDEXES:
            return [too_long(where, _LONGEST_INDEXES)]
        try:
            total = _number_of_indexes(indexes, completions)
        except ValueError as error:
            errors.append(invalid(where, indexes, f"error parsing succeededIndexes: {error}"))
    if count is not None:
        where = f"{path}.succeededCount"
        if count < 0:
            errors.append(invalid(where, count, "must be greater than or equal to 0"))
        if count > completions:
            said = f"must be less than or equal to {completions} (the number of specified completions)"
            errors.append(invalid(where, count, said))
        if indexes is not None and count > total:
            said = (
                f"must be less than or equal to {total} (the number of indexes in the specified succeededIndexes field)"
            )
            errors.append(invalid(where, count, said))
    return errors


def _number_of_indexes(text: str, completions: int) -> int:
    """How many indexes `1,3-5` names; raises ValueError with Kubernetes' sentence."""
    total, last = 0, -1
    for interval in text.split(",") if text else ():
        bounds = interval.split("-")
        if len(bounds) > 2:
            raise ValueError(
                f"the fragment \"{interval}\" violates the requirement that an index interval can have at most two parts separated by '-'"
            )
        numbers = [_index(bound, completions) for bound in bounds]
        first, end = numbers[0], numbers[-1]
        if len(numbers) == 2 and first >= end:
            raise ValueError(f"non-increasing order, previous: {first}, current: {end}")
        if last >= first:
            raise ValueError(f"non-increasing order, previous: {last}, current: {first}")
        total, last = total + end - first + 1, end
    return total


def _index(text: str, completions: int) -> int:
    if not (text.isascii() and text.lstrip("-").isdecimal()):
        raise ValueError(f'cannot convert string to integer for index: "{text}"')
    if int(text) >= completions:
        raise ValueError(f'too large index: "{text}"')
    return int(text)
