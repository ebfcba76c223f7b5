import re
from pathlib import Path

import pytest

from hekla.testing.kubectl import Kubectl

pytestmark = pytest.mark.slow

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: d}
spec:
  replicas: 2
  selector: {matchLabels: {app: d}}
  template:
    metadata: {labels: {app: d}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: c, image: "one", command: [sleep, "3600"]}]
"""
IMAGE = "jsonpath={.spec.template.spec.containers[0].image}"


def rolled_out(kubectl: Kubectl, what: str = "deployment/d") -> None:
    assert "success" in kubectl("rollout", "status", what, "--timeout=40s").out


def test_a_deployment_is_rolled_out_forth_and_back(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    rolled_out(kubectl)
    kubectl("set", "image", "deployment/d", "c=two")
    kubectl("annotate", "deployment/d", "kubernetes.io/change-cause=second image")
    rolled_out(kubectl)
    history = kubectl("rollout", "history", "deployment/d").out
    assert re.search(r"^2 +second image$", history, re.MULTILINE), history
    assert "Image:\tone" in kubectl("rollout", "history", "deployment/d", "--revision=1").out
    images = kubectl("get", "pods", "-l", "app=d", "-o", "jsonpath={.items[*].spec.containers[0].image}").out
    assert images == "two two"
    kubectl("rollout", "undo", "deployment/d")
    rolled_out(kubectl)
    assert kubectl("get", "deployment", "d", "-o", IMAGE).out == "one"
    assert kubectl("get", "deployment", "d", "--no-headers").out.split()[1:4] == ["2/2", "2", "2"]
    described = kubectl("describe", "deployment", "d").out
    assert "Replicas:               2 desired | 2 updated | 2 total | 2 available | 0 unavailable" in described
    assert re.search(r"NewReplicaSet: +d-\w+ \(2/2 replicas created\)", described)
    assert "Scaled up replica set" in described


def test_a_restart_replaces_every_pod_and_a_pause_holds_changes_back(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    rolled_out(kubectl)
    before = set(kubectl("get", "pods", "-o", "name").out.split())
    kubectl("rollout", "pause", "deployment/d")
    kubectl("set", "env", "deployment/d", "COLOUR=blue")
    refused = kubectl("rollout", "restart", "deployment/d", code=1)
    assert "can't restart paused deployment" in refused.err
    kubectl("rollout", "resume", "deployment/d")
    rolled_out(kubectl)
    kubectl("rollout", "restart", "deployment/d")
    rolled_out(kubectl)
    kubectl("wait", *sorted(before), "--for=delete", "--timeout=20s")
    pod = kubectl("get", "pods", "-l", "app=d", "-o", "name").out.split()[0]
    assert kubectl("exec", pod, "--", "printenv", "COLOUR").out == "blue\n"


def test_scaling_follows_the_count_and_its_precondition(kubectl: Kubectl) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    kubectl("scale", "deployment/d", "--replicas=3")
    kubectl("wait", "deployment/d", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=30s")
    refused = kubectl("scale", "deployment/d", "--replicas=9", "--current-replicas=1", code=1)
    assert "expected replicas to be 1, was 3" in refused.err.lower()
    kubectl("scale", "deployment/d", "--replicas=0")
    kubectl("wait", "pod", "-l", "app=d", "--for=delete", "--timeout=20s")
    assert kubectl("get", "deployment", "d", "--no-headers").out.split()[1] == "0/0"


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_deletion_cascades_as_it_is_told(kubectl: Kubectl, cascade: str) -> None:
    kubectl("apply", "-f", "-", stdin=DEPLOYMENT)
    rolled_out(kubectl)
    kubectl("delete", "deployment", "d", f"--cascade={cascade}", "--timeout=30s")
    left = kubectl("get", "replicasets", "-o", "name").out.split()
    if cascade == "orphan":
        assert len(left) == 1
        assert kubectl("get", left[0], "-o", "jsonpath={.metadata.ownerReferences}").out == ""
        assert len(kubectl("get", "pods", "-o", "name").out.split()) == 2
        return
    if cascade == "foreground":
        assert left == []
    kubectl("wait", "pod", "-l", "app=d", "--for=delete", "--timeout=20s")
    assert kubectl("get", "replicasets,pods", "-o", "name").out == ""


def test_stateful_sets_have_ordinals_and_names(kubectl: Kubectl) -> None:
    manifest = """
