import os
from pathlib import Path

import pytest

from hekla.kube.clock import SystemClock
from hekla.node.runtimes import Runtime
from hekla.node.runtimes.isolation import NAMESPACES, PROCESS_GROUP, USER_NAMESPACES, Rung
from hekla.node.runtimes.process import ProcessRuntime
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.node.runtimes.simulated import SimulatedRuntime
from hekla.testing.conformance.runtimes import Bench, RuntimeContract


class _OnRung(RuntimeContract):
    rung: Rung

    def open_runtime(self, directory: Path) -> Runtime:
        return ProcessRuntime(directory / "state of a node", rung=self.rung)

    def live(self, directory, story, needs=()):
        async def on_this_rung(bench: Bench) -> None:
            assert isinstance(bench.runtime, ProcessRuntime)
            if bench.runtime.isolation.rung is not self.rung:
                pytest.skip(bench.runtime.isolation.sentence)
            await story(bench)

        super().live(directory, on_this_rung, needs)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
class TestProcessesInNamespaces(_OnRung):
    rung = NAMESPACES


class TestProcessesInUserNamespaces(_OnRung):
    rung = USER_NAMESPACES


class TestProcessesInGroups(_OnRung):
    rung = PROCESS_GROUP


class TestSandboxes(RuntimeContract):
    def open_runtime(self, directory: Path) -> Runtime:
        return ZygoteSandboxes(directory / "state of a node", warm=0, preload=("numpy",))

    def live(self, directory, story, needs=()):
        async def if_it_can(bench: Bench) -> None:
            assert isinstance(bench.runtime, ZygoteSandboxes)
            if bench.runtime.refusal:
                pytest.skip(bench.runtime.refusal)
            await story(bench)

        super().live(directory, if_it_can, needs)


class TestSimulated(RuntimeContract):
    def open_runtime(self, directory: Path) -> Runtime:
        return SimulatedRuntime(SystemClock())
