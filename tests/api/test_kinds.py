import json

import msgspec
import pytest

from hekla.api import kinds
from hekla.api.apps import Deployment
from hekla.api.core import Namespace, Pod, Service
from hekla.api.kubernetes.served import BY_RESOURCE
from hekla.api.meta import KINDS, Resource


def test_every_family_declares_a_kind_or_a_plain_document():
    assert len(kinds.FAMILIES) >= 16
    assert {"pods/v1", "jobs.batch/v1", "customresourcedefinitions.apiextensions.k8s.io/v1"} <= set(KINDS)


@pytest.mark.parametrize("cls", KINDS.values(), ids=KINDS.keys())
def test_an_empty_document_decodes_as_every_kind(cls: type[Resource]):
    assert msgspec.convert({}, cls).metadata.name == ""


def test_a_pod_is_read_with_its_wire_names():
    body = {
        "metadata": {"name": "a", "uid": "u"},
        "spec": {
            "containers": [
                {"name": "c", "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]}
            ],
            "initContainers": [{"name": "s", "restartPolicy": "Always"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z"}]}},
            "volumes": [{"name": "v", "downwardAPI": {"items": [{"path": "x"}]}}],
            "hostPID": True,
        },
        "status": {"podIP": "127.0.0.9", "podIPs": [{"ip": "127.0.0.9"}], "hostIP": "127.0.0.1"},
    }
    pod = msgspec.json.decode(json.dumps(body), type=Pod)
    assert pod.status.pod_ip == "127.0.0.9"
    assert pod.status.pod_ips[0].ip == "127.0.0.9"
    assert pod.spec.host_pid
    assert pod.spec.init_containers[0].restart_policy == "Always"
    assert pod.spec.volumes[0].downward_api is not None
    assert pod.spec.affinity is not None
    assert pod.spec.affinity.pod_anti_affinity is not None
    terms = pod.spec.affinity.pod_anti_affinity.required_during_scheduling_ignored_during_execution
    assert terms[0].topology_key == "z"


def test_a_number_and_a_percentage_are_both_read():
    body = {"spec": {"strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}}}}
    rolling = msgspec.convert(body, Deployment).spec.strategy.rolling_update
    assert rolling is not None
    assert (rolling.max_surge, rolling.max_unavailable) == ("25%", 1)


def test_paths_and_keys_follow_from_the_declaration():
    assert Pod.kind_info.path("ns", "a", "log") == "/api/v1/namespaces/ns/pods/a/log"
    assert Namespace.kind_info.path(None, "a") == "/api/v1/namespaces/a"
    assert Service.kind_info.short_names == ("svc",)


@pytest.mark.parametrize("name", [name for name in KINDS if name in BY_RESOURCE])
def test_a_typed_view_declares_its_kind_as_discovery_lists_it(name: str):
    assert KINDS[name].kind_info == BY_RESOURCE[name].kind
