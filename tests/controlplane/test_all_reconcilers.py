"""Every reconciler of the control plane and of the node's storage comes to rest, heals after any one failed command, and
touches only what is its own: told of one world each, with strangers in it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from hekla.api.core import ConfigMap, Endpoints, ServiceAccount
from hekla.api.devices import ResourceClaim
from hekla.api.meta import Document
from hekla.api.storage import PersistentVolume, PersistentVolumeClaim
from hekla.controlplane.controllers import CONTROLLERS
from hekla.controlplane.namespace_defaults import ROOT_CA, root_ca_publisher
from hekla.kube.commands import Command, Create, Delete, Patch, SetStatus
from hekla.kube.reconcile import Reconciler
from hekla.node.provisioning import (
    PROVISIONED_BY,
    PROVISIONER,
    default_storage_class,
    local_provisioner,
    reconcile_ephemeral_claims,
    reconcile_volume,
)
from hekla.testing.reconcilers import assert_converges, assert_heals, assert_touches_only_its_own, converge, decide
from hekla.testing.world import FakeWorld

NOW = datetime(2026, 1, 1, 12, 0, 5, tzinfo=UTC)
LONG_AGO = "2026-01-01T00:00:00Z"
UNREACHABLE = "node.kubernetes.io/unreachable"
ROOT_CA_PUBLISHER, PROVISIONS = root_ca_publisher("pem"), local_provisioner("/volumes")


def thing(kind: str, name: str, *, api: str = "v1", **parts: object) -> Document:
    """An object of 00:00; `metadata` is added to, other parts are taken as they are."""
    metadata: Document = {"name": name, "uid": f"uid-{name}", "creationTimestamp": LONG_AGO}
    given = parts.pop("metadata", {})
    assert isinstance(given, dict)
    return {"apiVersion": api, "kind": kind, "metadata": {**metadata, **given}, **parts}


def pod(name: str = "p", *, node: str = "", **metadata: object) -> Document:
    container = {"name": "c", "image": "any", "ports": [{"containerPort": 80}], "resources": {"requests": {"cpu": "1"}}}
    status = {
        "phase": "Running" if node else "Pending", "startTime": LONG_AGO, "podIP": "10.0.0.1" if node else "",
        "conditions": [{"type": "Ready", "status": "True"}] if node else [],
    }  # fmt: skip
    labels = {"app": "web"}
    spec = {"containers": [container], "nodeName": node, "restartPolicy": "Always"}
    return thing("Pod", name, metadata={"labels": labels, **metadata}, spec=spec, status=status)


def workload(kind: str, *, api: str = "apps/v1", **spec: object) -> Document:
    template = {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c", "image": "any"}]}}
    selector = {"matchLabels": {"app": "web"}}
    return thing(kind, "it", api=api, spec={"selector": selector, "template": template, **spec})


def node(name: str = "n", *, ready: str = "True", taints: tuple[str, ...] = ()) -> Document:
    spec = {"taints": [{"key": one, "effect": "NoExecute", "timeAdded": LONG_AGO} for one in taints]}
    conditions = [{"type": "Ready", "status": ready, "reason": "KubeletReady"}]
    allocatable = {"cpu": "8", "memory": "8Gi", "pods": "100"}
    return thing("Node", name, spec=spec, status={"conditions": conditions, "allocatable": allocatable})


def claim(**parts: object) -> Document:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return thing("PersistentVolumeClaim", "it", **{"spec": spec, **parts})


def volume(phase: str = "Available", **metadata: object) -> Document:
    spec = {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "persistentVolumeReclaimPolicy": "Delete",
        "claimRef": {"kind": "PersistentVolumeClaim", "namespace": "default", "name": "gone", "uid": "uid-gone"},
    }  # fmt: skip
    return thing("PersistentVolume", "it", metadata=metadata, spec=spec, status={"phase": phase})


SERVICE = thing("Service", "it", spec={"selector": {"app": "web"}, "ports": [{"port": 80, "protocol": "TCP"}]})
LEFT_ENDPOINTS = thing(
    "Endpoints", "it", metadata={"labels": {"endpoints.kubernetes.io/managed-by": "endpoint-controller"}}
)
HELD = {"finalizers": ["batch.kubernetes.io/job-tracking"], "deletionTimestamp": LONG_AGO}
STRANGERS = (
    pod("stranger-1", labels={"app": "other"}),
    pod("stranger-2", node="elsewhere", labels={"app": "other"}),
    node("elsewhere"),
    thing("ConfigMap", "stranger"),
    thing("ServiceAccount", "stranger"),
)


def with_claim_template() -> Document:
    document = pod("it")
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}]
    return document


def with_claim_and_node() -> Document:
    document = pod("it", node="n")
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "it"}]
    return document


def device_template() -> Document:
    return thing("ResourceClaimTemplate", "one-gpu", api="resource.k8s.io/v1", spec={"spec": {"devices": {}}})


def device_claim(*users: str) -> Document:
    status = {
        "reservedFor": [{"resource": "pods", "name": one, "uid": f"uid-{one}"} for one in users],
        "allocation": {"devices": {"results": [{"request": "gpu", "device": "gpu-0"}]}},
    }
    return thing("ResourceClaim", "it", api="resource.k8s.io/v1", spec={}, status=status)


def ephemeral() -> Document:
    document = pod("it", node="n")
    template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
    document["spec"]["volumes"] = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
    return document


def nobody_elses(command: Command) -> bool:
    """Nothing beyond the object and what it controls."""
    return False


def endpoints_of_its_name(command: Command) -> bool:
    """Endpoints have no owner in Kubernetes; the Service's name is the tie."""
    if isinstance(command, Create):
        return command.kind is Endpoints and command.document["metadata"]["name"] == "it"
    return isinstance(command, Patch) and command.target.kind is Endpoints and command.target.name == "it"


