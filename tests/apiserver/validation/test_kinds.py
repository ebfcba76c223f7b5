"""One or two sentences of every kind that is not a pod or a definition."""

import base64
import copy
from typing import Any

import pytest

from hekla.api.meta import Document
from hekla.apiserver.strategies import builtin_strategies

BUILTIN = builtin_strategies()
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
SELECTOR = {"matchLabels": {"a": "b"}}
ENDING = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}


def said(resource: str, document: Document) -> list[str]:
    strategy = BUILTIN[resource]
    document = {
        "metadata": {"name": "x", "uid": "u", **({"namespace": "n"} if strategy.kind.is_namespaced else {})},
        **copy.deepcopy(document),
    }
    strategy.check_types(document)
    return [f"{error.field}: {error.message}" for error in strategy.validate_create(strategy.prepare_create(document))]


def workload(**spec: Any) -> Document:
    return {"spec": {"selector": SELECTOR, "template": TEMPLATE, **spec}}


def job(**spec: Any) -> Document:
    return {"spec": {"template": ENDING, **spec}}


DEEP = base64.b64encode(b"[" * 100_000).decode()
CASES: list[tuple[str, Document, str]] = [
    ("deployments.apps/v1", workload(replicas=-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
    ("deployments.apps/v1", workload(selector=None), "spec.selector: Required value"),
    ("deployments.apps/v1", workload(selector={"matchLabels": {"a": "c"}}), 'spec.template.metadata.labels: Invalid value: {"a":"b"}: `selector` does not match template `labels`'),
    ("deployments.apps/v1", workload(template=ENDING), 'spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'),
    ("deployments.apps/v1", workload(strategy={"type": "Recreate", "rollingUpdate": {}}), "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"),
    ("deployments.apps/v1", workload(strategy={"rollingUpdate": {"maxUnavailable": 0, "maxSurge": 0}}), "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"),
    ("statefulsets.apps/v1", workload(podManagementPolicy="Any"), "spec.podManagementPolicy: Invalid value: \"Any\": must be 'OrderedReady' or 'Parallel'"),
    ("jobs.batch/v1", {"spec": {"template": TEMPLATE}}, 'spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"'),
    ("jobs.batch/v1", job(completionMode="Indexed", parallelism=1), "spec.completions: Required value: when completion mode is Indexed"),
    ("jobs.batch/v1", job(backoffLimit=-1), "spec.backoffLimit: Invalid value: -1: must be greater than or equal to 0"),
    ("cronjobs.batch/v1", {"spec": {"jobTemplate": job()}}, "spec.schedule: Required value"),
    ("cronjobs.batch/v1", {"spec": {"schedule": "* *", "jobTemplate": job()}}, 'spec.schedule: Invalid value: "* *": expected exactly 5 fields, found 2: [* *]'),
    ("services/v1", {"spec": {}}, "spec.ports: Required value"),
    ("services/v1", {"spec": {"ports": [{"port": 1}, {"port": 2}]}}, "spec.ports[0].name: Required value"),
    ("services/v1", {"spec": {"type": "Magic", "ports": [{"port": 1}]}}, 'spec.type: Unsupported value: "Magic": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort"'),
    ("configmaps/v1", {"data": {"a b": "x"}}, "data[a b]: Invalid value: \"a b\": a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"),
    ("secrets/v1", {"type": "kubernetes.io/tls", "data": {}}, "data[tls.crt]: Required value"),
    ("secrets/v1", {"type": "kubernetes.io/dockercfg", "data": {".dockercfg": DEEP}}, "data[.dockercfg]: Invalid value: \"<secret contents redacted>\": exceeded max depth"),
    ("poddisruptionbudgets.policy/v1", {"spec": {"minAvailable": "101%"}}, 'spec.minAvailable: Invalid value: "101%": must not be greater than 100%'),
    ("persistentvolumeclaims/v1", {"spec": {}}, "spec.accessModes: Required value: at least 1 access mode is required"),
    ("storageclasses.storage.k8s.io/v1", {}, "provisioner: Required value"),
    ("poddisruptionbudgets.policy/v1", {"spec": {"minAvailable": 1, "maxUnavailable": 1}}, "spec: Invalid value: {\"minAvailable\":1,\"maxUnavailable\":1}: minAvailable and maxUnavailable cannot be both set"),
    ("poddisruptionbudgets.policy/v1", {"spec": {"minAvailable": "x"}}, "spec.minAvailable: Invalid value: \"x\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')"),
    ("nodes/v1", {"spec": {"taints": [{"key": "a", "effect": "X"}]}}, 'metadata.taints[0].effect: Unsupported value: "X": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute"'),
    ("leases.coordination.k8s.io/v1", {"spec": {"leaseDurationSeconds": 0}}, "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"),
    ("priorityclasses.scheduling.k8s.io/v1", {"value": 2_000_000_000}, "value: Forbidden: maximum allowed value of a user defined priority is 1000000000"),
    ("roles.rbac.authorization.k8s.io/v1", {"rules": [{"resources": ["pods"]}]}, "rules[0].verbs: Required value: verbs must contain at least one value"),
    ("rolebindings.rbac.authorization.k8s.io/v1", {"roleRef": {"kind": "Group", "name": "x"}}, 'roleRef.kind: Unsupported value: "Group": supported values: "Role", "ClusterRole"'),
    ("endpointslices.discovery.k8s.io/v1", {}, "addressType: Required value"),
    ("limitranges/v1", {"spec": {"limits": [{"type": "Pod", "min": {"cpu": "2"}, "max": {"cpu": "1"}}]}}, 'spec.limits[0].min[cpu]: Invalid value: "2": min value 2 is greater than max value 1'),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", {"webhooks": [{"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5, "failurePolicy": "Fail", "matchPolicy": "Exact", "clientConfig": {"url": "https://x"}, "matchConditions": [{"name": "a", "expression": "foo == 1"}]}]}, 'webhooks[0].matchConditions[0].expression: Invalid value: "foo == 1": compilation failed: ERROR: <input>:1:1: undeclared reference to \'foo\' (in container \'\')'),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", {"webhooks": [{"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5, "failurePolicy": "Fail", "matchPolicy": "Exact", "clientConfig": {"url": "https://x"}, "matchConditions": [{"name": "", "expression": "true"}]}]}, 'webhooks[0].matchConditions[0].name: Required value'),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", {"webhooks": [{"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5, "failurePolicy": "Fail", "matchPolicy": "Exact", "clientConfig": {"url": "https://x"}, "matchConditions": [{"name": "a", "expression": ""}]}]}, 'webhooks[0].matchConditions[0].expression: Required value'),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", {"webhooks": [{"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5, "failurePolicy": "Fail", "matchPolicy": "Exact", "clientConfig": {"url": "https://x"}, "matchConditions": [{"name": "f", "expression": "true"}, {"name": "f", "expression": "true"}]}]}, 'webhooks[0].matchConditions[1].name: Duplicate value: "f"'),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", {"webhooks": [{"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5, "failurePolicy": "Fail", "matchPolicy": "Exact", "clientConfig": {"url": "https://x"}, "matchConditions": [*({"name": f"n{one}", "expression": "true"} for one in range(65))]}]}, 'webhooks[0].matchConditions: Too many: 65: must have at most 64 items'),
    ("validatingwebhookconfigurations.admissionregistration.k8s.io/v1", {"webhooks": [{"name": "a", "admissionReviewVersions": ["v1"], "sideEffects": "None", "clientConfig": {"url": "https://x"}}]}, 'webhooks[0].name: Invalid value: "a": should be a domain with at least three segments separated by dots'),
]  # fmt: skip


