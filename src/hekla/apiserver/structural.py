"""What a structural schema does to a custom resource: unknown fields go, nulls go, defaults come.

`compiled` turns a schema into a tree of nodes once a version; `schema_validation.py` checks values against the same
tree and `cel_rules.py` runs the rules on it.
"""

import copy
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import Schema
from hekla.apiserver import cel_rules

_TYPE_META = ("apiVersion", "kind", "metadata")


@dataclass(slots=True, eq=False)
class Node:
    """One place in the schema, with what every walk asks of it ready at hand."""

    schema: Schema
    type: str
    properties: dict[str, "Node"] = field(default_factory=dict)
    items: "Node | None" = None
    values: "Node | None" = None
    """What a map holds; None and `takes_any_key` for a map of anything."""

    takes_any_key: bool = False
    keeps_unknown: bool = False
    is_embedded: bool = False
    is_nullable: bool = False
    required: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    """Defaults of properties, by name."""

    rules: list[cel_rules.CompiledRule] = field(default_factory=list)
    list_type: str = ""
    list_map_keys: tuple[str, ...] = ()
    has_defaults: bool = False
    """Whether there is a default here or anywhere below."""

    has_rules: bool = False
    """Whether there is a rule here or anywhere below."""

    has_transition_rules: bool = False
    """Whether one of them looks at the old value, so that it speaks of what a change leaves alone, too."""

    has_keyed_lists: bool = False
    """Whether there is a list of type set or map here or anywhere below."""

    escaped: dict[str, str] = field(default_factory=dict)
    """Property names that CEL spells otherwise."""

    checks: "list[Callable[[Any, str, Any], None]]" = field(default_factory=list)
    """Filled by `schema_validation`."""


def compiled(schema: Schema, *, is_root: bool = False) -> Node:
    """The tree of a schema; raises cel_rules.RuleError for a rule that does not compile."""
    node = Node(
        schema=schema,
        type=schema.type,
        properties={
            name: compiled(child) for name, child in schema.properties.items() if not (is_root and name in _TYPE_META)
        },
        keeps_unknown=schema.preserve_unknown_fields or schema.int_or_string,
        is_embedded=schema.embedded_resource or is_root,
        is_nullable=schema.nullable,
        required=tuple(schema.raw.get("required") or ()),
        rules=[cel_rules.compile_rule(raw) for raw in schema.validations],
        list_type=schema.list_type,
        list_map_keys=schema.list_map_keys,
    )
    if schema.items is not None:
        node.items = compiled(schema.items)
    if isinstance(schema.additional_properties, Schema):
        node.values = compiled(schema.additional_properties)
    node.takes_any_key = schema.additional_properties is True
    node.defaults = {name: child.schema.default for name, child in node.properties.items() if child.schema.has_default}
    node.escaped = {name: escaped for name in node.properties if (escaped := _escaped(name)) != name}
    _sum_up(node)
    return node


def compile_rules(said: Document) -> None:
    """Raise cel_rules.RuleError for a rule of a schema that does not compile, without making its tree."""
    to_do: list[Any] = [said]
    while to_do:
        one = to_do.pop()
        if isinstance(one, dict):
            rules = one.get("x-kubernetes-validations")
            for rule in rules if isinstance(rules, list) else ():
                cel_rules.compile_rule(rule)
            to_do += one.values()
        elif isinstance(one, list):
            to_do += one


def _sum_up(node: Node) -> None:
    below = [*node.properties.values(), *[child for child in (node.items, node.values) if child is not None]]
    node.has_defaults = bool(node.defaults) or any(child.has_defaults for child in below)
    node.has_rules = bool(node.rules) or any(child.has_rules for child in below)
    node.has_transition_rules = any(rule.is_transition for rule in node.rules) or any(
        child.has_transition_rules for child in below
    )
    node.has_keyed_lists = node.list_type in ("set", "map") or any(child.has_keyed_lists for child in below)


