import base64

import msgspec
import pytest

from hekla.api.core import ConfigMap, Secret, Service
from hekla.api.pods import Pod
from hekla.node.environment import command_of, environment_of, expand
from hekla.node.fields import Self
from hekla.node.references import CONFIG_MAP, SECRET, Lookup, references_of
from hekla.node.runtimes import ConfigError


def me(container, **spec):
    document = {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": {"a/b": "note"}},
        "spec": {"containers": [{"name": "main", **container}], "nodeName": "n0", **spec},
    }
    pod = msgspec.convert(document, Pod)
    return Self(pod=pod, pod_ip="127.64.0.1", host_ip="127.0.0.1", allocatable={"cpu": "8", "memory": "1Gi"})


def env(container, lookup=None, **spec):
    myself = me(container, **spec)
    return environment_of(myself.pod.spec.containers[0], myself, lookup or Lookup())


LOOKUP = Lookup(
    config_maps={"cm": ConfigMap(data={"K": "V", "9x": "no name", "dotted.key": "yes"})},
    secrets={"s": Secret(data={"K": base64.b64encode(b"hidden").decode()})},
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)", "1"), ("$$(A)", "$(A)"), ("$$$(A)", "$1"), ("$(B)", "$(B)"), ("$A $(A", "$A $(A"), ("$()", "$()"),
        ("x$(A)y$(A)", "x1y1"), ("", ""),
    ],
)  # fmt: skip
def test_references_are_replaced_as_kubernetes_does(text, expected):
    assert expand(text, {"A": "1"}) == expected


def test_a_variable_sees_those_before_it_only():
    found = env({"env": [{"name": "A", "value": "$(B)"}, {"name": "B", "value": "1"}, {"name": "C", "value": "$(B)"}]})
    assert found == {"A": "$(B)", "B": "1", "C": "1"}


def test_whole_maps_come_with_a_prefix_and_without_keys_that_are_no_names():
    found = env({"envFrom": [{"prefix": "P_", "configMapRef": {"name": "cm"}}, {"secretRef": {"name": "s"}}]}, LOOKUP)
    assert found == {"P_K": "V", "P_9x": "no name", "P_dotted.key": "yes", "K": "hidden"}
    assert "9x" not in env({"envFrom": [{"configMapRef": {"name": "cm"}}]}, LOOKUP)


def test_a_variable_of_its_own_wins_over_a_whole_map():
    container = {"envFrom": [{"configMapRef": {"name": "cm"}}], "env": [{"name": "K", "value": "mine"}]}
    assert env(container, LOOKUP)["K"] == "mine"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"configMapKeyRef": {"name": "cm", "key": "none"}}, "couldn't find key none in ConfigMap ns/cm"),
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'secret "none" not found'),
        ({"secretKeyRef": {"name": "s", "key": "none"}}, "couldn't find key none in Secret ns/s"),
        ({"fieldRef": {"fieldPath": "spec.nothing"}}, 'unsupported fieldPath: "spec.nothing"'),
    ],
)
def test_what_is_missing_is_named(source, message):
    with pytest.raises(ConfigError) as refusal:
        env({"env": [{"name": "A", "valueFrom": source}]}, LOOKUP)
    assert str(refusal.value) == message


def test_what_is_optional_may_be_missing():
    sources = [
        {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}},
        {"secretKeyRef": {"name": "s", "key": "x", "optional": True}},
    ]
    container = {"env": [{"name": f"A{number}", "valueFrom": each} for number, each in enumerate(sources)]}
    assert env({**container, "envFrom": [{"configMapRef": {"name": "none", "optional": True}}]}, LOOKUP) == {}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "p"), ("metadata.namespace", "ns"), ("metadata.uid", "u"), ("spec.nodeName", "n0"),
        ("metadata.annotations['a/b']", "note"), ("metadata.labels['none']", ""), ("status.podIP", "127.64.0.1"),
        ("status.hostIP", "127.0.0.1"), ("spec.serviceAccountName", "default"),
    ],
)  # fmt: skip
def test_a_pod_may_read_its_own_fields(path, expected):
    assert env({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}) == {"A": expected}


@pytest.mark.parametrize(
    ("resource", "divisor", "expected"),
    [
        ("limits.cpu", "1", "2"), ("limits.cpu", "1m", "1500"), ("requests.cpu", "1m", "250"),
        ("limits.memory", "1Mi", "1024"), ("requests.memory", "", "0"), ("limits.memory", "0", "1073741824"),
    ],
)  # fmt: skip
def test_resources_are_divided_and_rounded_up_and_fall_back_to_the_node(resource, divisor, expected):
    container = {
        "resources": {"limits": {"cpu": "1500m"}, "requests": {"cpu": "250m"}},
        "env": [{"name": "A", "valueFrom": {"resourceFieldRef": {"resource": resource, "divisor": divisor}}}],
    }
    assert env(container) == {"A": expected}


def test_the_service_of_the_api_server_does_not_hide_the_address_that_its_certificate_names():
    spec = {"clusterIP": "127.96.0.5", "ports": [{"name": "https", "port": 443}]}
    service = msgspec.convert({"metadata": {"name": "kubernetes"}, "spec": spec}, Service)
    found = env({}, Lookup(services=(service,), api_host="127.0.0.1", api_port=6443))
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6443")


def test_services_are_told_unless_links_are_off():
    service = msgspec.convert(
        {"metadata": {"name": "my-db"}, "spec": {"clusterIP": "127.96.0.5", "ports": [{"name": "sql", "port": 5432}]}},
        Service,
    )
    lookup = Lookup(services=(service,), api_host="127.0.0.1", api_port=6443)
    found = env({}, lookup)
    assert found["MY_DB_SERVICE_HOST"] == "127.96.0.5"
    assert found["MY_DB_SERVICE_PORT_SQL"] == "5432"
    assert found["MY_DB_PORT_5432_TCP"] == "tcp://127.96.0.5:5432"
    assert (found["KUBERNETES_SERVICE_HOST"], found["KUBERNETES_SERVICE_PORT"]) == ("127.0.0.1", "6443")
    assert not any(name.startswith("MY_DB") for name in env({}, lookup, enableServiceLinks=False))


def test_command_and_args_are_one_command_line():
    pod = me({"command": ["echo", "$(A)"], "args": ["$(A)", "$(B)"]}).pod
    assert command_of(pod.spec.containers[0], {"A": "1"}) == ("echo", "1", "1", "$(B)")


def test_every_reference_of_a_pod_is_found():
    container = {
        "envFrom": [{"configMapRef": {"name": "a"}}, {"secretRef": {"name": "b"}}],
        "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}}],
    }
    volumes = [
        {"name": "v", "configMap": {"name": "d"}},
        {"name": "w", "secret": {"secretName": "e"}},
        {"name": "p", "projected": {"sources": [{"configMap": {"name": "f"}}, {"secret": {"name": "g"}}]}},
    ]
    assert references_of(me(container, volumes=volumes).pod) == {
        (CONFIG_MAP, "a"), (SECRET, "b"), (SECRET, "c"), (CONFIG_MAP, "d"), (SECRET, "e"), (CONFIG_MAP, "f"), (SECRET, "g"),
    }  # fmt: skip
