import random
import re
from ipaddress import IPv4Network

import pytest

from hekla.api.meta import Kind, Scope
from hekla.apiserver.admission import AdmissionRequest, Operation, User
from hekla.apiserver.admission_rules.claim_binding import ClaimBinding
from hekla.apiserver.admission_rules.namespace_lifecycle import NamespaceLifecycle
from hekla.apiserver.admission_rules.pod_defaults import (
    DefaultTolerationSeconds,
    PriorityRule,
    RuntimeClassRule,
    ServiceAccountRule,
)
from hekla.apiserver.admission_rules.rbac_escalation import RbacEscalation
from hekla.apiserver.admission_rules.service_addresses import ServiceAddresses
from hekla.apiserver.admission_rules.storage_defaults import DefaultStorageClass, StorageProtection
from hekla.apiserver.auth.attributes import Decision
from hekla.apiserver.auth.rbac import RbacAuthorizer
from hekla.apiserver.status import StatusError

RBAC = "rbac.authorization.k8s.io"


class Objects:
    def __init__(self, objects=()):
        self.objects = dict(objects)

    def get(self, resource, namespace, name):
        return self.objects.get((resource, namespace, name))

    def list(self, resource, namespace=""):
        return [o for (r, n, _), o in self.objects.items() if r == resource and namespace in ("", n)]


def kind(plural, name, group="", scope=Scope.NAMESPACED):
    return Kind(group=group, version="v1", kind=name, plural=plural, singular=name.lower(), scope=scope)


ANN = User("ann")
PODS = kind("pods", "Pod")


def asking(kind, document, operation=Operation.CREATE, name="x", user=ANN, old=None):
    namespace = "ns" if kind.is_namespaced else ""
    return AdmissionRequest(
        kind=kind,
        operation=operation,
        namespace=namespace,
        name=name,
        subresource="",
        object=document,
        old=old,
        user=user,
    )


def admitted(rule, request, *objects):
    reader = Objects({(r, n, o["metadata"]["name"]): o for r, n, o in objects})
    if rule.wants(request):
        rule.mutate(request, reader)
        rule.validate(request, reader)
    return request.object


def pod(**spec):
    return {"metadata": {"name": "x"}, "spec": {"containers": [{"name": "c"}], **spec}}


def refused(*arguments):
    with pytest.raises(StatusError) as error:
        admitted(*arguments)
    return error.value


def test_nothing_is_created_in_a_namespace_that_does_not_exist():
    error = refused(NamespaceLifecycle(), asking(PODS, pod()))
    assert (error.code, error.message) == (404, 'namespaces "ns" not found')


def test_nothing_is_created_in_a_namespace_that_is_going():
    going = {"metadata": {"name": "ns"}, "status": {"phase": "Terminating"}}
    error = refused(
        NamespaceLifecycle(), asking(kind("configmaps", "ConfigMap"), {}, name="late"), ("namespaces", "", going)
    )
    assert error.message == (
        'configmaps "late" is forbidden: unable to create new content in namespace ns because it is being terminated'
    )
    assert error.details["causes"][0]["reason"] == "NamespaceTerminating"


def test_a_namespace_that_is_going_still_answers_reviews_of_access():
    going = ("namespaces", "", {"metadata": {"name": "ns"}, "status": {"phase": "Terminating"}})
    review = kind("localsubjectaccessreviews", "LocalSubjectAccessReview", "authorization.k8s.io")
    assert admitted(NamespaceLifecycle(), asking(review, {}, name="may-i"), going) is not None


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
def test_the_systems_namespaces_cannot_be_deleted(name):
    namespaces = kind("namespaces", "Namespace", scope=Scope.CLUSTER)
    error = refused(NamespaceLifecycle(), asking(namespaces, None, Operation.DELETE, name=name))
    assert error.code == 403


ACCOUNT = ("serviceaccounts", "ns", {"metadata": {"name": "default"}})


def test_a_pod_gets_its_account_and_a_token_in_every_container():
    document = pod(initContainers=[{"name": "i"}])
    admitted(ServiceAccountRule(), asking(PODS, document), ACCOUNT)
    spec = document["spec"]
    assert spec["serviceAccountName"] == spec["serviceAccount"] == "default"
    assert [re.fullmatch("kube-api-access-[a-z0-9]{5}", v["name"]) is not None for v in spec["volumes"]] == [True]
    for container in [*spec["containers"], *spec["initContainers"]]:
        assert container["volumeMounts"][0]["mountPath"] == "/var/run/secrets/kubernetes.io/serviceaccount"


