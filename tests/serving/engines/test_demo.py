"""`hekla demo` with the vLLM that `make engines` installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving.engines.enginekit import ENVIRONMENT, why_not

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def demo(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "hekla.cli.main", "demo"],
        capture_output=True, text=True, check=False, timeout=300, stdin=subprocess.DEVNULL, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_demo_serves_its_model_by_the_vllm_that_is_installed(tmp_path: Path) -> None:
    """On a machine too busy for that it says so, and the engine simulator takes its place."""
    if reason := why_not():
        pytest.skip(reason)
    environment = {**os.environ, "HEKLA_ENGINE_PYTHON": str(ENVIRONMENT / "bin" / "python"), "TMPDIR": str(tmp_path)}
    said = demo(environment)
    served = "`tiny` answers through the router" in said
    assert served or "the engine simulator takes its place" in said
    assert "and none was lost" in said


def test_the_demo_goes_on_without_an_engine_that_ends_at_once(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "python"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nimport sys\nprint('0.0.0') if '-c' in sys.argv else sys.exit(3)\n")
    program.chmod(0o755)
    said = demo({**os.environ, "HEKLA_ENGINE_PYTHON": str(program), "TMPDIR": str(tmp_path)})
    assert "the demo goes on without it, and the engine simulator takes its place" in said
    assert "`chat` answers through the router" in said
    assert "and none was lost" in said