def in_its_namespace(command: Command) -> bool:
    """What every namespace has from the start, by its fixed name."""
    return isinstance(command, Create) and (command.kind, command.document["metadata"]["name"]) in (
        (ServiceAccount, "default"), (ConfigMap, ROOT_CA),
    )  # fmt: skip


def its_volume(command: Command) -> bool:
    """The volume that is made for a claim, or bound to it, is named by it."""
    if isinstance(command, Create):
        return command.kind is PersistentVolume and command.document["spec"]["claimRef"]["uid"] == "uid-it"
    target = command.target if isinstance(command, Patch | SetStatus | Delete) else None
    return target is not None and target.kind is PersistentVolume and target.name == "pvc-uid-it"


@dataclass(frozen=True)
class Case:
    """One reconciler, what its object is and what is there beside it."""

    reconciler: Reconciler
    objects: tuple[Document, ...]
    name: str = "it"
    namespace: str = "default"
    may_touch: Callable[[Command], bool] = nobody_elses
    has_nodes: bool = True
    """Without any, a pod may be on one that is gone."""

    def world(self) -> FakeWorld:
        """The world, made anew."""
        strangers = STRANGERS if self.has_nodes else tuple(one for one in STRANGERS if not on_or_a_node(one))
        return FakeWorld(*self.objects, *strangers)


def on_or_a_node(one: Document) -> bool:
    return one["kind"] == "Node" or bool(one.get("spec", {}).get("nodeName"))


def case_of(label: str, *objects: Document, **more: object) -> Case:
    reconciler = next(one for one in CONTROLLERS if one.name == label)
    return Case(reconciler, objects, **more)  # type: ignore[arg-type]  # the table below says each by its name


