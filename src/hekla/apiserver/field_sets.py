"""Sets of field paths: what a document holds, what two documents differ in, how a set is written as FieldsV1.

A path is a tuple of elements as FieldsV1 spells them: `f:spec`, `k:{"name":"c"}`, `v:"hold"`. A set of paths is a
frozenset of such tuples, so that ownership is plain set arithmetic. The rules are those of structured-merge-diff:
lists without a declared type are atomic, maps are granular unless declared atomic.
"""

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from hekla.api.meta import Document
from hekla.api.schema import Schema, for_object_meta

Path = tuple[str, ...]
Paths = frozenset[Path]
NONE: Paths = frozenset()

_ROOT_MEMBER = "."
_NOTHING: Document = {}
"""Below a leaf; one for all, because a tree of fields is only ever encoded."""

_encode = msgspec.json.Encoder(order="sorted").encode
_SECTIONS = frozenset({("f:metadata",), ("f:spec",), ("f:status",)})
"""Every object has these, so nobody is recorded as their creator."""

_KEY_DEFAULTS = {"protocol": "TCP"}
"""Keys of list items that may be left out: ports are told apart by number and protocol."""


class Difference(NamedTuple):
    """How one document differs from an older one."""

    added: Paths
    modified: Paths
    removed: Paths

    @property
    def written(self) -> Paths:
        """What the newer one has anew or otherwise."""
        return self.added | self.modified


# ---- the schema as merging sees it


def field_schema(schema: Schema | None, name: str) -> Schema | None:
    """The schema of a field or of a map's value; None where nothing is known."""
    if schema is None:
        return None
    known = schema.properties.get(name)
    if known is not None:
        return known
    rest = schema.additional_properties
    return rest if isinstance(rest, Schema) else None


def object_schema(schema: Schema) -> Schema | None:
    """The schema of a whole object (metadata is filled in by `root_field`)."""
    return schema


def root_field(schema: Schema | None, name: str) -> Schema | None:
    """The schema of a top-level field; `metadata` is the same for all kinds."""
    if name == "metadata":
        return for_object_meta()
    return field_schema(schema, name)


def is_atomic(value: object, schema: Schema | None) -> bool:
    """Whether a value is owned as a whole."""
    if isinstance(value, dict):
        return schema is not None and schema.map_type == "atomic"
    if isinstance(value, list):
        return schema is None or schema.list_type not in {"map", "set"}
    return True


def list_element(item: Any, schema: Schema) -> str:
    """How a list's item is named in a path; empty if its keys are missing."""
    if schema.list_type == "set":
        return "v:" + _compact(item)
    if not isinstance(item, dict):
        return ""
    keys: Document = {}
    for name in sorted(schema.list_map_keys):
        value = item.get(name)
        if value is None:
            known = schema.items.properties.get(name) if schema.items else None
            value = known.default if known is not None and known.has_default else _KEY_DEFAULTS.get(name)
        if value is not None:
            keys[name] = value
    return "k:" + _compact(keys)


def _compact(value: Any) -> str:
    return _encode(value).decode()


# ---- what a document holds


def paths_of(document: Document, schema: Schema | None, *, with_parents: bool = False) -> Paths:
    """Every path a document sets. `with_parents`: maps and lists are members too, as for whoever created them."""
    found: set[Path] = set()
    for name, value in document.items():
        child = root_field(schema, name)
        _collect(value, child, (f"f:{name}",), found, with_parents)
    return frozenset(found)


def _collect(value: Any, schema: Schema | None, path: Path, found: set[Path], parents: bool) -> None:
    if is_atomic(value, schema) or not value:
        found.add(path)
        return
    if parents and path not in _SECTIONS:
        found.add(path)
    if isinstance(value, dict):
        for name, item in value.items():
            _collect(item, field_schema(schema, name), (*path, f"f:{name}"), found, parents)
        return
    assert schema is not None, "a list without a schema is atomic"
    for item in value:
        element = list_element(item, schema)
        found.add((*path, element))
        if schema.list_type == "map":
            _collect(item, schema.items, (*path, element), found, parents)


def fields_of_all(document: Document, schema: Schema | None) -> Document:
    """FieldsV1 of everything a document holds, parents included: `fields_v1(paths_of(..., with_parents=True))`, but
    twenty times as fast, because reading one object alone is common. Not to be changed below its second level.
    """
    tree = {f"f:{name}": _tree(value, root_field(schema, name)) for name, value in document.items()}
    for (section,) in _SECTIONS:
        if tree.get(section):
            del tree[section][_ROOT_MEMBER]
    return tree


def _tree(value: Any, schema: Schema | None) -> Document:
    if type(value) is dict:
        return _tree_of_map(value, schema)
    if type(value) is not list or not value or schema is None or schema.list_type not in {"map", "set"}:
        return _NOTHING
    node: Document = {_ROOT_MEMBER: _NOTHING}
    if schema.list_type == "set":
        for item in value:
            node[list_element(item, schema)] = _NOTHING
        return node
    items = schema.items
    for item in value:
        node[list_element(item, schema)] = _tree(item, items)
    return node


