"""Pods that no node can answer for: what a real Kubernetes 1.36.2 says of their logs and of exec."""

import asyncio
from typing import Any

import pytest

from hekla.apiserver.calls import Call
from hekla.testing.api_server import ApiCaller, api_server
from hekla.wire.messages import Response

PODS = "/api/v1/namespaces/default/pods"


def pod(name: str, *containers: str, node: str = "") -> dict[str, Any]:
    spec = {"containers": [{"name": one, "image": "x"} for one in containers]}
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    return {**head, "spec": {**spec, **({"nodeName": node} if node else {})}}


def said(path: str) -> tuple[int, str]:
    def node(call: Call) -> Response:
        return Response(200, b"the node", "text/plain")

    async def play() -> tuple[int, str]:
        async with ApiCaller(api_server(proxy=node)) as api:
            await api.post(PODS, pod("waits", "a"))
            await api.post(PODS, pod("two", "a", "b"))
            await api.post(PODS, pod("runs", "a", node="n"))
            answer = await api.response("GET", f"{PODS}/{path}")
            return answer.status, answer.body.decode()

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("path", "code", "sentence"),
    [
        ("nope/log", 404, 'pods \\"nope\\" not found'),
        ("nope/portforward", 404, 'pods \\"nope\\" not found'),
        ("http:nope:80/proxy/x", 404, 'pods \\"nope\\" not found'),
        ("waits/exec?command=ls", 400, "pod waits does not have a host assigned"),
        ("waits/portforward", 400, "pod waits does not have a host assigned"),
        ("waits:80/proxy/", 400, "address not allowed"),
        ("waits/log?container=z", 400, "container z is not valid for pod waits"),
        ("two/log", 400, "a container name must be specified for pod two, choose one of: [a b]"),
        ("runs/exec?container=z", 400, "container z is not valid for pod runs"),
        ("runs/log?tailLines=-1", 422, 'PodLogOptions \\"runs\\" is invalid: tailLines: Invalid value: -1: must be'),
        ("runs/log?limitBytes=0", 422, "limitBytes: Invalid value: 0: must be greater than 0"),
        ("runs/log?sinceSeconds=0", 422, "sinceSeconds: Invalid value: 0: must be greater than 0"),
        ("runs/log?sinceSeconds=1&sinceTime=2020-01-01T00:00:00Z", 422, "[]: Forbidden: at most one of `sinceTime`"),
        ("runs/log?tailLines=x", 400, 'strconv.ParseInt: parsing \\"x\\": invalid syntax'),
        (f"runs/log?tailLines={2**63}", 400, "value out of range"),
    ],
)
def test_what_no_node_can_answer_is_answered_in_kubernetes_words(path: str, code: int, sentence: str) -> None:
    status, body = said(path)
    assert (status, sentence in body) == (code, True), body


def test_the_log_of_a_pod_that_waits_for_a_node_is_empty() -> None:
    assert said("waits/log") == (200, "")
    assert said("two/log?container=b&tailLines=3") == (200, "")


def test_the_node_is_asked_about_the_pods_it_has() -> None:
    assert said("runs/log?tailLines=1") == (200, "the node")
    assert said("runs:80/proxy/") == (200, "the node")
