"""What is wrong with a field, in Kubernetes' words; many of them make one Invalid answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hekla.api.meta import Document, Kind
from hekla.apiserver.status import StatusError, qualified

IMMUTABLE = "field is immutable"
"""What is said of a field that keeps its first value."""


class Cause(StrEnum):
    """The machine-readable kind of a field error, as in `details.causes[].reason`."""

    REQUIRED = "FieldValueRequired"
    INVALID = "FieldValueInvalid"
    NOT_SUPPORTED = "FieldValueNotSupported"
    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"
    NOT_FOUND = "FieldValueNotFound"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    TYPE_INVALID = "FieldValueTypeInvalid"
    INTERNAL = "InternalError"


@dataclass(frozen=True)
class FieldError:
    """One thing that is wrong: where, and the sentence that follows the field's name."""

    cause: Cause
    field: str
    message: str
    """Everything after `field: `, such as `Required value` or `Invalid value: "x": must be ...`."""


def required(field: str, detail: str = "") -> FieldError:
    """A field that must be there is not."""
    return FieldError(Cause.REQUIRED, field, "Required value" + (f": {detail}" if detail else ""))


def invalid(field: str, value: object, detail: str) -> FieldError:
    """A value breaks a rule."""
    return FieldError(Cause.INVALID, field, f"Invalid value: {shown(value)}: {detail}")


def not_supported(field: str, value: object, allowed: Sequence[object]) -> FieldError:
    """A value is not one of a closed list."""
    listed = ", ".join(json.dumps(one if isinstance(one, str) else shown(one)) for one in allowed)
    return FieldError(Cause.NOT_SUPPORTED, field, f"Unsupported value: {shown(value)}: supported values: {listed}")


def duplicate(field: str, value: object) -> FieldError:
    """A key of a set or a map occurs twice."""
    return FieldError(Cause.DUPLICATE, field, f"Duplicate value: {shown(value)}")


def forbidden_field(field: str, detail: str) -> FieldError:
    """A field may not be set, or not changed."""
    return FieldError(Cause.FORBIDDEN, field, f"Forbidden: {detail}" if detail else "Forbidden")


def too_long(field: str, bound: int) -> FieldError:
    """A text is longer than it may be."""
    return FieldError(Cause.TOO_LONG, field, f"Too long: may not be more than {bound} bytes")


def too_many(field: str, count: int, bound: int) -> FieldError:
    """A list is longer than it may be."""
    return FieldError(Cause.TOO_MANY, field, f"Too many: {count}: must have at most {bound} items")


def type_invalid(field: str, value: object, detail: str) -> FieldError:
    """A value has the wrong type."""
    return FieldError(Cause.TYPE_INVALID, field, f"Invalid value: {shown(value)}: {detail}")


def not_found_field(field: str, value: object) -> FieldError:
    """A value names something that is not there."""
    return FieldError(Cause.NOT_FOUND, field, f"Not found: {shown(value)}")


def shown(value: object) -> str:
    """A value as Kubernetes prints it in a field error."""
    if value is None:
        return "null"
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def invalid_object(kind: Kind, name: str, errors: Sequence[FieldError]) -> StatusError:
    """422 with one cause per field error."""
    lines = [f"{error.field}: {error.message}" for error in errors]
    said = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    details: Document = {"name": name} if name else {}
    if kind.group:
        details["group"] = kind.group
    details["kind"] = kind.kind
    details["causes"] = [{"reason": str(e.cause), "message": e.message, "field": e.field} for e in errors]
    message = f'{qualified(kind.kind, kind.group)} "{name}" is invalid: {said}'
    return StatusError(422, "Invalid", message, details=details)
