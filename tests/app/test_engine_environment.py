import sys
from pathlib import Path

import pytest

from hekla.app.engine_environment import VARIABLE, EngineError, environment_of, found_environment


def a_python(directory: Path, script: str) -> Path:
    """A program that stands for the Python of an environment."""
    program = directory / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\n{script}\n")
    program.chmod(0o755)
    return program


@pytest.fixture(autouse=True)
def nobody_chose(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("hekla.app.engine_environment.has_vllm", lambda: False)


def test_an_environment_tells_which_vllm_it_has(tmp_path: Path) -> None:
    python = a_python(tmp_path / "vllm", "print('0.32.0')")
    assert environment_of(python).version == "0.32.0"


def test_a_python_without_vllm_is_refused_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="it finds no vllm; name the Python of an environment that has it"):
        environment_of(a_python(tmp_path / "plain", "raise SystemExit(1)"))
    with pytest.raises(EngineError, match="it cannot be run"):
        environment_of(tmp_path / "nothing")


def test_without_any_vllm_there_is_none_to_find() -> None:
    assert found_environment() is None


def test_what_make_engines_installed_is_found_and_what_the_variable_names_goes_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = a_python(tmp_path / ".cache" / "hekla" / "engines" / "vllm-0.32.0-cpu", "print('0.32.0')")
    found = found_environment()
    assert found is not None
    assert found.python == installed
    chosen = a_python(tmp_path / "own", "print('0.33.0')")
    monkeypatch.setenv(VARIABLE, str(chosen))
    found = found_environment()
    assert found is not None
    assert (found.python, found.version) == (chosen, "0.33.0")
