import copy
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.apiserver.strategies import builtin_strategies

PODS = builtin_strategies()["pods/v1"]


def pod(**spec: Any) -> Document:
    return {"metadata": {"name": "p", "namespace": "n"}, "spec": {"containers": [{"name": "c", "image": "x"}], **spec}}


def said(document: Document) -> list[str]:
    document = copy.deepcopy(document)
    PODS.check_types(document)
    return [f"{error.field}: {error.message}" for error in PODS.validate_create(PODS.prepare_create(document))]


def container(**fields: Any) -> Document:
    return pod(containers=[{"name": "c", "image": "x", **fields}])


def test_a_plain_pod_is_valid():
    assert said(pod()) == []


CASES: list[tuple[Document, str]] = [
    (pod(containers=[]), "spec.containers: Required value"),
    (container(name=""), "spec.containers[0].name: Required value"),
    (container(image=" x"), 'spec.containers[0].image: Invalid value: " x": must not have leading or trailing whitespace'),
    (container(imagePullPolicy="Often"), 'spec.containers[0].imagePullPolicy: Unsupported value: "Often": supported values: "Always", "IfNotPresent", "Never"'),
    (container(ports=[{"containerPort": 0}]), "spec.containers[0].ports[0].containerPort: Required value"),
    (container(ports=[{"containerPort": 70000}]), "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"),
    (container(ports=[{"containerPort": 1, "protocol": "X"}]), 'spec.containers[0].ports[0].protocol: Unsupported value: "X": supported values: "SCTP", "TCP", "UDP"'),
    (container(ports=[{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]), 'spec.containers[0].ports[1].name: Duplicate value: "a"'),
    (container(env=[{"value": "x"}]), "spec.containers[0].env[0].name: Required value"),
    (container(env=[{"name": "A", "value": "x", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]), 'spec.containers[0].env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty'),
    (container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s"}}}]), "spec.containers[0].env[0].valueFrom.secretKeyRef.key: Required value"),
    (container(volumeMounts=[{"name": "v", "mountPath": "/x"}]), 'spec.containers[0].volumeMounts[0].name: Not found: "v"'),
    (container(resources={"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}), 'spec.containers[0].resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'),
    (container(resources={"requests": {"gpu/x": "1"}}), "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources"),
    (container(resources={"requests": {"gpu/x": "1"}, "limits": {"gpu/x": "2"}}), 'spec.containers[0].resources.requests: Invalid value: "1": must be equal to gpu/x limit of 2'),
    (container(resources={"limits": {"gpu/x": "1500m"}}), 'spec.containers[0].resources.limits[gpu/x]: Invalid value: "1500m": must be an integer'),
    (container(resources={"limits": {"cpu": "-1"}}), 'spec.containers[0].resources.limits[cpu]: Invalid value: "-1": must be greater than or equal to 0'),
    (container(resources={"limits": {"tpu": "1"}}), 'spec.containers[0].resources.limits[tpu]: Invalid value: "tpu": must be a standard resource for containers'),
    (container(livenessProbe={}), "spec.containers[0].livenessProbe: Required value: must specify a handler type"),
    (container(livenessProbe={"exec": {"command": ["a"]}, "tcpSocket": {"port": 1}}), "spec.containers[0].livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"),
    (container(livenessProbe={"exec": {"command": ["a"]}, "successThreshold": 2}), "spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"),
    (pod(initContainers=[{"name": "i", "image": "x", "readinessProbe": {"exec": {"command": ["a"]}}}]), "spec.initContainers[0].readinessProbe: Forbidden: may not be set for init containers without restartPolicy=Always"),
    (pod(containers=[{"name": "c", "image": "x"}, {"name": "c", "image": "x"}]), 'spec.containers[1].name: Duplicate value: "c"'),
    (pod(volumes=[{"name": "v", "hostPath": {"path": ""}}]), "spec.volumes[0].hostPath.path: Required value"),
    (pod(volumes=[{"name": "v", "emptyDir": {}, "secret": {"secretName": "s"}}]), "spec.volumes[0].secret: Forbidden: may not specify more than 1 volume type"),
    (pod(volumes=[{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "../x"}]}}]), "spec.volumes[0].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'"),
    (pod(restartPolicy="Sometimes"), 'spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"'),
    (pod(activeDeadlineSeconds=0), "spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"),
    (pod(tolerations=[{"value": "x"}]), 'spec.tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is empty, which means "match all values and all keys"'),
    (pod(tolerations=[{"key": "a", "operator": "Exists", "effect": "Never"}]), 'spec.tolerations[0].effect: Unsupported value: "Never": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'),
    (pod(topologySpreadConstraints=[{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "DoNotSchedule"}]), "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero"),
    (pod(schedulingGates=[{"name": "a/b"}], nodeName="n"), "spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"),
    (pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}), "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required value: must have at least one node selector term"),
    (pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"labelSelector": {}}]}}), "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey: Required value: can not be empty"),
    (pod(hostAliases=[{"ip": "x"}]), 'spec.hostAliases[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'),
    (pod(dnsPolicy="None"), "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"),
]  # fmt: skip


