"""What a real kube-apiserver 1.36.2 was seen to do with options, patches and applies that are wrong."""

import asyncio
import json
from typing import Any

import pytest

from hekla.testing.api_server import APPLY, JSON_PATCH, MERGE, STRATEGIC, ApiCaller

MAPS = "/api/v1/namespaces/default/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
LONG_AGO = "2020-01-01T00:00:00Z"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"


def asked(
    method: str, path: str, body: Any = None, content_type: str = "application/json"
) -> tuple[int, dict[str, Any]]:
    """The answer to one request, where a config map `m`, a lease `l` and a deployment `d` are there."""

    async def play() -> tuple[int, dict[str, Any]]:
        async with ApiCaller() as api:
            await api.post(MAPS, {"metadata": {"name": "m"}, "data": {"a": "b"}})
            await api.post(LEASES, {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 5}})
            await api.post(DEPLOYMENTS, deployment())
            text = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
            answer = await api.response(method, path, text, content_type=content_type)
            return answer.status, json.loads(answer.body)

    return asyncio.run(play())


def deployment(*containers: dict[str, Any]) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": containers or [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


@pytest.mark.parametrize(
    ("method", "path", "body", "kind", "status", "sentence"),
    [
        ("DELETE", "/api/v1/configmaps", None, "", 405, "does not allow this method"),
        ("DELETE", f"{MAPS}/m", {"propagationPolicy": "Orphan", "orphanDependents": True}, "", 422,
         "orphanDependents and deletionPropagation cannot be both set"),
        ("DELETE", f"{MAPS}/m?dryRun=x", None, "", 422, 'dryRun: Unsupported value: ["x"]: supported values: "All"'),
        ("PUT", f"{MAPS}/m?dryRun=x", {"metadata": {"name": "m"}}, "", 422, 'UpdateOptions.meta.k8s.io "" is invalid: dryRun'),
        ("PUT", f"{MAPS}/m", {"metadata": {}}, "", 400, "the name of the object (m based on URL) was undeterminable"),
        ("PUT", f"{MAPS}/m", {"metadata": {"name": "m", "resourceVersion": "0"}}, "", 200, ""),
        ("PUT", f"{LEASES}/new", {"metadata": {"name": "new"}, "spec": {"leaseDurationSeconds": 5}}, "", 201, ""),
        ("PUT", f"{LEASES}/l", {"metadata": {"name": "l"}, "spec": {"leaseDurationSeconds": 5}}, "", 422,
         'leases.coordination.k8s.io "l" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update'),
        ("POST", f"{MAPS}?fieldManager={'x' * 129}", {"metadata": {"name": "n"}}, "", 422, "may not be more than 128 bytes"),
        ("POST", f"{MAPS}?fieldValidation=X", {"metadata": {"name": "n"}}, "", 422, 'supported values: "", "Ignore", "Strict", "Warn"'),
        ("POST", "/version", None, "", 405, "does not allow this method"),
        ("GET", f"{MAPS}?sendInitialEvents=true", None, "", 422, "sendInitialEvents is forbidden for list"),
        ("PATCH", f"{MAPS}/m?force=true", {}, MERGE, 422, "force: Forbidden: may not be specified for non-apply patch"),
        ("PATCH", f"{MAPS}/m", {"metadata": {"uid": "x"}}, MERGE, 422, "metadata.uid: Invalid value"),
        ("PATCH", f"{MAPS}/m", {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}, MERGE, 422,
         "metadata.deletionTimestamp: Invalid value"),
        ("PUT", f"{MAPS}/m", {"metadata": {"name": "m", "creationTimestamp": LONG_AGO}}, "", 200, ""),
        ("PATCH", f"{MAPS}/m", {"metadata": {"creationTimestamp": LONG_AGO}}, MERGE, 200, ""),
        ("PATCH", f"{MAPS}/m?fieldManager=x", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "creationTimestamp": LONG_AGO}},
         APPLY, 200, ""),
        ("PATCH", f"{MAPS}/m", {"data": 5}, MERGE, 422,
         "json: cannot unmarshal number into Go struct field ConfigMap.data of type map[string]string"),
        ("PATCH", f"{MAPS}/m?fieldValidation=Strict", {"foo": 5}, STRATEGIC, 422,
         'patch: Invalid value: "map[foo:5]": strict decoding error: unknown field "foo"'),
        ("PATCH", f"{MAPS}/m?fieldValidation=Strict", b'{"data":{"a":"1","a":"2"}}', STRATEGIC, 422, 'duplicate field "data.a"'),
        ("PATCH", f"{MAPS}/m", [], MERGE, 400, "error decoding patch: json: cannot unmarshal array into Go value"),
        ("PATCH", f"{MAPS}/m", [{"op": "replace", "path": "/data/new", "value": "x"}], JSON_PATCH, 200, ""),
        ("PATCH", f"{MAPS}/m?fieldManager=x", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "foo": 1},
         APPLY, 500, "failed to create typed patch object (/m; /v1, Kind=ConfigMap): .foo: field not declared in schema"),
        ("PATCH", f"{DEPLOYMENTS}/d?fieldManager=x", deployment({"name": "c"}, {"name": "c"}), APPLY, 500,
         '.spec.template.spec.containers: duplicate entries for key [name="c"]'),
        ("PATCH", f"{DEPLOYMENTS}/d?fieldManager=x", deployment({"image": "i"}), APPLY, 422,
         "spec.template.spec.containers[1].name: Required value"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_the_answer_of_kubernetes(
    method: str, path: str, body: Any, kind: str, status: int, sentence: str
) -> None:
    code, document = asked(method, path, body, kind or "application/json")
    assert code == status, document
    assert sentence in document.get("message", "")


NO_MATCH = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden "
WITH_CONTINUE = f"{NO_MATCH}when continue is provided"
ONLY_NEWER = 'resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"'


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("resourceVersionMatch=Exact&resourceVersion=5&continue=x", 422, f"is invalid: {WITH_CONTINUE}"),
        ("resourceVersionMatch=Exact&continue=x", 422, f"[{NO_MATCH}unless resourceVersion is provided, {WITH_CONTINUE}]"),
        ("watch=1&continue=x", 422, f"is invalid: {WITH_CONTINUE}"),
        ("watch=1&continue=x&resourceVersionMatch=Exact", 422,
         f"[{NO_MATCH}for watch unless sendInitialEvents is provided, {ONLY_NEWER}, {WITH_CONTINUE}]"),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", 422,
         f"[resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan, {ONLY_NEWER}]"),
        ("watch=1&limit=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("resourceVersion=%C2%B2", 400, 'resourceVersion: Invalid value: "\u00b2": strconv.ParseUint: parsing "\u00b2": invalid syntax'),
        ("limit=--1", 400, 'strconv.ParseInt: parsing "--1": invalid syntax'),
        ("watch=1&timeoutSeconds=--1", 400, 'strconv.ParseInt: parsing "--1": invalid syntax'),
    ],
)  # fmt: skip
def test_a_wrong_list_or_watch_gets_the_answer_of_kubernetes(query: str, status: int, sentence: str) -> None:
    code, document = asked("GET", f"{MAPS}?{query}", None)
    assert code == status, document
    assert sentence in document["message"]


