"""Each file of `examples/` is applied to a platform, and the commands that its head shows are run: what users copy works."""

import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NoReturn, Protocol

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


REQUIRED = os.environ.get("HEKLA_REQUIRE_FRAMEWORKS") == "1"
"""Whether an example that runs a real framework must run; `.ci/run` says so where `make frameworks` succeeded."""


class Hekla(Protocol):
    def __call__(self, *arguments: str, stdin: str = "", code: int | None = 0) -> Said: ...


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_does_what_its_head_shows(path: Path, hekla: Hekla, kubectl: Kubectl, tmp_path: Path) -> None:
    text = path.read_text()
    commands = COMMAND.findall(text)
    assert commands, f"{path.name}: its head should show with `# $ hekla ...` how one sees that it works"
    needs = {need for line in NEEDS.findall(text) for need in line.split()}
    framework = FRAMEWORK.search(text)
    if "root" in needs and os.geteuid():
        pytest.skip("needs root")
    if missing := missing_for(needs, framework[1] if framework else ""):
        give_up(missing, is_rendezvous=is_rendezvous(text))
    if framework:
        path = with_framework(path, framework[1], tmp_path)
    namespace = ("--namespace", f"example-{path.stem}")
    kubectl("create", "namespace", namespace[1])
    hekla("apply", "-f", str(path), *namespace)
    for command in commands:
        of_cluster = command.startswith("queue ")
        hekla(*shlex.split(command), *(() if of_cluster else namespace))
    hekla("delete", "-f", str(path), "--ignore-not-found", *namespace)
    kubectl("delete", "namespace", namespace[1])


def missing_for(needs: set[str], framework: str) -> str:
    """What an example needs and this machine lacks, as a reason; empty if nothing."""
    if programs := {need for need in needs - {"root", "addresses"} if shutil.which(need, path=PATH) is None}:
        return f"not installed: {', '.join(sorted(programs))}"
    if "addresses" in needs and not filters().own_addresses:
        return "this kernel gives pods no addresses of their own"
    if framework and not (FRAMEWORKS / framework / "bin/python").exists():
        return f"{framework} is not installed; run `make frameworks`"
    return ""


def is_rendezvous(text: str) -> bool:
    """Whether an example has real processes of a framework find one another."""
    return FRAMEWORK.search(text) is not None or any("mpirun" in line.split() for line in NEEDS.findall(text))


def give_up(why: str, *, is_rendezvous: bool) -> NoReturn:
    """Skip an example, or fail where real rendezvous are required: CI must not stay green because every one was skipped."""
    if is_rendezvous and REQUIRED:
        pytest.fail(f"HEKLA_REQUIRE_FRAMEWORKS is set, but {why}", pytrace=False)
    pytest.skip(why)


def test_a_rendezvous_that_cannot_run_fails_where_it_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.REQUIRED", True)
    with pytest.raises(pytest.fail.Exception, match="HEKLA_REQUIRE_FRAMEWORKS is set, but ray is not installed"):
        give_up("ray is not installed", is_rendezvous=True)
    with pytest.raises(pytest.skip.Exception, match="not installed: openssl"):
        give_up("not installed: openssl", is_rendezvous=False)
    monkeypatch.setattr(f"{__name__}.REQUIRED", False)
    with pytest.raises(pytest.skip.Exception, match="ray is not installed"):
        give_up("ray is not installed", is_rendezvous=True)


def test_what_can_be_required_are_the_examples_of_pytorch_ray_mpi_and_tensorflow() -> None:
    assert {path.stem for path in FILES if is_rendezvous(path.read_text())} == {"mpi", "pytorch", "ray", "tensorflow"}


def with_framework(path: Path, name: str, folder: Path) -> Path:
    """The example with its containers' programs looked up in a framework's environment first, as its image has them."""
    place = FRAMEWORKS / name / "bin"
    document = yaml.safe_load(path.read_text())
    for task in document["spec"]["tasks"]:
        for container in task["template"]["spec"]["containers"]:
            container["env"] = [{"name": "PATH", "value": f"{place}:/usr/local/bin:/usr/bin:/bin"}]
    changed = folder / path.name
    changed.write_text(yaml.safe_dump(document))
    return changed
