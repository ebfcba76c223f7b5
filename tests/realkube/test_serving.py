"""Serving on a real Kubernetes: its reconcilers as a process with the rights of its role."""

import copy
import json
from collections.abc import Iterator

import pytest

from hekla.testing.components import ROOT, Cluster, Component
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


def test_a_booster_and_what_it_makes_show_what_they_are(cluster: Cluster, serving: Component, namespace: str):
    kubectl = cluster.kubectl.within(namespace)
    for name in ("booster", "two-kinds"):
        kubectl("apply", "-f", str(ROOT / "examples" / "serving" / f"{name}.yaml"))
    for until in ("create", "condition=ResolvedRefs"):
        cluster.wait(f"modelroute/qwen -n {namespace}", until)
    cluster.wait(f"podgroup/qwen-main-1 -n {namespace}", "create")
    cluster.wait(f"autoscalingpolicy/mixed -n {namespace}", "condition=TargetFound")
    shown = kubectl("get", "autoscalingpolicies", "--no-headers").out.split("\n")
    assert [line.split()[:2] for line in shown if line] == [["mixed", "small"], ["qwen-main", "qwen-main"]]
    assert not serving.refusals
