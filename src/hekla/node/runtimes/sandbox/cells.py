"""Sandboxes as the node holds them: forked by the zygote, kept warm before anybody wants them, buried when they end.

`Cells` owns the supervisor with its zygote, and the numbers of users; `runtime.py` says what each is for.
"""

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import structlog

from hekla.node.runtimes import ContainerSpec, Limits, StartError
from hekla.node.runtimes.sandbox.channel import Channel, Message, OrderRefusedError, Orders, SandboxGoneError
from hekla.node.runtimes.sandbox.groups import SandboxGroups
from hekla.node.runtimes.sandbox.plan import PROCESSES, SLOTS, STORAGE_BYTES, Host, is_plain, room_for_files, spec_of
from hekla.node.runtimes.sandbox.standstill import stand_still, state_of
from hekla.node.runtimes.sandbox.stock_size import StockSize, most_of
from hekla.node.runtimes.sandbox.supervisor_link import Left, Report, SupervisorLink
from hekla.node.runtimes.spawner_link import SpawnerGoneError
from hekla.node.runtimes.sweep import describe_process
from hekla.node.shim import linux

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 30.0
DEATH_TIMEOUT_S = 10.0
TRIES = 5
REFILL_AT_ONCE = 2
"""Warm sandboxes that are being made at a time: they must not slow down those that are wanted now."""
REFILL_AFTER_S, REFILL_WITHIN_S = 0.05, 0.5
"""They are made once none was taken for so long, or that long after one was: whoever took one is about to run something in it, and
making another takes 15 ms of a processor."""
BACKLOG = 256
MOST_UNHEARD = 1_000


async def _at_once() -> None:
    """Where nothing outlives the node there is nothing to wait for."""


@dataclass(slots=True)
class Cell:
    """One sandbox."""

    name: str
    slot: int
    socket_path: str
    channel: Orders
    on_event: Callable[[Message], None]
    ready: "asyncio.Future[None]"
    gone: "asyncio.Future[None]"
    """Nothing of it runs any more."""
    pid: int = 0
    started_at: float = field(default_factory=time.time)
    status: int = 0
    is_frozen: bool = False
    was_oom_killed: bool = False
    """The kernel had killed in it for want of memory, as was seen when its groups went."""
    storage_bytes: int = -1
    """What its files take, where only the sandbox itself can tell; -1: the host sees it."""
    left_fds: dict[str, int] = field(default_factory=dict)
    """What an earlier life of this node had left in good hands."""
    unheard: deque[Message] = field(default_factory=lambda: deque(maxlen=MOST_UNHEARD))
    """What it said before anybody knew whom it is for. The latest: of an end that fell out the daemon is asked (`again`)."""
    remember: Callable[[Message], None] = lambda note: None
    """Let a later life of this node know what the sandbox is for, once it was `remembered`."""
    remembered: Callable[[], Awaitable[None]] = _at_once
    """Returns once what was to be remembered outlives this process."""
    keep: Callable[[str, int], None] = lambda label, descriptor: None
    """Let a later life have a copy of a descriptor."""

    def hear(self, message: Message) -> None:
        """An event from inside."""
        if message["event"] == "ready":
            _settle(self.ready)
        elif message["event"] == "storage":
            self.storage_bytes = int(message["bytes"])
        else:
            self.on_event(message)


class CellKeeper(Protocol):
    """Makes and holds the sandboxes of one runtime; in each the daemon waits for its node."""

    async def take(self, container: ContainerSpec) -> Cell:
        """A sandbox for a container: a warm one if there is one that fits, else another. Raises StartError."""

    def is_warm_for(self, container: ContainerSpec) -> bool:
        """Whether a sandbox that was made for nobody will do for a container."""

    def spare(self, container: ContainerSpec) -> Cell | None:
        """One that waits, for what will want one like this container's before long; None: none waits."""

    def refill_soon(self) -> None:
        """A spare one is in use from now on."""

    async def prepare(self) -> None:
        """Have some warm before the first is wanted."""

    async def end(self, cell: Cell) -> None:
        """Kill it and all that runs in it; returns once it is gone."""

    async def freeze(self, cell: Cell) -> None:
        """Let it stand still, daemon and all."""

    async def thaw(self, cell: Cell) -> None:
        """Let it go on."""

    async def dial_daemon(self, cell: Cell) -> socket.socket:
        """A connection to the daemon's own door."""

    async def close(self) -> None:
        """End them all."""


