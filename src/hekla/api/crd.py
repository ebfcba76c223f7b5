"""The CustomResourceDefinition of a kind, made from its class: one source for schema, columns, names and help.

Field docstrings become descriptions, `Limits` become the schema's limits, the Python default becomes the schema's where
the field says so. `make gen` writes the result to deploy/crds/; the embedded server installs it at start.
"""

import ast
import inspect
import sys
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import NODEFAULT, Struct

from hekla.api.agents import AGENT_KINDS
from hekla.api.agents.v1alpha1_conversion import OLDER_KINDS
from hekla.api.agents.v1alpha1_schema import older_version
from hekla.api.embedded import INT_OR_STRING, embedded_schema
from hekla.api.fields import Limits, merged
from hekla.api.kthena import KTHENA_KINDS
from hekla.api.meta import Document, Kind, Resource
from hekla.api.volcano import VOLCANO_KINDS

CUSTOM_KINDS: tuple[type[Resource], ...] = (*VOLCANO_KINDS, *KTHENA_KINDS, *AGENT_KINDS)
"""Kinds that an API server learns from a CustomResourceDefinition of ours."""

_SCALARS: dict[Any, str] = {str: "string", bool: "boolean", int: "integer", float: "number"}
_META: Document = {
    "apiVersion": {"type": "string", "description": "Group and version of this object's kind."},
    "kind": {"type": "string", "description": "Kind of this object, in CamelCase."},
    "metadata": {"type": "object"},
}
_LIMIT_NAMES = {
    "format": "format",
    "minimum": "minimum",
    "maximum": "maximum",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
    "min_properties": "minProperties",
    "max_properties": "maxProperties",
    "pattern": "pattern",
    "list_type": "x-kubernetes-list-type",
    "map_type": "x-kubernetes-map-type",
}


def crd_document(kind: type[Resource], *, with_older: bool = False) -> Document:
    """The CustomResourceDefinition of a declared kind, as a document.

    `with_older` has older versions in it, too: for a server that converts them, as the embedded one does.
    """
    info = kind.kind_info
    version: Document = {"name": info.version, "served": True, "storage": True}
    if info.columns:
        version["additionalPrinterColumns"] = [_column(column) for column in info.columns]
    version["schema"] = {"openAPIV3Schema": object_schema(kind)}
    if info.has_status:
        version["subresources"] = {"status": {}}
    if info.label_selector_path:
        version["subresources"]["scale"] = {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": info.label_selector_path,
        }
    has_older = with_older and info.resource in OLDER_KINDS
    versions = [version, *([older_version(info.kind, info.group, version)] if has_older else [])]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": _metadata(info),
        "spec": {"group": info.group, "names": _names(info), "scope": str(info.scope), "versions": versions},
    }


def _metadata(info: Kind) -> Document:
    """Name; and, in a group that is Kubernetes' own, that it is not we who made the kind."""
    name = {"name": f"{info.plural}.{info.group}"}
    if not info.group.endswith((".k8s.io", ".kubernetes.io")) or info.group.endswith(".x-k8s.io"):
        return name
    approval = "unapproved, what Hekla reads of the kind; install the project's own definition on a cluster"
    return name | {"annotations": {"api-approved.kubernetes.io": approval}}


def object_schema(kind: type[Resource]) -> Document:
    """The structural schema of a whole object of this kind."""
    schema = _struct(kind)
    own = {name: one for name, one in schema["properties"].items() if name not in _META}
    return {**schema, "properties": {**_META, **own}}


def _names(info: Kind) -> Document:
    names: Document = {
        "kind": info.kind,
        "listKind": f"{info.kind}List",
        "plural": info.plural,
        "singular": info.singular,
    }
    if info.short_names:
        names["shortNames"] = list(info.short_names)
    if info.categories:
        names["categories"] = list(info.categories)
    return names


