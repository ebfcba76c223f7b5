import json
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.apiserver import cel_rules
from hekla.apiserver.status import StatusError
from hekla.apiserver.strategies import for_custom_resource
from hekla.apiserver.strategy import Strategy


def strategy_of(spec: Document, *, subresources: Document | None = None, **root: Any) -> Strategy:
    version = {
        "name": "v1", "served": True, "storage": True, "subresources": subresources or {},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}, **root}},
    }  # fmt: skip
    names = {"plural": "things", "kind": "Thing"}
    return for_custom_resource(
        {"spec": {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}}, "v1"
    )


def thing(spec: Any, **more: Any) -> Document:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Thing",
        "metadata": {"name": "a", "namespace": "n"},
        "spec": spec,
        **more,
    }


def obj(**properties: Document) -> Document:
    return {"type": "object", "properties": properties}


def said(strategy: Strategy, spec: Any, old: Any = None) -> list[str]:
    document = thing(spec)
    if old is None:
        errors = strategy.validate_create(strategy.prepare_create(document))
    else:
        errors = strategy.validate_update(document, thing(old))
    return [f"{error.field}: {error.message}" for error in errors]


def test_unknown_fields_go_and_defaults_come():
    strategy = strategy_of(obj(a={"type": "integer", "default": 3}, deep=obj(b={"type": "string", "default": "x"})))
    body = json.dumps(thing({"c": 1, "deep": {"d": 2}, "a": None})).encode()
    found = strategy.decode(body, "application/json")
    assert found.unknown == ['unknown field "spec.c"', 'unknown field "spec.deep.d"']
    assert strategy.prepare_create(found.document)["spec"] == {"a": 3, "deep": {"b": "x"}}


def test_what_is_applied_has_no_defaults_yet():
    strategy = strategy_of(obj(a={"type": "integer", "default": 3}))
    config = thing({"z": 1})
    assert strategy.check_types(config, is_partial=True) == ['unknown field "spec.z"']
    assert config["spec"] == {}


def test_free_parts_keep_everything():
    free = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
        "properties": {"known": obj(a={"type": "string"})},
    }
    spec = strategy_of(obj(free=free)).prepare_create(thing({"free": {"x": [1, {"y": None}], "known": {"b": 1}}}))[
        "spec"
    ]
    assert spec == {"free": {"x": [1, {"y": None}], "known": {}}}


def test_an_embedded_object_keeps_its_head():
    embedded = {"type": "object", "x-kubernetes-embedded-resource": True, "properties": {"spec": obj()}}
    strategy = strategy_of(obj(template=embedded))
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "zap": 1, "spec": {}}
    assert strategy.prepare_create(thing({"template": dict(pod)}))["spec"]["template"] == {
        key: pod[key] for key in pod if key != "zap"
    }
    assert said(strategy, {"template": {"metadata": {}}}) == [
        "spec.template.apiVersion: Required value",
        "spec.template.kind: Required value",
    ]


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        ({"type": "string"}, 3, 'Invalid value: "integer": spec.x in body must be of type string: "integer"'),
        ({"type": "integer", "maximum": 5}, 7, "Invalid value: 7: spec.x in body should be less than or equal to 5"),
        ({"type": "number", "minimum": 0.5, "exclusiveMinimum": True}, 0.5, "Invalid value: 0.5: spec.x in body should be greater than 0.5"),
        ({"type": "integer", "multipleOf": 2}, 3, "Invalid value: 3: spec.x in body should be a multiple of 2"),
        ({"type": "number", "multipleOf": 0.1}, 1e308, "Invalid value: 1e+308: spec.x in body should be a multiple of 0.1"),
        ({"type": "string", "minLength": 2}, "a", 'Invalid value: "a": spec.x in body should be at least 2 chars long'),
        ({"type": "string", "maxLength": 2}, "abc", "Too long: may not be more than 2 bytes"),
        ({"type": "string", "enum": ["a", "b"]}, "c", 'Unsupported value: "c": supported values: "a", "b"'),
        ({"type": "string", "format": "ipv4"}, "x", 'Invalid value: "x": spec.x in body must be of type ipv4: "x"'),
        ({"type": "array", "items": {"type": "string"}, "minItems": 2}, ["a"], "Invalid value: 1: spec.x in body should have at least 2 items"),
        ({"x-kubernetes-int-or-string": True}, True, 'Invalid value: "boolean": spec.x in body must be of type integer,string: "boolean"'),
        ({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set"}, ["a", "a"], 'Duplicate value: "a"'),
        ({"type": "string", "pattern": "(a+)+$"}, "a" * 40 + "!", f"Invalid value: \"{'a' * 40}!\": spec.x in body should match '(a+)+$'"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"k": "v"}, 'Invalid value: "string": spec.x.k in body must be of type integer: "string"'),
    ],
)  # fmt: skip
def test_a_value_that_breaks_a_keyword_is_refused_with_kubernetes_sentence(schema: Document, value: Any, sentence: str):
    (error,) = said(strategy_of(obj(x=schema)), {"x": value})
    assert error.partition(": ")[2] == sentence