@pytest.mark.parametrize(("document", "sentence"), CASES, ids=[sentence[:60] for _, sentence in CASES])
def test_a_pod_that_breaks_a_rule_is_refused_with_kubernetes_sentence(document: Document, sentence: str):
    assert sentence in said(document)


@pytest.mark.parametrize(
    ("resources", "quality"),
    [
        ({}, "BestEffort"),
        ({"requests": {"cpu": "1"}}, "Burstable"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, "Guaranteed"),
        ({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"memory": "512Mi"}}, "Burstable"),
        ({"limits": {"nvidia.com/gpu": "1"}}, "BestEffort"),
    ],
)
def test_the_quality_of_service_follows_from_requests_and_limits(resources: Document, quality: str):
    document = container(resources=resources)
    assert PODS.prepare_create(document)["status"]["qosClass"] == quality


def changed(before: Document, after: Document) -> list[str]:
    old, new = PODS.prepare_create(pod(**before)), pod(**after)
    new = PODS.prepare_update(new, old)
    return [f"{error.field}: {error.message}".partition("\n")[0] for error in PODS.validate_update(new, old)]


def test_gates_only_go_and_deadlines_only_shrink():
    gates = [{"name": "a/b"}]
    assert changed({"schedulingGates": gates}, {}) == []
    assert changed({}, {"schedulingGates": gates}) == [
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a/b'"
    ]
    assert changed({"activeDeadlineSeconds": 5}, {"activeDeadlineSeconds": 4}) == []
    assert changed({"activeDeadlineSeconds": 5}, {"activeDeadlineSeconds": 6}) == [
        "spec.activeDeadlineSeconds: Invalid value: 6: must be less than or equal to previous value"
    ]


def test_tolerations_are_only_added():
    one, two = {"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}
    assert changed({"tolerations": [one]}, {"tolerations": [one, two]}) == []
    assert changed({"tolerations": [one]}, {"tolerations": [two]}) == [
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds"
    ]


def test_a_template_on_the_hosts_network_may_leave_its_host_ports_to_its_pods():
    ports = [{"containerPort": 80}]
    spec = {"hostNetwork": True, "containers": [{"name": "c", "image": "x", "ports": ports}]}

    def refused(**port: int):
        templates = builtin_strategies()["podtemplates/v1"]
        ports[0] = {"containerPort": 80, **port}
        whole = {"metadata": {"name": "t", "namespace": "n"}, "template": {"spec": copy.deepcopy(spec)}}
        templates.check_types(whole)
        whole = templates.prepare_create(whole)
        (found,) = whole["template"]["spec"]["containers"][0]["ports"]
        return found.get("hostPort"), [str(one.message) for one in templates.validate_create(whole)]

    assert refused() == (None, [])
    assert refused(hostPort=80) == (80, [])
    sentence = "Invalid value: 81: must match `containerPort` when `hostNetwork` is true"
    assert refused(hostPort=81) == (81, [sentence])
    assert said(pod(**copy.deepcopy(spec))) == [f"spec.containers[0].ports[0].hostPort: {sentence}"]
    ports[0] = {"containerPort": 80}
    assert said(pod(**spec)) == []
