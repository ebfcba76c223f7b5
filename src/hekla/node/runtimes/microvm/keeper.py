"""Makes and ends the machines of the runtime `microvm`: one boots and becomes golden, the others are copies of it, some made ahead.

boot (seconds, once for each size of memory) ── daemon ready ── quiet ── golden ──> copy (tenths of a second) ── awake ── a sandbox
"""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from hekla.node.runtimes import ContainerSpec, Limits, StartError
from hekla.node.runtimes.guest.channel import GuestChannel
from hekla.node.runtimes.microvm.monitor import MIB, Hypervisor, Machine, MachineError, Plan, Snapshot
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.runtimes.sandbox.cells import Cell
from hekla.node.runtimes.sandbox.channel import Message, SandboxGoneError
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.plan import FIRST_USER, SLOTS, USERS_APART, is_plain

log = structlog.get_logger(__name__)

LEAST_MIB = 256
"""Memory of a machine whose pod sets no limit; a limit is rounded up to a multiple of it."""
MOST_MIB = 64 * 1024
MONITOR_BYTES = 128 * MIB
"""What a machine's monitor needs beside the machine's own memory."""
MONITOR_PROCESSES = 64
FOR_ALL = Limits(cpu_request_milli=1000)
"""A machine that all others will be copies of weighs a whole CPU: while it boots, everybody waits for it."""
BOOT_TIMEOUT_S = 120.0
"""An emulated machine takes some ten seconds on a loaded host; one under KVM less than one."""
ORDER_TIMEOUT_S = 120.0
"""The same, for what a sandbox of processes does in a millisecond."""
HEAD_BYTES = 4096
"""A checkpoint of memory begins with what is known of it, in so many bytes."""
FORMAT = "hekla-microvm-1"


@dataclass(slots=True)
class _Held:
    """A machine and its cell."""

    cell: Cell
    machine: Machine
    channel: GuestChannel
    memory_mib: int
    limits: Limits
    is_replaced: bool = False
    """Its end is not the cell's."""


