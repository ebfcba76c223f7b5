"""LLM engines on a node without images: where vLLM is not installed, `hekla engine` stands in for it.

    python3 -m vllm.entrypoints.openai.api_server --model M    ->    hekla engine --model M --host <the pod's address>
    bash -c "pip install nixl && python3 -m vllm... --model M"  ->    bash -c "exec hekla engine --model M --host ..."

vLLM may lie in an environment of its own: who starts the node names its Python, and PATH of what starts an engine leads there.
The image `hekla/engine` asks for the stand-in wherever it runs. The host is added to a real engine, too: pods share the machine's network here, and each has an address of its own
(`addresses.py`), so what listens everywhere is in the way of the next one.
"""

import importlib.util
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hekla.node.runtimes.confine import usual_path

MODULE = "vllm.entrypoints.openai.api_server"
STAND_IN = ("hekla", "engine")
SIDE_CAR = "hekla.serving.runtime"
ENGINE_STAND_IN = "EngineStandIn"
"""The reason of the event that tells of it."""

SENTENCE = (
    "vllm is not installed on this node, so hekla engine stands in for it: requests take the time that they would take, "
    "answers are noise, and no weights are fetched"
)
ASKED_FOR = (
    "image hekla/engine asks for the engine simulator: requests take the time that they would take, answers are noise, "
    "and no weights are fetched"
)
STAND_IN_IMAGE = "hekla/engine"
_CALL = re.compile(rf"\bpython3? -m {re.escape(MODULE)}\b")
_ENTRY_POINTS = {
    "kthena/downloader": ("python3", "-m", "hekla.serving.downloader"),
    "kthena/runtime": ("python3", "-m", SIDE_CAR),
}
_NO_WEIGHTS = ("echo", "no engine is installed on this node, so no weights are fetched:")


@cache
def has_vllm() -> bool:
    """Whether pods find vLLM: they run in the environment that we run in."""
    return importlib.util.find_spec("vllm") is not None


@dataclass(frozen=True)
class EngineChoice:
    """What a pod's engine is: vLLM, of our environment or of another one, or the stand-in."""

    is_real: bool
    python: Path | None = None
    """Of the other environment."""
    sentence: str = SENTENCE
    """Why it is the stand-in."""

    @classmethod
    def of(cls, python: Path | None, images: Iterable[str]) -> "EngineChoice":
        """For a pod of these images on a node that was told of this Python, or of none."""
        if STAND_IN_IMAGE in map(_without_tag, images):
            return cls(is_real=False, sentence=ASKED_FOR)
        return cls(is_real=python is not None or has_vllm(), python=python)

    def environment(self, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
        """What a command needs to find the engine that it starts: `python3`, `vllm` and `pip` of that environment."""
        if self.python is None or not self.is_real or not starts_engine(argv):
            return {}
        return {"PATH": f"{self.python.parent}:{env.get('PATH') or usual_path()}"}


def entry_point(image: str, *, is_installed: bool) -> tuple[str, ...]:
    """What an image that helps engines puts before a container's arguments."""
    name = _without_tag(image)
    found = next((words for known, words in _ENTRY_POINTS.items() if name.endswith(known)), ())
    return _NO_WEIGHTS if found and SIDE_CAR not in found and not is_installed else found


def adapted(argv: Sequence[str], address: str, *, is_installed: bool) -> tuple[str, ...]:
    """The command as it is run here; one that starts no engine is left alone."""
    words = tuple(argv)
    host = () if "--host" in words or not address else ("--host", address)
    if words[1:3] == ("-m", MODULE):
        return (*(words[:3] if is_installed else STAND_IN), *words[3:], *host)
    if words[:2] == ("vllm", "serve") and len(words) > 2:
        return (*words, *host) if is_installed else (*STAND_IN, "--model", *words[2:], *host)
    if words[1:3] == ("-m", SIDE_CAR):
        return (*(word.replace("//localhost:", f"//{address}:") if address else word for word in words), *host)
    if len(words) == 3 and words[1] == "-c" and (call := _CALL.search(words[2])) is not None:
        before = words[2][: call.end()] if is_installed else f"exec {' '.join(STAND_IN)}"
        after = words[2][call.end() :]
        where = f" --host {address}" if address and " --host " not in after else ""
        return (*words[:2], f"{before}{after}{where}")
    return words


def starts_engine(argv: Sequence[str]) -> bool:
    """Whether a command starts vLLM."""
    words = tuple(argv)
    return (
        words[1:3] == ("-m", MODULE)
        or words[:2] == ("vllm", "serve")
        or (len(words) == 3 and words[1] == "-c" and _CALL.search(words[2]) is not None)
    )


def is_stand_in(argv: Sequence[str]) -> bool:
    """Whether a command is the stand-in."""
    return tuple(argv[:2]) == STAND_IN or (len(argv) == 3 and argv[2].startswith(f"exec {' '.join(STAND_IN)}"))


def _without_tag(image: str) -> str:
    return image.partition("@")[0].rpartition(":")[0] or image
