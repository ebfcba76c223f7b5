"""Machines of QEMU: its `microvm` type, a virtio-serial port as the link, memory in a file that copies share until they write to it.

A golden machine's memory is a file that nobody may change any more; a copy maps it privately, so that it costs what it writes. What a checkpoint
keeps is one stream with everything, which any node with the same image reads back.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import hekla
from hekla.node.runtimes.microvm.image import Image
from hekla.node.runtimes.microvm.monitor import COMMAND_LINE, LAUNCHER, MIB, Machine, MachineError, Plan, Snapshot
from hekla.node.runtimes.microvm.qmp import Qmp
from hekla.node.shim.guest.machine import PORT

LINK, MONITOR, KERNEL, INITRD, MEMORY = 3, 4, 5, 6, 7
"""Descriptors that the monitor is born with."""
PIECE = 1 << 24
WORDS = 16 * 1024
SETTLES_S = 30.0
ASKS_EVERY_S = 0.001
SLOW_CLOCKS = " tsc_early_khz=1000000 no_timer_check lpj=1000000 mitigations=off"
"""An emulated processor has no clock that a kernel could calibrate its own by, and none of the leaks that mitigations are for."""
SHARED = ({"capability": "x-ignore-shared", "state": True}, {"capability": "events", "state": True})
WHOLE = ({"capability": "x-ignore-shared", "state": False}, {"capability": "events", "state": True})
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"


@dataclass
class QemuSnapshot:
    """Memory and devices, as two files that have no names."""

    memory_mib: int
    memory: int
    devices: int

    def close(self) -> None:
        """Nobody continues from it any more."""
        os.close(self.memory)
        os.close(self.devices)

    def save(self, directory: Path) -> None:
        """For the next life of this node: both files at once, or those of whoever was faster."""
        part = directory.with_name(f".{directory.name}.{os.getpid()}")
        part.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, source in (("memory", self.memory), ("devices", self.devices)):
            with (part / name).open("wb") as file:
                _copy(source, file.fileno())
        try:
            os.rename(part, directory)
        except OSError:
            shutil.rmtree(part)

    @classmethod
    def load(cls, directory: Path, memory_mib: int) -> "QemuSnapshot | None":
        """What an earlier life saved, sealed again; None: nothing."""
        if not (directory / "devices").is_file():
            return None
        made = []
        for name in ("memory", "devices"):
            made.append(os.memfd_create(f"{name} {memory_mib}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING))
            with (directory / name).open("rb") as file:
                _copy(file.fileno(), made[-1])
            _seal(made[-1])
        return cls(memory_mib, *made)


class QemuMachine:
    """One process of QEMU."""

    def __init__(self, process: asyncio.subprocess.Process, link: int, qmp: Qmp, memory: int) -> None:
        self.pid, self.link, self.memory = process.pid, link, memory
        self.qmp, self._process = qmp, process

    async def pause(self) -> None:
        """Its processors stand still."""
        await self.qmp.ask("stop")

    async def resume(self) -> None:
        """They go on."""
        await self.qmp.ask("cont")

    async def write_down(self, output: int) -> None:
        """Everything, behind what the file has."""
        await self.send_state(output, WHOLE)

    async def send_state(self, output: int, capabilities: Sequence[dict[str, object]]) -> None:
        """What another QEMU goes on from."""
        await self.qmp.ask("migrate-set-capabilities", {"capabilities": list(capabilities)})
        await self.qmp.ask("migrate-set-parameters", {"max-bandwidth": 1 << 40})
        await self.qmp.ask("getfd", {"fdname": "state"}, (output,))
        await self.qmp.ask("migrate", {"uri": "fd:state"})
        await self.qmp.until("MIGRATION", status="completed")
        await self._settled()

    async def _settled(self) -> None:
        """Until it may go on: the word that all is written comes a little before, and who asks in between is refused."""
        try:
            async with asyncio.timeout(SETTLES_S):
                while (await self.qmp.ask("query-status"))["status"] == "finish-migrate":
                    await asyncio.sleep(ASKS_EVERY_S)
        except TimeoutError:
            raise MachineError(f"the machine is written down and has not settled within {SETTLES_S:g} s") from None

    async def take_state(self, source: int, capabilities: Sequence[dict[str, object]]) -> None:
        """Go on from there, paused."""
        await self.qmp.ask("migrate-set-capabilities", {"capabilities": list(capabilities)})
        await self.qmp.ask("getfd", {"fdname": "state"}, (source,))
        await self.qmp.ask("migrate-incoming", {"uri": "fd:state"})
        await self.qmp.until("MIGRATION", status="completed")

    async def last_words(self) -> str:
        """What the console printed."""
        with contextlib.suppress(MachineError):
            return str(await self.qmp.ask("ringbuf-read", {"device": "words", "size": WORDS, "format": "utf8"}))
        return ""

    async def wait(self) -> None:
        """Until QEMU has ended."""
        await self._process.wait()

    async def end(self) -> None:
        """At once."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)
            self._process.send_signal(signal.SIGCONT)
        await self._process.wait()
        self.qmp.close()
        if self.memory >= 0:
            os.close(self.memory)
            self.memory = -1


