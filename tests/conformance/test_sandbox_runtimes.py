from pathlib import Path

from hekla.node.runtimes.sandbox import SandboxRuntime
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.runtime import ZygoteSandboxes
from hekla.testing.conformance.sandboxes import SandboxContract


class TestForkedFromTheZygote(SandboxContract):
    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return ZygoteSandboxes(directory / "state of a node", warm=0, preload=())


class TestKeptWarm(SandboxContract):
    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return ZygoteSandboxes(directory / "state of a node", warm=2, preload=())


class TestWithoutControlGroups(SandboxContract):
    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return ZygoteSandboxes(
            directory / "state of a node", warm=0, preload=(), groups=SandboxGroups(why_none="left out by a test")
        )
