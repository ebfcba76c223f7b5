"""The daemon is one file that every Python from 3.9 on runs, with nothing installed beside it."""

import http.client
import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LOOKED_AT = [
    sys.executable,
    *(f"python3.{minor}" for minor in range(9, 15)),
    *map(str, Path("/root/.pyenv/versions").glob("3.*/bin/python3")),
]


def interpreters() -> dict[str, str]:
    """The Pythons of this machine from 3.9 on, one of each version."""
    found = {}
    for name in LOOKED_AT:
        path = shutil.which(name)
        told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout if path else ""
        if (version := re.match(r"Python (3\.(\d+))", told)) and int(version[2]) >= 9:
            found.setdefault(version[1], path)
    return found


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one file."""
    target = tmp_path_factory.mktemp("daemon") / "daemon.pyz"
    subprocess.run([sys.executable, ROOT / "tools/build_daemon.py", target], check=True, capture_output=True)
    return target


@pytest.mark.parametrize("version", interpreters())
def test_any_python_runs_it(archive: Path, version: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    command = [interpreters()[version], "-I", archive, "--listen", f"unix:{path}", "--workspace", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"PATH": "/usr/bin:/bin"}) as daemon:
        try:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "listening\n"
            connection = http.client.HTTPConnection("localhost", timeout=30)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(30)
            connection.sock.connect(path)
            connection.request("POST", "/execute", json.dumps({"code": "import sys; sys.version_info[:2]"}))
            told = [json.loads(line) for line in connection.getresponse().read().splitlines()]
            assert told[0]["text"] == str(tuple(map(int, version.split("."))))
            connection.request("POST", "/api/execute", json.dumps({"command": ["echo", "hi"]}))
            assert json.loads(connection.getresponse().read())["stdout"] == "hi\n"
            connection.close()
        finally:
            daemon.send_signal(signal.SIGTERM)


def test_the_same_source_makes_the_same_file(archive: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.pyz"
    subprocess.run([sys.executable, ROOT / "tools/build_daemon.py", again], check=True, capture_output=True)
    assert again.read_bytes() == archive.read_bytes()


def test_it_needs_nothing_but_the_standard_library() -> None:
    named = set()
    for path in (ROOT / "src/hekla/sandbox/daemon").glob("*.py"):
        for line in path.read_text().splitlines():
            if found := re.match(r"\s*(?:from|import) ([\w.]+)", line):
                named.add(found[1])
    foreign = {
        one
        for one in named
        if one.split(".")[0] not in sys.stdlib_module_names and not one.startswith("hekla.sandbox.daemon")
    }
    assert foreign == set()