def test_a_fraction_for_an_integer_is_told_of_twice_as_kubernetes_does():
    assert said(strategy_of(obj(x={"type": "integer"})), {"x": 1.5}) == [
        'spec.x: Invalid value: "number": spec.x in body must be of type integer: "number"',
        '<nil>: Invalid value: "": Checked value must be of type integer (default format) in spec.x',
    ]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("A", 'Invalid value: "A": spec.x in body should be at least 2 chars long'),
        ("AAAA", "Too long: may not be more than 3 bytes"),
        ("AAA", "Invalid value: \"AAA\": spec.x in body should match '^[a-z]+$'"),
    ],
)
def test_of_a_texts_length_and_pattern_the_first_that_is_wrong_is_told(value: str, sentence: str):
    schema = {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^[a-z]+$"}
    assert said(strategy_of(obj(x=schema)), {"x": value}) == [f"spec.x: {sentence}"]


@pytest.mark.parametrize(
    ("schema", "value", "sentence"),
    [
        ({"type": "string"}, "a", 'Invalid value: "a": no'),
        ({"type": "number"}, 1.5, "Invalid value: 1.5: no"),
        ({"type": "boolean"}, True, "Invalid value: true: no"),
        ({"type": "array", "items": {"type": "string"}}, ["a"], "Invalid value: no"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": "b"}, "Invalid value: no"),
    ],
)
def test_what_a_rule_says_of_a_scalar_shows_it(schema: Document, value: Any, sentence: str):
    rules = {"x-kubernetes-validations": [{"rule": "false", "message": "no"}]}
    assert said(strategy_of(obj(x={**schema, **rules})), {"x": value}) == [f"spec.x: {sentence}"]


def test_a_null_is_taken_as_nothing_unless_it_is_allowed():
    strategy = strategy_of(obj(a={"type": "string"}, b={"type": "string", "nullable": True}))
    assert strategy.prepare_create(thing({"a": None, "b": None}))["spec"] == {"b": None}
    assert said(strategy, {"a": None, "b": None}) == []


def test_a_null_among_the_values_of_a_map_is_taken_as_nothing():
    amounts = {"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": True}}
    strategy = strategy_of(obj(capability=amounts))
    made = strategy.prepare_create(thing({"capability": {"cpu": None, "memory": "1Gi"}}))
    assert made["spec"] == {"capability": {"memory": "1Gi"}}


def test_metadata_that_is_a_list_cannot_be_handled():
    with pytest.raises(StatusError, match="cannot unmarshal array into Go value of type v1"):
        strategy_of(obj()).decode(b'{"apiVersion":"example.com/v1","kind":"Thing","metadata":[]}', "application/json")


def rule(text: str, **more: Any) -> Document:
    return {"x-kubernetes-validations": [{"rule": text, **more}]}


def test_a_transition_rule_sees_the_old_value_of_the_same_item():
    item = {
        **obj(name={"type": "string"}, size={"type": "integer"}),
        "required": ["name"],
        **rule("self.size >= oldSelf.size", message="may only grow"),
    }
    keyed = {"type": "array", "items": item, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    strategy = strategy_of(obj(items=keyed))
    old = {"items": [{"name": "a", "size": 3}, {"name": "b", "size": 1}]}
    assert said(
        strategy, {"items": [{"name": "b", "size": 2}, {"name": "a", "size": 2}, {"name": "c", "size": 0}]}, old
    ) == ["spec.items[1]: Invalid value: may only grow"]
    assert said(strategy, old) == []


def test_rules_are_not_run_on_an_object_that_is_invalid():
    strategy = strategy_of({**obj(a={"type": "integer"}), "required": ["b"], **rule("self.b > 1")})
    assert said(strategy, {"a": 1})[-1].startswith("<nil>: Invalid value: null: some validation rules were not checked")


def test_what_was_wrong_before_may_stay():
    strategy = strategy_of(obj(a={"type": "integer", "maximum": 5}, b={"type": "integer"}))
    assert said(strategy, {"a": 9, "b": 2}, {"a": 9, "b": 1}) == []
    assert said(strategy, {"a": 10, "b": 1}, {"a": 9, "b": 1}) != []


def test_the_status_and_the_rest_are_written_apart():
    strategy = strategy_of(obj(a={"type": "integer"}), subresources={"status": {}})
    old = thing({"a": 1}, status={"phase": "x"})
    old["metadata"]["generation"] = 1
    by_status = strategy.prepare_update(thing({"a": 2}, status={"phase": "y"}), old, "status")
    assert (by_status["spec"], by_status["status"], by_status["metadata"]["generation"]) == (
        {"a": 1},
        {"phase": "y"},
        1,
    )
    by_main = strategy.prepare_update(thing({"a": 2}, status={"phase": "y"}), old)
    assert (by_main["spec"], by_main["status"], by_main["metadata"]["generation"]) == ({"a": 2}, {"phase": "x"}, 2)


def test_a_wrong_version_and_a_missing_kind_are_refused():
    strategy = strategy_of(obj())
    for body, sentence in (
        (b'{"apiVersion":"example.com/v2","kind":"Thing"}', "does not match the expected API version"),
        (b"{}", "Object 'Kind' is missing"),
    ):
        with pytest.raises(StatusError, match=sentence):
            strategy.decode(body, "application/json")


def test_a_truth_is_no_number_though_python_says_so():
    strategy = strategy_of(obj(a={"type": "integer"}, b={"type": "boolean"}))
    assert said(strategy, {"a": True}, old={"a": 1}) == [
        'spec.a: Invalid value: "boolean": spec.a in body must be of type integer: "boolean"'
    ]
    assert said(strategy, {"b": True}) == []
    assert said(strategy, {"b": 1}) == [
        'spec.b: Invalid value: "integer": spec.b in body must be of type boolean: "integer"'
    ]


def test_what_is_like_the_object_before_is_right_and_nothing_else_is():
    rule = {"rule": "self.a < 3", "message": "too much"}
    spec = {**obj(a={"type": "integer", "maximum": 5}), "required": ["a"], "x-kubernetes-validations": [rule]}
    strategy = strategy_of(spec)
    refusals = list[bool]()
    for one in ({"a": 1}, {"a": 9}, {"a": 1}, {"a": 4}, {}, {"a": 2}, {"a": 1}, {"a": 2}):
        refusals.append(bool(said(strategy, one)))
    assert refusals == [False, True, False, True, True, False, False, False]
    nameless = thing({"a": 2})
    nameless["metadata"]["name"] = "No Name"
    assert [error.field for error in strategy.validate_create(nameless)] == ["metadata.name"]


def test_a_generation_counts_what_is_another_value_as_json():
    strategy = strategy_of({"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    old = strategy.prepare_create(thing({"a": 1, "b": 2}))
    for spec, generation in (({"b": 2, "a": 1}, 1), ({"a": True, "b": 2}, 2), ({"a": 1.0, "b": 2}, 2)):
        assert strategy.prepare_update(thing(spec), old)["metadata"]["generation"] == generation


def test_of_what_a_change_leaves_alone_only_rules_that_look_back_are_asked(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []
    run = cel_rules.run_rule
    monkeypatch.setattr(cel_rules, "run_rule", lambda rule, *rest: asked.append(rule.rule) or run(rule, *rest))
    still, back = ({"type": "integer", **rule(text)} for text in ("self < 3", "self > oldSelf"))

    def labelled(strategy: Strategy, spec: Document) -> list[str]:
        asked.clear()
        new = thing(spec, status={"phase": "x"})
        new["metadata"]["labels"] = {"whose": "mine"}
        return [error.field for error in strategy.validate_update(new, thing(spec))]

    assert labelled(plain := strategy_of(obj(a=still)), {"a": 1}) == []
    assert asked == []
    assert labelled(strategy_of(obj(a=still, b=back)), {"a": 1, "b": 1}) == ["spec.b"]
    assert said(plain, {"a": 4}, {"a": 1}) == ["spec.a: Invalid value: 4: failed rule: self < 3"]


def test_a_part_that_was_allowed_to_stay_is_asked_about_again_when_it_is_another_or_moves(
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[str] = []
    run = cel_rules.run_rule
    monkeypatch.setattr(cel_rules, "run_rule", lambda rule, *rest: asked.append(rule.rule) or run(rule, *rest))
    strategy = strategy_of(obj(a={"type": "integer", **rule("self >= oldSelf")}, b={"type": "boolean"}))

    def labelled(spec: Document, old: Document) -> tuple[list[str], int]:
        asked.clear()
        new = thing(spec)
        new["metadata"]["labels"] = {"whose": "mine"}
        return [error.field for error in strategy.validate_update(new, thing(old))], len(asked)

    assert labelled({"a": 1}, {"a": 1}) == ([], 1)
    assert labelled({"a": 1}, {"a": 1}) == ([], 0), "rules are functions"
    assert labelled({"a": 1, "b": True}, {"a": 1, "b": True}) == ([], 1)
    assert labelled({"a": 1, "b": True}, {"a": 1, "b": True}) == ([], 0)
    assert labelled({"a": 0, "b": True}, {"a": 1, "b": True})[0] == ["spec.a"], (
        "what moves is asked about whatever stayed before"
    )
    assert labelled({"a": 1, "b": True}, {"a": 2, "b": True})[0] == ["spec.a"]
    assert labelled({"a": 2}, {"a": 1}) == ([], 1)


def test_a_part_that_may_not_stay_is_refused_each_time():
    strategy = strategy_of(obj(a={"type": "integer", **rule("self > oldSelf")}))
    for _ in range(3):
        new = thing({"a": 1}, status={"phase": "x"})
        assert [error.field for error in strategy.validate_update(new, thing({"a": 1}))] == ["spec.a"]


def test_parts_that_an_owner_may_call_as_he_likes_are_not_remembered_by_name():
    """Each change of an object with one more made the server larger, where a rule speaks of the whole object."""
    strategy = strategy_of({}, **{"x-kubernetes-preserve-unknown-fields": True}, **rule("true"))
    for number in range(3):
        old, new = ({**thing({}), f"part{number}": "x"} for _ in range(2))
        new["metadata"] = {**new["metadata"], "labels": {"whose": "mine"}}
        assert strategy.validate_update(new, old) == []
    assert strategy._left_alone == {}  # type: ignore[attr-defined]


def test_a_finalizer_of_a_custom_object_needs_no_group():
    strategy = strategy_of(obj())

    def told(finalizer: str) -> list[str]:
        document = thing({})
        document["metadata"]["finalizers"] = [finalizer]
        return [str(error.field) for error in strategy.validate_create(strategy.prepare_create(document))]

    assert told("foo") == []
    assert told("a b") == ["metadata.finalizers"]
