"""The runtime `oci` keeps both contracts with every engine that is installed here; where none is, the node refuses with a sentence."""

from pathlib import Path

import pytest

from hekla.node.runtimes import Runtime
from hekla.node.runtimes.oci.engines import CRUN, RUNC, Engine
from hekla.node.runtimes.oci.runtime import OciSandboxes
from hekla.node.runtimes.sandbox import SandboxRuntime
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.testing.conformance.runtimes import Bench, RuntimeContract
from hekla.testing.conformance.sandboxes import SandboxContract

pytestmark = pytest.mark.slow


class _Containers(RuntimeContract):
    engine: Engine

    def open_runtime(self, directory: Path) -> Runtime:
        return OciSandboxes(directory / "state of a node", engines=(self.engine,))

    def live(self, directory, story, needs=()):
        async def if_it_can(bench: Bench) -> None:
            assert isinstance(bench.runtime, OciSandboxes)
            if bench.runtime.refusal:
                pytest.skip(bench.runtime.refusal)
            await story(bench)

        super().live(directory, if_it_can, needs)


class TestContainersOfCrun(_Containers):
    engine = CRUN


class TestSandboxesOfCrun(SandboxContract):
    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return OciSandboxes(directory / "state of a node", engines=(CRUN,))


class TestSandboxesOfRunc(SandboxContract):
    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return OciSandboxes(directory / "state of a node", engines=(RUNC,))


class TestSandboxesWithoutControlGroups(SandboxContract):
    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return OciSandboxes(
            directory / "state of a node", engines=(CRUN, RUNC), groups=SandboxGroups(why_none="left out by a test")
        )
