"""Whatever is sent, decoding refuses it with a sentence or makes a document that every later step can bear."""

import copy
import json
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hekla.api import kinds
from hekla.api.meta import KINDS, Document
from hekla.api.schema import Schema, from_openapi
from hekla.apiserver import structural
from hekla.apiserver.fielderrors import FieldError, invalid_object
from hekla.apiserver.status import StatusError
from hekla.apiserver.strategies import builtin_strategies, for_custom_resource
from hekla.apiserver.strategy import Strategy

BUILTIN = {name: strategy for name, strategy in builtin_strategies().items() if strategy.kind.kind not in ("Binding",)}
WORDS = st.sampled_from(["a", "b", "A_b", "", "cpu", "memory", "nvidia.com/gpu", "Always", "Never", "TCP", "In", "Exists", "1Gi", "500m", "25%", "-1", "10.0.0.1", "x" * 70, "a/b/c"])  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 2, 80, 70000, 2**31])
AMOUNTS = st.sampled_from([0, 1, "1", "500m", "2Gi", "-1", "1.5"])
JUNK = st.one_of(
    st.none(), st.booleans(), NUMBERS, WORDS, st.just([]), st.just({}), st.just([None]), st.just({"k": None})
)
assert kinds.FAMILIES, "importing the families fills KINDS"
SETTINGS = settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
DEPTH = 7


@st.composite
def values(draw: st.DrawFn, schema: Schema, depth: int) -> Any:
    """A value of a schema's shape, and now and then one of another."""
    if depth == 0:
        return draw(st.sampled_from([None, {}])) if schema.type == "object" else None
    return draw(JUNK if draw(st.integers(0, 60)) == 60 else shaped(schema, depth))


def shaped(schema: Schema, depth: int) -> st.SearchStrategy[Any]:
    if schema.properties:
        return chosen(schema, depth)
    if schema.items is not None:
        return st.lists(values(schema.items, depth - 1), max_size=2)
    if isinstance(schema.additional_properties, Schema):
        return st.dictionaries(WORDS, values(schema.additional_properties, depth - 1), max_size=2)
    if schema.int_or_string or schema.is_quantity:
        return AMOUNTS
    if schema.format == "date-time":
        return st.just("2026-01-01T00:00:00Z")
    return {"integer": NUMBERS, "boolean": st.booleans(), "string": WORDS}.get(schema.type, JUNK)


@st.composite
def chosen(draw: st.DrawFn, schema: Schema, depth: int) -> Document:
    names = draw(st.lists(st.sampled_from(sorted(schema.properties)), max_size=5, unique=True))
    likely = [
        name
        for name in ("metadata", "spec", "template", "containers", "versions", "schema")
        if name in schema.properties
    ]
    return {name: draw(values(schema.properties[name], depth - 1)) for name in dict.fromkeys([*likely, *names])}


@st.composite
def attempts(draw: st.DrawFn) -> tuple[Strategy, Document]:
    name = draw(st.sampled_from(sorted(BUILTIN)))
    strategy = BUILTIN[name]
    body = draw(chosen(strategy.schema, DEPTH))
    body.pop("apiVersion", None)
    body.pop("kind", None)
    return strategy, body


def are_sentences(strategy: Strategy, errors: list[FieldError]) -> bool:
    status = invalid_object(strategy.kind, "x", errors).document()
    return all(error.field and error.message for error in errors) and bool(json.dumps(status))


@SETTINGS
@given(attempts())
def test_junk_is_refused_with_sentences_and_never_crashes(attempt: tuple[Strategy, Document]):
    strategy, body = attempt
    try:
        document = strategy.decode(json.dumps(body).encode(), "application/json").document
    except StatusError as error:
        refused = error.document()
    else:
        refused = {}
    assert not refused or (refused["code"] == 400 and refused["message"])
    if refused:
        return
    metadata = document.setdefault("metadata", {})
    metadata["name"], metadata["uid"] = "x", "u"
    made = strategy.prepare_create(document)
    assert are_sentences(strategy, strategy.validate_create(made))
    once = json.dumps(made, sort_keys=True)
    assert json.dumps(strategy.prepare_create(copy.deepcopy(made)), sort_keys=True) == once
    old = json.loads(once)
    assert are_sentences(strategy, strategy.validate_update(strategy.prepare_update(copy.deepcopy(made), old), old))
    assert are_sentences(
        strategy, strategy.validate_update(strategy.prepare_update(copy.deepcopy(made), old, "status"), old, "status")
    )


@SETTINGS
@given(attempts())
def test_the_typed_views_read_whatever_was_understood(attempt: tuple[Strategy, Document]):
    strategy, body = attempt
    view = KINDS.get(f"{strategy.kind.resource}/{strategy.kind.version}")
    try:
        strategy.check_types(body)
    except StatusError:
        return
    if view is not None:
        assert msgspec.convert(strategy.prepare_create(body), view).kind == strategy.kind.kind


@SETTINGS
@given(attempts())
def test_normalising_twice_changes_nothing(attempt: tuple[Strategy, Document]):
    strategy, body = attempt
    try:
        strategy.check_types(body)
    except StatusError:
        return
    once = copy.deepcopy(body)
    assert strategy.check_types(body) == []
    assert body == once


CUSTOM = {
    "type": "object",
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "x-kubernetes-validations": [{"rule": "self.size > 1 || has(self.mode)"}, {"rule": "self.size >= oldSelf.size"}],
            "properties": {
                "size": {"type": "integer", "minimum": 0},
                "mode": {"type": "string", "enum": ["a", "b"], "default": "a"},
                "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
                "parts": {
                    "type": "array",
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "n": {"type": "number", "default": 1}}},
                },
                "limit": {"x-kubernetes-int-or-string": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "map": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "boolean", "default": True}}}},
                "pod": {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": {"type": "object"}}},
                "note": {"type": "string", "nullable": True, "format": "date-time"},
            },
        }
    },
}  # fmt: skip
VERSION = {
    "name": "v1",
    "served": True,
    "storage": True,
    "subresources": {"status": {}},
    "schema": {"openAPIV3Schema": CUSTOM},
}
THINGS = for_custom_resource(
    {
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [VERSION],
        }
    },
    "v1",
)
NODE = structural.compiled(from_openapi(CUSTOM), is_root=True)


@st.composite
def things(draw: st.DrawFn) -> Document:
    body = {name: value for name, value in draw(chosen(THINGS.schema, 6)).items() if name in ("spec", "other")}
    body["extra"] = draw(JUNK)
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x", "namespace": "n"}, **body}


@SETTINGS
@given(things(), things())
def test_custom_junk_is_refused_with_sentences_and_never_crashes(one: Document, other: Document):
    document = THINGS.decode(json.dumps(one).encode(), "application/json").document
    made = THINGS.prepare_create(document)
    assert are_sentences(THINGS, THINGS.validate_create(made))
    assert are_sentences(THINGS, THINGS.validate_update(THINGS.prepare_update(other, made), made))


@SETTINGS
@given(things())
def test_pruning_and_defaulting_twice_changes_nothing(document: Document):
    for _ in range(2):
        before = copy.deepcopy(document)
        structural.prune(document, NODE, is_root=True)
        structural.drop_nulls(document, NODE)
        structural.default(document, NODE)
    assert document == before
