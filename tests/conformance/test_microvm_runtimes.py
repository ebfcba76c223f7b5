"""The runtime `microvm` keeps the contract of sandboxes in machines that QEMU emulates; skipped where there is no QEMU or no guest image."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import CheckpointKind, Claim
from hekla.node.runtimes import Limits, Mount, StartError
from hekla.node.runtimes.microvm.runtime import MicrovmSandboxes
from hekla.node.runtimes.sandbox import SandboxRuntime
from hekla.testing.conformance.sandboxes import PATIENCE_S, SandboxContract, Sandboxes

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _goldens(tmp_path_factory):
    """One machine boots for all tests, as one does for all lives of a node."""
    base = tmp_path_factory.getbasetemp()
    Shared.goldens = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "golden machines"


class Shared:
    goldens = Path()


class TestEmulatedMachines(SandboxContract):
    has_hosts_clock = False

    def open_runtime(self, directory: Path) -> SandboxRuntime:
        return MicrovmSandboxes(directory / "state of a node", warm=0, accelerator="tcg", goldens=Shared.goldens)


def shares_there(node, key):
    """`cpu.shares` of a machine, its monitor included; 0 where there are none."""
    parent = node.groups.parents.get("cpu")
    file = parent / node._boxes[key].cell.name / "cpu.shares" if parent else None
    return int(file.read_text()) if file and file.exists() else 0


@pytest.mark.timeout(300)  # two machines boot, emulated
def test_a_machine_that_was_written_down_goes_on_on_another_node_with_all_that_ran_in_it(tmp_path):
    async def story():
        one, other = (
            MicrovmSandboxes(tmp_path / name, warm=0, accelerator="tcg", goldens=Shared.goldens)
            for name in ("one", "other")
        )
        for node in (one, other):
            await node.open(lambda key, end: None)
        try:
            if one.refusal:
                pytest.skip(one.refusal)
            made, again = Sandboxes(one), Sandboxes(other)
            key = await made.claimed("a")
            counting = "(i=0; while :; do i=$((i+1)); echo $i > /tmp/n; sleep 0.1; done) >/dev/null 2>&1 &"
            await made.sh(
                key,
                f"{counting} until [ -s /tmp/n ]; do sleep 0.1; done; cat /proc/sys/kernel/random/boot_id > /tmp/id",
            )
            with open(tmp_path / "memory", "w+b") as written:
                await one.pack(key, CheckpointKind.MEMORY, written.fileno())
                at_that_time = int(await made.sh(key, "cat /tmp/n"))
                child = await again.start("b", limits=Limits(cpu_request_milli=4000))
                await other.unpack(child, CheckpointKind.MEMORY, written.fileno())
            assert shares_there(other, child) in (0, 4096), "its weight is that of its own pod still"
            assert other.session_of(child) == ""
            await other.claim(child, Claim(session="s-b", hostname="b"))
            told = await again.sh(
                child, f"hostname; until [ $(cat /tmp/n) -gt {at_that_time} ]; do sleep 0.1; done; echo goes on"
            )
            assert told == "b\ngoes on\n"
            assert await again.sh(child, "cat /tmp/id /proc/sys/kernel/random/boot_id | uniq | wc -l") == "1\n"
            dice = "head -c 16 /dev/urandom | od -An -tx1"
            assert await made.sh(key, dice) != await again.sh(child, dice)
            assert abs(int(await again.sh(child, "date +%s")) - time.time()) < PATIENCE_S
        finally:
            await asyncio.gather(one.close(), other.close())

    asyncio.run(story())


def test_a_pod_that_a_machine_cannot_hold_is_refused_with_a_sentence(tmp_path):
    async def story():
        node = MicrovmSandboxes(tmp_path / "state", warm=0, accelerator="tcg", goldens=Shared.goldens)
        await node.open(lambda key, end: None)
        try:
            if node.refusal:
                pytest.skip(node.refusal)
            with pytest.raises(StartError, match="use the runtime class sandbox or oci"):
                await Sandboxes(node).start("a", mounts=(Mount(source=tmp_path, target="/data"),))
            with pytest.raises(StartError, match="more than the 65536 MiB"):
                await Sandboxes(node).start("b", limits=Limits(memory_bytes=1 << 40))
        finally:
            await node.close()

    asyncio.run(story())
