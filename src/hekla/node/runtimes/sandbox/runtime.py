"""Runs pods as sandboxes: processes forked from a zygote into namespaces of their own, with filters, and a daemon as their first process.

It implements `Runtime` for the agent and `SandboxRuntime` for sessions. The boundary is the host's kernel (`shared-kernel`); what the host
must allow for it is tried at the start, and where it does not, every pod is refused with the reason.

    supervisor.py  parent of all, outlives us    notes.py       what it holds for our next life
    zygote.py      forks                         inside.py      what the child does
    cells.py       sandboxes                     stock_size.py  how many wait for a pod
    plan.py        what one is made of           groups.py      limits, usage, freezer
    archive.py     files packed and unpacked     checkpoints.py where those stay
    ahead.py       copies before their pods      room.py        memory without groups
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal as signals
import socket
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from hekla.api.agents.egress import RulesError, rules_of
from hekla.api.agents.names import EGRESS, ISOLATION_STRENGTHS, OWNER, RESTORE_FROM
from hekla.api.agents.node_contract import DAEMON_MODULE, DAEMON_PORTS, CheckpointKind, Claim, Usage
from hekla.node.egress.broker import PORT, EgressBroker
from hekla.node.pod_record import Exit
from hekla.node.runtimes import (
    ContainerKey,
    ContainerSpec,
    ExecError,
    ExecSession,
    Feature,
    LogOptions,
    Observed,
    OnExit,
    StartError,
)
from hekla.node.runtimes.isolation import filters
from hekla.node.runtimes.logs import last_text, read_log
from hekla.node.runtimes.process_exec import LIFE, AttachedStreams, ProcessExec
from hekla.node.runtimes.sandbox import SandboxError, SandboxFeature, bundle
from hekla.node.runtimes.sandbox.ahead import CopiesAhead, Copy
from hekla.node.runtimes.sandbox.apart import why_nothing_is_set_apart
from hekla.node.runtimes.sandbox.cells import Cell, CellKeeper, Cells
from hekla.node.runtimes.sandbox.channel import Message, OrderRefusedError, SandboxGoneError
from hekla.node.runtimes.sandbox.checkpoints import CheckpointStore
from hekla.node.runtimes.sandbox.groups import PREFIX, SandboxGroups, find_groups, sweep_abandoned, sweep_groups
from hekla.node.runtimes.sandbox.last_word import LastWord
from hekla.node.runtimes.sandbox.notes import Note, read, spec_to_keep, write
from hekla.node.runtimes.sandbox.own_command import MAIN, CommandLink, OwnCommand
from hekla.node.runtimes.sandbox.plan import Host, environment_of, packages
from hekla.node.runtimes.sandbox.room import keep_room
from hekla.node.runtimes.sandbox.usage import Meter
from hekla.node.runtimes.sandbox.way_out import ENVIRONMENT, SecretOfPod, broker_for, no_secrets

log = structlog.get_logger(__name__)

PRELOAD = ("numpy", "pandas")
"""Imported by the zygote where they are installed: an interpreter has them without the 170 ms that numpy takes."""
WARM = 8
"""As many as a fork makes copies at a time; each takes 10 MiB."""
OOM_SIGNAL = 9
GONE = 503
HALFWAY = 422
"""The daemon itself refused: it may have taken a part of what it was told."""
GRACE_S = 60.0
"""How long sandboxes wait for a node that was killed."""


@dataclass(slots=True)
class _Box:
    """One attempt at a container, and its sandbox."""

    spec: ContainerSpec
    cell: Cell
    command: OwnCommand
    meter: Meter
    started_at: float
    broker: EgressBroker | None = None
    session: str = ""
    """Whose it is, or is about to be."""
    is_claimed: bool = False
    takes_key: bool = False
    told_early: Claim | None = None
    """What its daemon was told as it started; who claims it has not heard of that yet."""
    is_running: bool = False
    is_strange: bool = False
    """An earlier life of this node made it, and its daemon has not been asked yet how it is."""
    claiming: asyncio.Lock = field(default_factory=asyncio.Lock)
    word: LastWord = field(default_factory=LastWord)
    told: Message | None = None
    """How the pod's command ended."""
    why_ended: str = ""
    """Why we ended it for want of memory; empty: we did not."""
    is_stopped: bool = False
    """It was to end, whatever had happened in it before."""
    exit: Exit | None = None
    gone: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    kept: ContainerSpec = field(init=False)
    """What of `spec` a later life is to know. Worked out once: it was 20 of the 26 us of each note, and a claim has two."""

    def __post_init__(self) -> None:
        self.is_for(self.spec)

    def is_for(self, spec: ContainerSpec) -> None:
        """Have this as its container from now on."""
        self.spec, self.kept = spec, spec_to_keep(spec)

    def remember(self) -> None:
        """Let a later life of this node know all of this."""
        note = Note(
            spec=self.kept, started_at=self.started_at, is_running=self.is_running, session=self.session,
            is_claimed=self.is_claimed, order=self.word.order, meter=self.meter.state(),
        )  # fmt: skip
        self.cell.remember(write(note))

    async def remembered(self) -> None:
        """The same, and return once it outlives this process: what is told to anybody next must be known to the next life."""
        self.remember()
        await self.cell.remembered()