_RESERVED = frozenset(
    ["true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let", "loop", "package", "namespace", "return", "var", "void", "while"]
)  # fmt: skip


def _escaped(name: str) -> str:
    """A property's name in CEL (`a-b` is `a__dash__b`)."""
    if name in _RESERVED:
        return f"__{name}__"
    escaped = name.replace("__", "__underscores__")
    for char, word in ((".", "__dot__"), ("-", "__dash__"), ("/", "__slash__")):
        escaped = escaped.replace(char, word)
    return escaped


# ---- pruning


def prune(
    value: Any,
    node: Node,
    path: str = "",
    unknown: list[str] | None = None,
    *,
    is_root: bool = False,
    but: Collection[str] = (),
) -> None:
    """Take out what the schema does not know, in place; sentences on it go to `unknown`. Properties in `but` are not looked into."""
    if isinstance(value, dict):
        _prune_object(value, node, path, unknown, is_root=is_root, but=but)
    elif isinstance(value, list) and node.items is not None:
        for index, item in enumerate(value):
            prune(item, node.items, f"{path}[{index}]", unknown)


def _prune_object(
    value: Document, node: Node, path: str, unknown: list[str] | None, *, is_root: bool, but: Collection[str]
) -> None:
    for key in list(value):
        if key in but:
            continue
        where = f"{path}.{key}" if path else key
        if node.is_embedded and key in _TYPE_META:
            continue
        child = node.properties.get(key)
        if child is not None:
            prune(value[key], child, where, unknown)
        elif node.values is not None:
            prune(value[key], node.values, where, unknown)
        elif not node.keeps_unknown and not node.takes_any_key and not _is_free(node, is_root=is_root):
            del value[key]
            if unknown is not None:
                unknown.append(f'unknown field "{where}"')


def _is_free(node: Node, *, is_root: bool) -> bool:
    # a node without a type is one that says x-kubernetes-int-or-string or nothing at all; nothing is known of it
    return not node.type and not is_root


# ---- nulls and defaults


def drop_nulls(value: Any, node: Node, but: Collection[str] = ()) -> None:
    """Take out nulls where they are not allowed; a default may then take their place. Properties in `but` are not looked into."""
    if isinstance(value, dict):
        for key in [key for key, item in value.items() if item is None and _drops_null(node, key)]:
            del value[key]
        for key, item in value.items():
            child = node.properties.get(key) or node.values
            if child is not None and type(item) in (dict, list) and key not in but:
                drop_nulls(item, child)
    elif isinstance(value, list) and node.items is not None:
        for item in value:
            drop_nulls(item, node.items)


def _drops_null(node: Node, key: str) -> bool:
    child = node.properties.get(key) or node.values
    if child is None:
        return False
    return not child.is_nullable and (bool(child.type) or child.schema.int_or_string)


def default(value: Any, node: Node, but: Collection[str] = ()) -> None:
    """Fill in defaults, in place; properties in `but` are not looked into."""
    if not node.has_defaults:
        return
    if isinstance(value, dict):
        for name, standard in node.defaults.items():
            if name not in value:
                value[name] = copy.deepcopy(standard)
        for key, item in value.items():
            child = node.properties.get(key) or node.values
            if child is not None and type(item) in (dict, list) and key not in but:
                default(item, child)
    elif isinstance(value, list) and node.items is not None:
        for item in value:
            default(item, node.items)


def embedded_objects(value: Any, node: Node, path: str = "") -> list[tuple[str, Document]]:
    """Where other objects are embedded in this one, and what they are."""
    found: list[tuple[str, Document]] = []
    if isinstance(value, dict):
        if node.schema.embedded_resource:
            found.append((path, value))
        for key, item in value.items():
            child = node.properties.get(key) or node.values
            if child is not None:
                found += embedded_objects(item, child, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and node.items is not None:
        for index, item in enumerate(value):
            found += embedded_objects(item, node.items, f"{path}[{index}]")
    return found