def test_pods_of_one_account_get_equal_specs_and_a_name_that_is_taken_is_not_given_twice():
    first, second = (admitted(ServiceAccountRule(), asking(PODS, pod()), ACCOUNT) for _ in range(2))
    assert first["spec"] == second["spec"]
    usual = first["spec"]["volumes"][0]["name"]
    third = admitted(ServiceAccountRule(), asking(PODS, pod(volumes=[{"name": usual, "emptyDir": {}}])), ACCOUNT)
    assert [volume["name"] for volume in third["spec"]["volumes"]] == [usual, usual + "x"]


def test_a_pod_or_its_account_may_refuse_the_token():
    document = pod(automountServiceAccountToken=False)
    admitted(ServiceAccountRule(), asking(PODS, document), ACCOUNT)
    assert "volumes" not in document["spec"]
    account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
    document = admitted(ServiceAccountRule(), asking(PODS, pod()), ("serviceaccounts", "ns", account))
    assert "volumes" not in document["spec"]


def test_a_pod_of_an_absent_account_is_refused():
    error = refused(ServiceAccountRule(), asking(PODS, pod(serviceAccountName="robot")))
    assert error.message == (
        'pods "x" is forbidden: error looking up service account ns/robot: serviceaccount "robot" not found'
    )


def priority_class(name, value, **more):
    return ("priorityclasses.scheduling.k8s.io", "", {"metadata": {"name": name}, "value": value, **more})


def test_a_priority_class_becomes_a_number():
    spec = admitted(PriorityRule(), asking(PODS, pod(priorityClassName="high")), priority_class("high", 1000))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "PreemptLowerPriority")


def test_an_unknown_priority_class_is_refused_in_kubernetes_words():
    error = refused(PriorityRule(), asking(PODS, pod(priorityClassName="nope")))
    assert error.message == 'pods "x" is forbidden: no PriorityClass with name nope was found'