class Machines:
    """The machines of one node."""

    def __init__(
        self, state: Path, hypervisor: Hypervisor, groups: SandboxGroups, *, warm: int, has_own_users: bool
    ) -> None:
        """`warm` copies are kept ready once the first was wanted."""
        self._state, self._hypervisor, self._groups, self._warm_wanted = state, hypervisor, groups, warm
        self._has_own_users = has_own_users
        self._numbers = itertools.count(1)
        self._slots = deque(range(SLOTS))
        self._held: dict[str, _Held] = {}
        self._goldens: dict[int, asyncio.Task[Snapshot]] = {}
        self._warm: deque[Cell] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refilling = 0
        self._is_closing = False
        (state / "sockets").mkdir(parents=True, exist_ok=True, mode=0o700)

    async def prepare(self) -> None:
        """Boot what others are copied from, and have some warm."""
        try:
            await self._golden(LEAST_MIB)
        except MachineError as problem:
            raise StartError(str(problem)) from None
        self._refill()

    def is_warm_for(self, container: ContainerSpec) -> bool:
        """Of those that wait none is filled before it is wanted."""
        return False

    def spare(self, container: ContainerSpec) -> Cell | None:
        """None waits."""
        return None

    def refill_soon(self) -> None:
        """There is none to make up for."""

    async def take(self, container: ContainerSpec) -> Cell:
        """A copy for a container: a warm one if it fits."""
        if not is_plain(container):
            raise StartError(
                f'container "{container.key.name}" has an image of its own or volumes; a virtual machine of this node has neither: '
                "use the runtime class sandbox or oci for it"
            )
        memory_mib = memory_for(container.limits)
        while memory_mib == LEAST_MIB and self._warm:
            cell = self._warm.popleft()
            if not cell.gone.done():
                self._held[cell.name].limits = container.limits
                self._limit(cell.name, memory_mib, container.limits)
                self._refill()
                return cell
        cell = await self._make(memory_mib, container.limits)
        self._refill()
        return cell

    async def end(self, cell: Cell) -> None:
        """Kill it; returns once it is gone."""
        held = self._held.get(cell.name)
        if held is None:
            return
        if cell.is_frozen and self._groups.can_freeze:
            with contextlib.suppress(OSError):
                self._groups.thaw(cell.name)
        held.channel.close()
        await held.machine.end()
        self._bury(held)

    async def freeze(self, cell: Cell) -> None:
        """The processors stop, then the monitor: not a microsecond is spent."""
        held = self._of(cell)
        try:
            await held.machine.pause()
            self._stop_monitor(held, cell.name)
        except MachineError as problem:
            raise SandboxGoneError(str(problem)) from None
        except BaseException:  # nobody would know that it stands still
            with contextlib.suppress(MachineError):
                await held.machine.resume()
            raise
        cell.is_frozen = True

    def _stop_monitor(self, held: _Held, name: str) -> None:
        if not self._groups.can_freeze:
            os.kill(held.machine.pid, signal.SIGSTOP)
        elif not self._groups.freeze(name):
            self._groups.thaw(name)
            raise TimeoutError("the machine's monitor waits for the kernel and cannot be stopped now")

    async def thaw(self, cell: Cell) -> None:
        """It goes on, with the right time."""
        held = self._of(cell)
        if self._groups.can_freeze:
            self._groups.thaw(cell.name)
        else:
            os.kill(held.machine.pid, signal.SIGCONT)
        cell.is_frozen = False
        try:
            await held.machine.resume()
        except MachineError as problem:
            raise SandboxGoneError(str(problem)) from None
        await held.channel.wake(is_copy=False)

    async def dial_daemon(self, cell: Cell) -> socket.socket:
        """A connection to the daemon's door."""
        return self._of(cell).channel.dial_door()

    async def write_down(self, cell: Cell, output: int) -> None:
        """The machine as it stands, into an open file; it goes on."""
        held = self._of(cell)
        head = json.dumps(
            {"format": FORMAT, "hypervisor": self._hypervisor.name, "memory_mib": held.memory_mib}
        ).encode()
        os.write(output, head.ljust(HEAD_BYTES))
        await held.channel.quiesce()
        try:
            await held.machine.pause()
            try:
                await held.machine.write_down(output)
            finally:
                await held.machine.resume()
        except MachineError as problem:
            raise SandboxError(503, f"the machine's memory cannot be written down: {problem}") from None
        finally:
            with contextlib.suppress(SandboxGoneError):
                await held.channel.wake(is_copy=False)

    async def become(self, cell: Cell, source: int) -> None:
        """A machine that was just made goes on as another one that was written down, under its own name."""
        held = self._of(cell)
        memory_mib = self._memory_of(source)
        held.is_replaced = True
        held.channel.close()
        await held.machine.end()  # both at once would need twice the memory
        try:
            plan = self._plan(cell.name, cell.slot, memory_mib, held.limits)
            machine = await self._hypervisor.read_back(plan, source)
        except MachineError as problem:
            self._bury(held)
            raise SandboxError(422, f"the machine's memory cannot be read back: {problem}") from None
        made = self._held[cell.name] = _Held(cell, machine, self._channel(machine, cell), memory_mib, held.limits)
        cell.channel, cell.pid = made.channel, machine.pid
        self._watch(made)
        await self._wake(made)

    async def close(self) -> None:
        """End them all, and what they are copied from."""
        self._is_closing = True
        for task in [*self._goldens.values(), *self._tasks]:
            task.cancel() if task.get_name() != "watch" else None
        await asyncio.gather(*(self.end(held.cell) for held in list(self._held.values())), return_exceptions=True)
        for golden in await asyncio.gather(*self._goldens.values(), return_exceptions=True):
            if not isinstance(golden, BaseException):
                golden.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # golden machines

    async def _golden(self, memory_mib: int) -> Snapshot:
        """What machines of a size are copied from; booted by the first who wants one, and again if that failed."""
        task = self._goldens.get(memory_mib)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._goldens[memory_mib] = asyncio.get_running_loop().create_task(self._boot(memory_mib))
        return await asyncio.shield(task)

    async def _boot(self, memory_mib: int) -> Snapshot:
        began = asyncio.get_running_loop().time()
        name = f"golden-{memory_mib}"
        plan = self._plan(name, SLOTS, memory_mib, FOR_ALL)
        if (kept := await self._hypervisor.kept(plan)) is not None:
            return kept
        machine = await self._hypervisor.boot(plan)
        ready = asyncio.Event()
        channel = GuestChannel(
            machine.link, os.dup(machine.link), self._state / "sockets",
            lambda told: ready.set() if told["event"] == "ready" else None, patience_s=ORDER_TIMEOUT_S,
        )  # fmt: skip
        try:
            ended = asyncio.ensure_future(machine.wait())
            waiting = asyncio.ensure_future(ready.wait())
            await asyncio.wait((ended, waiting), timeout=BOOT_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not ready.is_set():
                words = (await machine.last_words()).strip().splitlines()
                why = "it ended" if ended.done() else f"its daemon was not ready within {BOOT_TIMEOUT_S:g} s"
                raise MachineError(f"the guest does not start: {why}{f'; it said: {words[-1]}' if words else ''}")
            await channel.quiesce()
            await machine.pause()
            made = await self._hypervisor.golden(plan, machine)
        except SandboxGoneError as problem:
            raise MachineError(str(problem)) from None
        finally:
            channel.close()
            await machine.end()
            self._groups.remove(name)
        log.info("machine booted", memory_mib=memory_mib, took_s=round(asyncio.get_running_loop().time() - began, 2))
        return made

    # copies

    async def _make(self, memory_mib: int, limits: Limits) -> Cell:
        if not self._slots:
            raise StartError(f"{SLOTS} machines run already, as many as a node can tell apart by their users")
        slot, name = self._slots.popleft(), f"m{next(self._numbers)}"
        try:
            golden = await self._golden(memory_mib)
            machine = await self._hypervisor.copy(self._plan(name, slot, memory_mib, limits), golden)
        except MachineError as problem:
            self._slots.append(slot)
            self._groups.remove(name)
            raise StartError(f"the virtual machine cannot be made: {problem}") from None
        loop = asyncio.get_running_loop()
        cell = Cell(name, slot, "", _Unheard(), _nobody, loop.create_future(), loop.create_future(), pid=machine.pid)
        channel = self._channel(machine, cell)
        cell.channel = channel
        held = self._held[name] = _Held(cell, machine, channel, memory_mib, limits)
        self._watch(held)
        try:
            await self._wake(held)
        except (SandboxError, asyncio.CancelledError) as problem:
            await self.end(cell)
            if isinstance(problem, SandboxError):
                raise StartError(str(problem)) from None
            raise
        cell.ready.set_result(None)
        return cell

    async def _wake(self, held: _Held) -> None:
        try:
            await held.machine.resume()
            await held.channel.wake(is_copy=True)
        except (MachineError, SandboxGoneError) as problem:
            raise SandboxError(503, f"the copied machine does not wake: {problem}") from None

    def _channel(self, machine: Machine, cell: Cell) -> GuestChannel:
        return GuestChannel(
            machine.link, os.dup(machine.link), self._state / "sockets", lambda told: cell.hear(told), patience_s=ORDER_TIMEOUT_S
        )  # fmt: skip

    def _plan(self, name: str, slot: int, memory_mib: int, limits: Limits) -> Plan:
        groups = self._groups.create(name)
        self._limit(name, memory_mib, limits)
        user = FIRST_USER + slot * USERS_APART if self._has_own_users else 0
        return Plan(name=name, memory_mib=memory_mib, user=user, groups=groups)

    def _limit(self, name: str, memory_mib: int, limits: Limits) -> None:
        whole = replace(limits, memory_bytes=memory_mib * MIB + MONITOR_BYTES)
        with contextlib.suppress(FileNotFoundError):
            self._groups.limit(name, whole, MONITOR_PROCESSES)

    def _watch(self, held: _Held) -> None:
        async def until_it_ends() -> None:
            await held.machine.wait()
            if self._held.get(held.cell.name) is held and not held.is_replaced:
                held.channel.close()
                await held.machine.end()
                self._bury(held)

        self._keep(asyncio.get_running_loop().create_task(until_it_ends(), name="watch"))

    def _bury(self, held: _Held) -> None:
        cell = held.cell
        if self._held.get(cell.name) is not held:
            return
        del self._held[cell.name]
        cell.was_oom_killed = self._groups.was_oom_killed(cell.name)
        self._groups.remove(cell.name)
        self._slots.append(cell.slot)
        if cell in self._warm:
            self._warm.remove(cell)
        if not cell.gone.done():
            cell.gone.set_result(None)

    def _refill(self) -> None:
        """One at a time: those that are wanted now come first."""
        if self._is_closing or self._refilling or len(self._warm) >= self._warm_wanted:
            return

        async def make_one() -> None:
            try:
                self._warm.append(await self._make(LEAST_MIB, Limits()))
            except StartError as problem:
                log.warning("no warm machine", error=str(problem))
                return
            finally:
                self._refilling -= 1
            self._refill()

        self._refilling += 1
        self._keep(asyncio.get_running_loop().create_task(make_one(), name="make a warm machine"))

    def _keep(self, task: "asyncio.Task[None]") -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _of(self, cell: Cell) -> _Held:
        held = self._held.get(cell.name)
        if held is None:
            raise SandboxGoneError("the machine has ended")
        return held

    def _memory_of(self, source: int) -> int:
        """From the head of what was written down; `source` is left behind it."""
        try:
            told = json.loads(os.pread(source, HEAD_BYTES, 0))
            memory_mib, known = int(told["memory_mib"]), (told["format"], told["hypervisor"])
        except (ValueError, KeyError, TypeError):
            raise SandboxError(422, "this is no checkpoint of a machine's memory") from None
        if known != (FORMAT, self._hypervisor.name) or not 0 < memory_mib <= MOST_MIB:
            raise SandboxError(
                422, f"this checkpoint is {known[0]} of {known[1]}; this node reads {FORMAT} of {self._hypervisor.name}"
            )
        os.lseek(source, HEAD_BYTES, os.SEEK_SET)
        return memory_mib


def memory_for(limits: Limits) -> int:
    """How much memory a pod's machine has."""
    if not limits.memory_bytes:
        return LEAST_MIB
    steps = -(-limits.memory_bytes // (LEAST_MIB * MIB))
    if steps * LEAST_MIB > MOST_MIB:
        raise StartError(f"a machine of {limits.memory_bytes} bytes is more than the {MOST_MIB} MiB that one may have")
    return steps * LEAST_MIB


class _Unheard:
    """Stands in until a machine's link is there."""

    async def ask(
        self, op: str, message: Message | None = None, fds: object = (), *, timeout_s: float = 0.0
    ) -> tuple[Message, list[int]]:
        """Nobody is there."""
        raise SandboxGoneError("the machine is not there yet")

    def resize(self, terminal: int, columns: int, rows: int) -> bool:
        """There is none."""
        return False

    def close(self) -> None:
        """Nothing is open."""


def _nobody(told: Message) -> None:
    """Nobody listens yet."""
