"""Sandboxes on one real platform as their users reach them: `hekla agent`, and the package k8s-agent-sandbox as it comes from PyPI."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.api.agents.node_contract import NODE_ISOLATION_LABEL
from hekla.testing.programs import started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

LIMIT_S = 150
SESSION = re.compile(r"[a-z2-7]{26}")


@dataclass(frozen=True)
class Agents:
    """A platform that runs beside the test, and `hekla` on it."""

    home: Path

    @property
    def data_dir(self) -> Path:
        return self.home / "data"

    @property
    def url(self) -> str:
        return (self.data_dir / "agents.url").read_text().strip()

    @property
    def key(self) -> str:
        return (self.data_dir / "agents.key").read_text().partition(":")[2].strip()

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HEKLA_")}
        return {**kept, "HOME": str(self.home), "HEKLA_DATA_DIR": str(self.data_dir)}

    def hekla(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        """What it printed; where it was to fail, that and why."""
        done = subprocess.run(
            [sys.executable, "-m", "hekla.cli.main", *arguments],
            input=stdin, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=self.environment,
        )  # fmt: skip
        told = f"hekla {' '.join(arguments)}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert done.returncode == code, told
        assert "Traceback" not in done.stderr, told
        return done.stdout + done.stderr if code else done.stdout

    def agent(self, *arguments: str, stdin: str = "", code: int = 0) -> str:
        return self.hekla("agent", *arguments, stdin=stdin, code=code)

    def kubernetes(self) -> Any:
        """A client of its API server."""
        return pytest.importorskip("kubernetes").config.new_client_from_config(str(self.data_dir / "kubeconfig"))


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    platform = Agents(tmp_path_factory.mktemp("agents"))
    platform.hekla("up", "--detach", "--port", "0", "--agents-port", "0")
    try:
        api = pytest.importorskip("kubernetes").client.CoreV1Api(platform.kubernetes())
        node = first(api.list_node)
        if node.metadata.labels.get(f"{NODE_ISOLATION_LABEL}{ISOLATION_STRENGTHS[0]}") != "true":
            pytest.skip("this host lets nobody set a sandbox apart")
        yield platform
    finally:
        platform.hekla("down")


def until(ask: Any) -> Any:
    """What a command answers once that is something: each run of one is pause enough."""
    limit = time.monotonic() + LIMIT_S
    while not (answer := ask()):
        assert time.monotonic() < limit, "it did not come"
    return answer


def first(listing: Any, *arguments: str, wanted: Callable[[Any], bool] = lambda one: True) -> Any:
    """The first object that is as wanted, once it is."""
    watch = pytest.importorskip("kubernetes").watch.Watch()
    for event in watch.stream(listing, *arguments, timeout_seconds=LIMIT_S):
        if wanted(event["object"]):
            return event["object"]
    raise AssertionError("it did not come")


@pytest.fixture
def session(agents: Agents) -> Iterator[str]:
    """Asked for at once: who asks a platform that has just come up waits until its gateway is open."""
    made = agents.agent("create").strip()
    assert SESSION.fullmatch(made)
    yield made
    for one in agents.agent("list", "-o", "name").split():
        agents.agent("delete", one)


def test_a_command_runs_with_its_output_its_environment_and_its_exit_code(agents: Agents, session: str) -> None:
    assert agents.agent("exec", session, "--", "python3", "-c", "print(6 * 7)") == "42\n"
    script = "echo out $X; pwd; echo err >&2; exit 7"
    said = agents.agent("exec", session, "--env", "X=1", "--cwd", "/tmp", "--", "sh", "-c", script, code=7)
    assert said == "out 1\n/tmp\nerr\n"
    assert agents.agent("exec", session, "-i", "--", "wc", "-c", stdin="x" * 200_000) == "200000\n"
    assert "executable file not found" in agents.agent("exec", session, "--", "nosuch", code=1)
    assert 'session "nosuch" not found' in agents.agent("exec", "nosuch", "--", "true", code=1)


def test_a_shell_is_a_terminal_for_people_and_reads_scripts(agents: Agents, session: str) -> None:
    assert agents.agent("shell", session, stdin="echo $((40 + 2))\nexit 4\n", code=4) == "42\n"
    assert agents.agent("shell", session, stdin="") == ""
    ours, theirs = os.openpty()
    with os.fdopen(ours, "r+b", buffering=0) as person:
        person.write(b"tty; exit 5\n")
        command = [sys.executable, "-m", "hekla.cli.main", "agent", "shell", session]
        with started(command, stdin=theirs, stdout=theirs, stderr=theirs, env=agents.environment) as shell:
            os.close(theirs)
            seen = b""
            with contextlib.suppress(OSError):  # EIO: the other side was closed
                while piece := person.read(4096):
                    seen += piece
            assert (shell.wait(LIMIT_S), b"/dev/pts/" in seen) == (5, True), seen


def test_files_go_in_and_come_out(agents: Agents, session: str, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4096
    (tmp_path / "a.bin").write_bytes(data)
    agents.agent("cp", str(tmp_path / "a.bin"), f"{session}:/home/user/in/")
    agents.agent("cp", f"{session}:/home/user/in/a.bin", str(tmp_path / "b.bin"))
    assert (tmp_path / "b.bin").read_bytes() == data
    assert '"/nosuch": no such file' in agents.agent("cp", f"{session}:/nosuch", str(tmp_path / "c"), code=1)
    refused = agents.agent("cp", f"{session}:/home/user/in/a.bin", "/proc/b.bin", code=1)
    assert refused.endswith("hekla: /proc/b.bin: no such file or directory\n")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.bin", "b.bin"]


def test_a_session_sleeps_and_wakes_with_its_files(agents: Agents, session: str) -> None:
    agents.agent("exec", session, "--", "sh", "-c", "echo kept > note")
    assert agents.agent("pause", session) == f"session {session} is paused\n"
    assert agents.agent("exec", session, "--", "cat", "note") == "kept\n"  # woken by being asked
    assert agents.agent("pause", session, "--files-only") == f"session {session} is paused\n"
    assert "resume it first" in agents.agent("logs", session, code=1)
    assert agents.agent("resume", session) == f"session {session} is running\n"
    assert agents.agent("exec", session, "--", "cat", "note") == "kept\n"


def test_copies_have_the_files_and_go_their_own_ways(agents: Agents, session: str) -> None:
    agents.agent("exec", session, "--", "sh", "-c", "echo parent > note")
    copies = agents.agent("fork", session, "--count", "2").split()
    assert len({session, *copies}) == 3
    agents.agent("exec", copies[0], "--", "sh", "-c", "echo child >> note")
    notes = [agents.agent("exec", one, "--", "cat", "note") for one in (session, *copies)]
    assert notes == ["parent\n", "parent\nchild\n", "parent\n"]
    listed = json.loads(agents.agent("list", "-o", "json"))["sessions"]
    assert {one["id"]: one["parent"] for one in listed} == {session: "", copies[0]: session, copies[1]: session}
    assert agents.agent("delete", *copies) == "".join(f"session {one} deleted\n" for one in copies)
    assert agents.agent("list", "-o", "name").split() == [session]


def test_what_the_pod_of_an_agent_writes_is_its_log(agents: Agents, session: str) -> None:
    spec = {
        "podTemplate": {"spec": {"containers": [{"name": "main", "image": "any", "command": ["sh", "-c", "echo begun; sleep 600"]}]}},
        "targetPort": [{"port": 8081, "protocol": "HTTP", "pathPrefix": "/"}],
    }  # fmt: skip
    runtime = {
        "apiVersion": "runtime.agentcube.volcano.sh/v1alpha1",
        "kind": "AgentRuntime",
        "metadata": {"name": "talker"},
        "spec": spec,
    }
    custom = pytest.importorskip("kubernetes").client.CustomObjectsApi(agents.kubernetes())
    custom.create_namespaced_custom_object(
        "runtime.agentcube.volcano.sh", "v1alpha1", "default", "agentruntimes", runtime
    )
    talker = agents.agent("create", "talker").strip()
    assert until(lambda: agents.agent("logs", talker)) == "begun\n"
    assert agents.agent("logs", session) == ""


def test_an_exec_on_a_session_that_is_being_made_waits_for_it(agents: Agents, session: str) -> None:
    command = [sys.executable, "-m", "hekla.cli.main", "agent", "create"]
    with started(command, stdout=subprocess.PIPE, env=agents.environment) as creating:
        new = until(lambda: set(agents.agent("list", "-o", "name").split()) - {session}).pop()
        assert agents.agent("exec", new, "--", "echo", "here") == "here\n"
        assert creating.wait(LIMIT_S) == 0


AGENT_SANDBOX = ("extensions.agents.x-k8s.io", "v1beta1", "default")


@pytest.fixture(scope="module")
def warm_pool(agents: Agents) -> str:
    custom = pytest.importorskip("kubernetes").client.CustomObjectsApi(agents.kubernetes())
    api_version = "/".join(AGENT_SANDBOX[:2])
    container = {"name": "main", "image": "python"}
    template = {"podTemplate": {"spec": {"runtimeClassName": "sandbox", "containers": [container]}}}
    pool = {"replicas": 1, "sandboxTemplateRef": {"name": "python"}}
    for kind, plural, name, spec in (
        ("SandboxTemplate", "sandboxtemplates", "python", template),
        ("SandboxWarmPool", "sandboxwarmpools", "python-pool", pool),
    ):
        body = {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}
        custom.create_namespaced_custom_object(*AGENT_SANDBOX, plural, body)
    return "python-pool"


def test_the_package_k8s_agent_sandbox_creates_runs_and_terminates(agents: Agents, warm_pool: str) -> None:
    package = pytest.importorskip("k8s_agent_sandbox")
    from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

    headers = {"Authorization": f"Bearer {agents.key}"}
    connection = SandboxDirectConnectionConfig(api_url=agents.url, extra_headers=headers)
    client = package.SandboxClient(connection_config=connection, api_client=agents.kubernetes())
    sandbox = client.create_sandbox(warm_pool, namespace="default", sandbox_ready_timeout=LIMIT_S)
    said = sandbox.commands.run("sh -c 'echo out; echo err >&2; exit 3'")
    assert (said.stdout, said.stderr, said.exit_code) == ("out\n", "err\n", 3)
    sandbox.files.write("notes.txt", "kept")
    assert sandbox.files.read("notes.txt") == b"kept"
    assert [(one.name, one.size, one.type) for one in sandbox.files.list(".")] == [("notes.txt", 4, "file")]
    assert (sandbox.files.exists("notes.txt"), sandbox.files.exists("nosuch")) == (True, False)
    sandbox.terminate()
    custom = pytest.importorskip("kubernetes").client.CustomObjectsApi(agents.kubernetes())
    assert custom.list_namespaced_custom_object(*AGENT_SANDBOX, "sandboxclaims")["items"] == []


def test_a_sandbox_that_still_waits_in_its_pool_is_nobodys(agents: Agents, warm_pool: str) -> None:
    """Whoever spoke to it would have it: the next claim would get a used one."""
    custom = pytest.importorskip("kubernetes").client.CustomObjectsApi(agents.kubernetes())
    sandboxes = ("agents.x-k8s.io", "v1beta1", "default", "sandboxes")

    def waits(one: Any) -> bool:
        return any(owner["name"] == warm_pool for owner in one["metadata"].get("ownerReferences", ()))

    waiting = first(custom.list_namespaced_custom_object, *sandboxes, wanted=waits)
    headers = {"X-Sandbox-ID": waiting["metadata"]["name"], "Content-Type": "application/json"}
    for key, status in ((agents.key, 404), ("", 401)):
        authorization = {"Authorization": f"Bearer {key}"} if key else {}
        asked = urllib.request.Request(f"{agents.url}/execute", b'{"command": "true"}', headers | authorization)
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=LIMIT_S)
        assert refusal.value.code == status


def test_a_program_that_speaks_mcp_by_standard_output_reuses_a_session(agents: Agents) -> None:
    command = [sys.executable, "-m", "hekla.cli.main", "agent", "mcp"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=agents.environment) as server:
        assert server.stdin is not None
        assert server.stdout is not None

        def ask(method: str, **params: Any) -> Any:
            message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
            print(json.dumps(message), file=server.stdin, flush=True)
            told = json.loads(server.stdout.readline())
            assert told["id"] == method, told
            return told["result"]

        def call(tool: str, **arguments: Any) -> Any:
            told = ask("tools/call", name=tool, arguments=arguments)
            assert not told["isError"], told
            return told["structuredContent"]

        assert ask("initialize", protocolVersion="2025-06-18")["serverInfo"]["name"] == "hekla"
        print('{"jsonrpc": "2.0", "method": "notifications/initialized"}', file=server.stdin, flush=True)
        assert call("run_code", code="print(6 * 7)")["stdout"] == "42\n"
        session = call("write_file", path="note.txt", content="kept", session_reuse=True)["session_id"]
        assert call("execute_command", command="cat note.txt", session_id=session)["stdout"] == "kept"
        assert [one["name"] for one in call("list_files", session_id=session)["files"]] == ["note.txt"]
        assert (
            ask("tools/call", name="read_file", arguments={"path": "note.txt", "session_id": session})["content"][0][
                "text"
            ]
            == "kept"
        )
        assert agents.agent("list", "-o", "name").split() == [session]
        call("stop_session", session_id=session)
        server.stdin.close()
        assert server.wait(LIMIT_S) == 0
    assert agents.agent("list").startswith("no sessions")
