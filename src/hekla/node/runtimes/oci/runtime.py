"""Runs pods as sandboxes in containers of an OCI runtime: crun or runc over the host's kernel, gVisor's runsc over its own.

What is different from the runtime `sandbox` is who sets the container apart; sessions, commands, files and checkpoints are the same daemon's.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

from hekla.api.agents.node_contract import CheckpointKind
from hekla.node.runtimes import ContainerKey
from hekla.node.runtimes.isolation import filters
from hekla.node.runtimes.oci.engines import ENGINES, Engine, installed
from hekla.node.runtimes.oci.keeper import Containers
from hekla.node.runtimes.sandbox import SandboxError, SandboxFeature
from hekla.node.runtimes.sandbox.apart import why_nothing_is_set_apart
from hekla.node.runtimes.sandbox.cells import CellKeeper
from hekla.node.runtimes.sandbox.checkpoints import CheckpointStore
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.plan import Host
from hekla.node.runtimes.sandbox.runtime import DaemonSandboxes

PACKING = frozenset((SandboxFeature.CHECKPOINT_FILES, SandboxFeature.CHECKPOINT_INTERPRETER, SandboxFeature.FORK))


class OciSandboxes(DaemonSandboxes):
    """The runtime `oci`, or `gvisor` where its engine is runsc."""

    def __init__(
        self,
        state: Path,
        *,
        name: str = "oci",
        engines: Sequence[Engine] = ENGINES,
        checkpoints: CheckpointStore | None = None,
        groups: SandboxGroups | None = None,
    ) -> None:
        """The first of `engines` that is installed runs containers."""
        super().__init__(state, checkpoints=checkpoints, groups=groups)
        self.name, self._engines = name, engines
        self.isolation = engines[0].isolation
        self._knows_own_files = True

    @property
    def sandbox_features(self) -> frozenset[SandboxFeature]:
        """All but memory; over a kernel of its own nothing that packs files."""
        return super().sandbox_features - (frozenset() if self._knows_own_files else PACKING)

    async def pack(self, key: ContainerKey, kind: CheckpointKind, output: int) -> Sequence[str]:
        """As every sandbox, if it knows which files are its own."""
        if not self._knows_own_files:
            raise SandboxError(
                412,
                f"a sandbox of class {self.name} cannot tell its files from its host's or image's; oci and microvm can",
            )
        return await super().pack(key, kind, output)

    async def _find_cells(self) -> tuple[CellKeeper | None, str]:
        found = await asyncio.to_thread(installed, self._engines)
        if found is None:
            names = " or ".join(engine.name for engine in self._engines)
            return None, f"{names} is not installed on this node (Debian: apt-get install {self._engines[0].name})"
        engine, program = found
        self.isolation, self._knows_own_files = engine.isolation, engine.hands_descriptors
        known = filters()
        if not known.seccomp and not engine.is_own_kernel:
            return None, "the kernel has no seccomp filters for this machine, and no sandbox runs without"
        host = Host(is_root=os.geteuid() == 0, has_landlock=known.landlock, preload=())
        refusal = await why_nothing_is_set_apart()
        return Containers(self._state, host, self.groups, engine, program), refusal
