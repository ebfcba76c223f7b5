"""What the query of a write may say: `fieldManager`, `fieldValidation`, `dryRun`, `force`. Raises 422 in Kubernetes' words."""

from hekla.api.meta import Document
from hekla.apiserver.calls import Call
from hekla.apiserver.fielderrors import FieldError, forbidden_field, invalid, not_supported, required, too_long
from hekla.apiserver.status import StatusError

_KINDS = {"POST": "CreateOptions", "PUT": "UpdateOptions", "PATCH": "PatchOptions", "DELETE": "DeleteOptions"}
_GROUP = "meta.k8s.io"
LONGEST_MANAGER = 128
_VALIDATIONS = ("", "Ignore", "Strict", "Warn")


def check_write_options(call: Call, *, is_apply: bool = False) -> None:
    """The options of one write; most have a name of a manager at most."""
    if not call.request.raw_query:
        return
    errors = list[FieldError]()
    if call.option("force") and not is_apply and call.request.method == "PATCH":
        errors.append(forbidden_field("force", "may not be specified for non-apply patch"))
    if is_apply and not call.option("fieldManager"):
        errors.append(required("fieldManager", "is required for apply patch"))
    errors += _about_manager(call.option("fieldManager"))
    errors += dry_run_errors(call.query.get("dryRun", []))
    validation = call.option("fieldValidation")
    if validation not in _VALIDATIONS:
        errors.append(not_supported("fieldValidation", validation[:60], _VALIDATIONS))
    if errors:
        raise invalid_options(_KINDS.get(call.request.method, "CreateOptions"), errors)


def dry_run_errors(values: list[str]) -> list[FieldError]:
    """`All` is all there is."""
    return [] if all(value == "All" for value in values) else [not_supported("dryRun", values[:8], ("All",))]


def _about_manager(name: str) -> list[FieldError]:
    if len(name.encode()) > LONGEST_MANAGER:
        return [too_long("fieldManager", LONGEST_MANAGER)]
    return [
        invalid("fieldManager", name, f"invalid character U+{ord(letter):04X} (at position {at})")
        for at, letter in enumerate(name)
        if not letter.isprintable()
    ]


def invalid_options(kind: str, errors: list[FieldError]) -> StatusError:
    """422 for options, which have no name."""
    lines = [f"{error.field}: {error.message}" for error in errors]
    said = lines[0] if len(lines) == 1 else f"[{', '.join(lines)}]"
    causes = [{"reason": str(error.cause), "message": error.message, "field": error.field} for error in errors]
    details: Document = {"group": _GROUP, "kind": kind, "causes": causes}
    return StatusError(422, "Invalid", f'{kind}.{_GROUP} "" is invalid: {said}', details=details)
