"""Volcano's resource groups: an administrator's ConfigMap sends pods to nodes, by namespace or by annotation."""

import contextlib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from hekla.api.core import ConfigMap, Pod
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.testing.admission import Objects, admit, api_object, refusal
from hekla.workloads.admission import ADMISSION_RULES, RESOURCE_GROUPS_CHECK, complete_pods, rules_of
from hekla.workloads.admission_resource_groups import (
    CONFIG_MAP,
    HOME,
    KEY,
    JoinResourceGroup,
    ResourceGroupError,
    parse,
)

# as Volcano's documentation has it
CONFIGURATION = """
resourceGroups:
- resourceGroup: management
  object:
    key: namespace
    value:
    - mng-ns-1
  schedulerName: default-scheduler
  tolerations:
  - effect: NoSchedule
    key: taint
    operator: Exists
  labels:
    volcano.sh/nodetype: management-node
- resourceGroup: cpu
  object:
    key: annotation
    value:
    - "volcano.sh/resource-group: cpu"
    - "team: batch"
  schedulerName: volcano
  labels:
    volcano.sh/nodetype: cpu
- resourceGroup: gpu
  labels:
    volcano.sh/nodetype: gpu
  affinity: '{"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
    [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}}'
"""
TOLERATION = {"effect": "NoSchedule", "key": "taint", "operator": "Exists"}


def config_map(text: str, namespace: str = HOME) -> dict[str, Any]:
    return api_object(ConfigMap, CONFIG_MAP, namespace, data={KEY: text})


