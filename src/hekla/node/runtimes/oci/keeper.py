"""Starts and ends the containers of the runtime `oci`: a launcher, the OCI runtime, the bridge, the daemon."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import sys
from collections import deque
from pathlib import Path

import hekla
from hekla.node.runtimes import ContainerSpec, Mount, StartError
from hekla.node.runtimes.guest.carry import carried_into
from hekla.node.runtimes.guest.channel import GuestChannel
from hekla.node.runtimes.oci.config import CARRIED_AT, config_of
from hekla.node.runtimes.oci.engines import Engine
from hekla.node.runtimes.sandbox.cells import Cell
from hekla.node.runtimes.sandbox.channel import Message, OrderRefusedError, SandboxGoneError
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.plan import PROCESSES, SLOTS, Host, Spec, spec_of
from hekla.node.runtimes.sandbox.standstill import send_all, stand_still_whole
from hekla.node.shim import oci

START_TIMEOUT_S = 60.0
DEATH_TIMEOUT_S = 10.0
LAST_WORDS = 2048
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from hekla.node.shim.oci import main; main()"
PYTHONS = ("usr/local/bin/python3", "usr/bin/python3", "bin/python3", "opt/venv/bin/python3")


class Containers:
    """The containers of one node's runtime `oci`."""

    def __init__(self, state: Path, host: Host, groups: SandboxGroups, engine: Engine, program: str) -> None:
        self._state, self._host, self._groups, self._engine, self._program = state, host, groups, engine, program
        self._numbers = itertools.count(1)
        self._slots = deque(range(SLOTS))
        self._cells: dict[str, Cell] = {}
        self._launchers: dict[str, asyncio.subprocess.Process] = {}
        self._watching: set[asyncio.Task[None]] = set()
        (state / "sockets").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._carried = carried_into(state)

    async def prepare(self) -> None:
        """A container starts when it is wanted."""

    def is_warm_for(self, container: ContainerSpec) -> bool:
        """None is made before it is known for which image."""
        return False

    def spare(self, container: ContainerSpec) -> Cell | None:
        """None waits."""
        return None

    def refill_soon(self) -> None:
        """There is none to make up for."""

    async def take(self, container: ContainerSpec) -> Cell:
        """Start one and wait until its daemon waits for orders."""
        if not self._slots:
            raise StartError(f"{SLOTS} sandboxes run already, as many as a node can tell apart by their users")
        name, slot = f"c{next(self._numbers)}-{os.getpid()}", self._slots.popleft()
        reading, its_writing = os.pipe()
        its_reading, writing = os.pipe()
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        channel = GuestChannel(reading, writing, self._state / "sockets", lambda told: cell.hear(told))
        cell = Cell(name, slot, "", channel, _nobody, ready, loop.create_future())
        self._cells[name] = cell
        try:
            spec = self._spec(container, name, slot)
            launcher = await self._launch(name, spec, its_reading, its_writing)
        except (OSError, StartError) as problem:
            self._bury(cell)
            raise StartError(f"the container cannot be made: {problem}") from None
        finally:
            os.close(its_reading)
            os.close(its_writing)
        watching = loop.create_task(self._watch(cell, launcher), name=f"watch container {name}")
        self._watching.add(watching)
        watching.add_done_callback(self._watching.discard)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(ready)
            cell.pid = first_process_below(launcher.pid) or launcher.pid
        except TimeoutError:
            await self.end(cell)
            raise StartError(f"the container was not ready within {START_TIMEOUT_S:g} s") from None
        except asyncio.CancelledError:
            await self.end(cell)
            raise
        return cell

    async def end(self, cell: Cell) -> None:
        """Kill it and all that runs in it; returns once it is gone."""
        if cell.is_frozen:
            await self.thaw(cell)
        launcher = self._launchers.get(cell.name)
        if launcher is None:
            return
        cell.channel.close()
        _kill(cell.pid or launcher.pid)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEATH_TIMEOUT_S):
                await asyncio.shield(cell.gone)
        if not cell.gone.done():
            _kill(launcher.pid)
            await asyncio.shield(cell.gone)

    async def freeze(self, cell: Cell) -> None:
        """By the freezer; by SIGSTOP to all where there is none."""
        if self._groups.can_freeze:
            if not self._groups.freeze(cell.name):
                self._groups.thaw(cell.name)
                raise TimeoutError("something in the container waits for the kernel and cannot be stopped now")
        else:
            try:
                with contextlib.suppress(SandboxGoneError):
                    await cell.channel.ask("halt")
                await stand_still_whole(lambda: all_below(cell.pid), "the container")
            except BaseException:  # nobody would know that it stands still
                await self._go_on(cell)
                raise
        cell.is_frozen = True

    async def thaw(self, cell: Cell) -> None:
        """Let it go on."""
        if self._groups.can_freeze:
            with contextlib.suppress(OSError):
                self._groups.thaw(cell.name)
        else:
            await self._go_on(cell)
        cell.is_frozen = False

    @staticmethod
    async def _go_on(cell: Cell) -> None:
        send_all(all_below(cell.pid), signal.SIGCONT)
        with contextlib.suppress(OrderRefusedError, SandboxGoneError):
            await cell.channel.ask("resume")

    async def dial_daemon(self, cell: Cell) -> socket.socket:
        """A connection to the daemon's door."""
        assert isinstance(cell.channel, GuestChannel), "containers are spoken to over a link"
        return cell.channel.dial_door()

    async def close(self) -> None:
        """End them all."""
        await asyncio.gather(*(self.end(cell) for cell in list(self._cells.values())))
        await asyncio.gather(*self._watching, return_exceptions=True)

    def _spec(self, container: ContainerSpec, name: str, slot: int) -> Spec:
        groups = self._groups.create(name)
        with contextlib.suppress(FileNotFoundError):
            self._groups.limit(name, container.limits, PROCESSES)
        python = sys.executable if container.rootfs is None else python_of(container.rootfs)
        hostname = (container.hostname or "sandbox")[:63]
        spec = spec_of(self._host, slot=slot, hostname=hostname, container=container, groups=groups)
        carried = Mount(source=self._carried, target=CARRIED_AT, is_read_only=True)
        spec["mounts"].append([str(carried.source), carried.target, carried.is_read_only])
        spec["config"] = config_of(spec, self._engine, python, oci.ROOT)
        spec["hides_groups"] = self._engine.hides_groups
        spec["runtime"] = self._engine.command(self._program, state=oci.STATE, bundle=oci.BUNDLE, name=name)
        return spec

    async def _launch(self, name: str, spec: Spec, reading: int, writing: int) -> asyncio.subprocess.Process:
        source = str(Path(hekla.__file__).parent.parent)
        with open(self._said(name), "wb") as said:
            launcher = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", _BOOT, source, json.dumps(spec),
                stdin=reading, stdout=writing, stderr=said, start_new_session=True,
                env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
            )  # fmt: skip
        self._launchers[name] = launcher
        return launcher

    async def _watch(self, cell: Cell, launcher: asyncio.subprocess.Process) -> None:
        cell.status = await launcher.wait()
        self._bury(cell)

    def _bury(self, cell: Cell) -> None:
        if self._cells.pop(cell.name, None) is None:
            return
        self._launchers.pop(cell.name, None)
        cell.channel.close()
        cell.was_oom_killed = self._groups.was_oom_killed(cell.name)
        self._groups.remove(cell.name)
        self._slots.append(cell.slot)
        said = self._said(cell.name)
        if not cell.ready.done():
            words = said.read_bytes()[-LAST_WORDS:].decode("utf-8", "replace").strip() if said.exists() else ""
            problem = words.splitlines()[-1] if words else "it ended without a word"
            cell.ready.set_exception(StartError(f"{self._engine.name} cannot start the sandbox: {problem}"))
            cell.ready.exception()
        said.unlink(missing_ok=True)
        if not cell.gone.done():
            cell.gone.set_result(None)

    def _said(self, name: str) -> Path:
        return self._state / f"{name}.said"


def python_of(rootfs: Path) -> str:
    """The interpreter of an image, that runs the daemon. Raises StartError."""
    for place in PYTHONS:
        if os.path.lexists(rootfs / place):
            return f"/{place}"
    raise StartError(
        f"image {rootfs} has no python3 (looked for {', '.join(f'/{place}' for place in PYTHONS)}); "
        "a sandbox's daemon needs Python 3.9 or newer: add it to the image"
    )


def first_process_below(pid: int) -> int:
    """The host's number of a container's first process; 0 if none can be seen."""
    todo = [pid]
    while todo:
        found = todo.pop()
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{found}/status").read_text().splitlines():
                if line.startswith("NSpid:") and len(line.split()) > 2 and line.split()[-1] == "1":
                    return found
        todo += children_of(found)
    return 0


def all_below(pid: int) -> list[int]:
    """A process and all that descend from it, parents first."""
    found = [pid]
    for one in found:
        found += [child for child in children_of(one) if child not in found]
    return found


def children_of(pid: int) -> list[int]:
    """Its children, as the host numbers them."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _nobody(told: Message) -> None:
    """Nobody listens yet."""


def _kill(pid: int) -> None:
    send_all([pid], signal.SIGKILL)
