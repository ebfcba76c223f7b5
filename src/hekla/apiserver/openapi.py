"""OpenAPI: what `kubectl explain`, `apply` and `diff` read. One document per group and version, made from the schemas.

Only what clients look at is published: the schemas with their references, and per resource the paths with the
parameters that a client asks about (fieldValidation, dryRun) and the kinds they handle.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from hekla.api.meta import Document
from hekla.api.schema import COMPONENTS, definitions, for_object_meta, head_descriptions
from hekla.apiserver.bodies import encode
from hekla.apiserver.negotiation import JSON
from hekla.apiserver.registry import Registry, Served
from hekla.apiserver.status import not_acceptable
from hekla.wire.messages import Request, Response

INFO: Document = {"title": "Kubernetes", "version": "v1.36.0-hekla"}
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_GVK = "x-kubernetes-group-version-kind"
_PARAMETERS = {
    "dryRun": "whether to store nothing",
    "fieldManager": "who is recorded as the owner of the fields that are set",
    "fieldValidation": "what to do about unknown fields: Ignore, Warn or Strict",
    "force": "whether to take fields from their owners",
    "pretty": "has no effect",
}


class OpenApi:
    """Answers /openapi/v3 and /openapi/v2."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: dict[str, tuple[bytes, str]] = {}
        registry.on_change(self._made.clear)

    def answer(self, request: Request, path: str) -> Response | None:
        """The document at a path; None if it is not about OpenAPI."""
        if path == "/openapi/v2":
            return self._v2(request)
        if path == "/openapi/v3" or path == "/openapi/v3/":
            return Response(200, encode({"paths": self._index()}), JSON)
        if not path.startswith("/openapi/v3/"):
            return None
        at = path[len("/openapi/v3/") :]
        if at not in self._places():
            return None
        body, tag = self._document(at)
        headers = (("etag", f'"{tag}"'), ("cache-control", "public, immutable"), ("vary", "Accept"))
        if request.headers.get("if-none-match") == f'"{tag}"':
            return Response(304, b"", JSON, headers)
        return Response(200, body, JSON, headers)

    def _places(self) -> dict[str, tuple[str, str]]:
        """Where each group and version's document lies."""
        return {
            f"apis/{one.kind.group}/{one.kind.version}" if one.kind.group else f"api/{one.kind.version}": (
                one.kind.group,
                one.kind.version,
            )
            for one in self._registry
        }

    def _index(self) -> Document:
        return {
            at: {"serverRelativeURL": f"/openapi/v3/{at}?hash={self._document_tag(at)}"}
            for at in sorted(self._places())
        }

    def _document_tag(self, at: str) -> str:
        # the names and schemas of what is served decide the document; making it for the index alone would cost seconds
        group, version = self._places()[at]
        digest = hashlib.sha256()
        for served in self._registry.in_version(group, version):
            digest.update(served.head)
            if served.is_custom:
                digest.update(repr(served.strategy.schema.raw).encode())
        return digest.hexdigest().upper()

    def _document(self, at: str) -> tuple[bytes, str]:
        known = self._made.get(at)
        if known is None:
            group, version = self._places()[at]
            document = self._made_for(group, version)
            known = self._made[at] = (encode(document), self._document_tag(at))
        return known

    def _made_for(self, group: str, version: str) -> Document:
        served = self._registry.in_version(group, version)
        schemas: Document = {}
        for one in served:
            schemas[schema_name(one)] = _schema_of(one)
            schemas[f"{schema_name(one)}List"] = _list_schema(one)
        _add_referenced(schemas)
        paths: Document = {}
        for one in served:
            paths |= _paths_of(one)
        return {"openapi": "3.0.0", "info": INFO, "paths": paths, "components": {"schemas": schemas}}

    def _v2(self, request: Request) -> Response:
        accept = request.headers.get("accept", "")
        if accept.startswith(V2_PROTOBUF):
            return Response(200, _v2_without_kinds(), V2_PROTOBUF.replace("@", "."))  # no media type may hold an @
        if accept and "json" not in accept and "*/*" not in accept:
            raise not_acceptable([JSON])
        known = self._made.get("v2")
        if known is None:
            known = self._made["v2"] = (self._v2_body(), "")
        return Response(200, known[0], JSON)

    def _v2_body(self) -> bytes:
        schemas: Document = {}
        paths: Document = {}
        for one in self._registry:
            schemas[schema_name(one)] = _schema_of(one)
            paths |= {path: {} for path in _paths_of(one)}
        _add_referenced(schemas)
        document = {"swagger": "2.0", "info": INFO, "paths": paths, "definitions": _as_v2(schemas)}
        return encode(document).replace(b"#/components/schemas/", b"#/definitions/")


def _v2_without_kinds() -> bytes:
    """Gnostic's Document with its version and title alone.

    kubectl asks for it when a manifest names a kind that v3 does not know, and needs to read there that v2 does not
    know it either: then it says `no matches for kind`, and a 406 would stand in the way of that sentence.
    """
    info = _text_field(1, INFO["title"]) + _text_field(2, INFO["version"])
    return _text_field(1, "2.0") + _bytes_field(2, info)


