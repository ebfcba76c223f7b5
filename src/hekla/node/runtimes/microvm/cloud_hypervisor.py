"""Machines of Cloud Hypervisor: what its API is told, after its own description of it (cloud-hypervisor.yaml, 38 and newer)."""

import json
from collections.abc import Sequence
from pathlib import Path

from hekla.node.runtimes.microvm.image import Image
from hekla.node.runtimes.microvm.monitor import COMMAND_LINE, MIB, Plan
from hekla.node.runtimes.microvm.rest import request
from hekla.node.runtimes.microvm.restful import GUEST_CID

CONFIG = "config.json"
"""The file of a snapshot that says what the machine is made of."""


class CloudHypervisor:
    """Its dialect."""

    name = "cloud-hypervisor"

    def options(self, api: Path) -> Sequence[str]:
        """One process for each machine."""
        return ("--api-socket", str(api))

    async def boot(self, api: Path, plan: Plan, image: Image, vsock: Path) -> None:
        """Made, then started."""
        payload = {"kernel": str(image.plain_kernel), "initramfs": str(image.initrd()), "cmdline": COMMAND_LINE}
        await request(
            api, "PUT", "/api/v1/vm.create",
            {
                "payload": payload,
                "cpus": {"boot_vcpus": 1, "max_vcpus": 1},
                "memory": {"size": plan.memory_mib * MIB},
                "rng": {"src": "/dev/urandom"},
                "serial": {"mode": "Null"},
                "console": {"mode": "Off"},
                "vsock": {"cid": GUEST_CID, "socket": str(vsock)},
            },
        )  # fmt: skip
        await request(api, "PUT", "/api/v1/vm.boot")

    async def pause(self, api: Path) -> None:
        """Stand still."""
        await request(api, "PUT", "/api/v1/vm.pause")

    async def resume(self, api: Path) -> None:
        """Go on."""
        await request(api, "PUT", "/api/v1/vm.resume")

    async def snapshot(self, api: Path, directory: Path) -> None:
        """Into a directory."""
        await request(api, "PUT", "/api/v1/vm.snapshot", {"destination_url": f"file://{directory}"})

    async def restore(self, api: Path, directory: Path, vsock: Path) -> None:
        """The vsock's place is part of the snapshot's configuration: a copy gets its own."""
        config = json.loads((directory / CONFIG).read_text())
        config["vsock"] = {**(config.get("vsock") or {"cid": GUEST_CID}), "socket": str(vsock)}
        own = vsock.parent / "restored"
        own.mkdir()
        for file in directory.iterdir():
            if file.name != CONFIG:
                (own / file.name).symlink_to(file)
        (own / CONFIG).write_text(json.dumps(config))
        await request(api, "PUT", "/api/v1/vm.restore", {"source_url": f"file://{own}", "prefault": False})
