"""One ModelBooster on a whole platform: engines come up as real processes behind their side-cars, and answer."""

import contextlib
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.testing.platform import PlatformProcess, running_platform

PATIENCE_S = 240.0
pytestmark = pytest.mark.timeout(500)  # a busy machine takes its time, and nothing here depends on it
WORKLOAD = "/apis/workload.serving.volcano.sh/v1alpha1/namespaces/default"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    flags = ("--nodes", "1", "--gpus-per-node", "4", "--cpu-per-node", "8")
    with running_platform(without=(), flags=flags) as running:
        yield running


def eventually(platform: PlatformProcess, path: str, look: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """What `look` finds once it is as wanted: it looks again at each change of what lies under `path`."""
    version = platform.ask("GET", path).document["metadata"]["resourceVersion"]
    connection = http.client.HTTPSConnection("127.0.0.1", platform.port, context=platform.tls(), timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request("GET", f"{path}?watch=1&resourceVersion={version}")
        changes = connection.getresponse()
        while not wanted(found := look()):
            assert changes.readline(), f"the watch has ended, and it is still {found}"
        return found


def booster() -> Document:
    worker = {
        "type": "server",
        "image": "vllm/vllm-openai:v0.11.0",
        "replicas": 1,
        "pods": 1,
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
        "config": {"max-num-seqs": 8, "speculative-config": {"method": "ngram", "num_speculative_tokens": 2}},
    }
    backend = {"name": "main", "type": "vLLM", "modelURI": "hf://own/tiny", "replicas": 2, "workers": [worker]}
    return {
        "apiVersion": "workload.serving.volcano.sh/v1alpha1",
        "kind": "ModelBooster",
        "metadata": {"name": "tiny", "namespace": "default"},
        "spec": {"backend": backend},
    }


def active(platform: PlatformProcess) -> str:
    told = platform.ask("GET", f"{WORKLOAD}/modelboosters/tiny").document.get("status", {}).get("conditions", [])
    return next((one["status"] for one in told if one["type"] == "Active"), "")


def unfetched(platform: PlatformProcess) -> list[str]:
    told = platform.ask("GET", f"{WORKLOAD}/modelboosters/tiny").document["status"]["conditions"]
    return [one["reason"] for one in told if one["type"] == "Fetched"]


def pods(platform: PlatformProcess) -> list[Document]:
    items: list[Document] = platform.ask("GET", f"{PODS}?labelSelector={labels.NAME}%3Dtiny-main").document["items"]
    return items


def test_a_booster_brings_up_engines_that_answer(platform: PlatformProcess) -> None:
    made = platform.ask("POST", f"{WORKLOAD}/modelboosters", booster())
    assert made.status == 201, made.body
    eventually(platform, f"{WORKLOAD}/modelboosters", lambda: active(platform), lambda found: found == "True")
    eventually(
        platform, f"{WORKLOAD}/modelboosters", lambda: unfetched(platform), lambda found: found == ["EngineStandIn"]
    )
    found = pods(platform)
    assert sorted(pod["metadata"]["name"] for pod in found) == ["tiny-main-0-leader-0-0", "tiny-main-1-leader-0-0"]
    for pod in found:
        address = pod["status"]["podIP"]
        assert get(address, 8000, "/v1/models")["data"][0]["id"] == "tiny"
        asked = {"model": "tiny", "prompt": "a b c", "max_tokens": 3}
        answer = get(address, 8000, "/v1/completions", asked)
        assert answer["usage"]["completion_tokens"] == 3
        assert get(address, 8100, "/health")["status"] == "healthy"
    deleted = platform.ask("DELETE", f"{WORKLOAD}/modelboosters/tiny")
    assert deleted.status == 200
    eventually(platform, PODS, lambda: pods(platform), lambda left: not left)


def get(address: str, port: int, path: str, body: Document | None = None) -> Document:
    connection = http.client.HTTPConnection(address, port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        data = json.dumps(body).encode() if body is not None else None
        connection.request("POST" if body else "GET", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        found: Document = json.loads(answer.read())
        return found
