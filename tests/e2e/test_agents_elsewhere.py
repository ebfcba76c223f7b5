"""The gateway of sandboxes as a process of its own: over HTTPS to API server and node agents, with exactly the rights of the manifests."""

import base64
import json
import os
import shutil
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import NODE_AUDIENCE, NODE_AUTHORITY, NODE_ISOLATION_LABEL
from hekla.testing.components import Cluster
from hekla.testing.platform import running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

PATIENCE_S = 120
INTERPRETER = """
apiVersion: runtime.agentcube.volcano.sh/v1alpha1
kind: CodeInterpreter
metadata: {name: base}
spec: {template: {}}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    with running_platform(without=("agents", "serving", "router", "workloads"), flags=("--nodes", "1")) as platform:
        cluster = Cluster(platform.kubeconfig, tmp_path_factory.mktemp("home"))
        cluster.install()
        label = f"{NODE_ISOLATION_LABEL}{ISOLATION_STRENGTHS[0]}=true"
        if not cluster.kubectl("get", "nodes", "-l", label, "-o", "name").out:
            pytest.skip("this host lets nobody set a sandbox apart")
        cluster.kubectl("apply", "-f", "-", stdin=INTERPRETER)
        yield cluster


@dataclass(frozen=True)
class Door:
    """A gateway as a client sees it."""

    url: str
    key: str

    def ask(self, method: str, path: str, body: Any = None, status: int = 200) -> Any:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"x-api-key": self.key, "content-type": "application/json"}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                code, text = answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            code, text = refusal.code, refusal.read()
        assert code == status, (method, path, code, text)
        return json.loads(text) if text[:1] in (b"{", b"[") else text

    def run(self, session: str, *command: str) -> str:
        path = f"/hekla/v1/sessions/{session}/daemon/api/execute"
        done = self.ask("POST", path, {"command": list(command)})
        assert done["exit_code"] == 0, done
        return str(done["stdout"])


def gateway(cluster: Cluster, directory: Path, *flags: str) -> tuple[str, ...]:
    """Its flags, and a token that nodes take."""
    token = cluster.ours("create", "token", "hekla-agents", f"--audience={NODE_AUDIENCE}", "--duration=24h").out
    file = directory / "node-token"
    file.touch(mode=0o600)
    file.write_text(token)
    return (
        "--agents-address=127.0.0.1:0",
        f"--agents-directory={directory}",
        f"--node-token={file}",
        *flags,
    )


def opened(component: Any, directory: Path) -> Door:
    url = component.wait_for(r'event="gateway of sandboxes is ready" url=(\S+)', timeout_s=60)
    return Door(url, (directory / "agents.key").read_text().partition(":")[2].strip())


def test_sessions_live_their_whole_life_through_a_gateway_elsewhere(cluster: Cluster, tmp_path: Path):
    flags = gateway(cluster, tmp_path)
    with cluster.running("agents", *flags) as component:
        door = opened(component, tmp_path)
        cluster.wait("codeinterpreter/base", "jsonpath={.status.ready}=true")
        made = door.ask("POST", "/hekla/v1/sessions", {"name": "base", "env": {"COLOUR": "red"}}, 201)
        session = made["id"]
        assert door.run(session, "sh", "-c", "echo $COLOUR; id -un") == "red\nuser\n"

        big = os.urandom(16 * 2**20)  # more, written down, than a node takes as one document: it goes through a tunnel
        said = {"path": "big", "content": base64.b64encode(big).decode()}
        door.ask("POST", f"/hekla/v1/sessions/{session}/daemon/api/files", said)
        assert door.run(session, "sha256sum", "big")[:64] == sha256(big).hexdigest()

        door.ask("POST", f"/hekla/v1/sessions/{session}/freeze", {})
        assert door.ask("GET", f"/hekla/v1/sessions/{session}")["state"] == "frozen"
        assert door.run(session, "echo", "awake") == "awake\n"
        [copy] = door.ask("POST", f"/hekla/v1/sessions/{session}/fork", {"count": 1}, 201)["sessions"]
        assert door.run(copy["id"], "sha256sum", "big")[:64] == sha256(big).hexdigest()
        assert door.ask("GET", f"/hekla/v1/sessions/{session}/usage")["cpuUs"] > 0
        assert component.refusals == []
    # another life of the gateway finds them, and ends them
    with cluster.running("agents", *flags) as component:
        door = opened(component, tmp_path)
        assert door.run(session, "echo", "still here") == "still here\n"
        for one in door.ask("GET", "/hekla/v1/sessions")["sessions"]:
            door.ask("DELETE", f"/hekla/v1/sessions/{one['id']}", status=204)
        assert component.refusals == []
    assert cluster.kubectl("get", "sandboxes", "-A", "-o", "name").out == ""


def test_a_node_lets_nobody_in_without_the_right(cluster: Cluster, tmp_path: Path):
    """A token for API servers opens no node, and one for nodes opens none without nodes/proxy."""
    node = json.loads(cluster.kubectl("get", "node", "node-1", "-o", "json").out)
    port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context(cadata=node["metadata"]["annotations"][NODE_AUTHORITY])
    cluster.ours("create", "serviceaccount", "nobody")

    def asked(account: str, audience: str) -> int:
        token = cluster.ours("create", "token", account, *([f"--audience={audience}"] if audience else [])).out.strip()
        headers = {"authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"https://127.0.0.1:{port}/sandboxes/default/none", headers=headers)
        try:
            urllib.request.urlopen(request, timeout=PATIENCE_S, context=context)
        except urllib.error.HTTPError as refusal:
            return refusal.code
        raise AssertionError("there is no such sandbox")

    assert asked("hekla-agents", NODE_AUDIENCE) == 404  # let in: there is none of that name
    assert asked("hekla-agents", "") == 401
    assert asked("hekla-agents", "somebody-else") == 401
    assert asked("nobody", NODE_AUDIENCE) == 401
