"""The runtime `oci` keeps both contracts with every engine that is installed here; where none is, the node refuses with a sentence."""

import asyncio
import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from hekla.api.agents.node_contract import CheckpointKind
from hekla.node.runtimes import Runtime, StartError
from hekla.node.runtimes.microvm.image import INSTALLED
from hekla.node.runtimes.oci.engines import CRUN, RUNC, RUNSC, Engine
from hekla.node.runtimes.oci.runtime import OciSandboxes
from hekla.node.runtimes.sandbox import SandboxError, SandboxRuntime
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.testing.conformance.runtimes import Bench, RuntimeContract
from hekla.testing.conformance.sandboxes import SandboxContract, Sandboxes

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


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Path:
    """The guest image's files as a root file system: a whole small Debian, if it was built here."""
    found = INSTALLED / "initrd"
    if not found.is_file():
        pytest.skip(f"there is no {found} to take a root file system from; make one with images/microvm/build.py")
    root = tmp_path_factory.mktemp("root")
    lay_out(found.read_bytes(), root)
    return root


def lay_out(archive: bytes, root: Path) -> None:
    """Unpack a cpio archive of directories, files and links."""
    place = 0
    while True:
        fields = [int(archive[place + 6 + 8 * number : place + 14 + 8 * number], 16) for number in range(13)]
        mode, size, named = fields[1], fields[6], fields[11]
        name = archive[place + 110 : place + 109 + named].decode()
        begin = (place + 110 + named + 3) & ~3
        content, place = archive[begin : begin + size], (begin + size + 3) & ~3
        target = root / name
        if name == "TRAILER!!!":
            return
        if stat.S_ISDIR(mode):
            target.mkdir()
        elif stat.S_ISLNK(mode):
            target.symlink_to(content.decode())
        else:
            target.write_bytes(content)
            target.chmod(stat.S_IMODE(mode))


@pytest.mark.parametrize("engine", [CRUN, RUNC], ids=lambda engine: engine.name)
def test_an_image_is_laid_over_and_what_was_changed_and_deleted_in_it_comes_along(tmp_path, image, engine):
    async def story():
        runtime = OciSandboxes(tmp_path / "state of a node", engines=(engine,))
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            made = Sandboxes(runtime)
            first, second = await made.claimed("a", rootfs=image), await made.claimed("b", rootfs=image)
            await made.sh(
                first,
                "echo mine > /usr/new; echo other > /etc/netconfig; rm /usr/bin/tac; rm -r /usr/share/zoneinfo /etc/ssl; mkdir /etc/ssl",
            )
            with open(tmp_path / "packed", "w+b") as packed:
                await runtime.pack(first, CheckpointKind.FILESYSTEM, packed.fileno())
                await runtime.unpack(second, CheckpointKind.FILESYSTEM, packed.fileno())
            told = await made.sh(
                second,
                "cat /usr/new /etc/netconfig; ls /usr/bin/tac /usr/share/zoneinfo 2>/dev/null; ls -A /etc/ssl; echo end",
            )
            assert told == "mine\nother\nend\n"
            assert not (image / "usr/new").exists()
        finally:
            await runtime.close()

    asyncio.run(story())


def test_an_image_without_python_is_refused_with_a_sentence(tmp_path):
    async def story():
        runtime = OciSandboxes(tmp_path / "state of a node")
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            (tmp_path / "empty").mkdir()
            with pytest.raises(StartError, match=r"has no python3 .*needs Python 3.9 or newer"):
                await Sandboxes(runtime).start("a", rootfs=tmp_path / "empty")
        finally:
            await runtime.close()

    asyncio.run(story())


def test_a_node_without_an_engine_refuses_with_a_sentence(tmp_path):
    async def story():
        runtime = OciSandboxes(tmp_path / "state of a node", engines=(replace(RUNC, name="no-such-engine"),))
        await runtime.open(lambda key, end: None)
        assert (
            runtime.refusal == "no-such-engine is not installed on this node (Debian: apt-get install no-such-engine)"
        )
        with pytest.raises(StartError, match="no-such-engine is not installed"):
            await Sandboxes(runtime).start("a")
        await runtime.close()

    asyncio.run(story())


def test_over_gvisor_a_sandbox_has_another_kernel_and_serves_all_the_same(tmp_path):
    async def story():
        runtime = OciSandboxes(tmp_path / "state of a node", name="gvisor", engines=(RUNSC,))
        await runtime.open(lambda key, end: None)
        try:
            if runtime.refusal:
                pytest.skip(runtime.refusal)
            assert runtime.isolation == "user-kernel"
            made = Sandboxes(runtime)
            key = await made.claimed()
            assert (await made.sh(key, "uname -r")).strip() != os.uname().release
            status, body = await made.ask(key, "/api/execute", {"command": ["sh", "-c", "id -un; cat"], "stdin": ""})
            assert (status, json.loads(body)["stdout"]) == (200, "user\n")
            with open(tmp_path / "packed", "w+b") as packed, pytest.raises(SandboxError, match="cannot tell its files"):
                await runtime.pack(key, CheckpointKind.FILESYSTEM, packed.fileno())
            await runtime.freeze(key)
            await runtime.thaw(key)
            assert await made.sh(key, "echo on") == "on\n"
        finally:
            await runtime.close()

    asyncio.run(story())