class Cells:
    """Sandboxes forked from the zygote."""

    def __init__(
        self,
        state: Path,
        host: Host,
        groups: SandboxGroups,
        link_arguments: tuple[str, ...],
        *,
        warm: int,
        grace_s: float,
    ) -> None:
        """`warm` sandboxes are kept ready for pods that mount nothing; all outlive a node that was killed by `grace_s`."""
        self._state, self._host, self._groups = state, host, groups
        self._stock = StockSize(warm, most_of(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
        self._shrink_at: asyncio.TimerHandle | None = None
        self._sockets = os.open(_made(state / "sockets"), os.O_RDONLY | os.O_DIRECTORY)
        self._link = SupervisorLink(state, self._handle, self._lose_all, arguments=link_arguments, grace_s=grace_s)
        self._zygote_pid = self._zygotes_lost = 0
        self._life = secrets.token_hex(3)
        self._cells: dict[str, Cell] = {}
        self._warm: deque[Cell] = deque()
        self._slots = deque(range(SLOTS))
        self._numbers = itertools.count(1)
        self._zygote_ready: asyncio.Future[None] | None = None
        self._refilling: set[asyncio.Task[None]] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._refill_at: asyncio.TimerHandle | None = None
        self._wanting_since = 0.0
        self._is_closing = False

    @property
    def zygote_pid(self) -> int:
        """The zygote's process id; 0 if it does not run."""
        return self._zygote_pid

    async def find(self) -> list[tuple[Cell, Message]]:
        """What an earlier life of this node left running, and its notes; what they hear meanwhile waits for whom they are for."""
        found: list[tuple[Cell, Message]] = []
        for left in await self._link.find():
            try:
                found.append((self._adopt(left), left.note))
            except (
                KeyError,
                ValueError,
                TypeError,
            ) as problem:  # one that says nothing must not keep the node from starting
                log.warning("a sandbox of an earlier life is not understood", sandbox=left.name, error=repr(problem))
                self._post({"order": "kill", "id": left.name})
                for descriptor in left.descriptors.values():
                    os.close(descriptor)
        return found

    def use(self, groups: SandboxGroups) -> None:
        """Found once it is known what is in them."""
        self._groups = groups
        for cell in self._cells.values():
            cell.is_frozen = self._stands_still(cell)

    @property
    def is_refilling(self) -> bool:
        """Whether warm ones are being made, or are about to be."""
        return bool(self._refilling) or self._refill_at is not None

    async def take(self, container: ContainerSpec) -> Cell:
        """A sandbox for a container: a warm one if there is one that fits, else another. Raises StartError."""
        if self.is_warm_for(container) and (cell := self.spare(container)) is not None:
            return cell
        cell = await self.make(container)
        self.refill_soon()
        return cell

    def is_warm_for(self, container: ContainerSpec) -> bool:
        """Whether one that was made for nobody will do: without groups a limit is set while a sandbox is made, and on none that is made already."""
        return is_plain(container) and bool(self._groups.parents or not container.limits.memory_bytes)

    def spare(self, container: ContainerSpec) -> Cell | None:
        """One of those that wait, limited as a container is; another one is made soon."""
        self._stock.taken(asyncio.get_running_loop().time())
        self._shrink_later()
        while self._warm:
            cell = self._warm.popleft()
            if not cell.gone.done():
                self.refill_soon()
                if container.limits != Limits():
                    self._limit(cell, container.limits)
                    _bound_files(cell, container.limits)
                return cell
        return None

    async def prepare(self) -> None:
        """Have some warm before the first is wanted."""
        await self._open_zygote()
        self._refill()

    async def make(self, container: ContainerSpec | None = None) -> Cell:
        """Fork one from the zygote, or from the next one if that is killed meanwhile: nothing of the pod has run yet."""
        for tries_left in reversed(range(TRIES)):
            lost_before = self._zygotes_lost
            try:
                return await self._make(container)
            except StartError:
                if self._zygotes_lost == lost_before or not tries_left:
                    raise
        raise AssertionError("the last try returns or raises")

    async def _make(self, container: ContainerSpec | None) -> Cell:
        await self._open_zygote()
        if not self._slots:
            raise StartError(f"{SLOTS} sandboxes run already, as many as a node can tell apart by their users")
        name = f"s{self._life}-{next(self._numbers)}"
        cell = self._cell(name, self._slots.popleft())
        try:
            # made here, not found by path: the path of a state directory may be longer than a socket's may be
            with self._listener(cell) as listener:
                groups = self._groups.create(name)
                # one for nobody gives way: its birth must not hold up whoever took the one before it
                self._limit(cell, container.limits if container is not None else Limits())
                hostname = container.hostname if container and container.hostname else "sandbox"
                spec = spec_of(self._host, slot=cell.slot, hostname=hostname[:63], container=container, groups=groups)
                assert isinstance(cell.channel, Channel), "what the zygote forks gets the other end of a socket"
                childs, own = cell.channel.ends()
                self._link.post({"order": "spawn", "id": name, "spec": spec}, (childs, listener.fileno(), own))
            cell.channel.let_go()
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(cell.ready)
        except TimeoutError:
            await self.end(cell)
            raise StartError(f"the sandbox was not ready within {START_TIMEOUT_S:g} s") from None
        except (OSError, SpawnerGoneError) as problem:
            self._bury(cell)
            raise StartError(f"the sandbox cannot be made: {problem}") from None
        except asyncio.CancelledError:
            self._order_end(cell)
            raise
        return cell

    def _adopt(self, left: Left) -> Cell:
        slot, control = int(left.note["slot"]), left.descriptors["control"]
        self._slots.remove(slot)
        cell = self._cell(left.name, slot, socket.socket(fileno=control))
        del left.descriptors["control"]
        cell.pid, cell.left_fds, cell.on_event = left.pid, left.descriptors, cell.unheard.append
        cell.ready.set_result(None)
        return cell

    def _stands_still(self, cell: Cell) -> bool:
        """Whether it was frozen whole; what was being frozen when the node was killed goes on."""
        if self._groups.can_freeze:
            if self._groups.is_frozen(cell.name):
                return True
            self._groups.thaw(cell.name)
            return False
        return state_of(cell.pid) == "T"

    async def end(self, cell: Cell) -> None:
        """Kill it and all that runs in it; returns once it is gone."""
        if cell.is_frozen and self._groups.can_freeze:
            self._groups.thaw(cell.name)  # what stands still in a version 1 group cannot die
        cell.channel.close()
        self._order_end(cell)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DEATH_TIMEOUT_S):
                await asyncio.shield(cell.gone)

    async def freeze(self, cell: Cell) -> None:
        """Let it stand still, daemon and all."""
        if cell.is_frozen:
            return
        if self._groups.can_freeze:
            if not self._groups.freeze(cell.name):
                self._groups.thaw(cell.name)
                raise TimeoutError("something in the sandbox waits for the kernel and cannot be stopped now")
        else:
            try:
                await cell.channel.ask("halt")
                await stand_still([cell.pid], "the sandbox")
            except BaseException:  # nobody would know that it stands still
                with contextlib.suppress(OrderRefusedError, SandboxGoneError):
                    await self._go_on(cell)
                raise
        cell.is_frozen = True

    async def thaw(self, cell: Cell) -> None:
        """Let it go on."""
        if not cell.is_frozen:
            return
        if self._groups.can_freeze:
            self._groups.thaw(cell.name)
        else:
            await self._go_on(cell)
        cell.is_frozen = False

    async def _go_on(self, cell: Cell) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(cell.pid, signal.SIGCONT)
            await cell.channel.ask("resume")

    async def dial_daemon(self, cell: Cell) -> socket.socket:
        """A connection to the daemon's own door."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(made, cell.socket_path)
        except OSError:
            made.close()
            raise SandboxGoneError("the sandbox has ended") from None
        return made

    async def leave(self) -> None:
        """The supervisor goes on with all that its node took note of."""
        await self._stop()
        await self._link.leave()
        for cell in self._cells.values():
            cell.channel.close()
        os.close(self._sockets)

    async def close(self) -> None:
        """The supervisor kills everything and ends."""
        await self._stop()
        await self._link.close()
        self._lose_all()
        os.close(self._sockets)

    async def _stop(self) -> None:
        """Make and end nothing any more."""
        self._is_closing = True
        for timer in (self._refill_at, self._shrink_at):
            if timer is not None:
                timer.cancel()
        self._refill_at = self._shrink_at = None
        for task in (*self._refilling, *self._ending):
            task.cancel()
        await asyncio.gather(*self._refilling, *self._ending, return_exceptions=True)

    def _limit(self, cell: Cell, limits: Limits) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._groups.limit(cell.name, limits, PROCESSES)

    def _listener(self, cell: Cell) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(cell.name, dir_fd=self._sockets)
        made.bind(cell.socket_path)
        made.listen(BACKLOG)
        return made

    def _cell(self, name: str, slot: int, own: socket.socket | None = None) -> Cell:
        loop = asyncio.get_running_loop()
        cell = Cell(
            name, slot, f"/proc/self/fd/{self._sockets}/{name}", Channel(lambda told: cell.hear(told), own),
            lambda told: None, loop.create_future(), loop.create_future(),
            remember=lambda note: self._remember(name, {**note, "slot": slot}), remembered=self._link.delivered,
            keep=lambda label, descriptor: self._post({"order": "keep", "id": name, "label": label}, (descriptor,)),
        )  # fmt: skip
        self._cells[name] = cell
        return cell

    def _remember(self, name: str, note: Message) -> None:
        if name in self._cells:  # else it has ended, and nobody would ever forget what is noted of it now
            self._link.note(name, note)

    def _post(self, order: Message, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(SpawnerGoneError):  # then it has ended with its supervisor
            self._link.post(order, fds)

    def _order_end(self, cell: Cell) -> None:
        self._post({"order": "kill", "id": cell.name})

    async def _open_zygote(self) -> None:
        if not self._link.is_open:
            self._link.open()
            self._zygote_ready = None
        if self._zygote_ready is None:
            self._zygote_ready = asyncio.get_running_loop().create_future()
            self._post({"order": "zygote"})
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(self._zygote_ready)
        except TimeoutError:
            raise StartError(f"the zygote was not ready within {START_TIMEOUT_S:g} s; its log is zygote.log") from None

    def refill_soon(self) -> None:
        """Refill when nobody wants any for a moment."""
        loop = asyncio.get_running_loop()
        if self._refill_at is None:
            self._wanting_since = loop.time()
        else:
            self._refill_at.cancel()
        when = min(loop.time() + REFILL_AFTER_S, self._wanting_since + REFILL_WITHIN_S)
        self._refill_at = loop.call_at(when, self._refill)

    def _refill(self) -> None:
        """Keep some warm, once the first was wanted."""
        if self._refill_at is not None:
            self._refill_at.cancel()
            self._refill_at = None
        if len(self._warm) >= self._stock.wanted:
            self._stock.filled()
        while (
            not self._is_closing
            and len(self._warm) + len(self._refilling) < self._stock.wanted
            and len(self._refilling) < REFILL_AT_ONCE
        ):
            task = asyncio.get_running_loop().create_task(self._make_warm(), name="make a warm sandbox")
            self._refilling.add(task)
            task.add_done_callback(self._refilled)

    def _shrink_later(self) -> None:
        loop = asyncio.get_running_loop()
        if self._shrink_at is None and not self._is_closing and (wait_s := self._stock.rest(loop.time())):
            self._shrink_at = loop.call_later(wait_s, self._shrink)

    def _shrink(self) -> None:
        """End those that nobody has missed for long."""
        self._shrink_at = None
        self._shrink_later()
        for _ in range(len(self._warm) - self._stock.wanted):
            ending = asyncio.get_running_loop().create_task(self.end(self._warm.popleft()), name="end a warm sandbox")
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _make_warm(self) -> None:
        try:
            self._warm.append(await self.make())
        except (StartError, OrderRefusedError) as problem:
            log.warning("no warm sandbox", error=str(problem))
            raise

    def _refilled(self, task: "asyncio.Task[None]") -> None:
        self._refilling.discard(task)
        if not task.cancelled() and task.exception() is None:
            self._refill()

    def _handle(self, report: Report) -> None:
        """One report of the zygote."""
        if report["event"] == "ready":
            self._zygote_pid = report["pid"]
            if self._zygote_ready is not None:
                _settle(self._zygote_ready)
            try:
                (self._state / "zygote.json").write_text(json.dumps(describe_process(self._zygote_pid)))
            except OSError as problem:  # who comes after a kill finds it by its mark
                log.warning("zygote not noted", error=str(problem))
            return
        if report["event"] == "zygote gone":
            self._lose_zygote()
            return
        cell = self._cells.get(report.get("id", ""))
        if cell is None:
            return
        if report["event"] == "spawned":
            cell.pid = report["pid"]
        elif report["event"] == "failed":
            if not cell.ready.done():
                cell.ready.set_exception(StartError(f"the host refuses the sandbox: {report['message']}"))
                cell.ready.exception()
            if not report.get("is_alive", False):
                self._bury(cell)
        elif report["event"] == "gone":
            cell.status = report["status"]
            if isinstance(cell.channel, Channel):
                cell.channel.catch_up()  # its last words were said before it ended
            self._bury(cell)

    def _bury(self, cell: Cell) -> None:
        if self._cells.pop(cell.name, None) is None:
            return
        cell.channel.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(cell.name, dir_fd=self._sockets)
        for descriptor in cell.left_fds.values():
            os.close(descriptor)
        cell.left_fds.clear()
        cell.was_oom_killed = self._groups.was_oom_killed(cell.name)
        self._groups.remove(cell.name)
        self._slots.append(cell.slot)
        if not cell.ready.done():
            cell.ready.set_exception(StartError("the sandbox ended while it was made"))
            cell.ready.exception()
        if cell in self._warm:
            self._warm.remove(cell)
        _settle(cell.gone)

    def _lose_zygote(self) -> None:
        """What it forked lives on; the next sandbox asks for another."""
        self._zygotes_lost += 1
        waiting, self._zygote_ready, self._zygote_pid = self._zygote_ready, None, 0
        if waiting is not None and not waiting.done():
            waiting.set_exception(StartError("the zygote ended; its log is zygote.log"))
            waiting.exception()
        elif not self._is_closing:
            self.refill_soon()

    def _lose_all(self) -> None:
        """The supervisor has ended, so every sandbox has."""
        self._lose_zygote()
        for cell in list(self._cells.values()):
            if cell.is_frozen and self._groups.can_freeze:
                self._groups.thaw(cell.name)  # what stands still in a version 1 group cannot die
            self._bury(cell)


def _bound_files(cell: Cell, limits: Limits) -> None:
    """One that was made for nobody has room for more files than its pod's memory holds."""
    room = room_for_files(limits)
    if room < STORAGE_BYTES:
        try:
            linux.resize_tmpfs(f"/proc/{cell.pid}/root", room)
        except OSError as problem:  # it is as it was: who fills it is ended instead of refused
            log.warning("files of a sandbox are not bounded by its memory", sandbox=cell.name, error=str(problem))


def running_pids(cell: Cell) -> list[int]:
    """Processes of a sandbox, as the host numbers them: those below its first one."""
    found, todo = [], [cell.pid]
    while todo:
        pid = todo.pop()
        found.append(pid)
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{pid}/task"):
                todo += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def _settle(future: "asyncio.Future[Any]") -> None:
    if not future.done():
        future.set_result(None)
