"""Whether a directory becomes the same artefact each time, an artefact an agent, and wrong input a sentence."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from hekla.cli.agent_artefact import agent_of, checked, pack, read
from hekla.cli.agent_objects import BEGIN, MOST_IN_A_MAP, Publication, code_map, runtime
from hekla.cli.main import CommandError, main

ROOT = Path(__file__).resolve().parents[2]
ECHO = ROOT / "examples" / "agents" / "echo"
HERE = Publication(namespace="default")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "mine"
    (place / "lib").mkdir(parents=True)
    (place / "main.py").write_text("from lib import words\n")
    (place / "lib" / "words.py").write_text("WORDS = 1\n")
    return place


def run(*arguments: str) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["agent", *arguments])
    return code, said.getvalue()


def names_in(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        return archive.getnames()


def test_equal_directories_pack_to_equal_bytes_and_what_is_no_part_stays_out(workspace: Path) -> None:
    first = pack(workspace, agent_of(workspace, {}))
    for left_out in (".git", "__pycache__", ".venv"):
        (workspace / left_out).mkdir()
        (workspace / left_out / "x").write_text("x")
    (workspace / "lib" / "words.pyc").write_text("x")
    os.utime(workspace / "main.py", (1, 1))
    assert pack(workspace, agent_of(workspace, {})) == first
    assert names_in(first) == ["agent_metadata.yaml", "agent/lib/words.py", "agent/main.py"]


def test_options_go_before_the_file_and_the_file_before_defaults(workspace: Path) -> None:
    (workspace / "agent_metadata.yaml").write_text("port: 9000\nversion: 1.5\nimage: {tag: x}\nregion: null\n")
    agent = agent_of(workspace, {"version": "2.0", "agent_name": "", "port": 0})
    assert (agent.agent_name, agent.port, agent.version, agent.entrypoint) == (
        "mine",
        9000,
        "2.0",
        ("python", "main.py"),
    )


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("entry_point: x", '"entry_point" is no field of an agent; did you mean "entrypoint"?'),
        ("zzz: 1", '"zzz" is no field of an agent; there are agent_name'),
        ("agent_name: My_Agent", "agent_name is 'My_Agent'; it must be up to 50 of a-z, 0-9 and -"),
        ("port: 70000", "port is 70000; it must be a number from 1 to 65535"),
        ("port: yes", "port is True; it must be a number"),
        ("language: perl\nentrypoint: x", "language is 'perl'; it must be one of python, java"),
        ("version: ../1", "version is '../1'; it must be up to 63 letters"),
        ("env: {A: 1}", "env is {'A': 1}; it must be names with texts"),
        ("env: {A-B: x}", "env is {'A-B': 'x'}; it must be names with texts"),
        ("entrypoint: ''", "entrypoint is ''; it must be a command such as `python main.py`"),
        ("entrypoint: python 'x", "is no command: No closing quotation"),
        ("readiness_probe_path: health", "readiness_probe_path is 'health'; it must be a path such as /health"),
        ("entrypoint: python other.py", 'has no file "other.py", which the agent names'),
        ("requirements_file: needs.txt", 'has no file "needs.txt", which the agent names'),
        ("- a", "has no fields; write `agent_name: mine` and so on"),
        ("a: [", "cannot be read: while parsing"),
    ],
)
def test_wrong_metadata_is_told_with_what_would_do(workspace: Path, told: str, sentence: str) -> None:
    (workspace / "agent_metadata.yaml").write_text(told)
    code, said = run("pack", str(workspace), "-o", str(workspace / "out"))
    assert code == 2
    assert sentence in said
    assert not (workspace / "out").exists()


def test_a_directory_that_is_none_or_has_nothing_to_start_is_told(tmp_path: Path) -> None:
    code, said = run("pack", str(tmp_path / "nowhere"))
    assert (code, "is no directory; name the one with the agent in it" in said) == (2, True)
    code, said = run("pack", str(tmp_path))
    assert (code, "give --entrypoint, or a main.py" in said) == (2, True)


@pytest.mark.parametrize("link", ["/etc/passwd", "../secret"])
def test_what_leads_out_of_the_directory_is_not_packed(workspace: Path, link: str) -> None:
    (workspace.parent / "secret").write_text("x")
    (workspace / "lib" / "data").symlink_to(link)
    with pytest.raises(CommandError, match="leads out of the workspace"):
        pack(workspace, agent_of(workspace, {}))


def test_a_pipe_is_not_packed(workspace: Path) -> None:
    os.mkfifo(workspace / "pipe")
    with pytest.raises(CommandError, match="is no file that can be packed"):
        pack(workspace, agent_of(workspace, {}))


@pytest.mark.parametrize("data", [b"", b"no archive", pack(ECHO, agent_of(ECHO, {}))[:200]])
def test_a_file_that_is_no_artefact_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(CommandError, match="is no packed agent"):
        read(tmp_path / "a")


def test_an_agent_too_large_for_a_map_or_in_a_language_that_no_node_brings_needs_an_image(workspace: Path) -> None:
    (workspace / "noise").write_bytes(os.urandom(MOST_IN_A_MAP))
    agent = agent_of(workspace, {})
    data = pack(workspace, agent)
    with pytest.raises(CommandError, match=r"a ConfigMap has room for .*--image-url"):
        code_map(agent, data, HERE)
    assert runtime(agent, data, Publication(namespace="default", image="mine:1"))["spec"]["podTemplate"]["spec"] == {
        "containers": [
            {
                "name": "agent", "image": "mine:1", "ports": [{"containerPort": 8080}],
                "env": [{"name": "PORT", "value": "8080"}],
                "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1}, "command": ["python", "main.py"],
            }
        ]
    }  # fmt: skip
    java = checked({"agent_name": "a", "entrypoint": "java -jar a.jar", "language": "java"}, "here")
    with pytest.raises(CommandError, match="written in java, which no node brings"):
        runtime(java, b"", HERE)


def test_the_example_packs_is_described_and_answers_when_it_is_unpacked(tmp_path: Path) -> None:
    target = tmp_path / "echo.tar.gz"
    code, said = run("pack", str(ECHO), "--output", str(target))
    assert (code, said.startswith(f"{target}: ")) == (0, True)
    code, said = run("publish", str(target), "--dry-run", "-n", "research", "--egress", "example.com:443")
    assert code == 0
    made, agent = list(yaml.safe_load_all(said))
    assert (made["kind"], agent["kind"], agent["metadata"]["namespace"]) == ("ConfigMap", "AgentRuntime", "research")
    assert agent["metadata"]["annotations"] == {
        "hekla.dev/agent-version": "0.0.1",
        "hekla.dev/egress": "example.com:443",
    }
    (container,) = agent["spec"]["podTemplate"]["spec"]["containers"]
    assert container["command"][:3] == ["python3", "-c", BEGIN]
    assert container["readinessProbe"]["httpGet"] == {"path": "/", "port": 8081}
    assert answer_of(target, container["command"][4:]) == {"answer": "hello: hi", "turns": 1}


def answer_of(artefact: Path, entry: list[str]) -> Any:
    """What the agent says when it runs as its container would, on a port of the system's choice."""
    script = artefact.with_name("begin.py")
    script.write_text(BEGIN)
    listen = (
        "import http.server as s, os, runpy\n"
        "class Known(s.ThreadingHTTPServer):\n"
        "    def __init__(self, place, handler):\n"
        "        super().__init__((place[0], 0), handler)\n"
        "        print(self.server_port, flush=True)\n"
        "s.ThreadingHTTPServer = Known\n"
        f"runpy.run_path({entry[1]!r}, run_name='__main__')\n"
    )
    environment = {**os.environ, "PORT": "0", "GREETING": "hello", "TMPDIR": str(artefact.parent)}
    command = [sys.executable, str(script), str(artefact), "python3", "-c", listen]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as agent:
        watch = threading.Timer(60, agent.kill)
        watch.start()
        try:
            assert agent.stdout is not None
            port = int(agent.stdout.readline())
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/", b"hi")
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=30) as reply:
                return json.load(reply)
        finally:
            watch.cancel()
            agent.kill()


@pytest.mark.slow
def test_what_an_agent_requires_is_packed_with_it(workspace: Path) -> None:
    wheel = workspace / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("tiny.py", "SIZE = 7\n")
        made.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        made.writestr(
            "tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        made.writestr("tiny-1.0.dist-info/RECORD", "")
    (workspace / "requirements.txt").write_text(f"--no-index\n./{wheel.name}\n")
    code, said = run("pack", str(workspace), "--output", str(workspace.parent / "out"))
    assert code == 0, said
    assert "agent/.packages/tiny.py" in names_in((workspace.parent / "out").read_bytes())
    (workspace / "requirements.txt").write_text("--no-index\n./gone.whl\n")
    code, said = run("pack", str(workspace), "--output", str(workspace.parent / "out"))
    assert (code, "cannot be fetched" in said, "--no-requirements" in said) == (1, True, True)
    assert run("pack", str(workspace), "--no-requirements", "--output", str(workspace.parent / "out"))[0] == 0
