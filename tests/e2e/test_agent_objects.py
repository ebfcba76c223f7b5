"""Objects of agent-sandbox on a real platform, with kubectl and its client from PyPI: what a claim brings comes to a sandbox that waits,
a pool makes way for a gang and comes back, manifests of both versions apply, and a packed agent answers."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hekla.api.agents import names
from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import NODE_ISOLATION_LABEL
from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

RULES = """
actions: "enqueue, allocate, preempt, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
  - name: conformance
- plugins:
  - name: predicates
  - name: capacity
"""
LIMIT_S = 120
LIMIT = f"--timeout={LIMIT_S}s"
IMAGE = "hekla/code-interpreter"
ECHO = Path(__file__).resolve().parents[2] / "examples" / "agents" / "echo"
SESSION = "x-agentcube-session-id"
EXTENSIONS = "extensions.agents.x-k8s.io"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlatformProcess]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    rules = tmp_path_factory.mktemp("rules") / "scheduler.conf"
    rules.write_text(RULES)
    flags = ("--nodes", "1", "--cpu-per-node", "4", "--agents-port", "0", "--scheduler-conf", str(rules))
    with running_platform(without=("serving", "router"), flags=flags) as running:
        yield running


@pytest.fixture
def kubectl(platform: PlatformProcess, tmp_path: Path) -> Kubectl:
    asking = Kubectl(platform.kubeconfig, home=tmp_path)
    asking("wait", "node/node-1", "--for=create", LIMIT)
    asking("wait", "node/node-1", "--for=condition=Ready", LIMIT)
    (node,) = items(asking, "nodes")
    if node["metadata"]["labels"].get(f"{NODE_ISOLATION_LABEL}{ISOLATION_STRENGTHS[0]}") != "true":
        pytest.skip("this host lets nobody set a sandbox apart")
    return asking


def key_of(platform: PlatformProcess) -> str:
    return (platform.data_dir / "agents.key").read_text().partition(":")[2].strip()


def items(kubectl: Kubectl, *what: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl("get", *what, "-o", "json").out)["items"]
    return found


def uids(kubectl: Kubectl) -> set[str]:
    return {one["metadata"]["uid"] for one in items(kubectl, "pods")}


def manifest(kind: str, name: str, spec: dict[str, Any], version: str = f"{EXTENSIONS}/v1beta1") -> str:
    return json.dumps({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})


def template(cpu: str = "", **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "main", "image": IMAGE}
    if cpu:
        container["resources"] = {"requests": {"cpu": cpu}}
    return {"podTemplate": {"spec": {"containers": [container]}}, "networkPolicyManagement": "Unmanaged", **spec}


def full(kubectl: Kubectl, pool: str, ready: int) -> None:
    kubectl("wait", "sandboxwarmpool", pool, "--for=jsonpath={.status.readyReplicas}=" + str(ready), LIMIT)


@pytest.fixture
def pool(kubectl: Kubectl) -> Iterator[str]:
    """Three that wait, of a whole processor each."""
    kubectl(
        "apply", "-f", "-", stdin=manifest("SandboxTemplate", "box", template("1", envVarsInjectionPolicy="Allowed"))
    )
    spec = {"replicas": 3, "sandboxTemplateRef": {"name": "box"}}
    kubectl("apply", "-f", "-", stdin=manifest("SandboxWarmPool", "boxes", spec))
    full(kubectl, "boxes", 3)
    yield "boxes"
    for kind in ("sandboxclaim", "sandboxwarmpool", "sandboxtemplate"):
        kubectl("delete", kind, "--all", LIMIT)
    kubectl("wait", "pod", "--all", "--for=delete", LIMIT)


def gang(name: str, pods: int) -> str:
    container = {
        "name": "c", "image": "any", "command": ["sleep", "3600"], "resources": {"requests": {"cpu": "1"}},
    }  # fmt: skip
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    task = {"name": "w", "replicas": pods, "template": {"spec": spec}}
    job = {"minAvailable": pods, "schedulerName": "volcano", "queue": "default", "tasks": [task]}
    return manifest("Job", name, job, "batch.volcano.sh/v1alpha1")


def test_a_claim_brings_its_environment_to_one_that_waits_and_a_gang_sends_away_those_that_are_nobodys(
    platform: PlatformProcess, kubectl: Kubectl, pool: str
) -> None:
    package = pytest.importorskip("k8s_agent_sandbox")
    from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

    waiting = uids(kubectl)
    connection = SandboxDirectConnectionConfig(
        api_url=(platform.data_dir / "agents.url").read_text().strip(),
        extra_headers={"Authorization": f"Bearer {key_of(platform)}"},
    )
    api = pytest.importorskip("kubernetes").config.new_client_from_config(str(platform.kubeconfig))
    client = package.SandboxClient(connection_config=connection, api_client=api)
    variables = {f"GIVEN_{number}": f"value {number}" for number in range(20)}
    sandbox = client.create_sandbox(pool, namespace="default", sandbox_ready_timeout=LIMIT_S, env=variables)

    claimed = next(one for one in items(kubectl, "sandboxes") if names.CLAIM_UID in one["metadata"]["labels"])
    pod = json.loads(kubectl("get", "pod", claimed["metadata"]["name"], "-o", "json").out)
    assert claimed["metadata"]["labels"][names.LAUNCH_TYPE] == "warm"
    assert pod["metadata"]["uid"] in waiting, "the pod is the one that waited"
    said = sandbox.commands.run("env").stdout.splitlines()
    assert {f"{name}={value}" for name, value in variables.items()} <= set(said)
    assert kubectl("exec", claimed["metadata"]["name"], "--", "sh", "-c", "echo $GIVEN_7").out == "value 7\n"

    full(kubectl, pool, 3)
    idle = uids(kubectl) - {pod["metadata"]["uid"]}
    kubectl("apply", "-f", "-", stdin=gang("train", 3))
    kubectl("wait", "vcjob", "train", "--for=jsonpath={.status.running}=3", LIMIT)
    assert sandbox.commands.run("echo still here").stdout == "still here\n"
    assert not idle & uids(kubectl), "a node that is full has no room for both"
    assert pod["metadata"]["uid"] in uids(kubectl)
    full(kubectl, pool, 0)

    kubectl("delete", "vcjob", "train", LIMIT)
    full(kubectl, pool, 3)
    sandbox.terminate()


def test_an_agent_is_packed_published_and_keeps_its_session_and_code_that_is_too_old_goes(
    platform: PlatformProcess, kubectl: Kubectl, tmp_path: Path
) -> None:
    url = (platform.data_dir / "agents.url").read_text().strip()
    path = f"{url}/v1/namespaces/default/agent-runtimes/echo/invocations/"

    def ask(words: str, session: str = "") -> tuple[dict[str, Any], str]:
        headers = {"Authorization": f"Bearer {key_of(platform)}", **({SESSION: session} if session else {})}
        asked = urllib.request.Request(path, words.encode(), headers)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=LIMIT_S) as answer:
            return json.load(answer), answer.headers[SESSION]

    def hekla(*arguments: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(platform.kubeconfig)}
        command = [sys.executable, "-m", "hekla.cli.main", "agent", *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT_S, check=True, env=environment
        ).stdout

    for number, greeting in enumerate(("echo", "hello", "good day")):
        place = tmp_path / greeting
        shutil.copytree(ECHO, place)
        told = (place / "agent_metadata.yaml").read_text().replace("GREETING: echo", f"GREETING: {greeting}")
        (place / "agent_metadata.yaml").write_text(told)
        artefact = str(tmp_path / f"{number}.tar.gz")
        hekla("pack", str(place), "--version", f"1.{number}", "--output", artefact)
        assert f"agent echo 1.{number} is published" in hekla("publish", artefact)
        kubectl("wait", "agentruntime", "echo", "--for=condition=Accepted", LIMIT)
    assert len(items(kubectl, "configmaps", "-l", "hekla.dev/agent=echo")) == 2, "the last two versions have theirs"
    first, session = ask("hi")
    again, same = ask("again", session)
    assert (first, again) == ({"answer": "good day: hi", "turns": 1}, {"answer": "good day: again", "turns": 2})
    assert same == session
    hekla("publish", artefact)
    kubectl("delete", "agentruntime", "echo", LIMIT)
    kubectl("wait", "configmap", "-l", "hekla.dev/agent=echo", "--for=delete", LIMIT)


def test_manifests_of_both_versions_apply_and_one_object_is_seen_in_both(kubectl: Kubectl) -> None:
    older = f"{EXTENSIONS}/v1alpha1"
    kubectl("apply", "-f", "-", stdin=manifest("SandboxTemplate", "old", template(), older))
    pool = {"replicas": 1, "sandboxTemplateRef": {"name": "old"}}
    kubectl("apply", "-f", "-", stdin=manifest("SandboxWarmPool", "any-name", pool, older))
    full(kubectl, "any-name", 1)
    claim = {"sandboxTemplateRef": {"name": "old"}}
    kubectl("apply", "-f", "-", stdin=manifest("SandboxClaim", "mine", claim, older))
    kubectl("wait", "sandboxclaim", "mine", "--for=condition=Ready", LIMIT)
    taken = json.loads(kubectl("get", "sandboxclaim", "mine", "-o", "json").out)["status"]["sandbox"]["name"]
    box = json.loads(kubectl("get", f"sandboxes.v1alpha1.agents.x-k8s.io/{taken}", "-o", "json").out)
    assert (box["apiVersion"], box["spec"]["replicas"]) == ("agents.x-k8s.io/v1alpha1", 1)
    assert box["metadata"]["labels"][names.LAUNCH_TYPE] == "warm", "any pool of the template is the claim's"
    shown = json.loads(kubectl("get", "sandboxclaims.v1alpha1.extensions.agents.x-k8s.io", "mine", "-o", "json").out)
    assert shown["spec"]["sandboxTemplateRef"] == {"name": "old"}

    for version, spec in (("v1alpha1", {"replicas": 0}), ("v1beta1", {"operatingMode": "Suspended"})):
        sandbox = {"podTemplate": template()["podTemplate"], **spec}
        kubectl("apply", "-f", "-", stdin=manifest("Sandbox", version, sandbox, f"agents.x-k8s.io/{version}"))
        kubectl("wait", "sandbox", version, "--for=condition=Suspended", LIMIT)
        again = kubectl("apply", "-f", "-", stdin=manifest("Sandbox", version, sandbox, f"agents.x-k8s.io/{version}"))
        assert "unchanged" in again.out
    kubectl("scale", "sandboxes.v1alpha1.agents.x-k8s.io/v1beta1", "--replicas=1")
    kubectl("wait", "sandbox", "v1beta1", "--for=condition=Ready", LIMIT)
    for kind in ("sandbox", "sandboxclaim", "sandboxwarmpool", "sandboxtemplate"):
        kubectl("delete", kind, "--all", LIMIT)
