"""Pools of sandboxes that grow and shrink on a real platform while their members are taken: none that somebody has is ended."""

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hekla.api.agents import names
from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import NODE_ISOLATION_LABEL
from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import PlatformProcess, running_platform

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

LIMIT_S = 120
LIMIT = f"--timeout={LIMIT_S}s"
IMAGE = "hekla/code-interpreter"
EXTENSIONS, RUNTIME = "extensions.agents.x-k8s.io/v1beta1", "runtime.agentcube.volcano.sh/v1alpha1"
SIZE, TAKERS = 6, 4


@pytest.fixture(scope="module")
def platform() -> Iterator[PlatformProcess]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    flags = ("--nodes", "1", "--cpu-per-node", "32", "--agents-port", "0")
    with running_platform(without=("serving", "router"), flags=flags) as running:
        yield running


@pytest.fixture
def kubectl(platform: PlatformProcess, tmp_path: Path) -> Kubectl:
    asking = Kubectl(platform.kubeconfig, home=tmp_path)
    asking("wait", "node/node-1", "--for=create", LIMIT)
    asking("wait", "node/node-1", "--for=condition=Ready", LIMIT)
    labels = asking("get", "node", "node-1", "-o", "json").json["metadata"]["labels"]
    if labels.get(f"{NODE_ISOLATION_LABEL}{ISOLATION_STRENGTHS[0]}") != "true":
        pytest.skip("this host lets nobody set a sandbox apart")
    return asking


@dataclass(frozen=True)
class Door:
    """The platform's gateway."""

    platform: PlatformProcess

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None, **headers: str) -> Any:
        """What it answers, read; an HTTPError where it refuses."""
        url = (self.platform.data_dir / "agents.url").read_text().strip()
        key = (self.platform.data_dir / "agents.key").read_text().partition(":")[2].strip()
        told = {name.replace("_", "-"): value for name, value in headers.items()} | {"authorization": f"Bearer {key}"}
        data = json.dumps(body).encode() if body is not None else None
        asked = urllib.request.Request(url + path, data, told, method=method)
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=LIMIT_S) as answer:
            return json.loads(answer.read() or b"null")

    def session(self) -> str:
        """A session of the interpreter that is counted."""
        made: str = self.ask("POST", "/hekla/v1/sessions", {"name": "counted", "timeout": 600})["id"]
        return made

    def said_in(self, session: str) -> str:
        """What a command in a session says."""
        path = "/v1/namespaces/default/code-interpreters/counted/invocations/api/execute"
        command = {"command": ["echo", session], "timeout": "60s"}
        said: str = self.ask("POST", path, command, x_agentcube_session_id=session)["stdout"]
        return said.strip()


def applied(kubectl: Kubectl, version: str, kind: str, name: str, spec: dict[str, Any]) -> None:
    document = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    kubectl("apply", "-f", "-", stdin=json.dumps(document))


def full(kubectl: Kubectl, pool: str, size: int) -> None:
    """Of so many all are ready, and none is there beside them."""
    for field in ("replicas", "readyReplicas"):
        kubectl("wait", "sandboxwarmpool", pool, f"--for=jsonpath={{.status.{field}}}={size}", LIMIT)


def taken_while(shrink: Callable[[], object], takes: Sequence[Callable[[], str]]) -> list[str]:
    """What all take, and the shrinking between them."""
    with ThreadPoolExecutor(len(takes) + 1) as hands:
        half = len(takes) // 2
        taking = [hands.submit(take) for take in takes[:half]]
        shrinking = hands.submit(shrink)
        taking += [hands.submit(take) for take in takes[half:]]
        shrinking.result()
        return [one.result() for one in taking]


def test_an_interpreters_pool_shrinks_while_sessions_take_from_it_and_all_of_them_go_on(
    platform: PlatformProcess, kubectl: Kubectl
) -> None:
    door = Door(platform)

    def sized(size: int) -> None:
        spec = {"template": {"image": IMAGE}, "warmPoolSize": size}
        applied(kubectl, RUNTIME, "CodeInterpreter", "counted", spec)

    sessions: list[str] = []
    for smaller in (1, 0, 2):
        sized(SIZE)
        kubectl("wait", "sandboxwarmpool", "counted", "--for=create", LIMIT)
        full(kubectl, "counted", SIZE)
        sessions += taken_while(lambda: sized(smaller), [door.session] * TAKERS)  # noqa: B023 - run before the next
        if smaller:
            full(kubectl, "counted", smaller)
        else:
            kubectl("wait", "sandboxwarmpool", "counted", "--for=delete", LIMIT)
            waiting = f"{names.WARM_POOL},!{names.SESSION_ID}"
            kubectl("wait", "sandbox", "-l", waiting, "--for=delete", LIMIT)
        assert [door.said_in(one) for one in sessions] == sessions
    for one in sessions:
        door.ask("DELETE", f"/hekla/v1/sessions/{one}")
    kubectl("delete", "codeinterpreter", "counted", LIMIT)


def test_a_pool_shrinks_while_it_is_claimed_from_and_every_claim_keeps_its_sandbox(
    kubectl: Kubectl,
) -> None:
    container = {"name": "main", "image": IMAGE}
    template = {"podTemplate": {"spec": {"containers": [container]}}, "networkPolicyManagement": "Unmanaged"}
    applied(kubectl, EXTENSIONS, "SandboxTemplate", "box", template)

    def sized(size: int) -> None:
        spec = {"replicas": size, "sandboxTemplateRef": {"name": "box"}}
        applied(kubectl, EXTENSIONS, "SandboxWarmPool", "boxes", spec)

    def claim(name: str) -> str:
        applied(kubectl, EXTENSIONS, "SandboxClaim", name, {"warmPoolRef": {"name": "boxes"}})
        kubectl("wait", "sandboxclaim", name, "--for=condition=Ready", LIMIT)
        sandbox = kubectl("get", "sandboxclaim", name, "-o", "json").json["status"]["sandbox"]["name"]
        uid: str = kubectl("get", "sandbox", sandbox, "-o", "json").json["metadata"]["uid"]
        return uid

    claimed: list[str] = []
    for number, smaller in enumerate((1, 0)):
        sized(SIZE)
        full(kubectl, "boxes", SIZE)
        takes = [lambda name=f"mine-{number}-{one}": claim(name) for one in range(TAKERS)]
        claimed += taken_while(lambda: sized(smaller), takes)  # noqa: B023 - run before the next
        full(kubectl, "boxes", smaller)
        there = {one["metadata"]["uid"]: one for one in kubectl("get", "sandboxes", "-o", "json").json["items"]}
        assert set(claimed) <= set(there)
        assert not any(there[one]["metadata"].get("deletionTimestamp") for one in claimed)
        ready = [one["status"]["conditions"] for one in kubectl("get", "sandboxclaims", "-o", "json").json["items"]]
        assert all(any(one["type"] == "Ready" and one["status"] == "True" for one in told) for told in ready)
    for kind in ("sandboxclaim", "sandboxwarmpool", "sandboxtemplate"):
        kubectl("delete", kind, "--all", LIMIT)
