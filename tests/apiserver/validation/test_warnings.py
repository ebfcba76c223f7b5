import asyncio
import json
from typing import Any

import pytest

from hekla.apiserver.presentation import warning_headers
from hekla.apiserver.strategies import builtin_strategies
from hekla.testing.api_server import ApiCaller

STRATEGIES = builtin_strategies()
DEPLOYS = "/apis/apps/v1/namespaces/default/deployments"


def told(resource: str, spec: dict[str, Any], name: str = "x", **metadata: Any) -> list[str]:
    strategy = STRATEGIES[resource]
    whole = {"metadata": {"name": name, "namespace": "n", **metadata}, "spec": spec}
    strategy.check_types(whole)
    return strategy.warnings(strategy.prepare_create(whole))


def pod(**spec: Any) -> dict[str, Any]:
    return {"containers": [{"name": "c", "image": "i"}], **spec}


def container(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "c", "image": "i", **fields}])


def env(*pairs: tuple[str, str]) -> dict[str, Any]:
    return container(env=[{"name": name, "value": value} for name, value in pairs])


def ports(*some: dict[str, Any]) -> dict[str, Any]:
    return container(ports=[{"containerPort": 80, **one} for one in some])


HIDES = 'spec.containers[0].env[1]: hides previous definition of "A", which may be dropped when using apply'
TERM = {"matchExpressions": [{"key": "beta.kubernetes.io/os", "operator": "Exists"}]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@pytest.mark.parametrize(
    ("spec", "sentences"),
    [
        (pod(), []),
        (env(("A", "1"), ("B", "2")), []),
        (env(("A", "1"), ("A", "2")), [HIDES]),
        (env(("A", "1"), ("A", "$(A)")), [HIDES]),
        (env(("A", "1"), ("A", "$(A):2")), []),
        (ports({}, {"protocol": "UDP"}), []),
        (ports({}, {}), ["spec.containers[0].ports[1]: duplicate port definition with spec.containers[0].ports[0]"]),
        (
            ports({}, {"hostPort": 80}),
            ["spec.containers[0].ports[1]: overlapping port definition with spec.containers[0].ports[0]"],
        ),
        (
            ports({"hostPort": 1}, {"hostPort": 1, "hostIP": "10.0.0.1"}),
            ["spec.containers[0].ports[1]: dangerously ambiguous port definition with spec.containers[0].ports[0]"],
        ),
        (
            ports({"hostIP": "10.0.0.1"}),
            [
                "spec.containers[0].ports[0]: hostIP set without hostPort: "
                "{Name: HostPort:0 ContainerPort:80 Protocol:TCP HostIP:10.0.0.1}"
            ],
        ),
        (
            pod(nodeSelector={"beta.kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}),
            [
                'spec.nodeSelector[beta.kubernetes.io/arch]: deprecated since v1.14; use "kubernetes.io/arch" instead',
            ],
        ),
        (
            pod(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [TERM]}}}),
            [
                f"spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].key: "
                'beta.kubernetes.io/os is deprecated since v1.14; use "kubernetes.io/os" instead'
            ],
        ),
        (
            pod(affinity={"podAntiAffinity": {REQUIRED: [{"topologyKey": "zone"}]}}),
            [
                f"spec.affinity.podAntiAffinity.{REQUIRED}[0].labelSelector: "
                "a null labelSelector results in matching no pod"
            ],
        ),
        (
            container(resources={"limits": {"memory": 0.5}}),
            [
                'spec.containers[0].resources.limits[memory]: fractional byte value "500m" is invalid, must be an integer',
                'spec.containers[0].resources.requests[memory]: fractional byte value "500m" is invalid, must be an integer',
            ],
        ),
        (
            pod(imagePullSecrets=[{"name": "a"}, {"name": "a"}, {}]),
            [
                'spec.imagePullSecrets[1].name: duplicate name "a"',
                'spec.imagePullSecrets[2].name: invalid empty name ""',
            ],
        ),
        (
            pod(volumes=[{"name": "v", "gitRepo": {"repository": "r"}}]),
            ["spec.volumes[0].gitRepo: deprecated in v1.11"],
        ),
        (
            pod(terminationGracePeriodSeconds=-1),
            [],  # a pod's is made 1 before anybody looks; a template of one is warned of
        ),
    ],
)
def test_a_pod_that_is_odd_is_let_in_with_kubernetes_sentence(spec: dict[str, Any], sentences: list[str]):
    assert told("pods/v1", spec) == sentences


