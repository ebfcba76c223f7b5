"""What Firecracker and Cloud Hypervisor have in common: a process with a REST API on a unix socket, vsock as the link, snapshots as files.

A snapshot is a directory here and one file in a checkpoint: the names and lengths of its files, then their bytes.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import hekla
from hekla.node.runtimes.microvm.image import Image
from hekla.node.runtimes.microvm.monitor import LAUNCHER, Machine, MachineError, Plan, Snapshot
from hekla.node.runtimes.microvm.vsock import dial_guest
from hekla.node.shim.guest.machine import VSOCK_PORT

GUEST_CID = 3
PATIENCE_S = 10.0
LOOK_EVERY_S = 0.005
PIECE = 1 << 20
HEAD_BYTES = 4096


class Dialect(Protocol):
    """How one monitor is told what every one must be told."""

    name: str

    def options(self, api: Path) -> Sequence[str]:
        """How its program is started, without a machine."""

    async def boot(self, api: Path, plan: Plan, image: Image, vsock: Path) -> None:
        """Make a machine from the image and let it run."""

    async def pause(self, api: Path) -> None:
        """Stand still."""

    async def resume(self, api: Path) -> None:
        """Go on."""

    async def snapshot(self, api: Path, directory: Path) -> None:
        """A paused machine into files."""

    async def restore(self, api: Path, directory: Path, vsock: Path) -> None:
        """A machine from files, paused."""


@dataclass
class FileSnapshot:
    """A directory with a machine in it."""

    memory_mib: int
    directory: Path

    def close(self) -> None:
        """Nobody continues from it any more."""
        shutil.rmtree(self.directory, ignore_errors=True)


class RestfulMachine:
    """One process of such a monitor, in a directory of its own."""

    def __init__(self, process: asyncio.subprocess.Process, dialect: Dialect, directory: Path) -> None:
        self.pid, self.link, self.directory = process.pid, -1, directory
        self._process, self._dialect = process, dialect

    @property
    def api(self) -> Path:
        """Its API's socket."""
        return self.directory / "api.sock"

    @property
    def vsock(self) -> Path:
        """The socket through which its guest is reached."""
        return self.directory / "vsock.sock"

    async def pause(self) -> None:
        """Its processors stand still."""
        await self._dialect.pause(self.api)

    async def resume(self) -> None:
        """They go on."""
        await self._dialect.resume(self.api)

    async def write_down(self, output: int) -> None:
        """The snapshot's files, one after the other."""
        with tempfile.TemporaryDirectory(dir=self.directory) as scratch:
            await self._dialect.snapshot(self.api, Path(scratch))
            await asyncio.to_thread(_join, Path(scratch), output)

    async def last_words(self) -> str:
        """What the monitor printed."""
        with contextlib.suppress(OSError):
            return (self.directory / "said").read_text(errors="replace")[-PIECE:]
        return ""

    async def wait(self) -> None:
        """Until it has ended."""
        await self._process.wait()

    async def end(self) -> None:
        """At once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
            self._process.send_signal(signal.SIGCONT)
        await self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Restful:
    """Makes machines with such a monitor."""

    def __init__(self, dialect: Dialect, program: Sequence[str], image: Image, state: Path) -> None:
        """`program` and its leading arguments; `state` is short enough for the path of a socket in it."""
        self.name = dialect.name
        self._dialect, self._program, self._image, self._state = dialect, list(program), image, state

    async def boot(self, plan: Plan) -> RestfulMachine:
        """From the image."""
        machine = await self._start(plan)
        async with _ended_if_it_fails(machine):
            await self._dialect.boot(machine.api, plan, self._image, machine.vsock)
            machine.link = await dial_guest(machine.vsock, VSOCK_PORT)
        return machine

    async def kept(self, plan: Plan) -> Snapshot | None:
        """Nothing: these boot in a tenth of a second, and their files hold paths of the life that wrote them."""
        return None

    async def golden(self, plan: Plan, machine: Machine) -> FileSnapshot:
        """Its files are what others map."""
        assert isinstance(machine, RestfulMachine), "a monitor writes down what it runs"
        made = Path(tempfile.mkdtemp(dir=self._state, prefix="golden-"))
        await self._dialect.snapshot(machine.api, made)
        await machine.end()
        return FileSnapshot(plan.memory_mib, made)

    async def copy(self, plan: Plan, golden: Snapshot) -> RestfulMachine:
        """The monitor maps the files privately."""
        assert isinstance(golden, FileSnapshot), "a monitor continues what it wrote"
        return await self._restored(plan, golden.directory)

    async def read_back(self, plan: Plan, source: int) -> RestfulMachine:
        """From a checkpoint's bytes."""
        scratch = Path(tempfile.mkdtemp(dir=self._state, prefix="back-"))
        try:
            await asyncio.to_thread(_split, source, scratch)
            return await self._restored(plan, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    async def _restored(self, plan: Plan, directory: Path) -> RestfulMachine:
        machine = await self._start(plan)
        async with _ended_if_it_fails(machine):
            await self._dialect.restore(machine.api, directory, machine.vsock)
            await self._dialect.resume(machine.api)  # its guest answers a new connection only while it runs
            machine.link = await dial_guest(machine.vsock, VSOCK_PORT)
            await self._dialect.pause(machine.api)
        return machine

    async def _start(self, plan: Plan) -> RestfulMachine:
        directory = Path(tempfile.mkdtemp(dir=self._state, prefix=f"{plan.name}-"))
        command = [*self._program, *self._dialect.options(directory / "api.sock")]
        spec = {
            "cgroups": [str(group) for group in plan.groups],
            "user": 0,
            "command": command,
            "devices": [],
            "descriptors": [],
        }
        with (directory / "said").open("wb") as said:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", LAUNCHER, str(Path(hekla.__file__).parent.parent), json.dumps(spec),
                stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )  # fmt: skip
        machine = RestfulMachine(process, self._dialect, directory)
        async with _ended_if_it_fails(machine):
            await _until_there(machine.api, process)
        return machine


