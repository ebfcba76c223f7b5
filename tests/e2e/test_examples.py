"""Each file of `examples/` is applied to a platform, and the commands that its head shows are run: what users copy works."""

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from hekla.node.runtimes.isolation import filters
from hekla.testing.kubectl import Kubectl, Said

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

EXAMPLES = Path(__file__).parents[2] / "examples"
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
FILES = sorted([*EXAMPLES.glob("*.yaml"), *EXAMPLES.glob("serving/*.yaml")])
COMMAND = re.compile(r"^# \$ hekla (.*)$", re.MULTILINE)
NEEDS = re.compile(r"^# needs: (.*)$", re.MULTILINE)


FRAMEWORK = re.compile(r"^# framework: (.*)$", re.MULTILINE)
FRAMEWORKS = Path(os.environ.get("HEKLA_FRAMEWORKS", Path.home() / ".cache/hekla/frameworks"))
"""Environments with what examples train in: `make frameworks` makes them."""


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_does_what_its_head_shows(path: Path, hekla: Hekla, kubectl: Kubectl, tmp_path: Path) -> None:
    text = path.read_text()
    commands = COMMAND.findall(text)
    assert commands, f"{path.name}: its head should show with `# $ hekla ...` how one sees that it works"
    needs = {need for line in NEEDS.findall(text) for need in line.split()}
    if missing := {need for need in needs - {"root", "addresses"} if shutil.which(need, path=PATH) is None}:
        pytest.skip(f"not installed: {', '.join(sorted(missing))}")
    if "root" in needs and os.geteuid():
        pytest.skip("needs root")
    if "addresses" in needs and not filters().own_addresses:
        pytest.skip("this kernel gives pods no addresses of their own")
    if framework := FRAMEWORK.search(text):
        path = with_framework(path, framework[1], tmp_path)
    namespace = ("--namespace", f"example-{path.stem}")
    kubectl("create", "namespace", namespace[1])
    hekla("apply", "-f", str(path), *namespace)
    for command in commands:
        of_cluster = command.startswith("queue ")
        hekla(*shlex.split(command), *(() if of_cluster else namespace))
    hekla("delete", "-f", str(path), "--ignore-not-found", *namespace)
    kubectl("delete", "namespace", namespace[1])


def with_framework(path: Path, name: str, folder: Path) -> Path:
    """The example with its containers' programs looked up in a framework's environment first, as its image has them."""
    place = FRAMEWORKS / name / "bin"
    if not (place / "python").exists():
        pytest.skip(f"{name} is not installed; run `make frameworks`")
    document = yaml.safe_load(path.read_text())
    for task in document["spec"]["tasks"]:
        for container in task["template"]["spec"]["containers"]:
            container["env"] = [{"name": "PATH", "value": f"{place}:/usr/local/bin:/usr/bin:/bin"}]
    changed = folder / path.name
    changed.write_text(yaml.safe_dump(document))
    return changed
