import re
import subprocess
import sys
from pathlib import Path

import pytest

from hekla.testing.api_server import KUBERNETES_RULES, LiveApiServer

HERE = Path(__file__).parent


def figures_of(name: str, server: str) -> tuple[dict[str, tuple[int, int]], str]:
    command = [
        sys.executable,
        HERE / "compare.py",
        HERE / f"{name}.steps.yaml",
        HERE / f"{name}.jsonl",
        "--server",
        server,
        "-v",
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False).stdout
    found = re.findall(r"(status|body|message) (\d+)/(\d+)", said.splitlines()[-1])
    return {word: (int(matched), int(total)) for word, matched, total in found}, said


@pytest.mark.slow
def test_the_core_answers_are_those_of_a_real_kubernetes() -> None:
    with LiveApiServer(KUBERNETES_RULES) as server:
        figures, said = figures_of("core", server.url)
    assert figures["status"] == (145, 145), said
    assert figures["body"][0] >= 142, said
    assert figures["message"][0] >= 42, said