class DaemonSandboxes:
    """A runtime whose every container has the daemon inside; a `CellKeeper` makes what the daemon is inside of."""

    name: str
    isolation: str

    def __init__(
        self, state: Path, *, checkpoints: CheckpointStore | None = None, groups: SandboxGroups | None = None
    ) -> None:
        """`state` is ours alone; `groups` are found if not given."""
        self._state = state
        self._checkpoints = checkpoints or CheckpointStore(state / "checkpoints")
        self._digest = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]
        self._boxes: dict[ContainerKey, _Box] = {}
        self._starting: dict[ContainerKey, asyncio.Task[None]] = {}
        self._on_exit: OnExit = lambda key, end: None
        self._cells: CellKeeper | None = None
        self._burials: set[asyncio.Task[None]] = set()
        self._copies = CopiesAhead(self._end_cell)
        self._claims: dict[str, Claim] = {}
        """Of pods that are on their way, by uid, until those who claim them let go."""
        self._forced_groups = groups
        self.groups = SandboxGroups(why_none="not opened yet")
        self._sessions: dict[str, dict[str, ProcessExec]] = {}
        self.secret_of: SecretOfPod = no_secrets
        """Where the broker finds secrets; the agent says."""
        self._refusal = "the runtime is not open"

    @property
    def features(self) -> frozenset[Feature]:
        """What its containers can."""
        return frozenset(
            (
                Feature.EXEC,
                Feature.LOGS,
                Feature.TTY,
                Feature.PROCESSES,
                Feature.MOUNTS,
                Feature.DAEMON,
                Feature.HOST_FILES,
            )
        )

    @property
    def sandbox_features(self) -> frozenset[SandboxFeature]:
        """What its sandboxes can, if any can run."""
        if self._refusal:
            return frozenset()
        return frozenset(SandboxFeature) - {SandboxFeature.CHECKPOINT_MEMORY}

    @property
    def refusal(self) -> str:
        """Why none can run here; empty: they can."""
        return self._refusal

    @property
    def unshared(self) -> str:
        """Why they do not share the processors by what their pods ask for; empty: they do."""
        return self.groups.unshared

    async def open(self, on_exit: OnExit) -> None:
        """Take up what an earlier life left running, or end it; what sandboxes are made of comes with the first of them."""
        self._state.mkdir(parents=True, exist_ok=True, mode=0o700)
        left = await self._find_left()
        group_name = f"{PREFIX}{self._digest}"
        if self._forced_groups is None:
            with contextlib.suppress(OSError):  # groups that are not ours to change hold nothing of ours
                await asyncio.to_thread(sweep_groups, group_name, [cell.name for cell, _ in left])
                await asyncio.to_thread(sweep_abandoned, group_name)
            self.groups = await asyncio.to_thread(find_groups, group_name)
        else:
            self.groups = self._forced_groups
        self._on_exit = on_exit
        self._cells, self._refusal = await self._find_cells()
        for cell, note in left:
            await self._take_up(cell, note)

    async def _find_left(self) -> Sequence[tuple[Cell, Message]]:
        """Sandboxes that outlived an earlier life, and its notes on them."""
        return ()

    async def _take_up(self, cell: Cell, message: Message) -> None:
        """It goes on as if nothing had been; one whose start was not over is nobody's, and ends."""
        try:
            note = read(message)
            broker = broker_for(note.spec, self.secret_of) if "egress" in cell.left_fds else None
        except (msgspec.ValidationError, StartError) as problem:
            log.warning("a sandbox of an earlier life is not understood", sandbox=cell.name, error=str(problem))
            self._later(self._end_cell(cell))
            return
        if not note.is_running:
            self._later(self._end_cell(cell))
            return
        command = OwnCommand(cell, note.spec, self._log_path(note.spec.key))
        box = _Box(
            note.spec, cell, command, Meter(self.groups, cell), note.started_at, broker, session=note.session,
            is_claimed=note.is_claimed, is_running=True, is_strange=True, word=LastWord(note.order),
        )  # fmt: skip
        command.go_on()
        if broker is not None:
            box.meter.traffic = broker.traffic
            await broker.serve(socket.socket(fileno=cell.left_fds.pop("egress")))
        box.meter.go_on(note.meter)
        if cell.is_frozen:
            box.meter.froze()
        else:
            box.meter.thawed()
        box.meter.on_look = box.remember
        self._boxes[note.spec.key] = box
        cell.on_event = partial(self._hear, box)
        for said in cell.unheard:
            self._hear(box, said)
        cell.gone.add_done_callback(lambda done: self._bury(box))
        log.info("sandbox taken up", pod_uid=note.spec.key.pod_uid, frozen=cell.is_frozen, session=note.session[:8])
        if not cell.is_frozen and not cell.gone.done():
            self._later(self._ask_how_it_is(box))

    async def _ask_how_it_is(self, box: _Box) -> None:
        """What its daemon told an earlier life just before that was killed, and commands that it ran for that life, which end."""
        box.is_strange = False
        try:
            answer, _ = await box.cell.channel.ask("again", {"id": MAIN, "life": LIFE})
        except (OrderRefusedError, SandboxGoneError) as problem:
            log.warning("a sandbox of an earlier life does not answer", sandbox=box.cell.name, error=str(problem))
            await self._end(box)
            return
        if box.spec.argv and box.told is None and answer["ended"] is not None:
            self._hear(box, answer["ended"])

    async def _end_cell(self, cell: Cell) -> None:
        if self._cells is not None:
            await self._cells.end(cell)

    async def _find_cells(self) -> tuple[CellKeeper | None, str]:
        """What makes sandboxes on this host, and why none can be made; empty: they can."""
        raise NotImplementedError

    async def prepare(self) -> None:
        """Fill the pool, before anybody waits for it."""
        if self._cells is not None and not self._refusal:
            await self._cells.prepare()

    async def start(self, container: ContainerSpec) -> str:
        """A sandbox with its daemon, and the container's command beside it if it has one."""
        key = container.key
        if key not in self._boxes:
            task = self._starting.get(key)
            if task is None:
                task = self._starting[key] = asyncio.get_running_loop().create_task(self._start(container))
                task.add_done_callback(lambda done: self._starting.pop(key, None))
            await asyncio.shield(task)
        return container_id(key)

    async def _start(self, container: ContainerSpec) -> None:
        if self._refusal or self._cells is None:
            raise StartError(f"no sandbox can run on this node: {self._refusal}")
        if container.is_privileged or container.keep_capabilities:
            raise StartError(
                f'container "{container.key.name}" asks for privileges (privileged, or capabilities.add), which no sandbox gives'
            )
        broker = broker_for(container, self.secret_of)
        copy = await self._copies.taken(container, is_simple=self._is_simple(container))
        if copy is None:
            cell = await self._cells.take(container)
        else:
            cell = copy.cell
            self._cells.refill_soon()  # not from when it was taken: somebody waits for it until now
        command = OwnCommand(cell, container, self._log_path(container.key))
        box = _Box(container, cell, command, Meter(self.groups, cell), time.time(), broker)
        cell.on_event = partial(self._hear, box)
        try:
            await self._go(box, copy)
            if broker is not None:
                listening = await self._handed_out(box, "listen", PORT)
                cell.keep("egress", listening.fileno())
                await broker.serve(listening)
                box.meter.traffic = broker.traffic
            await self._restore(box)
            await command.start()
        except (StartError, SandboxError, OrderRefusedError, SandboxGoneError) as refusal:
            await self._cells.end(cell)
            command.close()
            box.meter.close()
            if broker is not None:
                await broker.close()
            raise StartError(str(refusal)) from None
        self._boxes[container.key] = box
        box.is_running = True
        box.remember()
        box.meter.on_look = box.remember
        cell.gone.add_done_callback(lambda done: self._bury(box))
        await cell.remembered()
        self._copies.tell_started(container.key.pod_uid)

    async def _go(self, box: _Box, copy: Copy | None) -> None:
        """Tell the daemon what the pod brings, and whose it is if that is known; a copy knows. No note is taken before all of the start is
        over: without one a sandbox ends with its node, and nothing that was being started is to outlive it.
        """
        container = box.spec
        variables = environment_of(container) | (ENVIRONMENT if box.broker else {})
        order: Message = {"hostname": container.hostname[:63] or "sandbox", "env": variables}
        claim = self._claims.pop(container.key.pod_uid, None) if copy is None and not _begins_with(container) else None
        if claim is not None:
            order["claim"] = _told_of(claim)
        answer, _ = await box.cell.channel.ask("go", order)
        if copy is not None:
            box.session, box.is_claimed = copy.session, True
        elif claim is not None and answer.get("is_claimed") is True:  # a daemon of an older zygote does not look at it
            box.session, box.is_claimed, box.told_early = claim.session, True, claim
            box.takes_key = answer.get("takes_key") is True
            box.meter.begin()

    async def _restore(self, box: _Box) -> None:
        """Files and variables of the checkpoint that the pod names, before anything of it runs."""
        wanted = box.spec.annotations.get(RESTORE_FROM, "")
        if not wanted:
            return
        known, source = await asyncio.to_thread(self._checkpoints.open, wanted, box.spec.annotations.get(OWNER, ""))
        try:
            await self._unpack(box, known.kind, source)
        finally:
            os.close(source)

    async def stop(self, key: ContainerKey, *, grace_s: float, signal: str = "SIGTERM") -> None:
        """Its command gets the signal and the grace; a sandbox without one has nothing to save."""
        box = self._boxes.get(key)
        if box is None or self._cells is None:
            return
        if box.spec.argv and grace_s > 0 and not box.cell.gone.done():
            await self.thaw(key)
            await box.command.signal(int(getattr(signals, signal, signals.SIGTERM)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(box.cell.gone)
        box.is_stopped = not box.cell.gone.done()
        await self._cells.end(box.cell)
        await asyncio.shield(box.gone)

    async def remember(self, key: ContainerKey, memory: Mapping[str, Any]) -> None:
        """Nothing is kept."""

    async def observe(self) -> Mapping[ContainerKey, Observed]:
        """All attempts of this life."""
        return {key: Observed(container_id(key), box.started_at, box.exit) for key, box in self._boxes.items()}

    async def exec(
        self, key: ContainerKey, argv: Sequence[str], *, has_stdin: bool = False, has_tty: bool = False
    ) -> ExecSession:
        """Run a command in the sandbox, as its root if the container names no user."""
        box = self._boxes.get(key)
        if box is None or box.exit is not None:
            raise ExecError(f"container {key.name} is not running")
        if box.cell.is_frozen:
            raise ExecError(f"container {key.name} is frozen; thaw it first")
        link = CommandLink(box.cell, box.spec)
        session = link.session = ProcessExec(link, has_stdin=has_stdin, has_tty=has_tty)
        self._sessions_of(box)[session.id] = session
        await session.start(key.name, list(argv))
        return session

    async def attach(self, key: ContainerKey) -> ExecSession:
        """The command's output as it comes; its input is closed."""
        box = self._boxes.get(key)
        if box is None or box.exit is not None:
            raise ExecError(f"container {key.name} is not running")
        return AttachedStreams(
            CommandLink(box.cell, box.spec), key.name, box.spec, self._state, self._log_path(key), box.gone
        )

    async def logs(self, key: ContainerKey, options: LogOptions) -> AsyncIterator[bytes]:
        """What the container's command printed."""
        path, box = self._log_path(key), self._boxes.get(key)
        if box is None and not path.exists():
            raise LookupError(f"there is no log of attempt {key.attempt} of container {key.name}")
        async for piece in read_log(path, options, lambda: box is not None and not box.gone.done()):
            yield piece

    async def remove(self, pod_uid: str) -> None:
        """Forget a pod's ended attempts and their logs."""
        for key in [key for key, box in self._boxes.items() if key.pod_uid == pod_uid and box.gone.done()]:
            del self._boxes[key]
        logs = self._state / "logs" / pod_uid
        if logs.exists():  # of most sandboxes there are none
            await asyncio.to_thread(shutil.rmtree, logs, ignore_errors=True)

    async def leave(self) -> None:
        """What ends with its agent ends."""
        await self.close()

    async def close(self) -> None:
        """End everything."""
        self._on_exit = lambda key, end: None
        await self._copies.close()
        if self._cells is not None:
            await self._cells.close()
        self.groups.close()

    # sessions

    async def claim(self, key: ContainerKey, claim: Claim) -> bool:
        """Tell the daemon whose it is: one message, 0.5 ms."""
        box = self._box(key)
        return await self._claim(box, claim.session, "claim", _told_of(claim))

    async def claim_as_copy(self, key: ContainerKey, source: int, claim: Claim) -> bool:
        """All in one message, as eight copies are made of one sandbox at a time."""
        box = self._box(key)
        with bundle.reading(source) as parts:
            order = {"claim": _told_of(claim), "has_files": parts.has_files, "has_variables": parts.has_variables}
            return await self._claim(box, claim.session, "copy", order, parts.filled)

    def expect_copy(self, key: ContainerKey, pod_uid: str, source: int, claim: Claim) -> None:
        """It is filled while its pod is on its way, if a sandbox for it waits."""
        parent = self._boxes.get(key)
        if self._cells is None or parent is None or self._copies.is_expected(pod_uid):
            return
        like = parent.spec
        if self._is_simple(like) and (cell := self._cells.spare(like)) is not None:
            self._copies.fill(pod_uid, cell, like.limits, source, claim.session, _told_of(claim))

    def _is_simple(self, container: ContainerSpec) -> bool:
        """Whether it needs nothing but a sandbox: what else is done when one is started comes before anything is copied."""
        return not _begins_with(container) and self._cells is not None and self._cells.is_warm_for(container)

    async def until_started(self, pod_uid: str, within_s: float) -> None:
        """Told by the start itself, before anybody has heard of it."""
        await self._copies.until_started(pod_uid, within_s)

    def let_copy_go(self, pod_uid: str) -> None:
        """It ends, if it has not become its pod's."""
        self._copies.let_go(pod_uid)

    async def _claim(self, box: _Box, session: str, op: str, told: Message, fds: Sequence[int] = ()) -> bool:
        async with box.claiming:
            if box.session and box.session != session:
                raise SandboxError(409, "the sandbox was claimed by another session")
            if box.is_claimed:
                early, box.told_early = box.told_early, None
                if early is not None and _told_of(early)["secrets"] != told.get("secrets"):  # of a try before this one
                    box.takes_key = False
                return early is not None
            box.session = session
            await box.remembered()  # before it is told: killed in between, we must not give it to anybody else
            try:
                answer, _ = await self._ask(box, op, told, fds)
            except SandboxError as refusal:
                if (
                    refusal.code == HALFWAY
                ):  # it has somebody's files or secrets, and is nobody's: nobody must ever get it
                    self._later(self._end(box))
                elif refusal.code != GONE:
                    box.session = ""  # it heard nothing
                    await box.remembered()  # in a later life too
                raise
            box.is_claimed, box.takes_key = True, answer.get("takes_key") is True
            box.meter.begin()
            await box.remembered()
            return True

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """It goes with the first order that its daemon gets."""
        self._claims[pod_uid] = claim

    def let_claim_go(self, pod_uid: str) -> None:
        """No pod of that uid is claimed as it starts."""
        self._claims.pop(pod_uid, None)

    def takes_key(self, key: ContainerKey) -> bool:
        """As the daemon answered."""
        return self._box(key).takes_key

    def has(self, key: ContainerKey) -> bool:
        """Whether it runs."""
        box = self._boxes.get(key)
        return box is not None and box.exit is None

    def session_of(self, key: ContainerKey) -> str:
        """Whose it is."""
        box = self._box(key)
        return box.session if box.is_claimed else ""

    async def freeze(self, key: ContainerKey, order: int = 0) -> None:
        """By the freezer, or by SIGSTOP to all where there is none."""
        box = self._box(key)
        assert self._cells is not None, "a box has a cell"
        async with box.word.taken(order) as is_new:
            if not box.cell.is_frozen:
                try:
                    await self._cells.freeze(box.cell)
                except (TimeoutError, SandboxGoneError, OrderRefusedError) as problem:
                    raise SandboxError(503, str(problem)) from None
                box.meter.froze()
            elif not is_new:
                return
            await box.remembered()

    async def thaw(self, key: ContainerKey, order: int = 0) -> None:
        """It goes on."""
        box = self._box(key)
        async with box.word.taken(order) as is_new:
            was_frozen = box.cell.is_frozen
            if was_frozen:
                assert self._cells is not None, "a box has a cell"
                with contextlib.suppress(SandboxGoneError):  # then there is nothing to go on
                    await self._cells.thaw(box.cell)
                box.meter.thawed()
            if was_frozen or is_new:
                await box.remembered()
            if was_frozen and box.is_strange:
                await self._ask_how_it_is(box)

    def last_order(self, key: ContainerKey) -> int:
        """The latest that had a number."""
        return self._box(key).word.order

    def is_frozen(self, key: ContainerKey) -> bool:
        """Whether it stands still."""
        return self._box(key).cell.is_frozen

    async def pack(self, key: ContainerKey, kind: CheckpointKind, output: int) -> Sequence[str]:
        """Files by the sandbox itself; variables by its interpreters."""
        box = self._box(key)
        if kind is CheckpointKind.MEMORY:
            await self._pack_memory(box.cell, box.spec, output)
            return ()
        left_out: list[str] = []
        with bundle.writing(output) as parts:
            # variables first: they wait for cells that run, and cells write files (12 ms for 100,000 numbers and 5 MB; 11 at once)
            if kind is CheckpointKind.INTERPRETER:
                saved, _ = await self._ask(box, "save", {}, (parts.variables,))
                left_out += saved["left_out"]
            packed, _ = await self._ask(box, "pack", {}, (parts.files,))
            left_out += [f"{path}: neither file, directory nor link" for path in packed["left_out"]]
            left_out += [
                f"{path}: not even the sandbox's own daemon may read it" for path in packed.get("unreadable", ())
            ]
        return left_out

    async def unpack(self, key: ContainerKey, kind: CheckpointKind, source: int) -> None:
        """Before anybody's first command."""
        await self._unpack(self._box(key), kind, source)

    async def _pack_memory(self, cell: Cell, spec: ContainerSpec, output: int) -> None:
        raise SandboxError(412, "this runtime cannot write memory down; a microvm can")

    async def _unpack_memory(self, cell: Cell, source: int) -> None:
        raise SandboxError(412, "this runtime cannot read memory back; a microvm can")

    async def _unpack(self, box: _Box, kind: CheckpointKind, source: int) -> None:
        if kind is CheckpointKind.MEMORY:
            await self._unpack_memory(box.cell, source)
            return
        with bundle.reading(source) as parts:
            if parts.has_files:
                await self._ask(box, "unpack", {}, (parts.files,))
            if kind is CheckpointKind.INTERPRETER and parts.has_variables:
                await self._ask(box, "load", {}, (parts.variables,))

    async def usage(self, key: ContainerKey) -> Usage:
        """What its group counted, or its processes."""
        return self._box(key).meter.read()

    async def dial(self, key: ContainerKey, port: int) -> socket.socket:
        """The daemon's ports are its socket; others are connected from inside, and the connection handed out."""
        box = self._box(key)
        if box.cell.is_frozen:
            raise SandboxError(409, "the sandbox is frozen; thaw it first")
        if port == 0 or port in DAEMON_PORTS:
            assert self._cells is not None, "a box has a cell"
            try:
                return await self._cells.dial_daemon(box.cell)
            except SandboxGoneError as problem:
                raise SandboxError(503, str(problem)) from None
        return await self._handed_out(box, "dial", port)

    async def restrict(self, key: ContainerKey, allowed: str) -> None:
        """By its broker, at once; no way out is made for one that began without."""
        box = self._box(key)
        try:
            rules = rules_of(allowed)
        except RulesError as problem:
            raise SandboxError(422, str(problem)) from None
        if box.broker is not None:
            box.broker.change(rules)
            box.is_for(replace(box.spec, annotations={**box.spec.annotations, EGRESS: allowed}))
            await box.remembered()
        elif rules:
            raise SandboxError(412, "the sandbox began without a way out, and gets none while it runs")

    async def listen(self, key: ContainerKey, port: int) -> socket.socket:
        """Made inside, accepted from here."""
        return await self._handed_out(self._box(key), "listen", port)

    async def _handed_out(self, box: _Box, op: str, port: int) -> socket.socket:
        if not 0 < port < 65536:
            raise SandboxError(422, f"port {port} is none; ports are 1 to 65535")
        _, fds = await self._ask(box, op, {"port": port})
        if len(fds) != 1:
            for descriptor in fds:
                os.close(descriptor)
            raise SandboxError(503, "the sandbox handed out no connection")
        made = socket.socket(fileno=fds[0])
        made.setblocking(False)
        return made

    async def _ask(self, box: _Box, op: str, message: Message, fds: Sequence[int] = ()) -> tuple[Message, list[int]]:
        if box.cell.is_frozen:
            raise SandboxError(409, "the sandbox is frozen; thaw it first")
        try:
            return await box.cell.channel.ask(op, message, fds)
        except OrderRefusedError as refusal:
            raise SandboxError(502 if op in ("dial", "listen") else 422, str(refusal)) from None
        except SandboxGoneError as problem:
            raise SandboxError(503, str(problem)) from None

    def _box(self, key: ContainerKey) -> _Box:
        box = self._boxes.get(key)
        if box is None or box.exit is not None:
            raise SandboxError(404, f'container "{key.name}" of pod {key.pod_uid} runs in no sandbox here')
        return box

    def _sessions_of(self, box: _Box) -> dict[str, ProcessExec]:
        return self._sessions.setdefault(box.cell.name, {})

    def _hear(self, box: _Box, message: Message) -> None:
        """A command has ended: the pod's own takes the sandbox with it."""
        if message["event"] != "exited":
            return
        if message["id"] == MAIN:
            box.told = message
            box.meter.read()  # while its group is there, and tells whether memory ran out
            self._later(self._end(box))
            return
        session = self._sessions_of(box).pop(message["id"], None)
        if session is not None:
            session.handle({"event": "exec_ended", "code": message["code"]})

    async def _end(self, box: _Box) -> None:
        if self._cells is not None:
            await self._cells.end(box.cell)

    def _later(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._burials.add(task)
        task.add_done_callback(self._burials.discard)

    def _bury(self, box: _Box) -> None:
        """Nothing of it runs any more."""
        box.command.close()
        box.meter.close()
        if box.broker is not None:
            self._later(box.broker.close())
        for session in self._sessions.pop(box.cell.name, {}).values():
            session.handle({"event": "exec_ended", "code": 137})
        box.exit = self._exit_of(box)
        if not box.gone.done():
            box.gone.set_result(None)
        self._on_exit(box.spec.key, box.exit)

    def _exit_of(self, box: _Box) -> Exit:
        if box.told is not None:
            code, number, message = box.told["code"], box.told["signal"], box.told["message"]
        else:  # the sandbox was ended as a whole
            code, number, message = 137, 9, ""
        reason = "Completed" if code == 0 else "Error"
        if (
            number == OOM_SIGNAL
            and (box.meter.was_oom_killed or box.why_ended)
            and not (box.is_stopped and box.told is None)
        ):
            reason, message = "OOMKilled", message or box.why_ended
        if code != 0 and not message and box.spec.falls_back_to_logs:
            message = last_text(self._log_path(box.spec.key), max_bytes=2048, max_lines=80)
        return Exit(
            code=code, reason=reason, message=message, signal=number, started_at=box.started_at,
            finished_at=time.time(), container_id=container_id(box.spec.key),
        )  # fmt: skip

    def _log_path(self, key: ContainerKey) -> Path:
        return self._state / "logs" / key.pod_uid / key.name / f"{key.attempt}.log"


class ZygoteSandboxes(DaemonSandboxes):
    """The runtime `sandbox`."""

    name = "sandbox"
    isolation = ISOLATION_STRENGTHS[0]

    def __init__(
        self,
        state: Path,
        *,
        checkpoints: CheckpointStore | None = None,
        warm: int = WARM,
        preload: Sequence[str] = PRELOAD,
        groups: SandboxGroups | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        """`warm` sandboxes are kept ready once the first was wanted; all wait for `grace_s` for a node that was killed to come back."""
        super().__init__(state, checkpoints=checkpoints, groups=groups)
        self._warm, self._preload = warm, tuple(preload)
        self._grace_s = grace_s
        self._zygotes: Cells | None = None
        self._room: asyncio.Task[None] | None = None
        """Where no control group bounds memory."""

    @property
    def zygote_pid(self) -> int:
        """The process that sandboxes are forked from; 0 if none was wanted yet."""
        return self._zygotes.zygote_pid if self._zygotes is not None else 0

    @property
    def is_refilling(self) -> bool:
        """Whether warm sandboxes are being made."""
        return self._zygotes is not None and self._zygotes.is_refilling

    async def open(self, on_exit: OnExit) -> None:
        """And look after memory where the kernel does not."""
        await super().open(on_exit)
        if not self._refusal and "memory" not in self.groups.parents:
            self._room = asyncio.get_running_loop().create_task(keep_room(self._holders, self._end_for_memory))

    def _holders(self) -> Sequence[tuple[Cell, int]]:
        boxes = (box for box in self._boxes.values() if box.is_running and not box.cell.gone.done())
        return [(box.cell, box.spec.limits.memory_bytes) for box in boxes]

    async def _end_for_memory(self, name: str, why: str) -> None:
        for box in list(self._boxes.values()):
            if box.cell.name == name and not box.cell.gone.done():
                box.why_ended = why
                await self._end(box)

    def _watch_no_more(self) -> None:
        if self._room is not None:
            self._room.cancel()
            self._room = None

    async def leave(self) -> None:
        """Those that run wait for the next life, as if we had been killed."""
        self._watch_no_more()
        self._on_exit = lambda key, end: None
        await self._copies.close()
        if self._cells is not None and self._cells is self._zygotes:
            await self._zygotes.leave()

    async def close(self) -> None:
        """End everything, the zygote too."""
        self._watch_no_more()
        await super().close()
        (self._state / "zygote.json").unlink(missing_ok=True)

    async def _find_left(self) -> Sequence[tuple[Cell, Message]]:
        host = Host(is_root=os.geteuid() == 0, has_landlock=filters().landlock, preload=self._preload)
        arguments = (":".join(map(str, packages())), DAEMON_MODULE, ",".join(self._preload))
        self._zygotes = Cells(self._state, host, self.groups, arguments, warm=self._warm, grace_s=self._grace_s)
        return await self._zygotes.find()

    async def _find_cells(self) -> tuple[CellKeeper | None, str]:
        """What can be known without a zygote: that starts with the first sandbox, which tells the rest."""
        if not filters().seccomp or self._zygotes is None:
            return None, "the kernel has no seccomp filters for this machine, and no sandbox runs without"
        self._zygotes.use(self.groups)
        return self._zygotes, await why_nothing_is_set_apart()


def _begins_with(container: ContainerSpec) -> bool:
    """Whether something of the pod's is there before anybody claims it: a command, or a checkpoint."""
    return bool(container.argv) or RESTORE_FROM in container.annotations


def _told_of(claim: Claim) -> Message:
    return {
        "hostname": claim.hostname, "env": claim.env, "random_seed": claim.random_seed, "default_user": claim.default_user,
        "secrets": {
            "access_token": claim.access_token, "public_key": claim.public_key, "audience": claim.audience,
            "session": claim.session, "token_key": claim.token_key,
        },
    }  # fmt: skip


def container_id(key: ContainerKey) -> str:
    """The id that statuses show."""
    return f"sandbox://{key.pod_uid}/{key.name}/{key.attempt}"
