"""Serving on a real Kubernetes: its reconcilers as a process with the rights of its role."""

import copy
import json
from collections.abc import Iterator

import pytest
import yaml

from hekla.testing.components import ROOT, Cluster, Component
from hekla.testing.kubectl import Kubectl
from serving.worlds import under_kthena

ENGINES = """
apiVersion: workload.serving.volcano.sh/v1alpha1
kind: ModelServing
metadata: {name: m}
spec:
  replicas: 2
  rolloutStrategy: {type: ServingGroupRollingUpdate, rollingUpdateConfiguration: {partition: 1, maxSurge: 1, maxUnavailable: 0}}
  template:
    roles:
    - name: server
      replicas: 1
      workerReplicas: 0
      entryTemplate:
        spec: {containers: [{name: engine, image: i, command: [sleep, infinity], resources: {requests: {cpu: 50m}}}]}
"""
AN_UPDATE = (
    '[{"op": "replace", "path": "/spec/template/roles/0/entryTemplate/spec/containers/0/command/1", "value": "999999"}]'
)


def test_a_model_that_kthena_runs_is_taken_over_without_a_pod_made_anew(
    cluster: Cluster, training: dict[str, Component], namespace: str
):
    kubectl = cluster.kubectl.within(namespace)
    document = under_kthena.serving()
    document["metadata"] = {"name": "qwen", "namespace": namespace}
    kubectl("apply", "-f", "-", stdin=json.dumps(document))
    uid = kubectl("get", "modelserving", "qwen", "-o", "json").json["metadata"]["uid"]
    told = json.dumps({"status": under_kthena.status()})
    kubectl("patch", "modelserving", "qwen", "--subresource=status", "--type=merge", "-p", told)
    for one in copy.deepcopy(under_kthena.everything()):
        if one["kind"] == "ModelServing":
            continue
        one["metadata"]["namespace"] = namespace
        one["metadata"]["ownerReferences"][0]["uid"] = uid
        if one["kind"] == "Pod":
            one["spec"]["nodeName"] = "n1"
        kubectl("create", "-f", "-", stdin=json.dumps(one))
    cluster.wait(f"pods --all -n {namespace}", "condition=Ready")
    before = {one["metadata"]["uid"] for one in kubectl("get", "pods,podgroups", "-o", "json").json["items"]}
    with cluster.running("serving", "--no-leader-elect") as serving:
        cluster.wait(
            f"pod/qwen-1-decode-1-0 -n {namespace}", "jsonpath={.metadata.annotations.serving\\.hekla\\.dev/whole}"
        )
        after = {one["metadata"]["uid"] for one in kubectl("get", "pods,podgroups", "-o", "json").json["items"]}
        assert after == before
        assert not serving.refusals
    revisions = kubectl("get", "controllerrevisions", "-o", "name").out.split()
    assert revisions == [f"controllerrevision.apps/qwen-{under_kthena.REVISION}"]


@pytest.fixture(scope="module")
def serving(cluster: Cluster, training: dict[str, Component]) -> Iterator[Component]:
    """The reconcilers of serving, beside webhooks and scheduler."""
    with cluster.running("serving") as found:
        found.wait_for("event=leads", timeout_s=60)
        yield found


def test_a_model_is_scaled_updated_behind_its_partition_and_deleted(
    cluster: Cluster, serving: Component, namespace: str
):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("apply", "--server-side", "-f", "-", stdin=ENGINES)
    where = f"modelserving/m -n {namespace}"
    cluster.wait(where, "jsonpath={.status.availableReplicas}=2")
    kubectl("scale", "modelserving/m", "--replicas=3")
    cluster.wait(where, "jsonpath={.status.availableReplicas}=3")
    kubectl("patch", "modelserving", "m", "--type=json", "-p", AN_UPDATE)
    cluster.wait(where, "jsonpath={.status.updatedReplicas}=2")
    cluster.wait(where, "condition=Available")
    pods = kubectl("get", "pods", "-o", "json").json["items"]
    commands = {one["metadata"]["name"]: one["spec"]["containers"][0]["command"][1] for one in pods}
    assert commands["m-0-server-0-0"] == "infinity"
    assert {commands["m-1-server-0-0"], commands["m-2-server-0-0"]} == {"999999"}
    kubectl("delete", "modelserving", "m", "--cascade=foreground")
    assert kubectl("get", "podgroups,pods", "-o", "json").json["items"] == []
    assert not serving.refusals


