"""Strategic merge patch: a merge patch that knows which lists are maps by a key.

The schema says which (`x-kubernetes-patch-strategy`, `x-kubernetes-patch-merge-key`). Directives travel in the patch:
`$patch: delete|replace|merge`, `$retainKeys`, `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`.
"""

from collections.abc import Callable
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import Schema
from hekla.apiserver.field_sets import field_schema, root_field
from hekla.apiserver.status import StatusError, bad_request

PATCH, RETAIN = "$patch", "$retainKeys"
DELETE_FROM, ORDER = "$deleteFromPrimitiveList/", "$setElementOrder/"


def strategic_patch(document: Document, patch: Document, schema: Schema) -> Document:
    """Apply a strategic merge patch to a whole object; raises 400 for directives that make no sense."""
    directive = patch.get(PATCH)
    if directive == "replace":
        return {name: value for name, value in patch.items() if name != PATCH}
    if directive == "delete":
        return {}
    merged = dict(document)
    _merge_fields(merged, patch, schema, is_root=True)
    return merged


def _merge_map(document: Any, patch: Document, schema: Schema | None) -> Document:
    directive = patch.get(PATCH)
    if directive == "replace":
        return {name: _clean(value) for name, value in patch.items() if name != PATCH}
    if directive == "delete":
        return {}
    if directive not in {None, "merge"}:
        raise bad_request(f"unknown patch type: {directive}")
    merged = dict(document) if isinstance(document, dict) else {}
    _merge_fields(merged, patch, schema)
    return merged


def _merge_fields(merged: Document, patch: Document, schema: Schema | None, *, is_root: bool = False) -> None:
    retained = patch.get(RETAIN)
    if retained is not None:
        if not isinstance(retained, list):
            raise bad_request(f"{RETAIN} must be a list of field names")
        for name in [name for name in merged if name not in retained]:
            del merged[name]
    for name, value in patch.items():
        if name in {PATCH, RETAIN} or name.startswith(ORDER):
            continue
        if name.startswith(DELETE_FROM):
            _delete_primitives(merged, name[len(DELETE_FROM) :], value)
            continue
        child = root_field(schema, name) if is_root else field_schema(schema, name)
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            merged[name] = _merge_map(_base(merged.get(name), child), value, child)
        elif isinstance(value, list):
            merged[name] = _merge_list(merged.get(name), value, child, patch.get(ORDER + name))
        else:
            merged[name] = value
    for name in patch:
        if name.startswith(ORDER) and name[len(ORDER) :] not in patch:
            field = name[len(ORDER) :]
            child = root_field(schema, field) if is_root else field_schema(schema, field)
            if isinstance(merged.get(field), list):
                merged[field] = _ordered(merged[field], merged[field], patch[name], child)


def _base(value: Any, schema: Schema | None) -> Any:
    """What a map is merged into: nothing, where the schema says that patches replace it."""
    return None if schema is not None and "replace" in schema.patch_strategy else value


def _delete_primitives(merged: Document, field: str, values: Any) -> None:
    if isinstance(merged.get(field), list) and isinstance(values, list):
        merged[field] = [item for item in merged[field] if item not in values]
        if not merged[field]:
            del merged[field]


def _merge_list(current: Any, patch: list[Any], schema: Schema | None, order: Any) -> list[Any]:
    items = current if isinstance(current, list) else []
    if schema is None or "merge" not in schema.patch_strategy:
        return [_clean(item) for item in patch]
    key = schema.patch_merge_key
    if not key:
        merged = [*items, *(item for item in patch if item not in items)]
        return _ordered(merged, items, order, schema) if isinstance(order, list) else merged
    return _ordered(_merge_by_key(items, patch, schema, key), items, order, schema, patch)


def _merge_by_key(items: list[Any], patch: list[Any], schema: Schema, key: str) -> list[Any]:
    if any(isinstance(item, dict) and item.get(PATCH) == "replace" and len(item) == 1 for item in patch):
        return [_clean(item) for item in patch if not (isinstance(item, dict) and PATCH in item)]
    merged = list(items)
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise _no_key(key, item)
        if item.get(PATCH) == "merge":
            raise bad_request("merging lists cannot yet be specified in the patch")
        at = next((i for i, one in enumerate(merged) if isinstance(one, dict) and one.get(key) == item[key]), None)
        directive = item.get(PATCH)
        if directive == "delete":
            merged = [one for one in merged if not (isinstance(one, dict) and one.get(key) == item[key])]
        elif at is None:
            merged.append(_clean({name: value for name, value in item.items() if name != PATCH}))
        else:
            merged[at] = _merge_map(merged[at], item, schema.items)
    return merged


def _no_key(key: str, item: Any) -> StatusError:
    return bad_request(f"map: {item} does not contain declared merge key: {key}")


def _ordered(
    items: list[Any], before: list[Any], order: Any, schema: Schema | None, patch: list[Any] | None = None
) -> list[Any]:
    """Items in the order a directive (or, without one, the patch) names; `before`: the list as the server had it."""
    key = schema.patch_merge_key if schema is not None else ""

    def name_of(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    if not isinstance(order, list):
        if patch is None:
            return items
        order = patch
    names = [name_of(one) for one in order]
    named = sorted((item for item in items if name_of(item) in names), key=lambda item: names.index(name_of(item)))
    others = [item for item in items if name_of(item) not in names]
    return _woven(others, named, [name_of(item) for item in items if _is_old(item, before, name_of)], name_of)


def _is_old(item: Any, before: list[Any], name_of: Callable[[Any], Any]) -> bool:
    return any(name_of(item) == name_of(one) for one in before)


def _woven(others: list[Any], named: list[Any], places: list[Any], name_of: Callable[[Any], Any]) -> list[Any]:
    """What the patch names in its order, woven with what only the server has; in doubt the patch's go first."""
    result: list[Any] = []
    waiting = list(others)
    for item in named:
        name = name_of(item)
        while waiting and name in places and places.index(name_of(waiting[0])) < places.index(name):
            result.append(waiting.pop(0))
        result.append(item)
    return result + waiting


def _clean(value: Any) -> Any:
    """A part of a patch that is taken as it is: without directives and nulls, which delete what is not there."""
    if isinstance(value, dict):
        if value.get(PATCH) == "delete":
            return {}
        return {
            name: _clean(item)
            for name, item in value.items()
            if item is not None and not name.startswith((ORDER, DELETE_FROM)) and name not in {PATCH, RETAIN}
        }
    if isinstance(value, list):
        return [_clean(item) for item in value if not (isinstance(item, dict) and item.get(PATCH) == "delete")]
    return value
