"""The fields of a kind: a tree that decoding, defaulting, pruning, patching and `kubectl explain` all walk.

Built-in kinds come from the data in `hekla.api.kubernetes`, custom ones from their CRD's `openAPIV3Schema`. A tree is
made as it is walked, because some types contain themselves (JSONSchemaProps) and most are never asked for.
"""

import gzip
from collections.abc import Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import msgspec

COMPONENTS = "#/components/schemas/"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"


class Schema:
    """One node of the tree. Read-only; equal parts of built-in kinds are one node, so it can key a cache."""

    def __init__(self, raw: Mapping[str, Any], *, ref: str = "", node: Mapping[str, Any] | None = None) -> None:
        self._raw, self._node = raw, node or raw
        self.ref = ref
        """The name of the definition in Kubernetes' schemas (`io.k8s.api.core.v1.Pod`); empty for an anonymous one."""
        self.type: str = raw.get("type", "object" if "properties" in raw else "")
        self.format: str = raw.get("format", "")
        self.required: frozenset[str] = frozenset(raw.get("required", ()))
        self.list_type: str = self._said("x-kubernetes-list-type", "")
        self.list_map_keys: tuple[str, ...] = tuple(self._said("x-kubernetes-list-map-keys", ()))
        self.map_type: str = self._said("x-kubernetes-map-type", "")
        self.patch_merge_key: str = self._said("x-kubernetes-patch-merge-key", "")
        self.patch_strategy: tuple[str, ...] = tuple(
            part for part in self._said("x-kubernetes-patch-strategy", "").split(",") if part
        )
        self.int_or_string: bool = bool(raw.get("x-kubernetes-int-or-string"))
        self.preserve_unknown_fields: bool = bool(raw.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded_resource: bool = bool(raw.get("x-kubernetes-embedded-resource"))
        self.nullable: bool = bool(raw.get("nullable"))

    def _said(self, key: str, otherwise: Any) -> Any:
        # what stands beside a reference goes before what the referenced definition says
        return self._node.get(key, self._raw.get(key, otherwise))

    @property
    def raw(self) -> Mapping[str, Any]:
        """The document that this node was made from, for the keywords that have no attribute here."""
        return self._raw

    @property
    def description(self) -> str:
        """What `kubectl explain` prints."""
        return cast(str, self._said("description", ""))

    @property
    def has_default(self) -> bool:
        """Whether there is a default at all (it may be null)."""
        return "default" in self._node

    @property
    def default(self) -> Any:
        """The value that stands for a missing one."""
        return self._node.get("default")

    @property
    def enum(self) -> tuple[Any, ...]:
        """The only values allowed, if there are any."""
        return tuple(self._raw.get("enum", ()))

    @property
    def pattern(self) -> str:
        """The regular expression a string must match somewhere."""
        return cast(str, self._raw.get("pattern", ""))

    @property
    def minimum(self) -> float | int | None:
        """The least number."""
        return self._raw.get("minimum")

    @property
    def maximum(self) -> float | int | None:
        """The greatest number."""
        return self._raw.get("maximum")

    @property
    def min_length(self) -> int | None:
        """The least number of characters."""
        return self._raw.get("minLength")

    @property
    def max_length(self) -> int | None:
        """The greatest number of characters."""
        return self._raw.get("maxLength")

    @property
    def min_items(self) -> int | None:
        """The least number of items."""
        return self._raw.get("minItems")

    @property
    def validations(self) -> tuple[Mapping[str, Any], ...]:
        """CEL rules (`rule`, `message`, ...), as the CRD says them."""
        return tuple(self._raw.get("x-kubernetes-validations", ()))

    @property
    def is_pointer(self) -> bool:
        """Whether an explicit zero differs from no value at all; of optional scalars of built-in kinds."""
        return bool(self._node.get("x-hekla-pointer"))

    @property
    def is_quantity(self) -> bool:
        """Whether it is a resource quantity."""
        return self.format == "quantity"

    @cached_property
    def properties(self) -> Mapping[str, "Schema"]:
        """The fields of an object."""
        return {name: _child(raw) for name, raw in self._raw.get("properties", {}).items()}

    @cached_property
    def items(self) -> "Schema | None":
        """What a list holds."""
        raw = self._raw.get("items")
        return _child(raw) if isinstance(raw, dict) else None

    @cached_property
    def additional_properties(self) -> "Schema | bool | None":
        """What a map holds; True is anything."""
        raw = self._raw.get("additionalProperties")
        return _child(raw) if isinstance(raw, dict) else raw

    def to_openapi(self) -> dict[str, Any]:
        """The node as OpenAPI v3; named parts are references into `#/components/schemas/` (see `definitions`)."""
        return cast(dict[str, Any], _published(self._node))

    def __repr__(self) -> str:
        return f"Schema({self.ref or self.type})"


def from_openapi(document: Mapping[str, Any]) -> Schema:
    """The tree of a CRD's `openAPIV3Schema`."""
    return Schema(document)


@cache
def for_kind(group: str, version: str, kind: str) -> Schema:
    """The tree of a built-in kind; KeyError if there is none."""
    return named(_by_kind()[group, version, kind])


def for_object_meta() -> Schema:
    """The tree of `metadata`, which custom resources share with built-in kinds."""
    return named(f"{_META}.ObjectMeta")


@cache
def head_descriptions() -> Mapping[str, str]:
    """What is said of `apiVersion`, `kind` and `metadata`, which custom resources have as built-in kinds do."""
    fields = named("io.k8s.api.core.v1.ConfigMap").properties
    return {name: fields[name].description for name in ("apiVersion", "kind", "metadata")}


@cache
def named(ref: str) -> Schema:
    """The tree of one definition."""
    return Schema(msgspec.json.decode(_raw_definitions()[ref]), ref=ref)


def definitions() -> Mapping[str, Mapping[str, Any]]:
    """Every definition as OpenAPI v3, for `components.schemas`."""
    return {name: named(name).to_openapi() for name in _raw_definitions()}


def _child(raw: Mapping[str, Any]) -> Schema:
    ref = raw.get("$ref")
    if ref is None:
        return Schema(raw)
    target = named(ref)
    return target if len(raw) == 1 else Schema(target._raw, ref=ref, node=raw)


def _published(node: Any) -> Any:
    if isinstance(node, list):
        return [_published(one) for one in node]
    if not isinstance(node, Mapping):
        return node
    shown = {key: _published(value) for key, value in node.items() if key != "x-hekla-pointer"}
    if shown.get("default", "") is None:
        del shown["default"]
    if shown.get("format") == "quantity":
        return {"description": shown.get("description", ""), "oneOf": [{"type": "string"}, {"type": "number"}]}
    if shown.get("format") == "int-or-string" and "x-kubernetes-int-or-string" in shown:
        return {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}
    if isinstance(node.get("$ref"), str):
        return {**{k: v for k, v in shown.items() if k != "$ref"}, "allOf": [{"$ref": COMPONENTS + node["$ref"]}]}
    return shown


@cache
def _raw_definitions() -> dict[str, msgspec.Raw]:
    # each definition stays bytes until it is asked for: 3 ms instead of 15 for all of them
    packed = Path(__file__).with_name("kubernetes").joinpath("openapi-1.36.json.gz").read_bytes()
    return msgspec.json.decode(gzip.decompress(packed), type=dict[str, msgspec.Raw])


class _Gvk(msgspec.Struct):
    group: str
    version: str
    kind: str


class _Head(msgspec.Struct, rename={"kinds": "x-kubernetes-group-version-kind"}):
    kinds: list[_Gvk] = []


@cache
def _by_kind() -> dict[tuple[str, str, str], str]:
    decode = msgspec.json.Decoder(_Head).decode
    found: dict[tuple[str, str, str], str] = {}
    for ref, raw in _raw_definitions().items():
        for gvk in decode(raw).kinds:
            # Status, DeleteOptions and the like are listed under every group
            if not ref.startswith(_META) or (gvk.group, gvk.version) == ("", "v1"):
                found[gvk.group, gvk.version, gvk.kind] = ref
    return found
