"""What may change in a pod once it exists: images, a shorter deadline, more tolerations, fewer gates."""

import copy
import difflib
import json
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, required
from hekla.apiserver.validation.placement import check_tolerations

_ONLY = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def check_pod_update(new: Document, old: Document) -> list[FieldError]:
    """What is wrong with a change of a pod."""
    wanted, before = new["spec"], old["spec"]
    for key in ("containers", "initContainers"):
        if len(wanted.get(key) or ()) != len(before.get(key) or ()):
            return [forbidden_field(f"spec.{key}", "pod updates may not add or remove containers")]
    errors = _check_images(wanted) + _check_deadline(wanted, before) + _check_gates(wanted, before)
    errors += _check_tolerations(wanted, before)
    if errors:
        return errors
    allowed = _with_allowed_changes(wanted, before)
    if allowed != before:
        errors.append(forbidden_field("spec", f"{_ONLY}\n{_difference(before, allowed)}"))
    return errors


def _check_images(wanted: Document) -> list[FieldError]:
    return [
        required(f"spec.{key}[{index}].image")
        for key in ("containers", "initContainers")
        for index, container in enumerate(wanted.get(key) or ())
        if not container.get("image")
    ]


def _check_deadline(wanted: Document, before: Document) -> list[FieldError]:
    deadline, earlier = wanted.get("activeDeadlineSeconds"), before.get("activeDeadlineSeconds")
    if earlier is None:
        return []
    if deadline is None:
        return [invalid("spec.activeDeadlineSeconds", None, "must not update from a positive integer to nil value")]
    if deadline > earlier:
        return [invalid("spec.activeDeadlineSeconds", deadline, "must be less than or equal to previous value")]
    return []


def _check_gates(wanted: Document, before: Document) -> list[FieldError]:
    known = [gate.get("name") for gate in before.get("schedulingGates", ())]
    return [
        forbidden_field(
            f"spec.schedulingGates[{index}].name",
            f"only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
        )
        for index, gate in enumerate(wanted.get("schedulingGates", ()))
        if gate.get("name") not in known
    ]


def _check_tolerations(wanted: Document, before: Document) -> list[FieldError]:
    kept = [_without_seconds(one) for one in wanted.get("tolerations", ())]
    if any(_without_seconds(one) not in kept for one in before.get("tolerations", ())):
        return [
            forbidden_field("spec.tolerations", "existing toleration can not be modified except its tolerationSeconds")
        ]
    return check_tolerations(wanted.get("tolerations", []), "spec.tolerations")


def _without_seconds(toleration: Document) -> Document:
    return {key: value for key, value in toleration.items() if key != "tolerationSeconds"}


def _with_allowed_changes(wanted: Document, before: Document) -> Document:
    """The new spec with everything that may change put back as it was: what still differs may not."""
    allowed = copy.deepcopy(wanted)
    for key in ("containers", "initContainers"):
        for container, earlier in zip(allowed.get(key) or (), before.get(key) or (), strict=False):
            _put_back(container, earlier, "image")
    for key in ("activeDeadlineSeconds", "tolerations"):
        _put_back(allowed, before, key)
    if before.get("terminationGracePeriodSeconds", 0) < 0 and wanted.get("terminationGracePeriodSeconds") == 1:
        _put_back(allowed, before, "terminationGracePeriodSeconds")
    if before.get("schedulingGates"):
        for key in ("schedulingGates", "nodeSelector", "affinity"):
            _put_back(allowed, before, key)
    return allowed


def _put_back(target: Document, source: Document, key: str) -> None:
    if key in source:
        target[key] = source[key]
    else:
        target.pop(key, None)


def _difference(before: Document, after: Document) -> str:
    lines = difflib.unified_diff(_lines(before), _lines(after), lineterm="", n=3)
    return "".join(f"{line}\n" for line in list(lines)[2:])


def _lines(spec: Document) -> list[str]:
    return json.dumps(_go_names(spec), indent=1).splitlines()


def _go_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {f"{key[:1].upper()}{key[1:]}": _go_names(item) for key, item in value.items()}
    return [_go_names(item) for item in value] if isinstance(value, list) else value
