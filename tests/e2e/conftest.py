"""What users type: the `hekla` command as a process, kubectl beside it, and one whole platform for both."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import pytest

from hekla.testing.kubectl import Kubectl, Said
from hekla.testing.platform import PlatformProcess, running_platform

HEKLA = (sys.executable, "-m", "hekla.cli.main")
TIMEOUT_S = 360


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


def run_hekla(environment: dict[str, str], *arguments: str, stdin: str = "", code: int | None = 0) -> Said:
    done = subprocess.run(
        [*HEKLA, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env=environment,
        start_new_session=True,
    )
    said = Said(done.returncode, done.stdout, done.stderr)
    assert code is None or said.code == code, f"hekla {' '.join(arguments)}: {said}"
    assert "Traceback" not in said.out + said.err, said
    return said


def clean_environment(home: Path) -> dict[str, str]:
    """An environment in which nothing of the user's is found."""
    kept = {key: value for key, value in os.environ.items() if key not in ("KUBECONFIG", "HEKLA_DATA_DIR")}
    return {**kept, "HOME": str(home), "XDG_DATA_HOME": str(home / "data")}


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Hekla]:
    """`hekla` in a home of its own; what it left running is stopped."""
    environment = clean_environment(tmp_path)

    def run(*arguments: str, stdin: str = "", code: int | None = 0) -> Said:
        return run_hekla(environment, *arguments, stdin=stdin, code=code)

    yield run
    for record in tmp_path.rglob("platform.json"):
        run("down", "--data-dir", str(record.parent), code=None)


@pytest.fixture(scope="session")
def shared_platform() -> Iterator[PlatformProcess]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    flags = ("--nodes", "2", "--gpus-per-node", "8", "--cpu-per-node", "32")
    with running_platform(without=(), flags=flags) as platform:
        yield platform


@pytest.fixture
def kubectl(shared_platform: PlatformProcess, tmp_path: Path) -> Kubectl:
    return Kubectl(shared_platform.kubeconfig, home=tmp_path)


@pytest.fixture
def hekla(shared_platform: PlatformProcess, tmp_path: Path) -> Hekla:
    """`hekla` against the shared platform."""
    environment = clean_environment(tmp_path) | {"KUBECONFIG": str(shared_platform.kubeconfig)}

    def run(*arguments: str, stdin: str = "", code: int | None = 0) -> Said:
        return run_hekla(environment, *arguments, stdin=stdin, code=code)

    return run
