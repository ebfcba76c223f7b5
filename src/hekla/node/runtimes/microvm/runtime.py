"""Runs pods as sandboxes in virtual machines: a kernel of their own, copied from a machine that waits, written down and read back with memory.

Under KVM the boundary is the processor's, and the strength is `virtual-machine`. Without it QEMU emulates the machine; its makers promise no
boundary there, so the strength that the node declares is the one below.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from hekla.api.agents.names import ISOLATION_STRENGTHS
from hekla.node.runtimes import ContainerSpec, Feature
from hekla.node.runtimes.microvm.cloud_hypervisor import CloudHypervisor
from hekla.node.runtimes.microvm.firecracker import Firecracker
from hekla.node.runtimes.microvm.image import INSTALLED, Image, find_image
from hekla.node.runtimes.microvm.keeper import Machines
from hekla.node.runtimes.microvm.probe import has_kvm
from hekla.node.runtimes.microvm.qemu import Qemu
from hekla.node.runtimes.microvm.restful import Dialect, Restful
from hekla.node.runtimes.sandbox import SandboxError, SandboxFeature
from hekla.node.runtimes.sandbox.cells import Cell, CellKeeper
from hekla.node.runtimes.sandbox.channel import SandboxGoneError
from hekla.node.runtimes.sandbox.checkpoints import CheckpointStore
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.runtime import DaemonSandboxes

PROGRAM = "qemu-system-x86_64"
WARM = 2
DIALECTS: Mapping[str, Callable[[], Dialect]] = {"firecracker": Firecracker, "cloud-hypervisor": CloudHypervisor}
"""Programs that do where there is no QEMU."""


class MicrovmSandboxes(DaemonSandboxes):
    """The runtime `microvm`."""

    name = "microvm"
    isolation = ISOLATION_STRENGTHS[2]

    def __init__(
        self,
        state: Path,
        *,
        checkpoints: CheckpointStore | None = None,
        groups: SandboxGroups | None = None,
        warm: int = WARM,
        accelerator: str = "",
        goldens: Path | None = None,
    ) -> None:
        """The image lies in `state`/image, or where `images/microvm/build.py` puts it; an empty `accelerator` is found out."""
        super().__init__(state, checkpoints=checkpoints, groups=groups)
        self._warm, self._accelerator = warm, accelerator
        self._goldens = goldens or state / "golden"
        self._machines: Machines | None = None
        self._image: Image | None = None
        self.why_emulated = ""
        """Why the processor does not help; empty: it does."""

    @property
    def features(self) -> frozenset[Feature]:
        """A machine sees no directory of its host's."""
        return super().features - {Feature.MOUNTS, Feature.HOST_FILES}

    @property
    def sandbox_features(self) -> frozenset[SandboxFeature]:
        """Memory too."""
        return super().sandbox_features | (set() if self.refusal else {SandboxFeature.CHECKPOINT_MEMORY})

    async def _find_cells(self) -> tuple[CellKeeper | None, str]:
        program = shutil.which(PROGRAM)
        if program is None and (other := next(filter(shutil.which, DIALECTS), "")):
            return await self._find_restful(other)
        if program is None:
            return None, f"{PROGRAM} is not installed on this node (Debian: apt-get install qemu-system-x86)"
        found = find_image((self._state / "image", INSTALLED))
        if found is None:
            return (
                None,
                f"there is no guest image in {self._state / 'image'} or {INSTALLED}; make one with images/microvm/build.py",
            )
        has_own_users = os.geteuid() == 0
        if not self._accelerator:
            kernel = found / "vmlinuz"
            self.why_emulated = await has_kvm(program, kernel, self._state, has_own_users=has_own_users)
            self._accelerator = "tcg" if self.why_emulated else "kvm"
        if self._accelerator != "kvm":
            self.isolation = ISOLATION_STRENGTHS[1]
        self._image = Image(found, self._state)
        qemu = Qemu(program, self._image, self._state, accelerator=self._accelerator, goldens=self._goldens)
        self._machines = Machines(self._state, qemu, self.groups, warm=self._warm, has_own_users=has_own_users)
        return self._machines, ""

    async def _find_restful(self, name: str) -> tuple[CellKeeper | None, str]:
        """Without QEMU: they need KVM, and a kernel that is not compressed."""
        found = find_image((self._state / "image", INSTALLED))
        if found is None or not (found / "vmlinux").is_file():
            return None, f"{name} boots a kernel that is not compressed; put one as vmlinux into {found or INSTALLED}"
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return None, f"{name} needs /dev/kvm, which this user cannot open"
        self._image = Image(found, self._state)
        hypervisor = Restful(DIALECTS[name](), (str(shutil.which(name)),), self._image, self._state)
        self._machines = Machines(self._state, hypervisor, self.groups, warm=self._warm, has_own_users=False)
        return self._machines, ""

    async def prepare(self) -> None:
        """Nothing: a node on which nobody wants a machine boots none."""

    async def close(self) -> None:
        """End everything."""
        await super().close()
        if self._image is not None:
            self._image.close()

    async def _pack_memory(self, cell: Cell, spec: ContainerSpec, output: int) -> None:
        assert self._machines is not None, "a cell is a machine"
        if spec.argv:
            raise SandboxError(
                412,
                "a pod with a command of its own is not written down with its memory: who reads its output is no part of it",
            )
        try:
            await self._machines.write_down(cell, output)
        except SandboxGoneError as problem:
            raise SandboxError(503, str(problem)) from None

    async def _unpack_memory(self, cell: Cell, source: int) -> None:
        assert self._machines is not None, "a cell is a machine"
        await self._machines.become(cell, source)
