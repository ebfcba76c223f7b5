"""One real platform, from the gateway to every class of sandboxes: a strength that a template demands is had, or refused with a sentence.

And what only a whole platform shows: accounts and budgets as `hekla agent` tells them, logs of pods, an upload that fits nowhere.
"""

import contextlib
import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from tests.e2e.test_agents import Agents, agents, first, until  # noqa: F401 - a fixture among them

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

BOOT_PATIENCE_S = 300.0
TEMPLATES = ("extensions.agents.x-k8s.io", "v1beta1", "default", "sandboxtemplates")


def template(agents: Agents, name: str, runtime_class: str, **annotations: str) -> None:  # noqa: F811 - the fixture itself
    pod = {
        "containers": [{"name": "main", "image": "code-interpreter"}],
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
    }
    body = {
        "apiVersion": "/".join(TEMPLATES[:2]), "kind": "SandboxTemplate",
        "metadata": {"name": name, "annotations": {f"hekla.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}},
        "spec": {"podTemplate": {"spec": pod}},
    }  # fmt: skip
    custom = pytest.importorskip("kubernetes").client.CustomObjectsApi(agents.kubernetes())
    custom.create_namespaced_custom_object(*TEMPLATES, body)


def ask(agents: Agents, method: str, path: str, body: Any = None) -> Any:  # noqa: F811 - the fixture itself
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Authorization": f"Bearer {agents.key}", "X-API-Key": agents.key, "Content-Type": "application/json"}
    asked = urllib.request.Request(agents.url + path, data, headers, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=150) as answer:
        return json.loads(answer.read() or b"null")


def session_of(agents: Agents, name: str) -> str:  # noqa: F811 - the fixture itself
    """A session of a template, once the gateway has heard of the template; the first machine may boot for longer than one create waits."""
    limit = time.monotonic() + BOOT_PATIENCE_S
    while True:
        try:
            return str(ask(agents, "POST", "/hekla/v1/sessions", {"name": name, "timeout": 600})["id"])
        except urllib.error.HTTPError as refusal:
            if refusal.code not in (404, 504) or time.monotonic() > limit:
                raise


@pytest.mark.parametrize(
    ("name", "runtime_class", "strength", "kernel"),
    [
        ("plain", "", "shared-kernel", "the host's"),
        ("container", "oci", "shared-kernel", "the host's"),
        ("guarded", "", "user-kernel", "another"),
        ("machine", "microvm", "user-kernel", "another"),
    ],
)
def test_a_template_that_demands_a_strength_has_it(
    agents: Agents, name: str, runtime_class: str, strength: str, kernel: str  # noqa: F811 - the fixture itself
) -> None:  # fmt: skip
    label = f"hekla.dev/runtime.{runtime_class or ('gvisor' if strength == 'user-kernel' else 'sandbox')}"
    node = first(pytest.importorskip("kubernetes").client.CoreV1Api(agents.kubernetes()).list_node)
    if label.endswith(("gvisor", "oci", "microvm")) and node.metadata.labels.get(label) != "true":
        pytest.skip(f"this host has no {label.rpartition('.')[2]}")
    template(agents, name, runtime_class, min_isolation=strength)
    session = session_of(agents, name)
    version = agents.agent("exec", session, "--", "cat", "/proc/version")
    with open("/proc/version") as ours:
        assert (version.split()[2] == ours.read().split()[2]) == (kernel == "the host's")
    said = agents.agent("exec", session, "--", "python3", "-c", "print(6 * 7)")
    assert said == "42\n"
    usage = ask(agents, "GET", f"/hekla/v1/sessions/{session}/usage")
    assert usage["cpuUs"] > 0
    agents.agent("delete", session)


def test_a_strength_that_no_class_here_has_is_refused_with_a_sentence(agents: Agents) -> None:  # noqa: F811 - the fixture itself
    node = first(pytest.importorskip("kubernetes").client.CoreV1Api(agents.kubernetes()).list_node)
    if node.metadata.labels.get("hekla.dev/isolation.virtual-machine") == "true":
        pytest.skip("this host has machines under KVM")
    template(agents, "fortress", "sandbox", min_isolation="virtual-machine")
    with pytest.raises(urllib.error.HTTPError) as refusal:
        session_of(agents, "fortress")
    told = json.loads(refusal.value.read())
    assert "virtual-machine" in told["message"], told
    assert agents.agent("list").startswith("no sessions"), "nothing runs weakly instead"


def test_44_what_one_session_takes_is_in_its_own_account_and_another_beside_it_is_answered(agents: Agents) -> None:  # noqa: F811 - the fixture itself
    template(agents, "neighbours", "")
    noisy, quiet = session_of(agents, "neighbours"), session_of(agents, "neighbours")

    def used(session: str, what: str) -> int:
        return int(ask(agents, "GET", f"/hekla/v1/sessions/{session}/usage")[what])

    before = {what: used(quiet, what) for what in ("cpuUs", "storageBytes")}
    burn = (
        "import subprocess; open('/tmp/file', 'wb').write(bytes(50 << 20))\n"
        "for _ in range(8): subprocess.Popen(['sh', '-c', 'while :; do :; done'], start_new_session=True)"
    )
    agents.agent("exec", noisy, "--", "python3", "-c", burn)
    for number in range(5):
        assert agents.agent("exec", quiet, "--", "echo", str(number)) == f"{number}\n"
    until(lambda: used(noisy, "cpuUs") > 3_000_000)
    assert used(noisy, "storageBytes") >= 50 << 20
    assert used(quiet, "cpuUs") - before["cpuUs"] < 1_000_000, "five programs, and nothing of what went on beside them"
    assert used(quiet, "storageBytes") - before["storageBytes"] < 1 << 20
    for session in (noisy, quiet):
        agents.agent("delete", session)


def test_accounts_are_told_and_a_budget_that_is_spent_freezes_and_a_larger_one_thaws(agents: Agents) -> None:  # noqa: F811 - the fixture itself
    template(agents, "bounded", "", budget="cpu=1h,storage=400Mi")
    session = session_of(agents, "bounded")
    told = agents.agent("budget", session, "cpu=2s")
    assert told == f"session {session} is running, its budget cpu=2s,storage=400Mi\n"
    burn = "import subprocess; subprocess.Popen(['sh', '-c', 'while :; do :; done'], start_new_session=True)"
    agents.agent("exec", session, "--", "python3", "-c", burn)

    def row() -> list[str]:
        return next(
            line for line in agents.agent("list", "-o", "wide").splitlines() if line.startswith(session)
        ).split()

    frozen = until(lambda: (line := row()) and (line if "frozen" in line else None))
    assert "cpu=2s,storage=400Mi" in frozen
    assert "of processor time of a budget of 2s; raise cpu in its budget" in " ".join(frozen)
    assert "stands still: it has used" in agents.agent("exec", session, "--", "true", code=1)
    before = ask(agents, "GET", f"/hekla/v1/sessions/{session}/usage")
    assert ask(agents, "GET", f"/hekla/v1/sessions/{session}/usage")["cpuUs"] == before["cpuUs"], "it uses nothing now"
    assert (
        agents.agent("budget", session, "cpu=30m")
        == f"session {session} is running, its budget cpu=30m0s,storage=400Mi\n"
    )
    assert agents.agent("exec", session, "--", "echo", "on") == "on\n"
    until(lambda: ask(agents, "GET", f"/hekla/v1/sessions/{session}/usage")["cpuUs"] > before["cpuUs"])
    agents.agent("delete", session)


def test_25_an_upload_of_ten_gigabytes_is_refused_when_the_disk_is_full_and_the_session_lives(agents: Agents) -> None:  # noqa: F811 - the fixture itself
    session = agents.agent("create").strip()
    host, _, port = agents.url.removeprefix("http://").partition(":")
    head = (
        f"POST /hekla/v1/sessions/{session}/daemon/files?path=/home/user/big HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {agents.key}\r\n"
        f"content-type: application/octet-stream\r\ncontent-length: {10 << 30}\r\n\r\n"
    )
    sent = 0
    with socket.create_connection((host, int(port)), timeout=150) as client:
        client.sendall(head.encode())
        piece = bytes(1 << 20)
        with contextlib.suppress(ConnectionError):  # it says why and reads no more
            while sent < 2 << 30:
                client.sendall(piece)
                sent += len(piece)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = client.recv(65_536)
    assert sent < 1 << 30, "it was refused long before"
    assert not answer or answer.split()[1] in (b"507", b"413"), answer
    told = agents.agent("exec", session, "--", "sh", "-c", "ls -A /home/user; echo lives")
    assert "lives" in told
    assert "big" not in told.split(), "half a file is no file"
    agents.agent("delete", session)
