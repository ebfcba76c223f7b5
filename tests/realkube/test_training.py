"""Training on a real Kubernetes: controllers, scheduler and webhooks as processes with the rights of their roles."""

import signal

import pytest

from hekla.cli.main import main
from hekla.testing.components import DEVICES, ROOT, Cluster, Component, gang
from hekla.testing.kubernetes import ControlPlane

A_QUEUE = '{"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": "of-a-user"}}'
COMPLETED = "jsonpath={.status.state.phase}=Completed"


def test_a_gang_runs_and_nobody_lacks_a_right(cluster: Cluster, training: dict[str, Component], namespace: str):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("apply", "-f", "-", stdin=gang("plain", seconds=1))
    cluster.wait(f"vcjob/plain -n {namespace}", COMPLETED)
    refused = kubectl("apply", "-f", "-", stdin=gang("bad", queue="nope"), code=1).err
    assert 'admission webhook "validatejob.volcano.sh" denied the request: unable to find job queue' in refused
    assert not {name: one.refusals for name, one in training.items() if one.refusals}


def test_devices_are_given(cluster: Cluster, training: dict[str, Component], namespace: str):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("apply", "-f", "-", stdin=DEVICES.replace("NODE", "n2"))
    cluster.wait(f"resourceclaim/gpu -n {namespace}", "jsonpath={.status.reservedFor[0].name}=takes-gpu")
    cluster.wait(f"pod/takes-gpu -n {namespace}", "jsonpath={.status.phase}=Running")
    claim = kubectl("get", "resourceclaim", "gpu", "-o", "json").json
    assert [one["device"] for one in claim["status"]["allocation"]["devices"]["results"]] == ["gpu-1"]
    kubectl("delete", "pod", "takes-gpu")
    kubectl("delete", "resourceslice", "gpus-of-one-node")
    assert not training["scheduler"].refusals


FABRIC = """
apiVersion: v1
kind: ConfigMap
metadata: {name: volcano-controller-configmap, namespace: hekla-system}
data:
  volcano-controller.conf: |
    networkTopologyDiscovery:
    - {source: label, enabled: true, config: {networkTopologyTypes: {lab: [{nodeLabel: example.com/rack}]}}}
"""


def test_labels_of_nodes_become_hypernodes(cluster: Cluster, training: dict[str, Component]):
    kubectl = cluster.kubectl.within("")
    kubectl("label", "node", "n1", "example.com/rack=r1")
    kubectl("label", "node", "n2", "example.com/rack=r2")
    kubectl("apply", "-f", "-", stdin=FABRIC)
    made = ("-l", "volcano.sh/network-topology-source=label", "--timeout=30s")
    kubectl("wait", "hypernodes", "--for=create", *made)
    kubectl("wait", "hypernodes", "--for=jsonpath={.status.nodeCount}=1", *made)
    kubectl("apply", "-f", "-", stdin=FABRIC.replace("true", "false"))
    kubectl("wait", "hypernodes", "--for=delete", *made)
    kubectl("delete", "-f", "-", stdin=FABRIC)
    assert not training["controllers"].refusals


def test_what_is_installed_already_is_applied_without_a_change(cluster: Cluster):
    said = cluster.kubectl.within("")("apply", "-k", str(ROOT / "deploy"), "--dry-run=server").out.splitlines()
    # kubectl replaces the selector of a budget whole, and the suite has scaled the deployments
    own = [line for line in said if "poddisruptionbudget" not in line and "deployment.apps" not in line]
    assert [line for line in own if not line.endswith("unchanged (server dry run)")] == []


VOLUME = """
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: on-n2}
spec:
  capacity: {storage: 5Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: local
  local: {path: /mnt}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [n2]}]}]}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: local, resources: {requests: {storage: 2Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: reads}
spec:
  schedulerName: volcano
  containers: [{name: c, image: i, command: [sleep, "1000"], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
"""


def test_a_volume_that_waits_for_its_consumer_takes_the_pod_to_its_node(
    cluster: Cluster, training: dict[str, Component], namespace: str
):
    cluster.kubectl.within(namespace)("apply", "-f", "-", stdin=VOLUME)
    cluster.wait(f"pvc/data -n {namespace}", "jsonpath={.status.phase}=Bound")
    cluster.wait(f"pod/reads -n {namespace}", "jsonpath={.spec.nodeName}=n2")
    cluster.kubectl("delete", "pv", "on-n2", "--wait=false")
    assert not training["scheduler"].refusals


def test_a_full_quota_and_a_strict_namespace_are_told_on_the_job(
    cluster: Cluster, training: dict[str, Component], namespace: str
):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("create", "quota", "few", "--hard=pods=1")
    kubectl("apply", "-f", "-", stdin=gang("bounded", seconds=1000))
    kubectl("wait", "event", "--for=create", "--field-selector=reason=FailedCreate", "--timeout=60s", code=None)
    kubectl("delete", "quota", "few")
    cluster.wait(f"vcjob/bounded -n {namespace}", "jsonpath={.status.running}=2")
    kubectl("delete", "vcjob", "bounded", "--cascade=foreground", "--timeout=60s")
    assert kubectl("get", "pods", "-o", "name").out == ""