def test_what_is_odd_in_a_template_is_told_with_its_place():
    selector = {"matchLabels": {"a": "b"}}
    annotated = {"metadata": {"annotations": {"security.alpha.kubernetes.io/sysctls": "x"}, "labels": {"a": "b"}}}
    deployment = {"selector": selector, "template": {**annotated, "spec": env(("A", "1"), ("A", "2"))}}
    assert told("deployments.apps/v1", deployment, name="web.v1") == [
        "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; "
        "a DNS label is recommended: [must not contain dots]",
        "spec.template.metadata.annotations[security.alpha.kubernetes.io/sysctls]: "
        'non-functional in v1.11+; use the "sysctls" field instead',
        f"spec.template.{HIDES}",
    ]
    job = {"template": {"spec": pod(nodeSelector={"node-role.kubernetes.io/master": ""})}}
    assert told("cronjobs.batch/v1", {"schedule": "* * * * *", "jobTemplate": {"spec": job}}) == [
        "spec.jobTemplate.spec.template.spec.nodeSelector[node-role.kubernetes.io/master]: "
        'use "node-role.kubernetes.io/control-plane" instead'
    ]


def test_fields_that_a_services_type_ignores_are_told():
    headless = {"clusterIP": "None", "sessionAffinity": "ClientIP", "externalIPs": ["10.1.1.1"]}
    assert told("services/v1", headless) == [
        "spec.externalIPs is ignored for headless services",
        "spec.SessionAffinity is ignored for headless services",
    ]
    assert told("services/v1", {"externalName": "x", "ports": [{"port": 1}]}) == [
        'spec.externalName is ignored when spec.type is not "ExternalName"'
    ]


def warnings_of(answer: Any) -> list[str]:
    return [value for name, value in answer.headers if name == "warning"]


def test_warnings_come_in_headers_once_and_not_again_while_nothing_wanted_changes():
    template = {"metadata": {"labels": {"a": "b"}}, "spec": env(("A", "1"), ("A", "2"))}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    whole = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}
    patches = [{"metadata": {"labels": {"x": "y"}}}, {"spec": {"replicas": 2}}]

    async def play() -> list[list[str]]:
        async with ApiCaller() as api:
            made = await api.response("POST", DEPLOYS, json.dumps(whole).encode(), content_type="application/json")
            found = [warnings_of(made)]
            for patch in patches:
                merge = "application/merge-patch+json"
                answer = await api.response("PATCH", f"{DEPLOYS}/d", json.dumps(patch).encode(), content_type=merge)
                found.append(warnings_of(answer))
            found.append(warnings_of(await api.response("GET", f"{DEPLOYS}/d")))
            found.append(warnings_of(await api.response("GET", "/api/v1/endpoints")))
            return found

    said = f'299 - "spec.template.{HIDES}"'.replace('"A"', '\\"A\\"')
    endpoints = '299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"'
    assert asyncio.run(play()) == [[said], [], [said], [], [endpoints]]


def test_a_deprecated_version_of_a_custom_resource_is_told_to_its_readers():
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "deprecated": True,
        "schema": {"openAPIV3Schema": {"type": "object"}},
    }
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    crd = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition"}

    async def play() -> list[str]:
        async with ApiCaller() as api:
            crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            await api.post(crds, {**crd, "metadata": {"name": "widgets.example.com"}, "spec": spec})
            while (await api.get("/apis/example.com/v1/widgets"))[0] != 200:
                await asyncio.sleep(0.01)
            return warnings_of(await api.response("GET", "/apis/example.com/v1/widgets"))

    assert asyncio.run(play()) == ['299 - "example.com/v1 Widget is deprecated"']


def test_many_long_warnings_are_cut_to_what_headers_hold_and_one_is_left_whole():
    assert len(warning_headers(["x" * 3_000])[0][1]) > 3_000
    cut = warning_headers([f"{number}{'x' * 500}" for number in range(100)])
    assert len(cut) == 16
    assert all(len(value) < 300 for _, value in cut)