class Qemu:
    """Starts them."""

    name = "qemu"

    def __init__(self, program: str, image: Image, state: Path, *, accelerator: str, goldens: Path) -> None:
        """`accelerator` is `kvm`, or `tcg`: QEMU's own emulation. What copies are made of is kept in `goldens`, a directory of ours."""
        self._goldens, self._digest = goldens, ""
        self._program, self._image, self._state, self._accelerator = program, image, state, accelerator

    async def boot(self, plan: Plan) -> QemuMachine:
        """Its memory is a file, so that it can become golden."""
        memory = os.memfd_create(f"machine {plan.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(memory, plan.memory_mib * MIB)
        return await self._start(
            plan, memory, ["-kernel", _fd(KERNEL), "-initrd", _fd(INITRD), "-append", self._line()], share="on"
        )

    async def golden(self, plan: Plan, machine: Machine) -> QemuSnapshot:
        """Devices into a file; memory is in one already, and is sealed."""
        assert isinstance(machine, QemuMachine), "QEMU writes down what it runs"
        devices = os.memfd_create(f"devices {plan.name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        memory = os.dup(machine.memory)
        await machine.send_state(devices, SHARED)
        await machine.end()
        _seal(memory)
        _seal(devices)
        made = QemuSnapshot(plan.memory_mib, memory, devices)
        await asyncio.to_thread(made.save, await self._kept_at(plan))
        return made

    async def kept(self, plan: Plan) -> QemuSnapshot | None:
        """What an earlier life of this node made of the same parts."""
        return await asyncio.to_thread(QemuSnapshot.load, await self._kept_at(plan), plan.memory_mib)

    async def _kept_at(self, plan: Plan) -> Path:
        """By all that went into it: another kernel, daemon, QEMU or processor makes another."""
        if not self._digest:
            version = await asyncio.create_subprocess_exec(self._program, "--version", stdout=asyncio.subprocess.PIPE)
            told, _ = await version.communicate()
            parts = [told, self._accelerator.encode(), self._line().encode()]
            self._digest = await asyncio.to_thread(_digest, parts, (self._image.kernel, self._image.initrd()))
        return self._goldens / f"{self._digest}-{plan.memory_mib}"

    async def copy(self, plan: Plan, golden: Snapshot) -> QemuMachine:
        """Maps the golden machine's memory privately."""
        assert isinstance(golden, QemuSnapshot), "QEMU continues what QEMU wrote"
        machine = await self._start(plan, os.dup(golden.memory), ["-incoming", "defer"], share="off")
        source = os.open(f"/proc/self/fd/{golden.devices}", os.O_RDONLY | os.O_CLOEXEC)  # from its beginning
        return await self._taken(machine, source, SHARED)

    async def read_back(self, plan: Plan, source: int) -> QemuMachine:
        """All of its memory is its own."""
        memory = os.memfd_create(f"machine {plan.name}", os.MFD_CLOEXEC)
        os.ftruncate(memory, plan.memory_mib * MIB)
        machine = await self._start(plan, memory, ["-incoming", "defer"], share="on")
        return await self._taken(machine, os.dup(source), WHOLE)

    async def _taken(self, machine: QemuMachine, source: int, capabilities: Sequence[dict[str, object]]) -> QemuMachine:
        try:
            await machine.take_state(source, capabilities)
        except BaseException:
            os.close(machine.link)
            await machine.end()
            raise
        finally:
            os.close(source)
        return machine

    async def _start(self, plan: Plan, memory: int, more: list[str], *, share: str) -> QemuMachine:
        ours, its_link = socket.socketpair()
        monitor, its_monitor = socket.socketpair()
        qmp = Qmp(monitor)
        initrd_file = await asyncio.to_thread(self._image.initrd)
        kernel, initrd = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (self._image.kernel, initrd_file))
        given = (its_link.fileno(), its_monitor.fileno(), kernel, initrd, memory)
        spec = {
            "cgroups": [str(group) for group in plan.groups], "user": plan.user, "command": self._command(plan, more, share),
            "devices": ["/dev/kvm"] if self._accelerator == "kvm" else [], "descriptors": list(given),
        }  # fmt: skip
        said = self._state / f"{plan.name}.said"
        try:
            with said.open("wb") as words:
                process = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", "-S", "-c", LAUNCHER, str(Path(hekla.__file__).parent.parent), json.dumps(spec),
                    stdin=asyncio.subprocess.DEVNULL, stdout=words, stderr=words, pass_fds=given, start_new_session=True,
                    env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
                )  # fmt: skip
        except OSError as problem:
            qmp.close()
            ours.close()
            os.close(memory)
            raise MachineError(f"{self._program} cannot be started: {problem.strerror}") from None
        finally:
            for descriptor in (kernel, initrd):
                os.close(descriptor)
            its_link.close()
            its_monitor.close()
        machine = QemuMachine(process, ours.detach(), qmp, memory)
        try:
            await qmp.greet()
        except MachineError:
            os.close(machine.link)
            await machine.end()
            words_ = said.read_bytes().decode("utf-8", "replace").strip().splitlines()
            raise MachineError(f"QEMU ended at once: {words_[-1] if words_ else 'it gives no reason'}") from None
        finally:
            said.unlink(missing_ok=True)
        return machine

    def _command(self, plan: Plan, more: list[str], share: str) -> list[str]:
        processor = "host" if self._accelerator == "kvm" else "max"
        return [
            self._program, "-name", plan.name, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-sandbox", _SANDBOX,
            "-machine", f"microvm,acpi=on,pit=on,pic=on,rtc=on,isa-serial=on,memory-backend=mem,accel={self._accelerator}",
            "-cpu", processor, "-smp", "1", "-m", f"{plan.memory_mib}M",
            "-object", f"memory-backend-file,id=mem,size={plan.memory_mib}M,mem-path={_fd(MEMORY)},share={share}",
            "-chardev", f"ringbuf,id=words,size={WORDS}", "-serial", "chardev:words",
            "-chardev", f"socket,id=link,fd={LINK}", "-device", "virtio-serial-device",
            "-device", f"virtserialport,chardev=link,name={PORT}",
            "-chardev", f"socket,id=qmp,fd={MONITOR}", "-mon", "chardev=qmp,mode=control", *more,
        ]  # fmt: skip

    def _line(self) -> str:
        return COMMAND_LINE + (SLOW_CLOCKS if self._accelerator == "tcg" else "")


def _seal(descriptor: int) -> None:
    """Nobody changes it any more, a monitor that was broken into included."""
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)


def _copy(source: int, sink: int) -> None:
    """A file that is mostly holes."""
    size = os.fstat(source).st_size
    os.ftruncate(sink, size)
    place = 0
    while place < size:
        try:
            begin = os.lseek(source, place, os.SEEK_DATA)
        except OSError:  # only holes from here on
            return
        place = os.lseek(source, begin, os.SEEK_HOLE)
        os.lseek(sink, begin, os.SEEK_SET)
        while begin < place:
            begin += os.sendfile(sink, source, begin, min(PIECE, place - begin))


def _digest(parts: Sequence[bytes], files: Sequence[Path]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(hashlib.sha256(part).digest())
    for path in files:
        with path.open("rb") as file:
            made.update(hashlib.file_digest(file, "sha256").digest())
    made.update(Path("/proc/cpuinfo").read_bytes().partition(b"flags")[2].partition(b"\n")[0])
    return made.hexdigest()[:16]


def _fd(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
