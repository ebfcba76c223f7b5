"""Whether the generated CustomResourceDefinitions are what an API server accepts, and what Volcano's users expect."""

from collections.abc import Iterator
from typing import Any

import cel
import msgspec
import pytest

from hekla.api.crd import CUSTOM_KINDS, crd_document, object_schema
from hekla.api.reference import ELSEWHERE
from hekla.api.volcano import Command, CronJob, HyperNode, Job, PodGroup, Queue
from hekla.api.volcano.topology import ONE_MATCH

IDS = [kind.kind_info.resource for kind in CUSTOM_KINDS]


def _schemas(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from _schemas(below, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            yield from _schemas(schema[key], f"{path}.{key}")


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=IDS)
def test_schemas_are_structural(kind: Any) -> None:
    for path, schema in _schemas(object_schema(kind)):
        assert "$ref" not in schema, path
        is_open = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
        assert schema.get("type") or is_open, path
        assert not ("properties" in schema and "additionalProperties" in schema), path
        if "x-kubernetes-list-map-keys" in schema:
            items = schema["items"]
            for key in schema["x-kubernetes-list-map-keys"]:
                assert key in items.get("required", ()) or "default" in items["properties"][key], (path, key)


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=IDS)
def test_every_field_of_ours_says_what_it_is(kind: Any) -> None:
    def walk(schema: dict[str, Any], path: str) -> None:
        for name, below in schema.get("properties", {}).items():
            if not path and name == "metadata":
                continue
            assert below.get("description"), f"{path}.{name}"
            if not f"{path}.{name}".endswith((*ELSEWHERE, ".active")):
                walk(below.get("items", below), f"{path}.{name}{'[]' if 'items' in below else ''}")

    walk(object_schema(kind), "")


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=IDS)
def test_defaults_obey_their_own_limits(kind: Any) -> None:
    for path, schema in _schemas(object_schema(kind)):
        if "default" in schema and "enum" in schema:
            assert schema["default"] in schema["enum"], path
        if "default" in schema and "minimum" in schema:
            assert schema["default"] >= schema["minimum"], path


@pytest.mark.parametrize("kind", CUSTOM_KINDS, ids=IDS)
def test_a_definition_is_small_enough_for_kubectl_apply(kind: Any) -> None:
    assert len(msgspec.json.encode(crd_document(kind))) < 262_144


def test_names_columns_and_subresources_are_volcanos() -> None:
    spec = crd_document(Job)["spec"]
    assert spec["names"] == {
        "kind": "Job", "listKind": "JobList", "plural": "jobs", "singular": "job", "shortNames": ["vcjob", "vj"],
    }  # fmt: skip
    version = spec["versions"][0]
    assert version["subresources"] == {"status": {}}
    assert [one["name"] for one in version["additionalPrinterColumns"]] == [
        "STATUS", "minAvailable", "RUNNINGS", "AGE", "QUEUE",
    ]  # fmt: skip
    assert version["additionalPrinterColumns"][-1]["priority"] == 1
    assert "subresources" not in crd_document(PodGroup)["spec"]["versions"][0]
    assert "subresources" not in crd_document(Command)["spec"]["versions"][0]


def test_limits_and_defaults_come_from_the_fields() -> None:
    spec = object_schema(Job)["properties"]["spec"]["properties"]
    assert (spec["maxRetry"]["default"], spec["maxRetry"]["minimum"]) == (3, 0)
    assert "default" not in spec["minAvailable"]
    assert spec["tasks"]["minItems"] == 1
    assert spec["networkTopology"]["properties"]["mode"]["enum"] == ["hard", "soft"]
    assert object_schema(Queue)["properties"]["spec"]["properties"]["weight"]["maximum"] == 65535
    assert object_schema(CronJob)["properties"]["spec"]["required"] == ["schedule", "jobTemplate"]


def test_a_pod_template_has_a_pods_schema() -> None:
    template = object_schema(Job)["properties"]["spec"]["properties"]["tasks"]["items"]["properties"]["template"]
    container = template["properties"]["spec"]["properties"]["containers"]["items"]
    assert container["required"] == ["name"]
    requests = container["properties"]["resources"]["properties"]["requests"]["additionalProperties"]
    assert requests["x-kubernetes-int-or-string"] is True
    assert set(template["properties"]["metadata"]["properties"]) == {
        "annotations", "finalizers", "labels", "name", "namespace",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("selector", "broken"),
    [
        ({"exactMatch": {"name": "n1"}}, []),
        ({}, [0]),
        ({"exactMatch": {"name": "n1"}, "regexMatch": {"pattern": "n.*"}}, [1]),
    ],
)
def test_the_cel_rules_of_hyper_nodes_mean_exactly_one_selector(selector: dict[str, Any], broken: list[int]) -> None:
    rules = object_schema(HyperNode)["properties"]["spec"]["properties"]["members"]["items"]["properties"]["selector"][
        "x-kubernetes-validations"
    ]
    assert [rule["message"] for rule in rules] == [rule.message for rule in ONE_MATCH.rules]
    assert [index for index, rule in enumerate(rules) if not cel.evaluate(rule["rule"], {"self": selector})] == broken
