"""Whether what is applied fits its kind's schema, in the words of structured-merge-diff: no field may be unknown there.

A POST passes over unknown fields; an apply cannot, because nobody could own them.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import Schema
from hekla.apiserver.field_sets import root_field
from hekla.apiserver.status import StatusError

_HEAD = ("apiVersion", "kind", "metadata")
_MOST_TOLD = 20
_NO_KEYS = "associative list with keys has an element that omits all key fields"
_JSON_TYPES = {bool: "boolean", str: "string", dict: "map", list: "list"}


def check_typed(config: Document, schema: Schema) -> None:
    """Raise 500, which is what Kubernetes answers here, for fields that are unknown, mistyped or there twice."""
    found = list(islice(_of_root(config, schema), _MOST_TOLD))
    if found:
        metadata = config.get("metadata", {})
        named = f"({metadata.get('namespace', '')}/{metadata.get('name', '')}; {_gvk(config)})"
        said = found[0] if len(found) == 1 else "errors:" + "".join(f"\n  {error}" for error in found)
        raise StatusError(500, "", f"failed to create typed patch object {named}: {said}")


def _gvk(config: Document) -> str:
    group, slash, version = str(config["apiVersion"]).rpartition("/")
    return f"{group}{slash or '/'}{version}, Kind={config['kind']}"


def _of_root(config: Document, schema: Schema) -> Iterator[str]:
    for name, value in sorted(config.items()):
        if name in ("apiVersion", "kind"):
            continue
        child = root_field(schema, name)
        if child is None and not _takes_anything(schema):
            yield f".{name}: field not declared in schema"
        elif child is not None:
            yield from _of(value, child, f".{name}")


def _takes_anything(schema: Schema) -> bool:
    return schema.preserve_unknown_fields or schema.additional_properties is True


def _of(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if value is None or schema.is_quantity or schema.int_or_string:
        return
    if schema.properties or isinstance(schema.additional_properties, Schema):
        yield from _of_map(value, schema, path)
    elif schema.type == "array":
        yield from _of_list(value, schema, path)
    elif schema.type == "string" and not isinstance(value, str):
        yield f"{path}: expected string, got &value.valueUnstructured{{Value:{_shown(value)}}}"
    elif schema.type == "boolean" and not isinstance(value, bool):
        yield f"{path}: expected boolean, got &value.valueUnstructured{{Value:{_shown(value)}}}"
    elif schema.type in ("integer", "number") and (isinstance(value, bool) or not isinstance(value, int | float)):
        yield f"{path}: expected numeric (int or float), got {_JSON_TYPES.get(type(value), 'unknown')}"


def _of_map(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: expected map, got &value.valueUnstructured{{Value:{_shown(value)}}}"
        return
    rest = schema.additional_properties
    for name, item in sorted(value.items()):
        child = schema.properties.get(name) or (rest if isinstance(rest, Schema) else None)
        if child is not None:
            yield from _of(item, child, f"{path}.{name}")
        elif not (_takes_anything(schema) or (schema.embedded_resource and name in _HEAD)):
            yield f"{path}.{name}: field not declared in schema"


def _of_list(value: Any, schema: Schema, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: expected list, got &value.valueUnstructured{{Value:{_shown(value)}}}"
        return
    if schema.items is None:
        return
    seen = set[str]()
    for index, item in enumerate(value):
        where = f"[{index}]"
        if schema.list_type == "map" and isinstance(item, dict):
            where = _key_of(item, schema)
            if not where:
                listed = ", ".join(f'"{key}"' for key in schema.list_map_keys)
                yield f"{path}: element {index}: {_NO_KEYS} [{listed}] (and doesn't have default values for any key fields)"
                continue
            if where in seen:
                yield f"{path}: duplicate entries for key {where}"
                continue
            seen.add(where)
        yield from _of(item, schema.items, f"{path}{where}")


def _key_of(item: Document, schema: Schema) -> str:
    """How an item is named in a sentence: `[name="c"]`; empty where it says none of its keys."""
    # the keys of Kubernetes' own types have an empty text as their default
    has_defaults = schema.items is not None and bool(schema.items.ref)
    if not has_defaults and not any(item.get(key) is not None for key in schema.list_map_keys):
        return ""
    properties = schema.items.properties if schema.items else {}
    named = []
    for key in sorted(schema.list_map_keys):
        child = properties.get(key)
        value = item.get(key, child.default if child is not None and child.has_default else None)
        if key == "protocol" and value is None:
            value = "TCP"
        if value is None and has_defaults:
            value = ""
        if value is not None:
            named.append(f"{key}={_quoted(value)}")
    return f"[{','.join(named)}]"


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else _shown(value)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else _quoted(value) if isinstance(value, str) else str(value)
