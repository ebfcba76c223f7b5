"""`hekla run node` beside the kubelets of a real cluster, with exactly the rights of `hekla install --with node`."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from hekla.api.agents.node_contract import NODE_AUDIENCE
from hekla.app.standalone.manifests import Installation, rendered
from hekla.testing.components import Cluster, Component
from hekla.testing.conformance.runtimes import eventually, processes_with
from hekla.testing.kubectl import Kubectl
from hekla.testing.kubernetes import ControlPlane, host_address, missing

NAME = "guest"
ASKS = {
    "nodeSelector": {"kubernetes.io/hostname": NAME},
    "tolerations": [{"key": "hekla.dev/node", "operator": "Exists"}],
}


def pod(name: str, script: str, **spec: object) -> str:
    main = {"name": "main", "image": "any", "command": ["sh", "-c", script]}
    whole = {"containers": [main], "terminationGracePeriodSeconds": 1, **ASKS, **spec}
    metadata = {"name": name, "labels": {"app": name}}
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": whole})


INTERPRETER = """
apiVersion: runtime.agentcube.volcano.sh/v1alpha1
kind: CodeInterpreter
metadata: {name: base}
spec: {template: {}, warmPoolSize: 1}
"""
SANDBOX = """
apiVersion: agents.x-k8s.io/v1beta1
kind: Sandbox
metadata: {name: own}
spec: {podTemplate: {spec: {containers: [{name: main, image: any}]}}}
"""


def is_of_sandboxes(document: dict[str, Any]) -> bool:
    """Namespaces, the kinds of sandboxes, and the parts `node` and `agents`."""
    meta = document["metadata"]
    part = meta.get("labels", {}).get("app.kubernetes.io/component", "")
    is_kind = "agents.x-k8s.io" in meta["name"] or "agentcube" in meta["name"]
    return document["kind"] == "Namespace" or part in ("node", "agents") or is_kind


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster of its own: its API server asks nodes without an authority for their certificates, as kubeadm sets it up."""
    if why := missing() or missing("kube-scheduler"):
        pytest.skip(why)
    flags = ("--kubelet-certificate-authority=",)
    with ControlPlane(tmp_path_factory.mktemp("plane"), apiserver_args=flags) as plane:
        plane.start_scheduler()
        yield plane


