"""The abuse cases that are tried inside, in containers, over gVisor and in machines: one sandbox of each, all probes in it, as root there.

What differs from `sandbox` is written down in ELSEWHERE, with why; docs/reference/abuse-cases.md tells it to people.
"""

import asyncio
import importlib.util
import os
import socket
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import Claim
from hekla.node.runtimes import ContainerKey, ContainerSpec, Limits
from hekla.node.runtimes.microvm.runtime import MicrovmSandboxes
from hekla.node.runtimes.oci.engines import CRUN, RUNC, RUNSC
from hekla.node.runtimes.oci.runtime import OciSandboxes

pytestmark = pytest.mark.slow

_found = importlib.util.spec_from_file_location("probes", Path(__file__).with_name("probes.py"))
probes = importlib.util.module_from_spec(_found)
_found.loader.exec_module(probes)

PATIENCE_S = 300.0
"""An emulated machine on a busy host."""
SECRET = "token-that-nobody-inside-may-see"


class Place:
    """One claimed sandbox of a runtime."""

    def __init__(self, runtime, key):
        self.runtime, self.key = runtime, key

    async def run(self, *argv):
        session = await self.runtime.exec(self.key, list(argv))
        pieces = []
        async with asyncio.timeout(PATIENCE_S):
            while (piece := await session.read())[1]:
                pieces.append(piece[1])
            code = await session.wait()
        await session.close()
        return b"".join(pieces).decode(errors="replace"), code

    async def probe(self, source, *arguments):
        output, _ = await self.run("python3", "-c", source, *arguments)
        assert ": " in output, output
        return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


OWN_KERNEL = {
    # the settings of a kernel that is the sandbox's own, and gone with it
    "write /proc/sys/kernel/core_pattern", "write /proc/sys/kernel/hostname", "write /proc/sys/vm/panic_on_oom", "write /proc/sysrq-trigger",
    # the machine's own copy of the image
    "write /usr/bin/planted", "write /usr/lib/planted", "write /lib/planted",
}  # fmt: skip
OWN_DAEMON = {"write /proc/1/oom_score_adj"}
"""The daemon is root inside: who has it killed ends his own sandbox."""
OVER_GVISOR = {
    # the daemon's, which is root inside; there is no secret in either
    "read /proc/1/environ", "read /proc/1/maps",
    # a node is made, and opens nothing: gVisor has no such devices
    "mknod memory", "mknod disk",
}  # fmt: skip
DEVICES = {"full", "null", "random", "tty", "urandom", "zero"}


def containers(engine, name="oci"):
    return lambda base, goldens: OciSandboxes(base / "state of a node", name=name, engines=(engine,))


def machines(base, goldens):
    return MicrovmSandboxes(base / "state of a node", warm=0, accelerator="tcg", goldens=goldens)


@pytest.mark.parametrize(
    ("make", "allowed", "devices"),
    [
        pytest.param(
            containers(CRUN), OWN_DAEMON, DEVICES | {"core"}, id="crun"
        ),  # `core` leads to /proc/kcore, which opens to nobody
        pytest.param(containers(RUNC), OWN_DAEMON, DEVICES, id="runc"),
        pytest.param(containers(RUNSC, "gvisor"), OWN_DAEMON | OVER_GVISOR, DEVICES | {"fuse", "net"}, id="gvisor"),
        pytest.param(machines, OWN_DAEMON | OWN_KERNEL, DEVICES, id="microvm"),
    ],
)
def test_15_24_27_to_35_hold_in_containers_over_gvisor_and_in_machines(
    tmp_path, tmp_path_factory, make, allowed, devices
):
    base = tmp_path_factory.getbasetemp()
    goldens = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "golden machines"
    flag = tmp_path / "flag"
    flag.write_text("host's")
    listening = socket.create_server(("127.0.0.1", 0))

    async def live():
        runtime = make(tmp_path, goldens)
        await runtime.open(lambda key, end: None)
        if runtime.refusal:
            pytest.skip(runtime.refusal)
        try:
            key = ContainerKey("u1", "main", 0)
            await runtime.start(
                ContainerSpec(key=key, argv=(), hostname="box", user=0, limits=Limits(memory_bytes=256 << 20))
            )
            await runtime.claim(key, Claim(session="s", access_token=SECRET, traffic_token=SECRET))
            await tried(Place(runtime, key))
        finally:
            await runtime.close()

    async def tried(place):
        for source in (probes.SYSTEM_CALLS, probes.SOCKETS):
            assert {name for name, outcome in (await place.probe(source)).items() if outcome != "refused"} == set()
        found = await place.probe(probes.FILES)
        assert found.pop("descriptors") == "[0, 1, 2] only"
        assert set(found.pop("devices").split()) <= devices
        assert found.pop("cgroups") == "[]"
        del found["mounted"], found["sys"]  # what is mounted and shown differs; what of it may be written is below
        assert {name for name, outcome in found.items() if outcome != "refused"} <= allowed
        for made in ("/tmp/mem", "/tmp/disk"):
            assert (await place.run("dd", f"if={made}", "bs=1", "count=1"))[1] != 0
        port = listening.getsockname()[1]
        found = await place.probe(probes.NETWORK, str(port), "nosuch", "/run/containerd/containerd.sock")
        assert found.pop("interfaces") == "['lo']"
        assert {name for name, outcome in found.items() if outcome != "refused"} == set()
        script = f"cat {flag}; hostname; tr '\\0' '\\n' < /proc/1/environ; cat /proc/[0-9]*/cmdline; grep -r token-that /etc /home /run /tmp /workspace"
        seen, _ = await place.run("sh", "-c", script)
        assert "host's" not in seen
        assert SECRET not in seen.replace("grep -r token-that", "")
        assert socket.gethostname() not in seen.split()
        # no program gives more than its caller has
        seen, _ = await place.run("python3", "-c", "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))")
        assert seen == "1\n"

    try:
        asyncio.run(live())
    finally:
        listening.close()


@pytest.mark.parametrize("make", [pytest.param(containers(CRUN), id="crun"), pytest.param(containers(RUNC), id="runc")])
def test_19_a_bomb_of_processes_ends_at_the_limit_and_with_its_container(tmp_path, make):
    async def live():
        runtime = make(tmp_path, None)
        await runtime.open(lambda key, end: None)
        if runtime.refusal:
            pytest.skip(runtime.refusal)
        try:
            key = ContainerKey("u1", "main", 0)
            await runtime.start(ContainerSpec(key=key, argv=(), hostname="box", user=1000))
            await runtime.claim(key, Claim(session="s"))
            session = await runtime.exec(key, ["python3", "-c", probes.FORKS])
            async with asyncio.timeout(PATIENCE_S):
                assert b"stopped" in (await session.read())[1]
                await runtime.stop(key, grace_s=0)
            assert not runtime.has(key)
            await session.close()
        finally:
            await runtime.close()

    asyncio.run(live())
