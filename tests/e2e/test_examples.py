"""Each file of `examples/` is applied to a platform, and the commands that its head shows are run: what users copy works."""

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Protocol

import pytest

from hekla.testing.kubectl import Kubectl, Said

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
FILES = sorted(EXAMPLES.glob("*.yaml"))
COMMAND = re.compile(r"^# \$ hekla (.*)$", re.MULTILINE)
NEEDS = re.compile(r"^# needs: (.*)$", re.MULTILINE)


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_does_what_its_head_shows(path: Path, hekla: Hekla, kubectl: Kubectl) -> None:
    text = path.read_text()
    commands = COMMAND.findall(text)
    assert commands, f"{path.name}: its head should show with `# $ hekla ...` how one sees that it works"
    needs = {need for line in NEEDS.findall(text) for need in line.split()}
    if missing := {need for need in needs - {"root"} if shutil.which(need, path=PATH) is None}:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    if "root" in needs and os.geteuid():
        pytest.skip("needs root")
    namespace = ("--namespace", f"example-{path.stem}")
    kubectl("create", "namespace", namespace[1])
    hekla("apply", "-f", str(path), *namespace)
    for command in commands:
        hekla(*shlex.split(command), *namespace)
    hekla("delete", "-f", str(path), "--ignore-not-found", *namespace)
    kubectl("delete", "namespace", namespace[1])
