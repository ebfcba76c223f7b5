"""Training on a real Kubernetes: controllers, scheduler and webhooks as processes with the rights of their roles."""

from hekla.testing.components import DEVICES, ROOT, Cluster, Component, gang

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


def test_what_is_installed_already_is_applied_without_a_change(cluster: Cluster):
    said = cluster.kubectl.within("")("apply", "-k", str(ROOT / "deploy"), "--dry-run=server").out.splitlines()
    # kubectl replaces the selector of a budget whole, and the suite has scaled the deployments
    own = [line for line in said if "poddisruptionbudget" not in line and "deployment.apps" not in line]
    assert [line for line in own if not line.endswith("unchanged (server dry run)")] == []