CASES = [
    case_of("deployment", workload("Deployment", replicas=3)),
    case_of("replicaset", workload("ReplicaSet", replicas=3)),
    case_of("statefulset", workload("StatefulSet", replicas=2, serviceName="it")),
    case_of("daemonset", workload("DaemonSet"), node()),
    case_of(
        "job",
        workload("Job", api="batch/v1", parallelism=2, completions=3, manualSelector=True),
    ),
    case_of("job-orphans", pod("it", **HELD)),
    case_of("cronjob", thing("CronJob", "it", api="batch/v1", spec={
        "schedule": "*/5 * * * *", "concurrencyPolicy": "Allow",
        "jobTemplate": {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "any"}]}}}},
    })),
    case_of("endpointslice", SERVICE, node(), pod(node="n")),
    case_of("endpoints", SERVICE, node(), pod(node="n"), may_touch=endpoints_of_its_name),
    case_of("endpoints-orphan", LEFT_ENDPOINTS),
    case_of(
        "disruption",
        thing("PodDisruptionBudget", "it", api="policy/v1", spec={
            "minAvailable": 1, "selector": {"matchLabels": {"app": "web"}},
        }),
        pod(node="n"), node(),
    ),
    case_of("resource-quota", thing("ResourceQuota", "it", spec={"hard": {"pods": "3", "requests.cpu": "4"}}), pod()),
    case_of("service-accounts", thing("Namespace", "it"), namespace="", may_touch=in_its_namespace),
    Case(ROOT_CA_PUBLISHER, (thing("Namespace", "it"),), namespace="", may_touch=in_its_namespace),
    case_of("pod-gc", pod("it", node="gone"), has_nodes=False),
    case_of("pod-gc", pod("it", deletionTimestamp=LONG_AGO)),
    case_of("node-lifecycle", node("it"), namespace=""),
    case_of("taint-eviction", pod("it", node="n"), node(taints=(UNREACHABLE,))),
    case_of("pvc-protection", claim(metadata={
        "finalizers": ["kubernetes.io/pvc-protection", "mine"], "deletionTimestamp": LONG_AGO,
    })),
    case_of("pv-protection", volume(
        "Released", finalizers=["kubernetes.io/pv-protection", "mine"], deletionTimestamp=LONG_AGO
    ), namespace=""),
    case_of("resource-claim", with_claim_template(), device_template()),
    case_of(
        "resource-claim-bound-pods", with_claim_and_node(), device_claim("p"), node(),
        may_touch=lambda command: isinstance(command, Patch) and command.target.kind is ResourceClaim,
    ),
    case_of("resource-claim-users", device_claim("gone", "stranger-2")),
    Case(PROVISIONS, (claim(), default_storage_class(), pod_with_claim := pod(node="n"), node()), may_touch=its_volume),
    Case(reconcile_volume, (volume(annotations={PROVISIONED_BY: PROVISIONER}),), namespace=""),
    Case(reconcile_volume, (volume(),), namespace=""),
    Case(reconcile_ephemeral_claims, (ephemeral(), node())),
]  # fmt: skip
pod_with_claim["spec"]["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "it"}}]
EACH = pytest.mark.parametrize("case", CASES, ids=lambda case: case.reconciler.name)


def test_no_reconciler_is_left_out() -> None:
    assert {one.name for one in CONTROLLERS} <= {case.reconciler.name for case in CASES}


@EACH
def test_it_has_something_to_do_and_comes_to_rest(case: Case) -> None:
    world = case.world()
    assert decide(case.reconciler, world, case.namespace, case.name, now=NOW), "the case shows nothing"
    assert_converges(case.reconciler, world, case.namespace, case.name, now=NOW)


@EACH
def test_it_heals_after_any_one_failed_command(case: Case) -> None:
    assert_heals(case.reconciler, case.world, case.namespace, case.name, now=NOW)


@EACH
def test_it_touches_only_its_own_from_the_first_round_to_the_last(case: Case) -> None:
    world, it = case.world(), (case.namespace, case.name)
    for _ in range(12):
        if world.get(case.reconciler.kind, *it) is None:
            return
        assert_touches_only_its_own(case.reconciler, world, *it, now=NOW, may_touch=case.may_touch)
        world.execute(decide(case.reconciler, world, *it, now=NOW))


def test_a_bound_claim_and_its_volume_know_each_other_whoever_acts_first() -> None:
    world = next(case for case in CASES if case.reconciler is PROVISIONS).world()
    converge(PROVISIONS, world, "default", "it", now=NOW)
    found = world.get(PersistentVolumeClaim, "default", "it")
    made = world.get(PersistentVolume, "", "pvc-uid-it")
    assert found is not None
    assert made is not None
    assert (found.status.phase, found.spec.volume_name, made.status.phase) == ("Bound", "pvc-uid-it", "Bound")
