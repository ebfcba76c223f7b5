"""LLM engines on a node without images: where vLLM is not installed, `hekla engine` stands in for it.

    python3 -m vllm.entrypoints.openai.api_server --model M    ->    hekla engine --model M --host <the pod's address>
    bash -c "pip install nixl && python3 -m vllm... --model M"  ->    bash -c "exec hekla engine --model M --host ..."

The host is added to a real engine, too: pods share the machine's network here, and each has an address of its own
(`addresses.py`), so what listens everywhere is in the way of the next one.
"""

import importlib.util
import re
from collections.abc import Sequence
from functools import cache

MODULE = "vllm.entrypoints.openai.api_server"
STAND_IN = ("hekla", "engine")
SIDE_CAR = "hekla.serving.runtime"
ENGINE_STAND_IN = "EngineStandIn"
"""The reason of the event that tells of it."""

SENTENCE = (
    "vllm is not installed on this node, so hekla engine stands in for it: requests take the time that they would take, "
    "answers are noise, and no weights are fetched"
)
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


def entry_point(image: str, *, is_installed: bool) -> tuple[str, ...]:
    """What an image that helps engines puts before a container's arguments."""
    name = image.partition("@")[0].rpartition(":")[0] or image
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


def is_stand_in(argv: Sequence[str]) -> bool:
    """Whether a command is the stand-in."""
    return tuple(argv[:2]) == STAND_IN or (len(argv) == 3 and argv[2].startswith(f"exec {' '.join(STAND_IN)}"))
