"""The official Python client as a second judge: typed calls, the dynamic client, watches, leader election's Lease."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from hekla.testing.api_server import LiveApiServer

client = pytest.importorskip("kubernetes.client")
dynamic = pytest.importorskip("kubernetes.dynamic")
watch = pytest.importorskip("kubernetes.watch")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def api() -> Iterator[Any]:
    with LiveApiServer() as server:
        settings = client.Configuration()
        settings.host = server.url
        yield client.ApiClient(settings)


def config_map(name: str, **data: str) -> Any:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name, labels={"by": "python"}), data=data)


def test_typed_objects_go_there_and_back(api: Any) -> None:
    core = client.CoreV1Api(api)
    made = core.create_namespaced_config_map("default", config_map("typed", a="b"))
    made.data["c"] = "d"
    assert core.replace_namespaced_config_map("typed", "default", made).data == {"a": "b", "c": "d"}
    assert core.patch_namespaced_config_map("typed", "default", {"data": {"a": None}}).data == {"c": "d"}
    core.delete_namespaced_config_map("typed", "default")
    with pytest.raises(client.ApiException) as missing:
        core.read_namespaced_config_map("typed", "default")
    assert missing.value.status == 404


def test_a_watch_sees_a_whole_life(api: Any) -> None:
    core = client.CoreV1Api(api)
    listed = core.list_namespaced_config_map("default")
    seen: list[tuple[str, str]] = []

    def follow() -> None:
        options = {"resource_version": listed.metadata.resource_version, "timeout_seconds": 20}
        stream = watch.Watch()
        for event in stream.stream(core.list_namespaced_config_map, "default", label_selector="by=python", **options):
            seen.append((event["type"], event["object"].metadata.name))
            if event["type"] == "DELETED":
                stream.stop()

    follower = threading.Thread(target=follow)
    follower.start()
    core.create_namespaced_config_map("default", config_map("watched", a="1"))
    core.patch_namespaced_config_map("watched", "default", {"data": {"a": "2"}})
    core.delete_namespaced_config_map("watched", "default")
    follower.join(30)
    assert seen == [("ADDED", "watched"), ("MODIFIED", "watched"), ("DELETED", "watched")]


def test_the_dynamic_client_finds_and_applies(api: Any) -> None:
    found = dynamic.DynamicClient(api).resources.get(api_version="apps/v1", kind="Deployment")
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "dynamic"}, "spec": spec}
    applied = found.server_side_apply(body=body, name="dynamic", namespace="default", field_manager="python")
    assert applied.spec.replicas == 1
    assert [one.metadata.name for one in found.get(namespace="default").items] == ["dynamic"]


def test_leaders_are_elected_by_lease(api: Any) -> None:
    leases = client.CoordinationV1Api(api)
    spec = client.V1LeaseSpec(holder_identity="one", lease_duration_seconds=15)
    made = leases.create_namespaced_lease(
        "default", client.V1Lease(metadata=client.V1ObjectMeta(name="leader"), spec=spec)
    )
    rival = leases.read_namespaced_lease("leader", "default")
    made.spec.holder_identity, rival.spec.holder_identity = "one-again", "two"
    leases.replace_namespaced_lease("leader", "default", made)
    with pytest.raises(client.ApiException) as lost:
        leases.replace_namespaced_lease("leader", "default", rival)
    assert lost.value.status == 409
