"""ModelServings on a whole platform: API server, scheduler, node, and simulated containers; asked from outside, over TLS."""

import contextlib
import http.client
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hekla.api.kthena import labels
from hekla.api.meta import Document
from hekla.testing.platform import PlatformProcess, Reply, running_platform
from hekla.testing.serving_world import role, serving

PATIENCE_S = 240.0
pytestmark = pytest.mark.timeout(500)  # a busy machine takes its time, and nothing here depends on it
SERVINGS = "/apis/workload.serving.volcano.sh/v1alpha1/namespaces/default/modelservings"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    with running_platform(without=(), flags=("--nodes", "2", "--gpus-per-node", "4", "--cpu-per-node", "8")) as running:
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


def simulated(*roles: Document) -> list[Document]:
    for one in roles:
        for key in ("entryTemplate", "workerTemplate"):
            if key in one:
                one[key]["spec"]["runtimeClassName"] = "simulated"
                one[key]["spec"]["terminationGracePeriodSeconds"] = 0
    return list(roles)


def post(platform: PlatformProcess, document: Document) -> None:
    answer = platform.ask("POST", SERVINGS, document)
    assert answer.status == 201, answer.body


def status(platform: PlatformProcess, name: str) -> Document:
    found: Document = platform.ask("GET", f"{SERVINGS}/{name}").document.get("status", {})
    return found


def pods(platform: PlatformProcess, name: str) -> dict[str, Document]:
    items = platform.ask("GET", f"{PODS}?labelSelector={labels.NAME}%3D{name}").document["items"]
    return {pod["metadata"]["name"]: pod for pod in items}


def change(platform: PlatformProcess, name: str, spec: Document) -> None:
    answer = platform.ask(
        "PATCH", f"{SERVINGS}/{name}", {"spec": spec}, Content_Type="application/merge-patch+json"
    )  # fmt: skip
    assert answer.status == 200, answer.body


def is_available(count: int) -> Callable[[Document], bool]:
    return lambda found: (
        found.get("availableReplicas") == found.get("replicas") == found.get("updatedReplicas") == count
    )


def conditions(answer: Reply) -> list[Document]:
    return answer.document.get("status", {}).get("conditions", []) if answer.status == 200 else []


def test_a_serving_comes_up_is_updated_scaled_and_goes(platform: PlatformProcess) -> None:
    name = "story"
    roles = simulated(role("prefill", workers=1), role("decode"))
    post(platform, serving(name, roles=roles, replicas=2))
    eventually(platform, SERVINGS, lambda: status(platform, name), is_available(2))
    first = pods(platform, name)
    assert len(first) == 6
    assert all(pod["spec"]["nodeName"] for pod in first.values())

    roles = simulated(role("prefill", workers=1, image="engine:2"), role("decode"))
    change(platform, name, {"template": {"roles": roles}})
    found = eventually(
        platform,
        SERVINGS,
        lambda: status(platform, name),
        lambda one: is_available(2)(one) and one["observedGeneration"] == 2,
    )
    assert found["currentRevision"] == found["updateRevision"]
    second = pods(platform, name)
    assert {pod["metadata"]["uid"] for pod in second.values()}.isdisjoint(
        pod["metadata"]["uid"] for pod in first.values()
    )
    assert second["story-0-prefill-0-1"]["spec"]["containers"][0]["image"] == "engine:2"

    scaled = platform.ask(
        "PATCH", f"{SERVINGS}/{name}/scale", {"spec": {"replicas": 1}}, Content_Type="application/merge-patch+json"
    )  # fmt: skip
    assert scaled.status == 200, scaled.body
    eventually(platform, PODS, lambda: sorted(pods(platform, name)), lambda found: len(found) == 3)
    assert set(pods(platform, name)) == {name for name in second if name.startswith("story-0")}

    platform.ask("DELETE", f"{SERVINGS}/{name}")
    eventually(platform, PODS, lambda: sorted(pods(platform, name)), lambda found: not found)


def test_a_group_that_does_not_fit_takes_nothing(platform: PlatformProcess) -> None:
    name = "huge"
    post(platform, serving(name, roles=simulated(role("server", replicas=9)), replicas=1))
    groups = "/apis/scheduling.volcano.sh/v1beta1/namespaces/default/podgroups"
    eventually(
        platform,
        groups,
        lambda: conditions(platform.ask("GET", f"{groups}/{name}-0")),
        lambda found: any(one["type"] == "Unschedulable" for one in found),
    )
    assert not [pod for pod in pods(platform, name).values() if pod["spec"].get("nodeName")]
    platform.ask("DELETE", f"{SERVINGS}/{name}")
    eventually(platform, PODS, lambda: sorted(pods(platform, name)), lambda found: not found)


def test_a_deleted_pod_comes_back_with_its_instance(platform: PlatformProcess) -> None:
    name = "mends"
    post(platform, serving(name, roles=simulated(role("server", workers=1)), replicas=1))
    eventually(platform, SERVINGS, lambda: status(platform, name), is_available(1))
    first = {pod["metadata"]["uid"] for pod in pods(platform, name).values()}
    platform.ask("DELETE", f"{PODS}/{name}-0-server-0-1")
    eventually(
        platform,
        PODS,
        lambda: {pod["metadata"]["uid"] for pod in pods(platform, name).values()},
        lambda found: len(found) == 2 and not found & first,
    )
    eventually(platform, SERVINGS, lambda: status(platform, name), is_available(1))
    platform.ask("DELETE", f"{SERVINGS}/{name}")