def _text_field(number: int, text: str) -> bytes:
    return _bytes_field(number, text.encode())


def _bytes_field(number: int, value: bytes) -> bytes:
    assert len(value) < 128, "a longer length needs a varint of several bytes"
    return bytes((number << 3 | 2, len(value))) + value


def _as_v2(node: Any) -> Any:
    """Without what OpenAPI v2 has no word for: choices, and references beside other keys."""
    if isinstance(node, list):
        return [_as_v2(one) for one in node]
    if not isinstance(node, dict):
        return node
    shown = {key: _as_v2(value) for key, value in node.items() if key not in {"oneOf", "anyOf", "allOf", "nullable"}}
    references = node.get("allOf") or []
    if len(references) == 1 and "$ref" in references[0]:
        shown |= references[0]
    if "oneOf" in node:
        shown["type"] = "string"
    return shown


def schema_name(served: Served) -> str:
    """The name of a kind's schema: Kubernetes' for built-in kinds, the reversed group for custom ones."""
    schema = served.strategy.schema
    if schema.ref:
        return schema.ref
    kind = served.kind
    return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])


def _gvk(served: Served) -> Document:
    return {"group": served.kind.group, "version": served.kind.version, "kind": served.kind.kind}


def _schema_of(served: Served) -> Document:
    schema: Document = dict(served.strategy.schema.to_openapi())
    if served.is_custom:
        known = dict(schema.get("properties") or {})
        known.setdefault("apiVersion", {"type": "string"})
        known.setdefault("kind", {"type": "string"})
        reference = [{"$ref": COMPONENTS + for_object_meta().ref}]
        known["metadata"] = {"allOf": reference, "description": head_descriptions()["metadata"]}
        schema["properties"] = known
    schema[_GVK] = [_gvk(served)]
    return schema


def _list_schema(served: Served) -> Document:
    kind = served.kind
    return {
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"allOf": [{"$ref": f"{COMPONENTS}{_META}.ListMeta"}]},
            "items": {"type": "array", "items": {"allOf": [{"$ref": COMPONENTS + schema_name(served)}]}},
        },
        _GVK: [{"group": kind.group, "version": kind.version, "kind": served.list_kind}],
    }


def _add_referenced(schemas: Document) -> None:
    """Bring in every definition that what is there refers to."""
    known = definitions()
    waiting = [name for schema in schemas.values() for name in _references(schema)]
    while waiting:
        name = waiting.pop()
        if name in schemas or name not in known:
            continue
        schemas[name] = known[name]
        waiting += _references(known[name])


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for one in node:
            yield from _references(one)
    elif isinstance(node, dict) or hasattr(node, "items"):
        for key, value in node.items():
            if key == "$ref" and isinstance(value, str):
                yield value.removeprefix(COMPONENTS)
            else:
                yield from _references(value)


def _paths_of(served: Served) -> Document:
    kind = served.kind
    where = kind.path("{namespace}" if kind.is_namespaced else None)
    paths: Document = {where: _operations(served, {"get": "list", "post": "create", "delete": "deletecollection"})}
    named = {"get": "get", "put": "update", "patch": "patch", "delete": "delete"}
    if not served.is_virtual or "get" in served.verbs:
        paths[f"{where}/{{name}}"] = _operations(served, named)
    for part in served.subresources.values():
        own = {"get": "get", "put": "update", "patch": "patch", "post": "create"}
        gvk = {
            "group": part.group or kind.group,
            "version": part.version or kind.version,
            "kind": part.kind or kind.kind,
        }
        paths[f"{where}/{{name}}/{part.name}"] = _operations(served, own, verbs=part.verbs, gvk=gvk)
    return paths


def _operations(
    served: Served, methods: dict[str, str], *, verbs: tuple[str, ...] = (), gvk: Document | None = None
) -> Document:
    return {
        method: _operation(served, verb, gvk or _gvk(served))
        for method, verb in methods.items()
        if verb in (verbs or served.verbs)
    }


_ACTIONS = {"get": "get", "list": "list", "create": "post", "update": "put", "patch": "patch", "delete": "delete"}


def _operation(served: Served, verb: str, gvk: Document) -> Document:
    reference = {"schema": {"$ref": COMPONENTS + schema_name(served)}}
    operation: Document = {
        "operationId": f"{verb}{served.kind.version.capitalize()}{served.kind.kind}",
        "responses": {"200": {"description": "OK", "content": {JSON: reference}}},
        "x-kubernetes-action": _ACTIONS.get(verb, verb),
        _GVK: gvk,
    }
    if verb in {"create", "update", "patch"}:
        operation["parameters"] = [
            {"name": name, "in": "query", "description": text, "schema": {"type": "string", "uniqueItems": True}}
            for name, text in _PARAMETERS.items()
        ]
    return operation