A_QUOTA = """
apiVersion: v1
kind: ResourceQuota
metadata: {name: full}
spec: {hard: {pods: "1", count/modelservings.workload.serving.volcano.sh: "1"}}
"""


def test_a_full_quota_is_told_of_by_the_model_and_felt_when_it_is_raised(
    cluster: Cluster, serving: Component, namespace: str
):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("apply", "-f", "-", stdin=A_QUOTA)
    cluster.wait(f"resourcequota/full -n {namespace}", "jsonpath={.status.used.pods}=0")
    kubectl("apply", "--server-side", "-f", "-", stdin=ENGINES)
    where = f"modelserving/m -n {namespace}"
    cluster.wait(where, "jsonpath={.status.conditions[?(@.reason=='GroupsRefused')].status}=True")
    told = kubectl("get", "modelserving", "m", "-o", "json").json["status"]["conditions"]
    assert "exceeded quota: full, requested: pods=1" in told[0]["message"]
    kubectl("apply", "-f", str(ROOT / "examples" / "serving" / "booster.yaml"))
    until = "jsonpath={.status.conditions[?(@.type=='Active')].status}=False"
    cluster.wait(f"modelbooster/qwen -n {namespace}", until)
    told = kubectl("get", "modelbooster", "qwen", "-o", "json").json["status"]["conditions"]
    assert "exceeded quota: full, requested: count/modelservings.workload.serving.volcano.sh=1" in told[1]["message"]
    kubectl("patch", "resourcequota", "full", "--type=merge", "-p", '{"spec": {"hard": {"pods": "4"}}}')
    cluster.wait(where, "condition=Available", timeout_s=20)
    assert not serving.refusals


BY_GROUP = '[{"op": "replace", "path": "/spec/rolloutStrategy", "value": {"type": "ServingGroupRollingUpdate"}}]'


def test_a_switch_from_updates_by_role_to_updates_by_group_makes_nothing_anew(
    cluster: Cluster, serving: Component, namespace: str
):
    kubectl = cluster.kubectl.within(namespace)
    document = yaml.safe_load(ENGINES)
    spec = document["spec"]
    spec["rolloutStrategy"] = {"type": "RoleRollingUpdate"}
    spec["template"]["roles"].append({**spec["template"]["roles"][0], "name": "untouched"})
    kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(document))
    where = f"modelserving/m -n {namespace}"
    cluster.wait(where, "jsonpath={.status.availableReplicas}=2")
    before = _uids(kubectl)
    kubectl("patch", "modelserving", "m", "--type=json", "-p", AN_UPDATE)
    for until in (
        "jsonpath={.status.observedGeneration}=2",
        "jsonpath={.status.updatedReplicas}=2",
        "condition=Available",
    ):
        cluster.wait(where, until)
    by_role = _uids(kubectl)
    assert {name for name in before if before[name] != by_role[name]} == {"m-0-server-0-0", "m-1-server-0-0"}
    kubectl("patch", "modelserving", "m", "--type=json", "-p", BY_GROUP)
    for until in ("jsonpath={.status.observedGeneration}=3", "condition=Available"):
        cluster.wait(where, until)
    assert _uids(kubectl) == by_role
    assert not serving.refusals


def _uids(kubectl: Kubectl) -> dict[str, str]:
    return {
        one["metadata"]["name"]: one["metadata"]["uid"] for one in kubectl("get", "pods", "-o", "json").json["items"]
    }


def test_a_booster_and_what_it_makes_show_what_they_are(cluster: Cluster, serving: Component, namespace: str):
    kubectl = cluster.kubectl.within(namespace)
    for name in ("booster", "two-kinds"):
        kubectl("apply", "-f", str(ROOT / "examples" / "serving" / f"{name}.yaml"))
    for until in ("create", "condition=ResolvedRefs"):
        cluster.wait(f"modelroute/qwen -n {namespace}", until)
    cluster.wait(f"podgroup/qwen-main-1 -n {namespace}", "create")
    cluster.wait(f"modelbooster/qwen -n {namespace}", "condition=Active")
    cluster.wait(f"autoscalingpolicy/mixed -n {namespace}", "condition=TargetFound")
    shown = kubectl("get", "autoscalingpolicies", "--no-headers").out.split("\n")
    assert [line.split()[:2] for line in shown if line] == [["mixed", "small"], ["qwen-main", "qwen-main"]]
    assert not serving.refusals
