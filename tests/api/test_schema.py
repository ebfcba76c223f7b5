import pytest

from hekla.api import schema
from hekla.api.kubernetes.served import BY_RESOURCE, SERVED

STORED = [one for one in SERVED if one.is_stored]


@pytest.mark.parametrize("served", STORED, ids=lambda one: one.kind.resource)
def test_every_stored_kind_has_a_schema(served):
    kind = served.kind
    assert schema.for_kind(kind.group, kind.version, kind.kind).properties["metadata"].ref.endswith(".ObjectMeta")


def test_list_semantics_and_patch_keys_are_kept():
    spec = schema.for_kind("", "v1", "Pod").properties["spec"]
    assert spec.properties["containers"].list_type == "map"
    assert spec.properties["containers"].list_map_keys == ("name",)
    assert spec.properties["volumes"].patch_strategy == ("merge", "retainKeys")
    assert spec.properties["containers"].patch_merge_key == "name"
    ports = spec.properties["containers"].items.properties["ports"]
    assert ports.list_map_keys == ("containerPort", "protocol")


def test_a_recursive_type_is_walked_as_deep_as_asked():
    crd = schema.for_kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition")
    version = crd.properties["spec"].properties["versions"].items
    node = version.properties["schema"].properties["openAPIV3Schema"]
    for _ in range(20):
        node = node.properties["properties"].additional_properties
    assert node.ref.endswith(".JSONSchemaProps")


def test_explain_gets_descriptions_and_references():
    shown = schema.definitions()["io.k8s.api.core.v1.PodSpec"]
    assert "containers" in shown["required"]
    assert shown["properties"]["affinity"]["allOf"] == [{"$ref": "#/components/schemas/io.k8s.api.core.v1.Affinity"}]
    assert "x-hekla-pointer" not in str(shown)


def test_an_unknown_kind_is_a_key_error():
    with pytest.raises(KeyError):
        schema.for_kind("", "v1", "Nothing")


def test_the_storage_version_hash_is_what_kubernetes_says():
    assert BY_RESOURCE["configmaps/v1"].storage_version_hash == "qFsyl6wFWjQ="
    assert BY_RESOURCE["jobs.batch/v1"].storage_version_hash == "mudhfqk/qZY="


def test_a_custom_schema_keeps_its_keywords():
    tree = schema.from_openapi({"type": "object", "properties": {"a": {"type": "integer", "minimum": 1, "default": 3}}})
    assert (tree.properties["a"].minimum, tree.properties["a"].default, tree.properties["a"].has_default) == (
        1,
        3,
        True,
    )
