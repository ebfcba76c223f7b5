"""What is known to need no walk: found again by its text, never believed of anything that a walk would change."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.meta import Document
from hekla.apiserver import whole_parts
from hekla.apiserver.strategies import for_custom_resource
from hekla.apiserver.strategy import Strategy
from hekla.apiserver.whole_parts import WholeParts

SPEC: Document = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "default": 3},
        "maybe": {"type": "string", "nullable": True},
        "deep": {"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": "string", "default": "x"}}},
        "many": {"type": "array", "items": {"type": "object", "properties": {"b": {"type": "string", "default": "y"}}}},
    },
}


def strategy() -> Strategy:
    version = {
        "name": "v1", "served": True, "storage": True, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": SPEC}}},
    }  # fmt: skip
    spec = {"group": "example.com", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"}}
    return for_custom_resource({"spec": {**spec, "versions": [version]}}, "v1")


def thing(spec: Any) -> Document:
    metadata = {"name": "a", "namespace": "n"}
    return {"apiVersion": "example.com/v1", "kind": "Thing", "metadata": metadata, "spec": spec}


VALUES = st.recursive(
    st.none() | st.integers(0, 3) | st.sampled_from(["x", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "c", "deep", "many", "maybe", "z"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(st.dictionaries(st.sampled_from(["a", "deep", "many", "maybe", "z"]), VALUES), min_size=1, max_size=6))
def test_who_has_seen_much_writes_what_who_has_seen_nothing_writes(specs: list[Document]) -> None:
    seasoned = strategy()
    for spec in [*specs, *reversed(specs)]:
        fresh = strategy()
        one, other = thing(json.loads(json.dumps(spec))), thing(spec)
        assert seasoned.check_types(one) == fresh.check_types(other)
        assert seasoned.prepare_create(one) == fresh.prepare_create(other)
        old = json.loads(json.dumps(one))
        assert seasoned.prepare_update(one, old) == fresh.prepare_update(other, old)


def test_what_came_out_as_it_went_in_is_known() -> None:
    parts = WholeParts()
    document = thing({"a": 1})
    met = parts.meet(document)
    assert met.known == set()
    parts.learn(document, met.texts)
    assert parts.meet(thing({"a": 1})).known == {"spec"}
    assert parts.meet({**thing({"a": 2}), "status": {"a": 1}}).known == set()  # another text, and another part


def test_what_a_walk_has_changed_is_not_known() -> None:
    parts = WholeParts()
    document = thing({"z": 1})
    met = parts.meet(document)
    document["spec"] = {}
    parts.learn(document, met.texts)
    assert parts.meet(thing({"z": 1})).known == set()
    assert parts.meet(thing({})).known == set()


def test_the_oldest_knowledge_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_parts, "MOST_PARTS", 2)
    parts = WholeParts()
    for number in range(3):
        document = thing({"a": number})
        parts.learn(document, parts.meet(document).texts)
    assert [parts.meet(thing({"a": number})).known for number in range(3)] == [set(), {"spec"}, {"spec"}]


def test_what_is_long_or_no_text_is_walked_each_time() -> None:
    parts = WholeParts()
    for spec in ("x" * (whole_parts.LONGEST_PART + 1), "\ud800"):
        document = thing(spec)
        met = parts.meet(document)
        assert not met.texts
        parts.learn(document, met.texts)
        assert parts.meet(document).known == set()