def _column(column: Any) -> Document:
    written = {"name": column.name, "type": column.type, "jsonPath": column.json_path}
    optional = {"priority": column.priority, "format": column.format, "description": column.description}
    return written | {name: value for name, value in optional.items() if value}


@cache
def _struct(cls: type[Struct]) -> Document:
    """The schema of a Struct: its docstring, its fields, which of them must be given."""
    hints, docs = get_type_hints(cls, include_extras=True), _field_docs(cls)
    properties: Document = {}
    required = []
    for field in msgspec.structs.fields(cls):
        inner, limits = _unwrapped(hints[field.name])
        schema = _schema(inner, limits)
        if limits.is_defaulted and field.default is not NODEFAULT:
            schema["default"] = field.default
        if field.name in docs:
            schema = {"description": docs[field.name], **schema}
        properties[field.encode_name] = schema
        if limits.is_required:
            required.append(field.encode_name)
    whole: Document = {"description": inspect.getdoc(cls) or "", "type": "object"}
    # an API server drops empty properties, and whoever compares what is with what was applied would find a difference for ever
    return whole | ({"properties": properties} if properties else {}) | ({"required": required} if required else {})


def _schema(inner: Any, limits: Limits) -> Document:
    """The schema of a value of type `inner` under `limits`."""
    schema = _limited(_shape(inner, limits), limits)
    if limits.rules:
        schema["x-kubernetes-validations"] = [{"rule": one.rule, "message": one.message} for one in limits.rules]
    return schema


def _shape(inner: Any, limits: Limits) -> Document:
    origin, arguments = get_origin(inner), get_args(inner)
    if limits.schema_of:
        return dict(embedded_schema(limits.schema_of))
    if limits.is_int_or_string:
        return dict(INT_OR_STRING)
    if inner in _SCALARS:
        return {"type": _SCALARS[inner]}
    if origin is list:
        return {"type": "array", "items": _schema(*_unwrapped(arguments[0]))}
    if origin is dict and arguments[1] is not Any:
        return {"type": "object", "additionalProperties": _schema(*_unwrapped(arguments[1]))}
    if origin is dict:
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {key: value for key, value in _struct(inner).items() if key != "description"}


def _limited(schema: Document, limits: Limits) -> Document:
    said = {wire: value for name, wire in _LIMIT_NAMES.items() if (value := getattr(limits, name)) not in (None, "")}
    if limits.enum:
        said["enum"] = [str(one) for one in limits.enum]
    if limits.list_keys:
        said["x-kubernetes-list-map-keys"] = list(limits.list_keys)
    return schema | said


def _unwrapped(hint: Any) -> tuple[Any, Limits]:
    """A type without `Annotated` and `| None`, and all the limits that were on the way."""
    found: list[Limits] = []
    while True:
        if get_origin(hint) is Annotated:
            hint, *notes = get_args(hint)
            found = [note for note in notes if isinstance(note, Limits)] + found
        elif get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint):
            hint = Union[tuple(one for one in get_args(hint) if one is not NoneType)]  # noqa: UP007  # made at run time
        else:
            return hint, merged(found)


@cache
def _field_docs(cls: type[Struct]) -> dict[str, str]:
    """The docstrings under the fields of a class and of those it inherits from."""
    docs: dict[str, str] = {}
    for one in reversed(cls.__mro__):
        docs |= _docs_in_module(one.__module__).get(one.__qualname__, {})
    return docs


@cache
def _docs_in_module(name: str) -> dict[str, dict[str, str]]:
    module = sys.modules[name]
    if not getattr(module, "__file__", "").endswith(".py"):
        return {}
    tree = ast.parse(inspect.getsource(module))
    return {node.name: _docs_in_class(node) for node in tree.body if isinstance(node, ast.ClassDef)}


def _docs_in_class(node: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, text in zip(node.body, node.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                docs[name] = inspect.cleandoc(said)
            case _:
                pass
    return docs