def test_a_strict_namespace_is_told_by_why(
    cluster: Cluster, training: dict[str, Component], namespace: str, capsys: pytest.CaptureFixture[str]
):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubectl("apply", "-f", "-", stdin=gang("lax", seconds=1000))
    said = ""
    for _ in range(100):  # until its queue has let it in
        assert main(["why", "vcjob/lax", "-n", namespace, "--kubeconfig", str(cluster.kubeconfig)]) in (0, 1)
        if "refused" in (said := capsys.readouterr().out):
            break
    assert "Not enough valid pods of each task for gang-scheduling: task w has 0, 2 are needed" in said
    assert 'refused Error creating: pods "lax-w-0" is forbidden: violates PodSecurity "restricted:latest"' in said


def test_a_user_who_may_edit_a_namespace_runs_jobs_there_and_asks_why_they_wait(
    cluster: Cluster, training: dict[str, Component], namespace: str
):
    kubectl = cluster.kubectl.within(namespace)
    kubectl("create", "rolebinding", "dev", "--clusterrole=edit", "--user=dev")
    for verb, what in (
        ("create", "jobs.batch.volcano.sh"),
        ("list", "podgroups"),
        ("get", "explanations.scheduling.hekla.dev"),
    ):
        cluster.kubectl("auth", "can-i", verb, what, "--as=dev", "-n", namespace)
    kubectl("apply", "-f", "-", "--as=dev", stdin=gang("mine", seconds=1))
    cluster.wait(f"vcjob/mine -n {namespace} --as=dev", COMPLETED)
    assert "cannot create resource" in kubectl("create", "-f", "-", "--as=dev", stdin=A_QUEUE, code=1).err


def test_webhooks_that_are_away_refuse_what_is_new_and_hold_up_nothing_else(
    cluster: Cluster, training: dict[str, Component], namespace: str
):
    """What runs is told, changed in what nobody checks, and deleted: its finalizers go by an update."""
    kubectl = cluster.kubectl.within(namespace)
    kubectl("apply", "-f", "-", stdin=gang("early", seconds=1000))
    cluster.wait(f"vcjob/early -n {namespace}", "jsonpath={.status.running}=2")
    webhooks = training["webhooks"].process
    # its connections are kept open by the API server, so that taking endpoints away would not be enough
    webhooks.send_signal(signal.SIGSTOP)
    try:
        refused = kubectl("create", "-f", "-", stdin=gang("late"), code=1).err
        assert 'failed calling webhook "mutatejob.volcano.sh"' in refused
        kubectl("label", "vcjob", "early", "told=yes")
        kubectl("delete", "pod", "early-w-1", "--force", "--grace-period=0")
        kubectl("wait", "podgroup", "--all", "--for=jsonpath={.status.running}=2", "--timeout=60s")
        kubectl("delete", "vcjob", "early", "--cascade=foreground", "--timeout=60s")
    finally:
        webhooks.send_signal(signal.SIGCONT)
    assert not training["scheduler"].refusals


def test_an_api_server_that_is_killed_is_followed_again(
    kubernetes: ControlPlane, cluster: Cluster, training: dict[str, Component], namespace: str
):
    """Killed and started at once, its store's history forgotten meanwhile: whoever watched begins anew."""
    kubernetes.stop("kube-apiserver", is_killed=True)
    kubernetes.compact()
    kubernetes.start_apiserver()
    kubectl = cluster.kubectl.within(namespace)
    cluster.kubectl("wait", "queue/default", "--for=jsonpath={.status.state}=Open", "--timeout=60s")
    for _ in range(20):  # the webhooks are asked by a server that has just come
        if kubectl("apply", "-f", "-", stdin=gang("again", seconds=1), code=None).code == 0:
            break
    cluster.wait(f"vcjob/again -n {namespace}", COMPLETED)
    assert all(one.process.poll() is None for one in training.values())


def test_each_of_two_schedulers_is_asked_of_its_own_pods(
    cluster: Cluster, training: dict[str, Component], namespace: str, capsys: pytest.CaptureFixture[str]
):
    """A version of the API may be called like a scheduler, and rights know no versions. The rights of the second are the page's."""
    page, first = (ROOT / "docs/howto/install-on-kubernetes.md").read_text(), "apiVersion: v1\nkind: Service\n"
    cluster.ours("apply", "-f", "-", stdin=first + page.partition(first)[2].partition("END\n")[0])
    spec = "{schedulerName: NAME, nodeSelector: {a: b}, containers: [{name: c, image: i}]}"
    pod = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: lone-NAME}}\nspec: {spec}"
    with cluster.running("scheduler", "--scheduler-name=team-a", "--groups-for-gangs-only") as second:
        second.wait_for(r"event=answers .*registration=team-a", timeout_s=60)
        cluster.kubectl("wait", "apiservice/team-a.scheduling.hekla.dev", "--for=condition=Available", "--timeout=60s")
        for name in ("volcano", "team-a"):
            cluster.kubectl.within(namespace)("apply", "-f", "-", stdin=pod.replace("NAME", name))
            cluster.wait(f"pod/lone-{name} -n {namespace}", "condition=PodScheduled=False")
            assert main(["why", f"pod/lone-{name}", "-n", namespace, "--kubeconfig", str(cluster.kubeconfig)]) == 0
            assert f"pod lone-{name} finds no node" in capsys.readouterr().out
        assert second.stop() == 0
    assert "team-a" not in cluster.kubectl("get", "apiservices").out
