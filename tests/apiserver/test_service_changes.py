"""A change of what a service needs takes along the fields that only the old one needed."""

import asyncio
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.testing.api_server import ApiCaller

SERVICES = "/api/v1/namespaces/default/services"
PORTS = [{"port": 80, "nodePort": 30080}]
BALANCED = {
    "type": "LoadBalancer", "ports": PORTS, "externalTrafficPolicy": "Local", "healthCheckNodePort": 30999, "clusterIP": "10.0.0.7",
}  # fmt: skip
OPEN = {
    "type": "ClusterIP", "ports": [{"port": 80}], "externalIPs": ["1.2.3.4"], "externalTrafficPolicy": "Cluster", "clusterIP": "10.0.0.7",
}  # fmt: skip


def changed(spec: Document, patch: Document) -> tuple[int, Any]:
    async def play() -> tuple[int, Any]:
        async with ApiCaller() as api:
            status, made = await api.post(SERVICES, {"metadata": {"name": "s"}, "spec": spec})
            assert status == 201, made
            return await api.patch(f"{SERVICES}/s", {"spec": patch})

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("spec", "patch", "gone", "kept"),
    [
        (BALANCED, {"type": "ClusterIP"}, ["externalTrafficPolicy", "healthCheckNodePort"], {"clusterIP": "10.0.0.7"}),
        (BALANCED, {"externalTrafficPolicy": "Cluster"}, ["healthCheckNodePort"], {"type": "LoadBalancer"}),
        (BALANCED, {"selector": {"a": "b"}}, [], {"healthCheckNodePort": 30999, "externalTrafficPolicy": "Local"}),
        (BALANCED, {"healthCheckNodePort": None}, [], {"healthCheckNodePort": 30999}),
        (OPEN, {"externalIPs": None}, ["externalTrafficPolicy"], {"clusterIP": "10.0.0.7"}),
    ],
)
def test_what_the_service_no_longer_needs_goes(spec: Document, patch: Document, gone: list[str], kept: Document):
    status, document = changed(spec, patch)
    assert status == 200, document
    assert not document["spec"].keys() & set(gone)
    assert {key: document["spec"].get(key) for key in kept} == kept


def test_a_value_that_the_change_gives_anew_is_refused_where_it_has_no_place():
    status, said = changed(BALANCED, {"type": "ClusterIP", "healthCheckNodePort": 31000})
    assert (status, "spec.healthCheckNodePort" in said["message"]) == (422, True)
