"""Which of a list's and a watch's query go together: `resourceVersionMatch`, `continue`, `sendInitialEvents`.

Raises 422 in Kubernetes' words; `options.py` has the query of a write.
"""

from hekla.apiserver.calls import Call
from hekla.apiserver.fielderrors import FieldError, forbidden_field, not_supported
from hekla.apiserver.options import invalid_options

_MATCH, _NEWER = "resourceVersionMatch", "NotOlderThan"
_WITH_CONTINUE = forbidden_field(_MATCH, f"{_MATCH} is forbidden when continue is provided")


def check_list_options(call: Call) -> None:
    """The options of a list."""
    match, asked, errors = call.option(_MATCH), call.option("resourceVersion"), list[FieldError]()
    if match and not asked:
        errors.append(forbidden_field(_MATCH, f"{_MATCH} is forbidden unless resourceVersion is provided"))
    if match and call.option("continue"):
        errors.append(_WITH_CONTINUE)
    if match not in {"", "Exact", _NEWER}:
        errors.append(not_supported(_MATCH, match[:60], ("Exact", _NEWER, "")))
    if match == "Exact" and asked == "0":
        errors.append(forbidden_field(_MATCH, f'{_MATCH} "exact" is forbidden for resourceVersion "0"'))
    if call.option("sendInitialEvents"):
        errors.append(forbidden_field("sendInitialEvents", "sendInitialEvents is forbidden for list"))
    if errors:
        raise invalid_options("ListOptions", errors)


def check_watch_options(call: Call) -> None:
    """The options of a watch."""
    match, asks_for_initial, errors = call.option(_MATCH), bool(call.option("sendInitialEvents")), list[FieldError]()
    # Kubernetes reads a watch from no revision as one that asks for what there is, which says `NotOlderThan`
    is_implied = not match and not asks_for_initial and call.option("resourceVersion") in {"", "0"}
    if asks_for_initial and match != _NEWER:
        errors.append(forbidden_field(_MATCH, f"sendInitialEvents requires setting {_MATCH} to {_NEWER}"))
    if match and not asks_for_initial:
        errors.append(forbidden_field(_MATCH, f"{_MATCH} is forbidden for watch unless sendInitialEvents is provided"))
    if match not in {"", _NEWER}:
        errors.append(not_supported(_MATCH, match[:60], (_NEWER,)))
    if call.option("continue") and (match or is_implied):
        errors.append(_WITH_CONTINUE)
    if errors:
        raise invalid_options("ListOptions", errors)
