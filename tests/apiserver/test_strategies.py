"""Our answers against those of a real Kubernetes; see recorded/README.md."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from hekla.api.meta import Document
from hekla.apiserver.fielderrors import invalid_object
from hekla.apiserver.status import StatusError
from hekla.apiserver.strategies import builtin_strategies, for_custom_resource
from hekla.apiserver.strategy import Strategy

RECORDED = {
    record["id"]: record
    for line in (Path(__file__).parent / "recorded" / "strategies.jsonl").read_text().splitlines()
    for record in [json.loads(line)]
}
BUILTIN = builtin_strategies()
BY_ADMISSION = {
    "kube-api-access",
    "tolerations",
    "priority",
    "preemptionPolicy",
    "serviceAccount",
    "serviceAccountName",
    "taints",
}
"""Values that admission adds after us."""

CREATES = [name for name, record in RECORDED.items() if record["method"] == "POST"]


def strategy_for(path: str) -> tuple[Strategy, str]:
    parts = path.partition("?")[0].strip("/").split("/")
    group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[2])
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = rest[1] if len(rest) > 2 else ""
    plural = rest[2] if len(rest) > 2 else rest[0]
    if group == "truth.example.com":
        return for_custom_resource(RECORDED["crd-create"]["response"], version), namespace
    return BUILTIN[f"{plural}.{group}/{version}" if group else f"{plural}/{version}"], namespace


def created(record: dict[str, Any]) -> Document:
    strategy, namespace = strategy_for(record["path"])
    body = record["body"] if isinstance(record["body"], str) else json.dumps(record["body"])
    if "yaml" in (record["type"] or ""):
        body = yaml.safe_dump(record["body"])
    try:
        decoded = strategy.decode(body.encode(), record["type"] or "application/json")
        if decoded.unknown and "Strict" in record["path"]:
            kind = strategy.kind
            said = f"strict decoding error: {', '.join(decoded.unknown)}"
            raise StatusError(
                400, "BadRequest", f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {said}'
            )
        document = decoded.document
        metadata = document.setdefault("metadata", {})
        if namespace:
            metadata["namespace"] = namespace
        answered = record["response"].get("metadata", {})
        metadata |= {key: answered[key] for key in ("uid", "creationTimestamp", "resourceVersion") if key in answered}
        document = strategy.prepare_create(document)
        errors = strategy.validate_create(document)
        if errors:
            raise invalid_object(strategy.kind, metadata.get("name", ""), errors)
    except StatusError as error:
        return error.document()
    return document


def without_admission(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: without_admission(item) for key, item in value.items() if key not in BY_ADMISSION}
        return {key: item for key, item in kept.items() if not (key in ("volumes", "volumeMounts") and item == [])}
    if isinstance(value, list):
        return [without_admission(item) for item in value if not str(item).startswith("{'name': 'kube-api-access")]
    return value


def in_one_order(status: Document) -> Document:
    # a real server lists the errors of a custom object in no fixed order
    if status.get("kind") == "Status" and "causes" in (status.get("details") or {}):
        status = {**status, "message": sorted(status["message"].replace("[", ", ").replace("]", ", ").split(", "))}
        status["details"] = {**status["details"], "causes": sorted(status["details"]["causes"], key=str)}
    return status


@pytest.mark.parametrize("name", CREATES)
def test_what_we_make_of_a_new_object_is_what_kubernetes_made_of_it(name: str):
    record = RECORDED[name]
    assert in_one_order(without_admission(created(record))) == in_one_order(without_admission(record["response"]))


def changed(name: str, patch: Document) -> tuple[Strategy, Document, Document]:
    strategy, _ = strategy_for(RECORDED[name]["path"])
    old = json.loads(json.dumps(RECORDED[name]["response"]))
    new = json.loads(json.dumps(old))
    new["spec"] |= patch
    return strategy, strategy.prepare_update(new, old), old


def test_the_completions_of_a_job_stay():
    strategy, new, old = changed("job-create", {"completions": 5})
    errors = strategy.validate_update(new, old)
    assert invalid_object(strategy.kind, "j", errors).document() == RECORDED["job-selector-immutable"]["response"]


def test_a_change_of_the_spec_advances_the_generation():
    strategy, new, old = changed("job-create", {"suspend": False})
    assert strategy.validate_update(new, old) == []
    assert new["metadata"]["generation"] == RECORDED["job-unsuspend"]["response"]["metadata"]["generation"] == 2


def test_a_pod_may_only_change_its_images():
    strategy, new, old = changed("pod-create", {"restartPolicy": "Never"})
    (error,) = strategy.validate_update(new, old)
    wanted = RECORDED["pod-spec-immutable"]["response"]["details"]["causes"][0]
    assert (error.field, error.message.partition("\n")[0]) == (wanted["field"], wanted["message"].partition("\n")[0])
    assert '- "RestartPolicy": "Always"' in error.message
    strategy, new, old = changed("pod-create", {})
    new["spec"]["containers"][0]["image"] = "busybox:2"
    assert strategy.validate_update(new, old) == []


def test_a_write_of_the_status_leaves_the_spec():
    strategy, _ = strategy_for(RECORDED["deployment-create"]["path"])
    old = json.loads(json.dumps(RECORDED["deployment-create"]["response"]))
    new = json.loads(json.dumps(old))
    new["spec"]["replicas"], new["status"] = 9, {"replicas": 2}
    new = strategy.prepare_update(new, old, "status")
    assert (new["spec"]["replicas"], new["status"], new["metadata"]["generation"]) == (2, {"replicas": 2}, 1)
    new = json.loads(json.dumps(new))
    new["status"], new["spec"]["replicas"] = {"replicas": 7}, 9
    again = strategy.prepare_update(new, {**old, "status": {"replicas": 2}})
    assert (again["spec"]["replicas"], again["status"], again["metadata"]["generation"]) == (9, {"replicas": 2}, 2)


def test_every_builtin_resource_has_a_strategy():
    for name, strategy in BUILTIN.items():
        assert strategy.kind.resource in name
        assert strategy.schema.properties


def test_preparing_twice_changes_nothing():
    for name in CREATES:
        document = created(RECORDED[name])
        if document.get("kind") != "Status":
            once = json.dumps(document, sort_keys=True)
            strategy, _ = strategy_for(RECORDED[name]["path"])
            assert json.dumps(strategy.prepare_create(document), sort_keys=True) == once, name


def test_a_service_keeps_its_address_when_a_change_does_not_mention_it():
    strategy = BUILTIN["services/v1"]
    old = {
        "metadata": {"name": "s", "namespace": "n"},
        "spec": {"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "type": "ClusterIP"},
    }
    new = strategy.prepare_update({"metadata": {"name": "s", "namespace": "n"}, "spec": {"ports": [{"port": 80}]}}, old)
    assert new["spec"]["clusterIP"] == "10.0.0.1"
    assert strategy.validate_update(new, old) == []
    new["spec"]["clusterIP"] = "10.0.0.2"
    assert [error.message for error in strategy.validate_update(new, old)] == [
        'Invalid value: "10.0.0.2": may not change once set'
    ]


POD = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
DEVICES = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}


@pytest.mark.parametrize(
    ("resource", "before"),
    [
        ("statefulsets.apps/v1", {"spec": {"selector": {"matchLabels": {"a": "b"}}, "template": POD}}),
        ("resourceclaims.resource.k8s.io/v1", {"spec": DEVICES}),
        ("rolebindings.rbac.authorization.k8s.io/v1", {"roleRef": {"kind": "Role", "name": "r", "apiGroup": ""}}),
        ("nodes/v1", {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.1.0/24"]}}),
    ],
)
def test_an_object_stored_before_a_default_was_known_can_still_be_changed(resource: str, before: Document):
    strategy = BUILTIN[resource]
    place = {"namespace": "n"} if strategy.kind.is_namespaced else {}
    old = {"metadata": {"name": "x", "uid": "u", "generation": 1, **place}, **before}
    new = json.loads(json.dumps(old)) | {"metadata": {**old["metadata"], "labels": {"c": "d"}}}
    new = strategy.prepare_update(new, old)
    assert strategy.validate_update(new, old) == []
    assert new["metadata"].get("generation", 1) == 1, "only a default is new"
