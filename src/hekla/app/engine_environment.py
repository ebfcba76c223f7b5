"""Where vLLM lies, if not in hekla's own environment: what `hekla up --engine-python` is given, and what the demo looks for.

make engines                                        vLLM for the CPU, in ~/.cache/hekla/engines/vllm-0.32.0-cpu
hekla up --engine-python ~/.cache/hekla/engines/vllm-0.32.0-cpu/bin/python
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hekla.node.engines import has_vllm

VARIABLE: Final = "HEKLA_ENGINE_PYTHON"
CACHE: Final = Path(".cache") / "hekla" / "engines"
LOOK_TIMEOUT_S: Final = 20.0
_LOOK: Final = "from importlib.metadata import version; print(version('vllm'))"


class EngineError(Exception):
    """No engine can be started by this program; the sentence says why."""


@dataclass(frozen=True)
class EngineEnvironment:
    """An environment that has vLLM."""

    python: Path
    version: str


def environment_of(python: Path) -> EngineEnvironment:
    """The environment of a Python; raises EngineError."""
    try:
        done = subprocess.run(
            [python, "-c", _LOOK], check=False, timeout=LOOK_TIMEOUT_S, stdin=subprocess.DEVNULL, capture_output=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"it cannot be run ({error})") from None
    if done.returncode:
        raise EngineError("it finds no vllm; name the Python of an environment that has it")
    return EngineEnvironment(python.absolute(), done.stdout.decode().strip())


def found_environment() -> EngineEnvironment | None:
    """What would start a real engine: what the variable names, our own, or what `make engines` installed. Raises EngineError."""
    if chosen := os.environ.get(VARIABLE):
        return environment_of(Path(chosen))
    if has_vllm():
        return environment_of(Path(sys.executable))
    installed = sorted((Path.home() / CACHE).glob("vllm-*/bin/python"))
    return environment_of(installed[-1]) if installed else None