apiVersion: v1
kind: Service
metadata: {name: s}
spec: {clusterIP: None, selector: {app: s}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: s}
spec:
  serviceName: s
  replicas: 2
  selector: {matchLabels: {app: s}}
  template:
    metadata: {labels: {app: s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: c, image: any, command: [sleep, "3600"], volumeMounts: [{name: data, mountPath: /data}]}
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
"""
    kubectl("apply", "-f", "-", stdin=manifest)
    kubectl("rollout", "status", "statefulset/s", "--timeout=40s")
    assert kubectl("get", "pods", "-o", "name").out.split() == ["pod/s-0", "pod/s-1"]
    kubectl("exec", "s-0", "--", "sh", "-c", "echo kept > /data/file")
    found = kubectl("exec", "s-1", "--", "getent", "hosts", "s-0.s").out.split()[0]
    assert found == kubectl("get", "pod", "s-0", "-o", "jsonpath={.status.podIP}").out
    kubectl("delete", "pod", "s-0", "--timeout=20s")
    kubectl("wait", "pod/s-0", "--for=create", "--timeout=20s")
    kubectl("wait", "pod/s-0", "--for=condition=Ready", "--timeout=30s")
    assert kubectl("exec", "s-0", "--", "cat", "/data/file").out == "kept\n"
    claims = kubectl("get", "pvc", "--no-headers", "-o", "custom-columns=N:.metadata.name,P:.status.phase").out
    assert claims.split() == ["data-s-0", "Bound", "data-s-1", "Bound"]
    assert "roll out complete" in kubectl("rollout", "status", "statefulset/s").out


def test_jobs_run_to_their_end_and_cron_jobs_make_them(kubectl: Kubectl) -> None:
    kubectl("create", "job", "good", "--image=any", "--", "sh", "-c", "echo computed")
    kubectl("wait", "job/good", "--for=condition=Complete", "--timeout=30s")
    assert kubectl("logs", "job/good").out == "computed\n"
    assert re.match(r"good +Complete +1/1", kubectl("get", "job", "good", "--no-headers").out)
    described = kubectl("describe", "job", "good").out
    assert "1 Succeeded / 0 Failed" in described
    assert "Completed" in described
    kubectl("create", "cronjob", "daily", "--image=any", "--schedule=0 0 * * *", "--", "echo", "from cron")
    kubectl("create", "job", "now", "--from=cronjob/daily")
    kubectl("wait", "job/now", "--for=condition=Complete", "--timeout=30s")
    assert kubectl("logs", "job/now").out == "from cron\n"
    refused = kubectl("create", "cronjob", "never", "--image=any", "--schedule=* *", code=1)
    assert "expected exactly 5 fields, found 2: [* *]" in refused.err


def test_a_gang_is_read_like_any_object(kubectl: Kubectl, tmp_path: Path) -> None:
    # a name is there from its pod's first address to its end: each waits for it, and nobody ends before all have seen it
    gang = f"""
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {{name: gang}}
spec:
  minAvailable: 3
  schedulerName: volcano
  plugins: {{env: [], svc: []}}
  tasks:
  - name: worker
    replicas: 3
    template:
      spec:
        restartPolicy: Never
        volumes: [{{name: met, hostPath: {{path: {tmp_path}}}}}]
        containers:
        - name: c
          image: any
          volumeMounts: [{{name: met, mountPath: /met}}]
          command:
          - sh
          - -c
          - |
            echo worker $VC_TASK_INDEX
            until getent hosts gang-worker-0.gang; do sleep 0.05; done
            touch /met/$VC_TASK_INDEX
            until test "$(ls /met | wc -l)" = 3; do sleep 0.05; done
"""
    kubectl("apply", "-f", "-", stdin=gang)
    kubectl("wait", "vcjob/gang", "--for=jsonpath={.status.state.phase}=Completed", "--timeout=40s")
    logs = kubectl("logs", "-l", "volcano.sh/job-name=gang", "--tail=-1").out
    assert {f"worker {n}" for n in range(3)} <= set(logs.splitlines())
    assert len([line for line in logs.splitlines() if " gang-worker-0.gang" in line]) == 3
    row = kubectl("get", "vcjob", "gang").out.splitlines()
    assert row[0].split() == ["NAME", "STATUS", "MINAVAILABLE", "RUNNINGS", "AGE"]
    assert row[1].split()[:3] == ["gang", "Completed", "3"]
    described = kubectl("describe", "vcjob", "gang").out
    assert re.search(r"Phase: +Completed", described)
    large = gang.replace("name: gang", "name: large").replace(
        "image: any", "image: any\n          resources: {limits: {nvidia.com/gpu: 9}}"
    )
    kubectl("apply", "-f", "-", stdin=large)
    kubectl("wait", "vcjob/large", "--for=jsonpath={.status.state.phase}=Pending", "--timeout=20s")
    [group] = kubectl("get", "podgroup", "-o", "json").json["items"]  # the other went with its job
    assert group["spec"]["minMember"] == 3
    unschedulable = f"podgroup/{group['metadata']['name']}"
    kubectl("wait", unschedulable, "--for=condition=Unschedulable", "--timeout=20s")
    assert "insufficient nvidia.com/gpu (27 asked, 0 of 16 taken" in kubectl("describe", unschedulable).out
    queue = kubectl("get", "queue", "default").out.splitlines()
    assert queue[0].split()[:2] == ["NAME", "PARENT"]
    assert "Weight:" in kubectl("describe", "queue", "default").out
    explained = kubectl("explain", "vcjob.spec.tasks.minAvailable").out
    assert re.search(r"minAvailable <integer>", explained)
    kubectl("delete", "vcjob", "gang", "--timeout=20s")
    kubectl("wait", "pod", "-l", "volcano.sh/job-name=gang", "--for=delete", "--timeout=20s")
