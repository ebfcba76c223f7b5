"""Whatever is sent, the API server answers with a Status of the caller's, never with a mistake of its own."""

import asyncio
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hekla.testing.api_server import APPLY, JSON, JSON_PATCH, KUBERNETES_RULES, MERGE, STRATEGIC, ApiCaller, api_server

PODS, DEPLOYMENTS = "/api/v1/namespaces/default/pods", "/apis/apps/v1/namespaces/default/deployments"
PATHS = [
    PODS, f"{PODS}/p", f"{PODS}/p/status", f"{PODS}/p/binding", f"{PODS}/p/eviction", DEPLOYMENTS, f"{DEPLOYMENTS}/d",
    f"{DEPLOYMENTS}/d/scale", "/api/v1/namespaces/x/finalize", "/api/v1/namespaces/default/bindings", "/api/v1/nodes",
    "/apis/authorization.k8s.io/v1/subjectaccessreviews", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
    "/apis/authentication.k8s.io/v1/tokenreviews", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/apis/batch/v1/namespaces/default/jobs", "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
]  # fmt: skip
QUERIES = [
    "",
    "?limit=x",
    "?resourceVersion=abc",
    "?dryRun=All",
    "?fieldManager=m&force=true",
    "?fieldSelector=a",
    "?continue=eyJ",
]
KEYS = [
    "apiVersion", "kind", "metadata", "spec", "status", "name", "namespace", "labels", "containers", "template",
    "replicas", "finalizers", "ownerReferences", "target", "selector", "resourceAttributes", "preconditions",
    "propagationPolicy", "gracePeriodSeconds", "managedFields", "resourceVersion", "uid", "names", "versions", "op",
    "path", "value", "deleteOptions", "conditions", "resources", "$patch", "$retainKeys", "$setElementOrder/containers",
]  # fmt: skip
SCALARS = st.sampled_from(
    [None, True, 0, -1, 1 << 70, 1.5, "", "x", "p", "a" * 300, "replace", "remove", "/spec", "Pod", "v1"]
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "x"}]},
}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": POD["spec"]}
DEPLOYMENT = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
    "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE},
}  # fmt: skip
KINDS = {
    "POST": [JSON, "application/yaml"],
    "PUT": [JSON, "application/yaml"],
    "PATCH": [MERGE, STRATEGIC, JSON_PATCH, APPLY],
    "DELETE": [JSON],
}


def near(base: dict[str, Any]) -> st.SearchStrategy[Any]:
    """An object that is almost right."""
    return st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3).map(lambda odd: {**base, **odd})


@st.composite
def requests(draw: st.DrawFn) -> tuple[str, str, str, bytes]:
    method = draw(st.sampled_from(list(KINDS)))
    body = draw(
        VALUES | near(POD) | near(DEPLOYMENT) | st.lists(near({"op": "add", "path": "/spec", "value": 1}), max_size=2)
    )
    target = draw(st.sampled_from(PATHS)) + draw(st.sampled_from(QUERIES))
    return method, target, draw(st.sampled_from(KINDS[method])), json.dumps(body).encode()


@settings(max_examples=60, deadline=None)
@given(st.lists(requests(), min_size=5, max_size=15))
def test_no_request_makes_the_server_fail(sent: list[tuple[str, str, str, bytes]]) -> None:
    async def play() -> None:
        async with ApiCaller(api_server(rules=KUBERNETES_RULES)) as api:
            await api.post("/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
            await api.post(PODS, POD)
            await api.post(DEPLOYMENTS, DEPLOYMENT)
            for method, target, kind, body in sent:
                found = await api.response(method, target, body, content_type=kind)
                assert found.status != 500, (method, target, kind, body)
            assert (await api.get("/api/v1/namespaces/default"))[0] == 200

    asyncio.run(play())