@pytest.fixture(scope="module")
def guests(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    found = Cluster(plane.kubeconfig, tmp_path_factory.mktemp("guests"), host_address())
    found.ours = found.kubectl.within("hekla-system-nodes")
    documents = list(yaml.safe_load_all(rendered(Installation(also=frozenset({"node", "node-processes"})))))
    mine = [one for one in documents if one["kind"] not in ("DaemonSet", "Deployment") and is_of_sandboxes(one)]
    found.kubectl.within("")("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(mine))
    return found


@pytest.fixture
def node(guests: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Component]:
    flags = (
        f"--node-name={NAME}", f"--node-directory={guests.home / 'node'}", f"--node-address={host_address()}",
        "--node-listen=0.0.0.0:0", "--allow-processes",
    )  # fmt: skip
    with guests.running("node", *flags) as component:
        component.wait_for('event="node is ready"', timeout_s=90)
        yield component


def test_a_node_becomes_one_by_a_certificate_and_its_pods_live_as_on_a_kubelet(guests: Cluster, node: Component):
    kubectl: Kubectl = guests.kubectl
    guests.wait(f"node/{NAME}", "condition=Ready")
    kubectl("create", "configmap", "conf", "--from-literal=colour=blue")
    kubectl("create", "secret", "generic", "sec", "--from-literal=pw=hidden")
    script = "echo $(cat /conf/colour /sec/pw); test -s /var/run/secrets/kubernetes.io/serviceaccount/token; echo $?; exec sleep 1000"
    document = json.loads(pod("one", script))
    [main] = document["spec"]["containers"]
    main["volumeMounts"] = [{"name": name, "mountPath": f"/{name}"} for name in ("conf", "sec")]
    volumes = [{"name": "conf", "configMap": {"name": "conf"}}, {"name": "sec", "secret": {"secretName": "sec"}}]
    document["spec"]["volumes"] = volumes
    kubectl("apply", "-f", "-", stdin=json.dumps(document))
    kubectl("expose", "pod", "one", "--port=80")
    guests.wait("pod/one", "condition=Ready")
    assert kubectl("logs", "one").out == "bluehidden\n0\n"
    for by_websocket in ("false", "true"):
        env = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": by_websocket}
        assert (
            kubectl("exec", "-i", "one", "--", "sh", "-c", "cat; exit 3", stdin="in\n", code=3, env=env).out == "in\n"
        )
    (guests.home / "f").write_text("copied")
    kubectl("cp", str(guests.home / "f"), "one:/tmp/f")
    assert kubectl("exec", "one", "--", "cat", "/tmp/f").out == "copied"
    listed = kubectl("get", "--raw", f"/api/v1/nodes/{NAME}/proxy/pods").json
    assert "one" in [each["metadata"]["name"] for each in listed["items"]]
    # no address of this machine alone gets into a slice, which the API server would refuse whole
    assert "FailedToUpdateEndpointSlices" not in kubectl("get", "events").out
    kubectl("delete", "pod", "one", "--wait")
    assert node.refusals == []


def test_a_pod_that_never_asked_is_refused_and_one_that_went_meanwhile_ends(guests: Cluster, node: Component):
    kubectl = guests.kubectl
    foreign = {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"kubernetes.io/hostname": NAME}}
    kubectl("apply", "-f", "-", stdin=pod("foreign", "sleep 1000", **foreign))
    guests.wait("pod/foreign", "jsonpath={.status.phase}=Failed")
    assert kubectl("get", "pod", "foreign", "-o", "jsonpath={.status.reason}").out == "TaintToleration"
    kubectl("apply", "-f", "-", stdin=pod("leaves", "exec sleep 1000"))
    guests.wait("pod/leaves", "condition=Ready")
    assert node.stop() == 0
    guests.wait(f"node/{NAME}", "condition=Ready=false")
    kubectl("delete", "pod", "leaves", "foreign", "--wait=false")
    with guests.running(
        "node", f"--node-name={NAME}", f"--node-directory={guests.home / 'node'}", "--node-listen=0.0.0.0:0", "--allow-processes",
        f"--node-address={host_address()}",
    ) as again:  # fmt: skip
        again.wait_for('event="node is ready"', timeout_s=90)
        kubectl("wait", "pod/leaves", "--for=delete", "--timeout=60s")
        assert "no identity yet" not in again.printed  # it has it from its directory


def test_pods_of_a_killed_agent_run_on_and_the_next_one_takes_them_up(guests: Cluster, tmp_path: Path):
    kubectl = guests.kubectl
    flags = (
        f"--node-name={NAME}", f"--node-directory={guests.home / 'node'}", f"--node-address={host_address()}",
        "--node-listen=0.0.0.0:0", "--allow-processes",
    )  # fmt: skip
    seen = {"volumes": [{"name": "marks", "hostPath": {"path": str(tmp_path)}}]}

    def marked(name: str, script: str, **more: object) -> str:
        document = json.loads(pod(name, script, **seen, **more))
        document["spec"]["containers"][0]["volumeMounts"] = [{"name": "marks", "mountPath": "/marks"}]
        return json.dumps(document)

    counts = "n=0; while :; do n=$((n+1)); echo $$ $n; echo $n > /marks/count; sleep 0.1; done"
    told = "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"
    with guests.running("node", *flags) as first:
        first.wait_for('event="node is ready"', timeout_s=90)
        kubectl("apply", "-f", "-", stdin=marked("stays", counts))
        ends = marked("ends", "until [ -e /marks/now ]; do sleep 0.1; done; exit 7", restartPolicy="Never")
        kubectl("apply", "-f", "-", stdin=ends)
        kubectl("apply", "-f", "-", stdin=pod("goes", "exec sleep 81234.1"))
        for name in ("stays", "ends", "goes"):
            guests.wait(f"pod/{name}", "condition=Ready")
        before = kubectl("get", "pod", "stays", "-o", told).out
        first.process.kill()
    (tmp_path / "now").touch()
    counted = int((tmp_path / "count").read_text() or 0)
    kubectl("delete", "pod", "goes", "--force", "--grace-period=0")
    assert processes_with("sleep\x0081234.1") != []
    with guests.running("node", *flags) as again:
        again.wait_for('event="node is ready"', timeout_s=90)
        guests.wait("pod/ends", "jsonpath={.status.phase}=Failed")
        code = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"
        assert kubectl("get", "pod", "ends", "-o", code).out == "7"
        asyncio.run(eventually(lambda: processes_with("sleep\x0081234.1") == []))
        lines = [line.split() for line in kubectl("logs", "stays").out.splitlines()]
        assert [int(number) for _, number in lines] == list(range(1, len(lines) + 1))
        assert len(lines) > counted
        assert len({pid for pid, _ in lines}) == 1
        assert kubectl("exec", "stays", "--", "sh", "-c", "exit 3", code=3).out == ""
        assert kubectl("get", "pod", "stays", "-o", told).out == before
        kubectl("delete", "pod", "stays", "ends", "--wait")


def test_sandboxes_live_on_it_by_kubectl_and_by_the_package_e2b(guests: Cluster, node: Component, tmp_path: Path):
    """Runtime classes lead them there past the taint; with exactly the rights of the roles, on both sides."""
    e2b = pytest.importorskip("e2b")
    kubectl = guests.kubectl
    label = "hekla.dev/runtime.sandbox=true"
    if not kubectl("get", "nodes", "-l", label, "-o", "name").out:
        pytest.skip("this host lets nobody set a sandbox apart")
    agents = Cluster(guests.kubeconfig, guests.home, host_address())
    token = tmp_path / "token"
    token.write_text(agents.ours("create", "token", "hekla-agents", f"--audience={NODE_AUDIENCE}").out)
    kubectl("apply", "-f", "-", stdin=f"{INTERPRETER}---{SANDBOX}")
    flags = ("--agents-address=127.0.0.1:0", f"--agents-directory={tmp_path / 'agents'}", f"--node-token={token}")
    with agents.running("agents", *flags) as gateway:
        url = gateway.wait_for(r'event="gateway of sandboxes is ready" url=(\S+)', timeout_s=60)
        guests.wait("sandbox/own", "condition=Ready")
        assert kubectl("exec", "own", "--", "hostname").out == "own\n"
        kubectl("patch", "sandbox", "own", "--type=merge", "-p", '{"spec": {"operatingMode": "Suspended"}}')
        kubectl("wait", "pod/own", "--for=delete", "--timeout=60s")
        kubectl("patch", "sandbox", "own", "--type=merge", "-p", '{"spec": {"operatingMode": "Running"}}')
        guests.wait("sandbox/own", "condition=Ready")

        guests.wait("codeinterpreter/base", "jsonpath={.status.ready}=true")
        key = (tmp_path / "agents" / "agents.key").read_text().partition(":")[2].strip()
        sandbox = e2b.Sandbox.create("base", timeout=120, api_key=key, api_url=url, sandbox_url=url)
        assert sandbox.commands.run("id -un").stdout == "user\n"
        sandbox.files.write("/tmp/a", "x" * 100_000)
        sandbox.pause()
        again = e2b.Sandbox.connect(sandbox.sandbox_id, api_key=key, api_url=url, sandbox_url=url)
        assert again.files.read("/tmp/a") == "x" * 100_000
        again.kill()
        kubectl("create", "quota", "few", "--hard=pods=1")
        guests.wait("quota/few", "jsonpath={.status.hard.pods}=1")
        kubectl("apply", "-f", "-", stdin=SANDBOX.replace("name: own", "name: second"))
        guests.wait("sandbox/second", 'jsonpath={.status.conditions[?(@.type=="Ready")].reason}=ReconcilerError')
        said = kubectl("get", "sandbox", "second", "-o", "jsonpath={.status.conditions[-1].message}").out
        assert "exceeded quota: few" in said
        kubectl("delete", "quota", "few")
        guests.wait("sandbox/second", "condition=Ready")
        assert gateway.refusals == node.refusals == []
    kubectl("delete", "codeinterpreter,sandbox", "--all", "--wait=false")


def test_simulated_nodes_come_again_and_contradict_who_calls_their_pods_unready(guests: Cluster):
    """A restart asks whose the Nodes are that are there; and what a cluster said of their pods while they were away is taken back."""
    documents = yaml.safe_load_all(rendered(Installation(also=frozenset({"simulated-nodes"}))))
    name = "hekla-simulated-nodes"
    mine = [one for one in documents if one["kind"] != "Deployment" and one["metadata"]["name"].startswith(name)]
    guests.kubectl.within("")("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(mine))
    here = Cluster(guests.kubeconfig, guests.home, host_address())
    flags = (
        "--runtime=simulated",
        "--node-name=sim",
        "--node-listen=127.0.0.1:0",
        f"--node-directory={here.home / 'sim'}",
    )
    kubectl = here.kubectl
    where = {"nodeSelector": {"kubernetes.io/hostname": "sim"}}
    for _ in range(2):
        with here.running("node", *flags, account="hekla-simulated-nodes") as node:
            node.wait_for('event="node is ready"', timeout_s=60)
            here.wait("node/sim", "condition=Ready")
            kubectl("apply", "-f", "-", stdin=pod("simulated", "sleep 1000", **where))
            here.wait("pod/simulated", "condition=Ready")
            unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
            kubectl("patch", "pod", "simulated", "--subresource=status", "--type=strategic", "-p", json.dumps(unready))
            here.wait("pod/simulated", "condition=Ready", timeout_s=60)
            assert node.refusals == []
            assert node.stop() == 0
        here.wait("node/sim", "condition=Ready=false")
    kubectl("delete", "pod", "simulated", "--wait=false")