async def _until_there(api: Path, process: asyncio.subprocess.Process) -> None:
    """The monitor listens; its socket is there a moment before, and who asks in that moment is refused."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not _listens(api):
                if process.returncode is not None:
                    raise MachineError(f"the machine's monitor ended at once, with {process.returncode}")
                await asyncio.sleep(LOOK_EVERY_S)
    except TimeoutError:
        raise MachineError(f"the machine's monitor listens on no socket within {PATIENCE_S:g} s") from None


def _listens(api: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.setblocking(False)
        try:
            tried.connect(str(api))
        except BlockingIOError:
            return True  # others wait there already
        except (FileNotFoundError, ConnectionRefusedError):
            return False
    return True


@contextlib.asynccontextmanager
async def _ended_if_it_fails(machine: RestfulMachine) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:
        await machine.end()
        raise


def _join(directory: Path, output: int) -> None:
    """A head with names and lengths, then the files."""
    files = sorted(each for each in directory.rglob("*") if each.is_file())
    head = json.dumps([[str(each.relative_to(directory)), each.stat().st_size] for each in files]).encode()
    os.write(output, head.ljust(HEAD_BYTES))
    for each in files:
        with each.open("rb") as file:
            while piece := file.read(PIECE):
                os.write(output, piece)


def _split(source: int, directory: Path) -> None:
    """The other way, into an empty directory. Raises MachineError."""
    try:
        told = [(str(name), int(size)) for name, size in json.loads(os.read(source, HEAD_BYTES))]
    except ValueError:
        raise MachineError("this is no snapshot: its head makes no sense") from None
    for name, size in told:
        if name.startswith("/") or ".." in name.split("/"):
            raise MachineError(f"this is no snapshot: it has a file {name[:100]!r}")
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as file:
            left = size
            while left > 0:
                piece = os.read(source, min(PIECE, left))
                if not piece:
                    raise MachineError("this is no snapshot: it ends early")
                file.write(piece)
                left -= len(piece)