def pod(namespace: str = "ns", annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    document = api_object(Pod, "p", namespace, spec={"containers": [{"name": "c", "image": "i"}], **spec})
    document["metadata"]["annotations"] = annotations or {}
    return document


def joined(document: dict[str, Any], text: str = CONFIGURATION) -> dict[str, Any]:
    spec: dict[str, Any] = admit(ADMISSION_RULES, document, there=[config_map(text)])["spec"]
    return spec


def test_a_namespaces_pods_go_where_its_group_is() -> None:
    spec = joined(pod("mng-ns-1", schedulerName="volcano"))
    assert spec["schedulerName"] == "default-scheduler"
    assert spec["nodeSelector"] == {"volcano.sh/nodetype": "management-node"}
    assert spec["tolerations"] == [TOLERATION]


@pytest.mark.parametrize(
    ("annotations", "node_type"),
    [
        ({"volcano.sh/resource-group": "cpu"}, "cpu"),
        ({"team": "batch"}, "cpu"),
        ({"volcano.sh/resource-group": "gpu"}, "gpu"),
        ({"volcano.sh/resource-group": "management"}, None),  # its object names a namespace and nothing else
        ({"team": "web"}, None),
        ({}, None),
    ],
)
def test_an_annotation_makes_a_pod_one_of_its_group(annotations: dict[str, str], node_type: str | None) -> None:
    assert joined(pod(annotations=annotations)).get("nodeSelector", {}).get("volcano.sh/nodetype") == node_type


def test_the_first_group_that_matches_is_the_pods() -> None:
    spec = joined(pod("mng-ns-1", annotations={"volcano.sh/resource-group": "gpu"}))
    assert spec["nodeSelector"] == {"volcano.sh/nodetype": "management-node"}


def test_nobody_leaves_a_group_by_asking_for_other_nodes() -> None:
    wish = {"volcano.sh/nodetype": "gpu", "disk": "fast"}
    spec = joined(pod("mng-ns-1", nodeSelector=wish, tolerations=[TOLERATION, {"key": "mine", "operator": "Exists"}]))
    assert spec["nodeSelector"] == {"volcano.sh/nodetype": "management-node", "disk": "fast"}
    assert spec["tolerations"] == [TOLERATION, {"key": "mine", "operator": "Exists"}]


def test_a_pod_keeps_an_affinity_of_its_own() -> None:
    gpu = {"volcano.sh/resource-group": "gpu"}
    terms = joined(pod(annotations=gpu))["affinity"]["nodeAffinity"]
    assert terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"]
    own = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert joined(pod(annotations=gpu, affinity=own))["affinity"] == own


def test_a_change_of_the_config_map_is_in_force_with_the_next_pod() -> None:
    document = pod("research")
    assert "nodeSelector" not in joined(document)
    text = "resourceGroups: [{object: {key: namespace, value: [research]}, labels: {kind: gpu}}]"
    assert joined(document, text)["nodeSelector"] == {"kind": "gpu"}
    assert "nodeSelector" not in joined(document, "")


def test_what_cannot_be_read_leaves_the_last_good_groups_in_force_and_warns_who_makes_pods() -> None:
    join = JoinResourceGroup()

    def made(text: str) -> AdmissionRequest:
        document = pod("mng-ns-1")
        request = AdmissionRequest(Pod.kind_info, Operation.CREATE, "mng-ns-1", "p", "", document, None, User("ann"))
        join(request, Objects([config_map(text)]))
        return request

    assert not made(CONFIGURATION).warnings
    request = made("resourceGroups: [{resourceGroup: a, node: b}]")
    assert request.object is not None
    assert request.object["spec"]["schedulerName"] == "default-scheduler"
    assert request.warnings == [
        "configmap volcano-system/volcano-admission-configmap: line 1: resourceGroups[0] knows no field "
        '"node"; there are resourceGroup, object, schedulerName, tolerations, labels, affinity; what it said before is in force'
    ]


def test_webhooks_look_in_their_own_namespace() -> None:
    rules = rules_of("hekla-system")
    spec = admit(rules, pod("mng-ns-1"), there=[config_map(CONFIGURATION, "hekla-system")])["spec"]
    assert spec["schedulerName"] == "default-scheduler"
    assert "schedulerName" not in admit(rules, pod("mng-ns-1"), there=[config_map(CONFIGURATION)])["spec"]
    assert len(rules) == len(ADMISSION_RULES)
    assert complete_pods("hekla-system").name in {rule.name for rule in rules}


BROKEN = {
    "resourceGroups: {": "line 1: not readable as YAML: expected the node content, but found '<stream end>'",
    "groups: []\nresourceGroups: 3": "expected `resourceGroups:` and a list of groups below it",
    "resourceGroups: [gpu]": (
        "resourceGroups[0] is 'gpu'; a group is a mapping of resourceGroup, object, schedulerName, tolerations, labels, "
        "affinity"
    ),
    "resourceGroups: [{labels: {a: b}}]": (
        "resourceGroups[0] takes no pod; name the group in resourceGroup, or its pods in object"
    ),
    "resourceGroups: [{object: {key: label, value: [a]}}]": (
        'resourceGroups[0].object.key is "label"; use namespace or annotation'
    ),
    "resourceGroups: [{object: {key: annotation, value: [gpu]}}]": (
        "resourceGroups[0].object.value[0] is 'gpu'; write an annotation like \"volcano.sh/resource-group: gpu\""
    ),
    "resourceGroups: [{object: {key: namespace, value: a}}]": (
        "line 1: resourceGroups[0].object.value is 'a'; write a list"
    ),
    "resourceGroups: [{resourceGroup: a, tolerations: [{key: 3}]}]": (
        "resourceGroups[0].tolerations is {'key': 3}: Expected `str`, got `int` - at `$.key`"
    ),
    "resourceGroups: [{resourceGroup: a, affinity: '{'}]": (
        "resourceGroups[0].affinity is not readable as JSON: Input data was truncated"
    ),
    "resourceGroups: [{resourceGroup: 7}]": "line 1: resourceGroups[0].resourceGroup is 7; write a text",
    "resourceGroups: [{resourceGroup: a, labels: b}]": (
        "resourceGroups[0].labels is 'b'; write labels of nodes as `key: value`"
    ),
    "resourceGroups: [{resourceGroup: a, object: b}]": (
        "resourceGroups[0].object is 'b'; write {key: namespace, value: [a, b]}"
    ),
}


@pytest.mark.parametrize("text", BROKEN)
def test_the_embedded_server_refuses_a_configuration_that_cannot_be_used(text: str) -> None:
    said = refusal([RESOURCE_GROUPS_CHECK], config_map(text))
    denied = 'admission webhook "validateadmissionconf.hekla.dev" denied the request: volcano-admission.conf: '
    assert said == denied + BROKEN[text]


@pytest.mark.parametrize("document", [config_map(CONFIGURATION), config_map(""), config_map("no: yes", "elsewhere")])
def test_other_config_maps_are_nobodys_business(document: dict[str, Any]) -> None:
    assert refusal([RESOURCE_GROUPS_CHECK], document) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "namespace", "annotation", "a: b", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["resourceGroup", "object", "key", "value", "tolerations", "labels", "affinity"]), inner
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_text_is_read_or_refused_with_a_sentence(found: Any) -> None:
    text = yaml.safe_dump({"resourceGroups": found})
    with contextlib.suppress(ResourceGroupError):
        parse(text)
    assert joined(pod("annotation"), text)["containers"], "the pod is made in any case"