@pytest.mark.parametrize(
    ("resource", "document", "sentence"), CASES, ids=[f"{resource} {sentence[:40]}" for resource, _, sentence in CASES]
)
def test_what_breaks_a_rule_is_refused_with_kubernetes_sentence(resource: str, document: Document, sentence: str):
    assert sentence in said(resource, document)


@pytest.mark.parametrize(
    "text", ["10.0.0.0/255.0.0.0", "10.0.0.0/0.0.0.255", "fe80::1%e/64", "fe80::%e/64", "10.0.0.0/\u0668", "10.0.0.0"]
)
def test_a_range_has_a_length_in_digits_and_no_zone(text: str):
    words = f'Invalid value: "{text}": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)'
    balanced = {"type": "LoadBalancer", "ports": [{"port": 1}], "loadBalancerSourceRanges": [text]}
    policy = {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": text}}]}]}
    assert said("nodes/v1", {"spec": {"podCIDRs": [text]}}) == [f"spec.podCIDRs[0]: {words}"]
    assert f"spec.LoadBalancerSourceRanges[0]: {words}" in said("services/v1", {"spec": balanced})
    found = said("networkpolicies.networking.k8s.io/v1", {"spec": policy})
    assert found == [f"spec.ingress[0].from[0].ipBlock.cidr: {words}"]


def test_an_address_has_no_zone():
    text = "2001:db8::1%eth0"
    words = f'Invalid value: "{text}": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)'
    pod = {**TEMPLATE, "spec": {**TEMPLATE["spec"], "hostAliases": [{"ip": text, "hostnames": ["h"]}]}}
    for resource, document in (
        ("endpoints/v1", {"subsets": [{"addresses": [{"ip": text}], "ports": [{"port": 1}]}]}),
        ("services/v1", {"spec": {"ports": [{"port": 1}], "externalIPs": [text]}}),
        ("deployments.apps/v1", workload(template=pod)),
    ):
        assert any(one.endswith(words) for one in said(resource, document)), resource
    assert said("endpointslices.discovery.k8s.io/v1", {"addressType": "IPv6", "endpoints": [{"addresses": [text]}]})


VALID: list[tuple[str, Document]] = [
    ("deployments.apps/v1", workload()),
    ("statefulsets.apps/v1", workload(serviceName="s")),
    ("daemonsets.apps/v1", workload()),
    ("replicasets.apps/v1", workload()),
    ("jobs.batch/v1", job()),
    ("cronjobs.batch/v1", {"spec": {"schedule": "*/5 * * * *", "jobTemplate": job()}}),
    ("services/v1", {"spec": {"ports": [{"port": 80}]}}),
    ("persistentvolumeclaims/v1", {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
    ("rolebindings.rbac.authorization.k8s.io/v1", {"roleRef": {"kind": "Role", "name": "r"}, "subjects": [{"kind": "User", "name": "u"}]}),
    ("endpointslices.discovery.k8s.io/v1", {"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}], "ports": [{"port": 80}]}),
    ("networkpolicies.networking.k8s.io/v1", {"spec": {"podSelector": {}}}),
    ("runtimeclasses.node.k8s.io/v1", {"handler": "process"}),
    ("secrets/v1", {"type": "kubernetes.io/dockercfg-old", "data": {"a": "eA=="}}),
]  # fmt: skip


@pytest.mark.parametrize(("resource", "document"), VALID, ids=[resource for resource, _ in VALID])
def test_an_ordinary_object_is_valid(resource: str, document: Document):
    assert said(resource, document) == []


def test_a_selector_stays_and_a_stateful_set_mostly_stays():
    for resource, change, sentence in (
        ("deployments.apps/v1", {"selector": {"matchLabels": {"a": "b", "c": "d"}}}, "spec.selector: Invalid value"),
        (
            "statefulsets.apps/v1",
            {"serviceName": "other"},
            "spec: Forbidden: updates to statefulset spec for fields other than",
        ),
    ):
        strategy = BUILTIN[resource]
        meta = {"metadata": {"name": "x", "namespace": "n"}}
        old = strategy.prepare_create({**meta, **copy.deepcopy(workload())})
        new = strategy.prepare_update(copy.deepcopy({**meta, **workload(**change)}), old)
        assert any(
            f"{error.field}: {error.message}".startswith(sentence) for error in strategy.validate_update(new, old)
        )


def test_an_immutable_config_map_stays():
    strategy = BUILTIN["configmaps/v1"]
    old = {"metadata": {"name": "x", "namespace": "n"}, "immutable": True, "data": {"a": "b"}}
    new = {**copy.deepcopy(old), "data": {"a": "c"}}
    (error,) = strategy.validate_update(new, old)
    assert (error.field, error.message) == ("data", "Forbidden: field is immutable when `immutable` is set")


def test_a_stateful_set_may_mount_what_its_claims_bring():
    mounted = {"name": "c", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    template = {**TEMPLATE, "spec": {"containers": [mounted]}}
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Mi"}}},
    }
    assert said("statefulsets.apps/v1", workload(template=template, volumeClaimTemplates=[claim])) == []
    [refusal] = said("statefulsets.apps/v1", workload(template=template))
    assert refusal == 'spec.template.spec.containers[0].volumeMounts[0].name: Not found: "data"'


def test_numbers_that_are_too_long_to_read_are_refused():
    digits = "9" * 5000
    (refusal,) = said("poddisruptionbudgets.policy/v1", {"spec": {"minAvailable": f"{digits}%"}})
    assert refusal.startswith("spec.minAvailable: Invalid value")
    assert "a valid percent string must be" in refusal
    cost = "controller.kubernetes.io/pod-deletion-cost"
    metadata = {"name": "x", "namespace": "n", "annotations": {cost: digits}}
    (refusal,) = said("pods/v1", {"metadata": metadata, "spec": ENDING["spec"]})
    assert refusal.endswith("must be a 32bit integer")


def test_a_daemon_set_whose_counter_is_no_number_is_changed_all_the_same():
    strategy = BUILTIN["daemonsets.apps/v1"]
    old = strategy.prepare_create({"metadata": {"name": "x", "namespace": "n"}, **copy.deepcopy(workload())})
    old["metadata"]["annotations"] = {"deprecated.daemonset.template.generation": "9" * 5000}
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"]["hostNetwork"] = True
    strategy.prepare_update(new, old)
    assert new["metadata"]["annotations"] == old["metadata"]["annotations"]