def _tree_of_map(value: Document, schema: Schema | None) -> Document:
    if not value or (schema is not None and schema.map_type == "atomic"):
        return _NOTHING
    node: Document = {_ROOT_MEMBER: _NOTHING}
    for name, item in value.items():
        # most fields are leaves: no call for them
        inner = type(item)
        node["f:" + name] = _tree(item, field_schema(schema, name)) if inner is dict or inner is list else _NOTHING
    return node


# ---- what differs


def difference(old: Document, new: Document, schema: Schema | None) -> Difference:
    """What `new` adds, changes and drops."""
    found: tuple[set[Path], set[Path], set[Path]] = (set(), set(), set())
    for name in {**old, **new}:
        _compare_field(old, new, name, root_field(schema, name), (f"f:{name}",), found)
    return Difference(*(frozenset(one) for one in found))


def _compare_field(
    old: Document, new: Document, name: str, schema: Schema | None, path: Path,
    found: tuple[set[Path], set[Path], set[Path]],
) -> None:  # fmt: skip
    before, after = old.get(name), new.get(name)
    if after is None and before is not None and name in new:
        found[1].add(path)  # a field that is said to be null is set, which is more than not being said
        return
    _compare(before, after, schema, path, found)


def _compare(
    old: Any, new: Any, schema: Schema | None, path: Path, found: tuple[set[Path], set[Path], set[Path]]
) -> None:
    added, modified, removed = found
    if old == new and type(old) is type(new):
        return
    if old is None:
        _collect(new, schema, path, added, parents=True)
    elif new is None:
        _collect(old, schema, path, removed, parents=True)
    elif isinstance(old, dict) and isinstance(new, dict) and not is_atomic(new, schema):
        for name in {**old, **new}:
            _compare_field(old, new, name, field_schema(schema, name), (*path, f"f:{name}"), found)
    elif isinstance(old, list) and isinstance(new, list) and not is_atomic(new, schema):
        assert schema is not None, "a list without a schema is atomic"
        before, after = by_element(old, schema), by_element(new, schema)
        for element in {**before, **after}:
            _compare_item(before, after, element, schema, path, found)
    else:
        modified.add(path)


def _compare_item(
    before: Mapping[str, Any], after: Mapping[str, Any], element: str, schema: Schema, path: Path,
    found: tuple[set[Path], set[Path], set[Path]],
) -> None:  # fmt: skip
    at = (*path, element)
    inner = schema.items if schema.list_type == "map" else None
    if element not in before:
        found[0].add(at)
        if inner is not None:
            _collect(after[element], inner, at, found[0], parents=True)
    elif element not in after:
        found[2].add(at)
        if inner is not None:
            _collect(before[element], inner, at, found[2], parents=True)
    elif inner is not None:
        _compare(before[element], after[element], inner, at, found)


def by_element(items: list[Any], schema: Schema) -> dict[str, Any]:
    """A list's items by what names them."""
    return {list_element(item, schema): item for item in items}


# ---- FieldsV1


def fields_v1(paths: Paths) -> Document:
    """A set as it stands in managedFields."""
    root: Document = {}
    for path in sorted(paths):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node[_ROOT_MEMBER] = {}
    for name, child in root.items():
        root[name] = _trimmed(child)
    return root


def _trimmed(node: Document) -> Document:
    if set(node) == {_ROOT_MEMBER}:
        return {}
    return {name: ({} if name == _ROOT_MEMBER else _trimmed(child)) for name, child in node.items()}


def paths_in(fields: Document) -> Paths:
    """The set that a FieldsV1 document stands for."""
    return frozenset(_walk(fields, ()))


def _walk(node: Document, path: Path) -> Iterator[Path]:
    for name, child in node.items():
        if name == _ROOT_MEMBER:
            yield path
        elif not child:
            yield (*path, name)
        elif isinstance(child, dict):
            yield from _walk(child, (*path, name))


def with_named_parents(paths: Paths) -> Paths:
    """The set with every field on the way to a member; items of lists are members only by themselves."""
    found = set(paths)
    for path in paths:
        for length in range(1, len(path)):
            if path[length - 1].startswith("f:"):
                found.add(path[:length])
    return frozenset(found)


@lru_cache(maxsize=4096)
def path_text(path: Path) -> str:
    """A path as sentences show it: `.spec.containers[name="c"].image`."""
    return "".join(_element_text(element) for element in path)


def _element_text(element: str) -> str:
    kind, _, rest = element.partition(":")
    if kind == "f":
        return f".{rest}"
    if kind == "v":
        return f"[={rest}]"
    keys = json.loads(rest)
    return "[" + ",".join(f"{name}={_compact(value)}" for name, value in keys.items()) + "]"
