from typing import Any

import pytest

from hekla.api.schema import for_kind
from hekla.apiserver.status import StatusError
from hekla.apiserver.strategic import strategic_patch

POD = for_kind("", "v1", "Pod")


def patched(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    return strategic_patch(document, patch, POD)


def containers(*names: str) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": name, "image": "x"} for name in names]}}


def names_in(document: dict[str, Any]) -> list[str]:
    return [one["name"] for one in document["spec"]["containers"]]


def test_containers_merge_by_name() -> None:
    found = patched(containers("a", "b"), {"spec": {"containers": [{"name": "b", "image": "y"}]}})
    assert {one["name"]: one["image"] for one in found["spec"]["containers"]} == {"a": "x", "b": "y"}


def test_an_item_is_deleted_by_its_key() -> None:
    assert names_in(patched(containers("a", "b"), {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}})) == [
        "b"
    ]


def test_a_list_is_replaced_where_the_patch_says_so() -> None:
    patch = {"spec": {"containers": [{"name": "c"}, {"$patch": "replace"}]}}
    assert names_in(patched(containers("a", "b"), patch)) == ["c"]


def test_new_items_stand_where_the_order_directive_puts_them() -> None:
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "a"}, {"name": "c"}, {"name": "b"}],
            "containers": [{"name": "c"}],
        }
    }
    assert names_in(patched(containers("a", "b"), patch)) == ["a", "c", "b"]


def test_an_order_directive_alone_reorders() -> None:
    patch = {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}
    assert names_in(patched(containers("a", "b"), patch)) == ["b", "a"]


def test_without_a_directive_new_items_go_first_as_in_kubernetes() -> None:
    document = {"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}
    found = patched(document, {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
    assert [one["type"] for one in found["status"]["conditions"]] == ["Ready", "PodScheduled"]


def test_primitive_lists_merge_and_lose_what_is_named() -> None:
    document = {"metadata": {"finalizers": ["a", "b"]}}
    assert patched(document, {"metadata": {"finalizers": ["c"]}})["metadata"]["finalizers"] == ["a", "b", "c"]
    patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}
    assert patched(document, patch)["metadata"]["finalizers"] == ["b"]


def test_retained_keys_drop_the_others() -> None:
    document = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    patch = {"spec": {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]}}
    assert patched(document, patch)["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/"}}]


def test_a_map_is_replaced_or_emptied_by_directive() -> None:
    document = {"metadata": {"labels": {"a": "1"}}}
    assert patched(document, {"metadata": {"labels": {"$patch": "replace", "b": "2"}}})["metadata"]["labels"] == {
        "b": "2"
    }
    assert patched(document, {"metadata": {"labels": {"$patch": "delete"}}})["metadata"]["labels"] == {}


def test_an_item_without_its_key_is_refused() -> None:
    with pytest.raises(StatusError) as refused:
        patched(containers("a"), {"spec": {"containers": [{"image": "y"}]}})
    assert refused.value.code == 400
