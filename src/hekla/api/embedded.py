"""Kubernetes' own types inside a custom resource: a pod template within a Job has the schema that a Pod has.

The published definitions refer to one another; a custom resource's schema must be whole and structural, so references
are resolved here and what only Kubernetes' own types may say is left out. `crd.py` puts the result in its place.
"""

import gzip
import json
from functools import cache
from importlib import resources
from typing import Any

from hekla.api.fields import QUANTITY_PATTERN
from hekla.api.meta import Document

INT_OR_STRING: Document = {"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}
QUANTITY: Document = {**INT_OR_STRING, "pattern": QUANTITY_PATTERN}
_STRING: Document = {"type": "string"}
_TEMPLATE_META: Document = {
    "type": "object",
    "properties": {
        "annotations": {"type": "object", "additionalProperties": _STRING},
        "finalizers": {"type": "array", "items": _STRING},
        "labels": {"type": "object", "additionalProperties": _STRING},
        "name": _STRING,
        "namespace": _STRING,
    },
}
"""Metadata of a template: the rest of ObjectMeta is the server's to set."""

_BY_HAND: dict[str, Document] = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": QUANTITY,
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": INT_OR_STRING,
    "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta": _TEMPLATE_META,
}
_KEPT = ("type", "format", "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-map-type")


@cache
def embedded_schema(name: str) -> Document:
    """The structural schema of a published type such as `io.k8s.api.core.v1.PodTemplateSpec`. Do not change it."""
    return _structural(_definitions()[name])


@cache
def _definitions() -> dict[str, Any]:
    packed = resources.files("hekla.api.kubernetes").joinpath("openapi-1.36.json.gz").read_bytes()
    loaded: dict[str, Any] = json.loads(gzip.decompress(packed))
    return loaded


def _structural(schema: Document) -> Document:
    reference = schema.get("$ref") or next((one["$ref"] for one in schema.get("allOf", ()) if "$ref" in one), "")
    if reference:
        return _resolved(reference.rpartition("/")[2])
    kept: Document = {key: schema[key] for key in _KEPT if key in schema}
    if "properties" in schema:
        kept["properties"] = {name: _structural(one) for name, one in schema["properties"].items()}
    if schema.get("required"):
        kept["required"] = sorted(schema["required"])
    if "items" in schema:
        kept["items"] = _keyed(_structural(schema["items"]), schema.get("x-kubernetes-list-map-keys", ()))
    if "additionalProperties" in schema:
        kept["additionalProperties"] = _structural(schema["additionalProperties"])
    return kept


@cache
def _resolved(name: str) -> Document:
    return _BY_HAND.get(name) or _structural(_definitions()[name])


def _keyed(items: Document, keys: tuple[str, ...] | list[str]) -> Document:
    """Items of a list that is merged by keys: each key must be required or have a default, or the list is refused."""
    optional = [key for key in keys if key not in items.get("required", ())]
    if not optional:
        return items
    properties = {**items["properties"]}
    for key in optional:
        properties[key] = {**properties[key], "default": "TCP" if key == "protocol" else ""}
    return {**items, "properties": properties}
