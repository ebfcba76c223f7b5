import copy
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.apiserver.strategies import builtin_strategies

DEFINITIONS = builtin_strategies()["customresourcedefinitions.apiextensions.k8s.io/v1"]
SCHEMA = "spec.validation.openAPIV3Schema"


def definition(schema: Document | None = None, **spec: Any) -> Document:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema or {"type": "object"}},
    }
    names = {"plural": "things", "kind": "Thing"}
    whole = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version], **spec}
    return {"metadata": {"name": "things.example.com"}, "spec": whole}


def said(document: Document) -> list[str]:
    document = copy.deepcopy(document)
    DEFINITIONS.check_types(document)
    return [
        f"{error.field}: {error.message}" for error in DEFINITIONS.validate_create(DEFINITIONS.prepare_create(document))
    ]


def of(**properties: Document) -> Document:
    return {"type": "object", "properties": properties}


def test_a_plain_definition_is_valid_and_completed():
    document = definition()
    assert said(document) == []
    DEFINITIONS.check_types(document)
    made = DEFINITIONS.prepare_create(document)
    assert made["spec"]["names"] == {"plural": "things", "kind": "Thing", "singular": "thing", "listKind": "ThingList"}
    assert made["status"] == {"conditions": None, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]}


KEYED = {"type": "array", "x-kubernetes-list-type": "map", "items": of(a={"type": "string"})}
CASES: list[tuple[Document, str]] = [
    (of(a={}), f"{SCHEMA}.properties[a].type: Required value: must not be empty for specified object fields"),
    ({"type": "string"}, f'{SCHEMA}.type: Invalid value: "string": must be object at the root'),
    (of(a={"type": "array"}), f"{SCHEMA}.properties[a].items: Required value: must be specified"),
    (of(a={"type": "text"}), f'{SCHEMA}.properties[a].type: Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string"'),
    (of(a={"type": "array", "uniqueItems": True, "items": {"type": "string"}}), f"{SCHEMA}.properties[a].uniqueItems: Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic"),
    (of(a={"type": "object", "additionalProperties": {"type": "string"}, "properties": {"b": {"type": "string"}}}), f"{SCHEMA}.properties[a].additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive"),
    (of(a={"type": "string", "anyOf": [{"type": "string"}]}), f"{SCHEMA}.properties[a].anyOf[0].type: Forbidden: must be empty to be structural"),
    (of(a=KEYED), f"{SCHEMA}.properties[a].x-kubernetes-list-map-keys: Required value: must not be empty if x-kubernetes-list-type is map"),
    (of(a={**KEYED, "x-kubernetes-list-map-keys": ["a"]}), f"{SCHEMA}.properties[a].items.properties[a].default: Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property"),
    (of(a={"type": "integer", "default": "x"}), f'{SCHEMA}.properties[a].default: Invalid value: "string":  in body must be of type integer: "string"'),
    (of(a={"type": "string", "x-kubernetes-validations": [{"rule": "nowhere == 1"}]}), f"{SCHEMA}.properties[a].x-kubernetes-validations[0].rule: Invalid value: {{\"rule\":\"nowhere == 1\"}}: compilation failed: ERROR: <input>:1:1: undeclared reference to 'nowhere' (in container '')"),
    (of(a={"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}), f'{SCHEMA}.properties[a].items.x-kubernetes-validations[0].rule: Invalid value: "self == oldSelf": oldSelf cannot be used on the uncorrelatable portion of the schema within {SCHEMA}.properties[a].items'),
    (of(metadata={"type": "object", "properties": {"labels": {"type": "object"}}}), f"{SCHEMA}.properties[metadata]: Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "sentence"), CASES, ids=[sentence[40:110] for _, sentence in CASES])
def test_a_schema_that_is_not_structural_is_refused(schema: Document, sentence: str):
    assert sentence in said(definition(schema))


def test_int_or_string_may_say_so_twice():
    either = {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert said(definition(of(a=either))) == []


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"group": "other.com"}, 'metadata.name: Invalid value: "things.example.com": must be spec.names.plural+"."+spec.group'),
        ({"scope": "World"}, 'spec.scope: Unsupported value: "World": supported values: "Cluster", "Namespaced"'),
        ({"versions": []}, "spec.versions: Invalid value: []: must have exactly one version marked as storage version"),
        ({"names": {"plural": "things", "kind": "Thing", "listKind": "Thing"}}, 'spec.names.listKind: Invalid value: "Thing": kind and listKind may not be the same'),
        ({"conversion": {"strategy": "Magic"}}, 'spec.conversion.strategy: Unsupported value: "Magic": supported values: "None", "Webhook"'),
        ({"preserveUnknownFields": True}, "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"),
    ],
)  # fmt: skip
def test_names_and_versions_are_checked(spec: Document, sentence: str):
    assert sentence in said(definition(**spec))


def test_what_a_definition_is_about_stays():
    old = DEFINITIONS.prepare_create(definition())
    new = definition(scope="Cluster")
    new["spec"]["versions"][0]["name"] = "v2"
    new = DEFINITIONS.prepare_update(new, old)
    fields = [error.field for error in DEFINITIONS.validate_update(new, old)]
    assert fields == ["spec.scope", "status.storedVersions[0]"]
