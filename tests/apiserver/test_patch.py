import pytest

from hekla.apiserver.patch import json_patch, merge_patch
from hekla.apiserver.status import StatusError


def test_a_null_in_a_merge_patch_deletes() -> None:
    assert merge_patch({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None}}) == {"a": 1, "b": {"d": 3}}


def test_a_merge_patch_replaces_lists_whole() -> None:
    assert merge_patch({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}


def test_a_merge_patch_leaves_the_document_it_was_given_alone() -> None:
    document = {"a": {"b": 1}}
    merge_patch(document, {"a": {"b": 2, "c": 3}})
    assert document == {"a": {"b": 1}}


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/list/1", "value": 9}, {"list": [1, 9, 2], "map": {"a/b": 1, "~": 2}}),
        ({"op": "add", "path": "/list/-", "value": 9}, {"list": [1, 2, 9], "map": {"a/b": 1, "~": 2}}),
        ({"op": "remove", "path": "/map/a~1b"}, {"list": [1, 2], "map": {"~": 2}}),
        ({"op": "replace", "path": "/map/~0", "value": 3}, {"list": [1, 2], "map": {"a/b": 1, "~": 3}}),
        ({"op": "move", "from": "/list/0", "path": "/map/moved"}, {"list": [2], "map": {"a/b": 1, "~": 2, "moved": 1}}),
        ({"op": "copy", "from": "/list", "path": "/map/~0"}, {"list": [1, 2], "map": {"a/b": 1, "~": [1, 2]}}),
        ({"op": "test", "path": "/list/1", "value": 2}, {"list": [1, 2], "map": {"a/b": 1, "~": 2}}),
    ],
)
def test_each_operation_of_a_json_patch_does_its_work(
    operation: dict[str, object], expected: dict[str, object]
) -> None:
    assert json_patch({"list": [1, 2], "map": {"a/b": 1, "~": 2}}, [operation]) == expected


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/absent"},
        {"op": "replace", "path": "/absent/below", "value": 1},
        {"op": "replace", "path": "/list/7", "value": 1},
        {"op": "sort", "path": "/list"},
        {"op": "add", "path": "/list/7", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "test", "path": "/list", "value": [2]},
        {"op": "test", "path": "/list", "value": [True]},
        {"op": "test", "path": "/list/0", "value": True},
        {"op": "add", "path": "no-slash", "value": 1},
        {"op": "add", "path": "/list/0"},
    ],
)
def test_an_operation_that_cannot_be_carried_out_is_refused(operation: dict[str, object]) -> None:
    with pytest.raises(StatusError) as refused:
        json_patch({"list": [1]}, [operation])
    assert refused.value.code == 422


def test_a_json_patch_cannot_copy_a_document_into_itself_without_end() -> None:
    operations = [{"op": "copy", "from": "/a", "path": f"/a/{n}"} for n in range(60)]
    with pytest.raises(StatusError) as refused:
        json_patch({"a": {"x": "y" * 1000}}, operations)
    assert refused.value.code == 413


@pytest.mark.parametrize(
    "index", ["--1", "---1", "+-1", "-" * 3_000 + "1", "\u00b2", "\u0661", "-3", "2", "1 ", "1\n", ""]
)
def test_an_index_is_a_number_with_at_most_one_sign(index: str) -> None:
    with pytest.raises(StatusError) as refused:
        json_patch({"list": [1, 2]}, [{"op": "replace", "path": f"/list/{index}", "value": 9}])
    assert refused.value.code == 422


@pytest.mark.parametrize(("index", "at"), [("0", 0), ("-0", 0), ("+1", 1), ("-1", 1), ("-2", 0)])
def test_an_index_counts_from_the_end_where_it_is_negative(index: str, at: int) -> None:
    patched = json_patch({"list": [1, 2]}, [{"op": "replace", "path": f"/list/{index}", "value": 9}])
    assert patched["list"][at] == 9