def test_the_lowest_default_class_is_taken():
    classes = [priority_class("a", 20, globalDefault=True), priority_class("b", 10, globalDefault=True)]
    spec = admitted(PriorityRule(), asking(PODS, pod()), *classes)["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("b", 10)


def test_a_user_cannot_choose_the_number():
    assert refused(PriorityRule(), asking(PODS, pod(priority=5))).code == 403


def test_a_pod_is_patient_with_nodes_unless_it_says_so_itself():
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    spec = admitted(DefaultTolerationSeconds(), asking(PODS, pod(tolerations=[own])))["spec"]
    assert [(t["key"], t["tolerationSeconds"]) for t in spec["tolerations"]] == [
        ("node.kubernetes.io/not-ready", 5),
        ("node.kubernetes.io/unreachable", 300),
    ]


def test_a_pod_that_tolerates_everything_needs_no_more():
    spec = admitted(DefaultTolerationSeconds(), asking(PODS, pod(tolerations=[{"operator": "Exists"}])))["spec"]
    assert len(spec["tolerations"]) == 1


def test_a_runtime_class_brings_its_overhead_and_its_nodes():
    found = {
        "metadata": {"name": "vm"},
        "overhead": {"podFixed": {"memory": "64Mi"}},
        "scheduling": {"nodeSelector": {"kvm": "yes"}},
    }
    spec = admitted(
        RuntimeClassRule(), asking(PODS, pod(runtimeClassName="vm")), ("runtimeclasses.node.k8s.io", "", found)
    )["spec"]
    assert spec["overhead"] == {"memory": "64Mi"}
    assert spec["nodeSelector"] == {"kvm": "yes"}
    assert refused(RuntimeClassRule(), asking(PODS, pod(runtimeClassName="no"))).code == 403


def test_a_claim_without_a_class_gets_the_newest_default_and_an_empty_one_is_kept():
    claims = kind("persistentvolumeclaims", "PersistentVolumeClaim")
    marked = {"storageclass.kubernetes.io/is-default-class": "true"}
    classes = [
        ("storageclasses.storage.k8s.io", "", {"metadata": {"name": n, "annotations": marked, "creationTimestamp": t}})
        for n, t in [("old", "2025-01-01T00:00:00Z"), ("new", "2026-01-01T00:00:00Z")]
    ]
    assert admitted(DefaultStorageClass(), asking(claims, {"spec": {}}), *classes)["spec"]["storageClassName"] == "new"
    assert (
        admitted(DefaultStorageClass(), asking(claims, {"spec": {"storageClassName": ""}}), *classes)["spec"][
            "storageClassName"
        ]
        == ""
    )


def test_a_claim_is_held_while_in_use():
    claims = kind("persistentvolumeclaims", "PersistentVolumeClaim")
    document = admitted(StorageProtection(), asking(claims, {"metadata": {}, "spec": {}}))
    assert document["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


class NoRoles:
    version = 1

    def list(self, resource):
        return []


ROLES = kind("clusterroles", "ClusterRole", RBAC, Scope.CLUSTER)
BINDINGS = kind("clusterrolebindings", "ClusterRoleBinding", RBAC, Scope.CLUSTER)
CLAIMS = kind("resourceclaims", "ResourceClaim", "resource.k8s.io")
EVERYTHING = {"metadata": {"name": "all"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}


def test_nobody_grants_what_he_does_not_have():
    rule = RbacEscalation(RbacAuthorizer(NoRoles()))
    error = refused(rule, asking(ROLES, EVERYTHING, name="all"))
    assert "is attempting to grant RBAC permissions not currently held" in error.message
    binding = {"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "all"}, "subjects": []}
    assert refused(rule, asking(BINDINGS, binding, name="b"), (f"clusterroles.{RBAC}", "", EVERYTHING)).code == 403


def test_an_administrator_grants_anything():
    admin = User("root", ("system:masters",))
    assert (
        admitted(RbacEscalation(RbacAuthorizer(NoRoles())), asking(ROLES, EVERYTHING, name="all", user=admin))
        == EVERYTHING
    )


class Binds:
    """Somebody who may bind claims, with one verb of the two, in the whole cluster."""

    def decide(self, attributes):
        asked = attributes.rule_resource, attributes.verb, attributes.namespace
        return Decision(asked == ("resourceclaims/binding", "update", ""))


def claim(**status):
    return {"metadata": {"name": "gpu"}, "spec": {}, "status": status}


def of_claim(new, old, user=ANN):
    request = asking(CLAIMS, new, Operation.UPDATE, name="gpu", user=user, old=old)
    request.subresource = "status"
    return request


@pytest.mark.parametrize("change", [{"allocation": {"devices": {}}}, {"reservedFor": [{"uid": "u"}]}])
def test_devices_are_given_by_those_alone_who_may_bind_claims(change):
    nobody = RbacAuthorizer(NoRoles())
    error = refused(ClaimBinding(nobody), of_claim(claim(**change), claim()))
    assert error.code == 422
    assert (
        'status.allocation: Forbidden: changing status.allocation or status.reservedFor requires resource="resourceclaims/binding"'
        in error.message
    )
    assert (
        'cannot patch resource "resourceclaims/binding" in API group "resource.k8s.io" at the cluster scope'
        in error.message
    )
    assert refused(ClaimBinding(nobody), of_claim(claim(), claim(**change))).code == 422
    assert admitted(ClaimBinding(Binds()), of_claim(claim(**change), claim())) == claim(**change)
    told = claim(**change, devices=[{"driver": "d"}])
    assert admitted(ClaimBinding(nobody), of_claim(told, claim(**change))) == told


@pytest.mark.parametrize(
    ("spec", "asks"),
    [
        ({"clusterIP": "None"}, False),
        ({"type": "ExternalName"}, False),
        ({}, True),
        ({"clusterIP": "10.0.0.9"}, True),
        ({"clusterIP": "None", "type": "NodePort", "ports": [{"port": 80}]}, True),
    ],
)
def test_of_services_that_need_nothing_of_others_the_others_are_not_read(spec, asks):
    """A controller makes thousands of headless ones at once."""
    asked = []

    class Counting(Objects):
        def list(self, resource, namespace=""):
            asked.append(resource)
            return super().list(resource, namespace)

    rule = ServiceAddresses(IPv4Network("10.0.0.0/24"), random.Random(1))
    rule.mutate(asking(kind("services", "Service"), {"metadata": {"name": "x"}, "spec": dict(spec)}), Counting())
    assert bool(asked) == asks
