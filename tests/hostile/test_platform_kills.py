"""A platform that is killed and started again has its sandboxes as they were; one that ends, or never comes back, leaves nothing."""

import json
import shutil
import subprocess
import threading
from pathlib import Path
from time import monotonic

import pytest

from hekla.node.runtimes.sweep import start_time
from hekla.testing.kubectl import Kubectl
from hekla.testing.platform import PlatformProcess

PATIENCE_S = 120.0
WITHOUT = ("agents", "serving", "router", "workloads")
POD = """
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  runtimeClassName: sandbox
  containers:
  - name: main
    image: python
    command: [sh, -c, "echo began; echo mine > /tmp/mine; while :; do sleep 1; done"]
    readinessProbe: {exec: {command: [cat, /tmp/mine]}, periodSeconds: 1}
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")]


def platform_at(home: Path, port: int = 0, grace_s: int = 120) -> PlatformProcess:
    flags = ("--nodes", "1", "--sandbox-grace-s", str(grace_s))
    return PlatformProcess(home / "data", without=WITHOUT, flags=flags, port=port)


def with_a_pod(platform: PlatformProcess, home: Path) -> Kubectl:
    platform.start()
    kubectl = Kubectl(platform.kubeconfig, home=home)
    until_its_node_is_ready(kubectl)
    if not kubectl("get", "nodes", "-l", "hekla.dev/isolation.shared-kernel=true", "-o", "name").out:
        platform.stop()
        pytest.skip("this host lets nobody set a sandbox apart")
    kubectl("apply", "-f", "-", stdin=POD)
    kubectl("wait", "pod/box", "--for=condition=Ready", f"--timeout={PATIENCE_S:g}s")
    return kubectl


def until_its_node_is_ready(kubectl: Kubectl) -> None:
    until = monotonic() + PATIENCE_S
    while kubectl("wait", "node", "--all", "--for=condition=Ready", "--timeout=30s", code=None).code != 0:
        assert monotonic() < until, "no node is ready"


def processes_of(home: Path) -> list[int]:
    """The supervisor and all below it."""
    found = [json.loads((home / "data/node/sandboxes/supervisor.json").read_text())["pid"]]
    for pid in found:
        children = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False)
        found += map(int, children.stdout.split())
    return found


def until_gone(pids: list[int]) -> None:
    until = monotonic() + PATIENCE_S
    while left := [pid for pid in pids if start_time(pid)]:
        assert monotonic() < until, f"{left} still run"
        threading.Event().wait(0.1)


def test_a_pod_outlives_its_platform_unchanged_and_ends_with_one_that_ends(tmp_path: Path) -> None:
    first = platform_at(tmp_path)
    kubectl = with_a_pod(first, tmp_path)
    before = kubectl("get", "pod", "box", "-o", "json").json
    port = first.port
    first.kill()
    again = platform_at(tmp_path, port)
    again.start()
    try:
        until = monotonic() + PATIENCE_S
        while (said := kubectl("exec", "box", "--", "cat", "/tmp/mine", code=None)).code != 0:
            assert monotonic() < until, said  # the node of the new life does not know its pods yet
        assert said.out == "mine\n"
        assert kubectl("logs", "box").out == "began\n"
        # the new node has written what it thinks of its pods by the time it made another one ready
        kubectl("apply", "-f", "-", stdin=POD.replace("name: box", "name: next"))
        kubectl("wait", "pod/next", "--for=condition=Ready", f"--timeout={PATIENCE_S:g}s")
        after = kubectl("get", "pod", "box", "-o", "json").json
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        assert after["status"]["containerStatuses"] == before["status"]["containerStatuses"]
        assert after["status"]["podIP"] == before["status"]["podIP"]
        left = processes_of(tmp_path)
        assert len(left) >= 3
    finally:
        again.stop()
    until_gone(left)


def test_sandboxes_of_a_platform_that_never_comes_back_end(tmp_path: Path) -> None:
    platform = platform_at(tmp_path, grace_s=1)
    with_a_pod(platform, tmp_path)
    left = processes_of(tmp_path)
    assert len(left) >= 3
    platform.kill()
    until_gone(left)