def test_a_delete_that_is_refused_deletes_nothing() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            await api.post(MAPS, {"metadata": {"name": "m"}})
            await api.response("DELETE", "/api/v1/configmaps")
            await api.response("DELETE", f"{MAPS}/m?dryRun=x")
            assert (await api.get(f"{MAPS}/m"))[0] == 200

    asyncio.run(play())


def test_when_an_object_was_made_and_is_to_go_stays_whatever_a_manifest_says() -> None:
    async def play() -> None:
        async with ApiCaller() as api:
            _, made = await api.post(MAPS, {"metadata": {"name": "m", "finalizers": ["a/b"]}})
            await api.delete(f"{MAPS}/m")
            _, marked = await api.get(f"{MAPS}/m")
            said = {"name": "m", "finalizers": ["a/b"], "creationTimestamp": LONG_AGO, "deletionTimestamp": LONG_AGO}
            status, kept = await api.put(f"{MAPS}/m", {"metadata": said, "data": {"a": "b"}})
            assert (status, kept["data"]) == (200, {"a": "b"})
            assert kept["metadata"]["creationTimestamp"] == made["metadata"]["creationTimestamp"]
            assert kept["metadata"]["deletionTimestamp"] == marked["metadata"]["deletionTimestamp"]

    asyncio.run(play())
