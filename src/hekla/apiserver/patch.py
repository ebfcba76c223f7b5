"""JSON patch (RFC 6902) and merge patch (RFC 7386): from a document and a patch to a document.

`strategic.py` has Kubernetes' own patch, `apply.py` server-side apply.
"""

import copy
import re
from typing import Any

from hekla.api.meta import Document
from hekla.apiserver.bodies import is_same
from hekla.apiserver.status import StatusError, bad_request, rejected

MAX_OPERATIONS = 10_000
"""As Kubernetes bounds it, since a short patch can copy a document into itself many times over."""

MAX_COPIED = 3 << 20
_INDEX = re.compile(r"([+-]?)(0|[1-9][0-9]{0,8})")


def merge_patch(document: Any, patch: Any) -> Any:
    """Apply a merge patch; what `document` holds may be shared with the result."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(document) if isinstance(document, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = merge_patch(merged.get(name), value)
        else:
            merged[name] = value
    return merged


def json_patch(document: Document, operations: Any) -> Document:
    """Apply a JSON patch; raises 422 where an operation cannot be carried out, 400 where it makes no sense."""
    if not isinstance(operations, list) or not all(isinstance(one, dict) for one in operations):
        raise bad_request("a JSON patch must be a list of operations")
    if len(operations) > MAX_OPERATIONS:
        said = f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(operations)}"
        raise StatusError(413, "RequestEntityTooLarge", said)
    root: dict[str, Any] = {"": document}
    budget = [MAX_COPIED]
    for operation in operations:
        _apply(root, operation, budget)
    result = root.get("")
    if not isinstance(result, dict):
        raise rejected()
    return result


def _apply(root: dict[str, Any], operation: Document, budget: list[int]) -> None:
    path = _pointer(operation, "path")
    match operation.get("op"):
        case "add":
            _add(root, path, _value(operation))
        case "remove":
            _remove(root, path)
        case "replace":
            _replace(root, path, _value(operation))
        case "test":
            _test(root, path, operation.get("value"))
        case "move":
            source = _pointer(operation, "from")
            value = _find(root, source)
            _remove(root, source)
            _add(root, path, value)
        case "copy":
            _add(root, path, _copied(_find(root, _pointer(operation, "from")), budget))
        case _:
            raise rejected()


def _copied(value: Any, budget: list[int]) -> Any:
    budget[0] -= len(repr(value))
    if budget[0] < 0:
        raise StatusError(413, "RequestEntityTooLarge", "the JSON patch copies more than 3 MB")
    return copy.deepcopy(value)


def _value(operation: Document) -> Any:
    if "value" not in operation:
        raise rejected()
    return copy.deepcopy(operation["value"])


def _pointer(operation: Document, name: str) -> list[str]:
    text = operation.get(name)
    if not isinstance(text, str) or (text and not text.startswith("/")):
        raise rejected()
    return [part.replace("~1", "/").replace("~0", "~") for part in text.split("/")]


def _find(root: Any, path: list[str]) -> Any:
    value = root
    for part in path:
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list):
            value = value[_index(part, len(value) - 1)]
        else:
            raise rejected()
    return value


def _index(part: str, last: int) -> int:
    said = _INDEX.fullmatch(part)
    if said is None:
        raise rejected()
    sign, at = said[1], int(said[2])
    if sign == "-" and at:  # from the end, as by the library that Kubernetes uses
        at = last + 1 - at
    if not 0 <= at <= last:
        raise rejected()
    return at


def _add(root: Any, path: list[str], value: Any) -> None:
    parent, last = _find(root, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
    else:
        raise rejected()


def _replace(root: Any, path: list[str], value: Any) -> None:
    parent, last = _find(root, path[:-1]), path[-1]
    if isinstance(parent, list):
        parent[_index(last, len(parent) - 1)] = value
    elif isinstance(parent, dict):  # a key that is not there is made, as by the library that Kubernetes uses
        parent[last] = value
    else:
        raise rejected()


def _remove(root: Any, path: list[str]) -> None:
    parent, last = _find(root, path[:-1]), path[-1]
    if isinstance(parent, dict) and last in parent:
        del parent[last]
    elif isinstance(parent, list):
        del parent[_index(last, len(parent) - 1)]
    else:
        raise rejected()


def _test(root: Any, path: list[str], value: Any) -> None:
    try:
        found = _find(root, path)
    except StatusError:
        # a missing value passes a test for null, as the library that Kubernetes uses has it
        if value is None:
            return
        raise
    if not is_same(found, value):
        raise rejected()
