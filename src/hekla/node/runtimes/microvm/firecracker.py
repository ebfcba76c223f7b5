"""Machines of Firecracker: what its API is told, after its own description of it (firecracker.yaml, 1.8 and newer).

Before 1.8 it told guests of devices on the kernel's command line, which Debian's kernel does not read.
"""

from collections.abc import Sequence
from pathlib import Path

from hekla.node.runtimes.microvm.image import Image
from hekla.node.runtimes.microvm.monitor import COMMAND_LINE, Plan
from hekla.node.runtimes.microvm.rest import request
from hekla.node.runtimes.microvm.restful import GUEST_CID

STATE, MEMORY = "state", "memory"


class Firecracker:
    """Its dialect."""

    name = "firecracker"

    def options(self, api: Path) -> Sequence[str]:
        """One process for each machine."""
        return ("--api-sock", str(api))

    async def boot(self, api: Path, plan: Plan, image: Image, vsock: Path) -> None:
        """The parts, then the start."""
        source = {
            "kernel_image_path": str(image.plain_kernel),
            "initrd_path": str(image.initrd()),
            "boot_args": COMMAND_LINE,
        }
        await request(api, "PUT", "/machine-config", {"vcpu_count": 1, "mem_size_mib": plan.memory_mib})
        await request(api, "PUT", "/boot-source", source)
        await request(api, "PUT", "/vsock", {"guest_cid": GUEST_CID, "uds_path": str(vsock)})
        await request(api, "PUT", "/entropy", {})
        await request(api, "PUT", "/actions", {"action_type": "InstanceStart"})

    async def pause(self, api: Path) -> None:
        """Stand still."""
        await request(api, "PATCH", "/vm", {"state": "Paused"})

    async def resume(self, api: Path) -> None:
        """Go on."""
        await request(api, "PATCH", "/vm", {"state": "Resumed"})

    async def snapshot(self, api: Path, directory: Path) -> None:
        """Both files."""
        files = {"snapshot_path": str(directory / STATE), "mem_file_path": str(directory / MEMORY)}
        await request(api, "PUT", "/snapshot/create", {"snapshot_type": "Full", **files})

    async def restore(self, api: Path, directory: Path, vsock: Path) -> None:
        """Memory is mapped privately; the vsock is at a place of the copy's own."""
        memory = {"backend_type": "File", "backend_path": str(directory / MEMORY)}
        told = {"snapshot_path": str(directory / STATE), "mem_backend": memory, "resume_vm": False}
        await request(api, "PUT", "/snapshot/load", {**told, "vsock_override": {"uds_path": str(vsock)}})
