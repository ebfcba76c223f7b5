"""Runs containers as processes of this machine: set apart as far as the host allows, and never left behind.

A small spawner process forks one *init* per container (`hekla.node.shim`), which prepares the container's world,
runs its command, keeps its log and reaps. When this process dies, however it dies, the spawner and all it runs wait for the next one,
whose `open` takes them up, and sweeps what no spawner holds; where none comes within the grace they end. `isolation.py` finds the rung,
`cgroups.py` the limits, `confine.py` turns a `ContainerSpec` into what an init does.
"""

import asyncio
import contextlib
import hashlib
import os
import shutil
import signal as signals
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import structlog

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
    attempt_notes,
)
from hekla.node.runtimes.attempt_notes import Note
from hekla.node.runtimes.cgroups import CgroupTree, CgroupV2, NoCgroups, find_cgroups
from hekla.node.runtimes.confine import Confiner, rewrite
from hekla.node.runtimes.isolation import PROBE_TIMEOUT_S, PROCESS_GROUP, Isolation, Rung, candidates, filters
from hekla.node.runtimes.logs import last_text, read_log
from hekla.node.runtimes.process_bound import ProcessBound, find_bound
from hekla.node.runtimes.process_exec import AttachedStreams, ProcessExec
from hekla.node.runtimes.spawner_link import Left, Report, SpawnerGoneError, SpawnerLink
from hekla.node.runtimes.spawners import Spawners
from hekla.node.runtimes.sweep import sweep
from hekla.node.shim.mounts import crowded

log = structlog.get_logger(__name__)

START_TIMEOUT_S = 60.0
"""A start takes milliseconds; this bounds one on a machine that swaps."""

KILL_PATIENCE_S = 10.0
"""How long an init may take to kill and reap what it holds before it is killed itself."""

PROBE = "probe"
"""Instead of a pod's uid, of what only tries whether containers run."""

LOST_WITH_SPAWNER = "the node's process that holds its containers (the spawner) has ended, and this container with it"
GRACE_S = 60.0
"""How long containers wait for the next life of their node, unless it says otherwise."""


FEATURES = frozenset(
    {
        Feature.EXEC, Feature.LOGS, Feature.STDIN, Feature.TTY, Feature.PROCESSES, Feature.HOST_FILES, Feature.MEMORY,
    }
)  # fmt: skip


@dataclass(slots=True)
class _Attempt:
    """One attempt: what was asked, and what has come of it."""

    spec: ContainerSpec
    link: SpawnerLink
    directory: Path
    groups: Sequence[Path]
    started: "asyncio.Future[None]"
    gone: "asyncio.Future[None]"
    started_at: float = 0.0
    exit: Exit | None = None
    rewritten: Sequence[tuple[str, str]] = ()
    """Paths that the rung replaces in commands, for want of mounts."""
    has_terminals: bool = False
    """Commands in it get terminals of its own."""
    memory: Mapping[str, Any] = field(default_factory=dict)
    """What an earlier life of the node remembered of it."""
    senseless: str = ""
    """Why it was ended when it was to be taken up; empty of all others."""


class ProcessRuntime:
    """Containers as real processes."""

    name = "process"

    def __init__(
        self, state: Path, *, hidden: Sequence[Path] = (), rung: Rung | None = None, grace_s: float = GRACE_S
    ) -> None:
        """`state` is ours alone; containers never see what is in `hidden`; `rung` forces a lower one (tests). For `grace_s`, which may be
        infinite, containers outlive us if we are killed, or leave.
        """
        self._state = state
        self._hidden = tuple(hidden)
        self._forced_rung = rung
        self._digest = hashlib.sha256(os.fsencode(state.resolve())).hexdigest()[:12]
        self._attempts: dict[ContainerKey, _Attempt] = {}
        self._execs: dict[str, tuple[SpawnerLink, ProcessExec]] = {}
        self._on_exit: OnExit = lambda key, end: None
        self._spawners = Spawners(state / "spawners", self._handle, self._lose_all, grace_s=grace_s)
        self._confiner: Confiner | None = None
        self.isolation = Isolation(rung=PROCESS_GROUP, has_landlock=False, has_seccomp=False)
        self.cgroups: CgroupTree = NoCgroups("not opened yet")
        self.process_bound = ProcessBound(None, 0, "not opened yet")
        self._bounded = 0
        """The spawner that was told to be held by it."""

    @property
    def features(self) -> frozenset[Feature]:
        """Everything; mounts only where the rung has them."""
        return FEATURES | {Feature.MOUNTS} if self.isolation.rung.has_mounts else FEATURES

    async def open(self, on_exit: OnExit) -> None:
        """Take up what an earlier life left, start a spawner, and find the rung."""
        for name in ("containers", "logs", "root"):
            (self._state / name).mkdir(parents=True, exist_ok=True, mode=0o700)
        loop = asyncio.get_running_loop()
        await self._take_up_what_is_left()
        pods = {key.pod_uid for key in self._attempts}
        spare = partial(sweep, self._state, self._digest, spawners=self._spawners.pids, pods=pods)
        await loop.run_in_executor(None, spare)
        self.cgroups = await loop.run_in_executor(None, find_cgroups, f"hekla-{self._digest}")
        for attempt in self._attempts.values():
            if attempt.gone.done():
                self.cgroups.remove(attempt.groups)
        group = self.cgroups.parent if isinstance(self.cgroups, CgroupV2) else None
        self.process_bound = await loop.run_in_executor(None, find_bound, f"hekla-{self._digest}", group)
        self._spawner()
        await loop.run_in_executor(None, self._warn_of_crowds)
        self.isolation = await self._find_isolation()
        self._confiner = self._confiner_for(self.isolation)
        self._on_exit = on_exit

    def _spawner(self) -> SpawnerLink:
        link = self._spawners.open()
        if link.pid != self._bounded:
            self._bounded = link.pid
            self.process_bound.take(link.pid)
        return link

    def _warn_of_crowds(self) -> None:
        """With more entries the mounts of one container would be too many."""
        for directory, entries in crowded([str(path) for path in self._hidden]).items():
            log.warning(
                "a directory has too many entries to be shown without the node's credentials: containers do not start with mounts",
                directory=directory, entries=entries,
            )  # fmt: skip

    async def start(self, container: ContainerSpec) -> str:
        """Start one attempt; a second call with the same key finds it."""
        if container.key not in self._attempts:
            await self._launch(container)
        attempt = self._attempts[container.key]
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(attempt.started)
        except TimeoutError:
            await attempt.link.send({"order": "kill", "id": _text(container.key)})
            raise StartError(f"its process did not start within {START_TIMEOUT_S:g} s") from None
        return container_id(container.key)

    async def stop(self, key: ContainerKey, *, grace_s: float, signal: str = "SIGTERM") -> None:
        """The signal, the grace, and SIGKILL for init, which takes everything along."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.gone.done():
            return
        if grace_s > 0:
            number = getattr(signals, signal, signals.SIGTERM)
            await attempt.link.send({"order": "tell", "id": _text(key), "message": {"signal": int(number)}})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await asyncio.shield(attempt.gone)
        if not attempt.gone.done():
            await attempt.link.send({"order": "tell", "id": _text(key), "message": {"signal": int(signals.SIGKILL)}})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_PATIENCE_S):
                    await asyncio.shield(attempt.gone)
        if not attempt.gone.done():
            await attempt.link.send({"order": "kill", "id": _text(key)})
            await asyncio.shield(attempt.gone)

    async def observe(self) -> Mapping[ContainerKey, Observed]:
        """All attempts of this life, and those of earlier ones that `open` took up."""
        return {
            key: Observed(
                container_id(key), each.started_at, each.exit, each.spec.pod_ip, each.spec.devices, each.memory
            )
            for key, each in self._attempts.items()
            if each.started.done()
        }

    async def remember(self, key: ContainerKey, memory: Mapping[str, Any]) -> None:
        """With the spawner's note of the attempt, also when it has ended."""
        with contextlib.suppress(SpawnerGoneError):  # and with it all there is to remember
            await self._spawners.send_all({"order": "remember", "id": _text(key), "memory": dict(memory)})

    async def exec(
        self, key: ContainerKey, argv: Sequence[str], *, has_stdin: bool = False, has_tty: bool = False
    ) -> ExecSession:
        """Run a command in the container's namespaces, groups and filters."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.exit is not None:
            raise ExecError(f"container {key.name} is not running")
        session = ProcessExec(attempt.link, has_stdin=has_stdin, has_tty=has_tty, has_terminals=attempt.has_terminals)
        self._execs[session.id] = attempt.link, session
        try:
            await session.start(_text(key), [rewrite(word, attempt.rewritten) for word in argv])
        except BaseException:
            self._execs.pop(session.id, None)
            raise
        return session

    async def attach(self, key: ContainerKey) -> ExecSession:
        """The container's own streams: its log as it grows, and the fifo of its standard input."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.exit is not None:
            raise ExecError(f"container {key.name} is not running")
        return AttachedStreams(
            attempt.link, _text(key), attempt.spec, attempt.directory, self._log_path(key), attempt.gone
        )

    async def logs(self, key: ContainerKey, options: LogOptions) -> AsyncIterator[bytes]:
        """Read, and follow, the file that the container's init writes."""
        path = self._log_path(key)
        attempt = self._attempts.get(key)
        if attempt is None and not path.exists():
            raise LookupError(f"there is no log of attempt {key.attempt} of container {key.name}")
        async for piece in read_log(path, options, lambda: attempt is not None and not attempt.gone.done()):
            yield piece

    async def remove(self, pod_uid: str) -> None:
        """Forget a pod's ended attempts and their files."""
        for key in [key for key, each in self._attempts.items() if key.pod_uid == pod_uid and each.gone.done()]:
            del self._attempts[key]
        with contextlib.suppress(SpawnerGoneError):
            await self._spawners.send_all({"order": "forget", "pod": pod_uid})
        for name in ("containers", "logs"):
            await asyncio.get_running_loop().run_in_executor(None, _remove_tree, self._state / name / pod_uid)

    async def leave(self) -> None:
        """The spawners go on with what they hold; one that holds nothing ends."""
        self._on_exit = lambda key, end: None
        await self._spawners.leave()

    async def close(self) -> None:
        """The spawners kill everything and end; nothing is reported any more."""
        self._on_exit = lambda key, end: None
        await self._spawners.close()
        for link in {attempt.link for attempt in self._attempts.values()}:
            self._lose_all(link)
        for attempt in self._attempts.values():
            self.cgroups.remove(attempt.groups)
        self.process_bound.close()
        self.cgroups.close()
        _remove_tree(Path(tempfile.gettempdir()) / f"hekla-{self._digest}")

    async def _take_up_what_is_left(self) -> None:
        for link, left in await self._spawners.find():
            await self._take_up(link, left)
        taken_up = self._attempts.values()
        unsettled = [each.gone for each in taken_up if each.senseless and not each.gone.done()]
        unsettled += [each.started for each in taken_up if not each.senseless and not each.started.done()]
        if unsettled:
            await asyncio.wait(unsettled, timeout=START_TIMEOUT_S)
        for key, attempt in list(self._attempts.items()):
            if not attempt.started.done():
                await attempt.link.send({"order": "kill", "id": _text(key)})

    async def _take_up(self, link: SpawnerLink, left: Left) -> None:
        """As if we had started it. What is noted of it and makes no sense ends it, and is how it ended."""
        key = _key(left.name)
        try:
            note = attempt_notes.read(left.note, key)
            senseless = ""
        except ValueError as problem:
            log.warning(
                "a container of an earlier life makes no sense, and ends", container=left.name, why=str(problem)
            )
            note, senseless = (
                Note(spec=ContainerSpec(key=key, argv=())),
                f"what its node noted of it makes no sense: {problem}",
            )
            await link.send({"order": "kill", "id": left.name})
        attempt = self._attempts[key] = self._new_attempt(note.spec, link)
        attempt.groups, attempt.rewritten = tuple(map(Path, note.groups)), note.rewritten
        attempt.has_terminals, attempt.started_at, attempt.senseless = note.has_terminals, left.started_at, senseless
        attempt.memory = left.memory
        if left.end is not None:
            attempt.exit = self._exit_of(attempt, left.end)
        if left.started_at or left.is_gone:
            _settle(attempt.started)
        if left.is_gone:
            _settle(attempt.gone)

    def _new_attempt(self, container: ContainerSpec, link: SpawnerLink) -> _Attempt:
        loop, key = asyncio.get_running_loop(), container.key
        directory = self._state / "containers" / key.pod_uid / key.name / str(key.attempt)
        return _Attempt(container, link, directory, (), loop.create_future(), loop.create_future())

    async def _launch(self, container: ContainerSpec) -> None:
        assert self._confiner is not None, "a runtime is opened before it starts anything"
        key = container.key
        link = self._spawner()  # where the last one was killed, and its containers with it, another
        attempt = self._attempts[key] = self._new_attempt(container, link)
        directory = attempt.directory
        attempt.has_terminals = self.isolation.rung.has_mounts and not container.is_privileged
        try:
            attempt.groups = self.cgroups.create(_group_name(key), container.limits)
            order = self._confiner.order_for(container, directory, self._log_path(key).parent, attempt.groups)
            attempt.rewritten = order.get("rewritten", ())
            note = attempt_notes.write(
                Note(
                    spec=attempt_notes.spec_to_keep(container), groups=tuple(map(str, attempt.groups)),
                    rewritten=tuple((path, to) for path, to in attempt.rewritten), has_terminals=attempt.has_terminals,
                )
            )  # fmt: skip
            await link.send(
                {"order": "start", "id": _text(key), "spec": order, "note": {} if key.pod_uid == PROBE else note}
            )
        except OSError as problem:
            del self._attempts[key]
            raise StartError(f"cannot prepare {directory}: {problem.strerror}") from None

    def _handle(self, link: SpawnerLink, report: Report) -> None:
        """One report of a spawner."""
        if "session" in report:
            known = self._execs.get(report["session"])
            if known is not None:
                known[1].handle(report)
                if report["event"] != "exec_started":
                    self._execs.pop(report["session"], None)
            return
        attempt = self._attempts.get(_key(report["id"]))
        if attempt is None:
            return
        match report["event"]:
            case "started":
                attempt.started_at = report["at"]
                _settle(attempt.started)
            case "failed" | "exited":
                attempt.exit = self._exit_of(attempt, report)
            case "gone":
                self._bury(attempt)

    def _exit_of(self, attempt: _Attempt, report: Report) -> Exit:
        if attempt.senseless:
            return Exit(
                code=137, reason="ContainerStatusUnknown", message=attempt.senseless, started_at=attempt.started_at,
                finished_at=report["at"], container_id=container_id(attempt.spec.key),
            )  # fmt: skip
        if report["event"] == "failed":
            return Exit(code=128, reason="StartError", message=report["message"], finished_at=report["at"])
        code, signal = report["code"], report["signal"]
        reason = "Completed" if code == 0 else "Error"
        if report["is_oom"]:
            reason = "OOMKilled"
        message = report["message"]
        if not message and code != 0 and attempt.spec.falls_back_to_logs:
            message = last_text(self._log_path(attempt.spec.key), max_bytes=2048, max_lines=80)
        return Exit(
            code=code, reason=reason, message=message, signal=signal, started_at=attempt.started_at,
            finished_at=report["at"], container_id=container_id(attempt.spec.key),
        )  # fmt: skip

    def _bury(self, attempt: _Attempt) -> None:
        """Nothing of the attempt runs any more: free what it held, then tell."""
        self.cgroups.remove(attempt.groups)
        asyncio.get_running_loop().run_in_executor(None, _remove_tree, attempt.directory / "tmp")
        _settle(attempt.gone)
        end = attempt.exit or Exit(code=137, reason="Error", message="its init vanished", finished_at=time.time())
        attempt.exit = end
        if not attempt.started.done():
            self._attempts.pop(attempt.spec.key, None)
            attempt.started.set_exception(StartError(end.message))
            attempt.started.exception()  # read once, so that asyncio does not complain if nobody waits
            return
        self._on_exit(attempt.spec.key, end)

    def _lose_all(self, link: SpawnerLink) -> None:
        """A spawner has ended, so every container that it started has."""
        if any(each.link is link and not each.gone.done() for each in self._attempts.values()):
            log.warning("a spawner has ended, and the containers that it held with it")
        for attempt in list(self._attempts.values()):
            if attempt.link is link and not attempt.gone.done():
                attempt.exit = attempt.exit or Exit(
                    code=137, reason="Error", message=LOST_WITH_SPAWNER, signal=9, started_at=attempt.started_at,
                    finished_at=time.time(), container_id=container_id(attempt.spec.key),
                )  # fmt: skip
                self._bury(attempt)
        for of, session in list(self._execs.values()):
            if of is link:
                session.handle({"event": "exec_ended", "code": 137})

    def _log_path(self, key: ContainerKey) -> Path:
        return self._state / "logs" / key.pod_uid / key.name / f"{key.attempt}.log"

    def _confiner_for(self, isolation: Isolation) -> Confiner:
        return Confiner(
            isolation=isolation,
            root=self._state / "root",
            hidden=(self._state, *self._hidden),
            marker=self._digest,
            has_memory_groups=not isinstance(self.cgroups, NoCgroups),
            most_processes=self.process_bound.rlimit,
        )

    async def _find_isolation(self) -> Isolation:
        """Try `true` on each rung, best first; the first that works is the one."""
        found = filters()
        refused: list[tuple[str, str]] = []
        tried = (self._forced_rung,) if self._forced_rung else (*candidates(), PROCESS_GROUP)
        for rung in tried:
            isolation = Isolation(
                rung=rung,
                has_landlock=found.landlock,
                has_seccomp=found.seccomp,
                has_own_addresses=found.own_addresses,
                refused=tuple(refused),
            )
            problem = await self._try(isolation)
            if not problem:
                return isolation
            refused.append((rung.name, problem))
        return Isolation(rung=PROCESS_GROUP, has_landlock=False, has_seccomp=False, refused=tuple(refused))

    async def _try(self, isolation: Isolation) -> str:
        """The reason why a rung cannot be used; empty if it can."""
        self._confiner = self._confiner_for(isolation)
        key = ContainerKey(PROBE, isolation.rung.name, 0)
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                probe = ContainerSpec(
                    key=key, argv=("true",), env={"PATH": os.defpath}, hostname="probe", pod_ip="127.0.0.1"
                )
                await self.start(probe)
                await asyncio.shield(self._attempts[key].gone)
                end = self._attempts[key].exit
                return "" if end is not None and end.code == 0 else f"true ended with {end and end.code}"
        except StartError as refusal:
            return str(refusal)
        except TimeoutError:
            return f"true did not end within {PROBE_TIMEOUT_S:g} s"
        finally:
            await self._spawners.send_all({"order": "kill", "id": _text(key)})
            await self.remove(PROBE)


def container_id(key: ContainerKey) -> str:
    """The id that statuses show."""
    return f"process://{_text(key)}"


def _text(key: ContainerKey) -> str:
    return f"{key.pod_uid}/{key.name}/{key.attempt}"


def _key(text: str) -> ContainerKey:
    uid, name, attempt = text.split("/")
    return ContainerKey(uid, name, int(attempt))


def _group_name(key: ContainerKey) -> str:
    return f"{key.pod_uid}-{key.name}-{key.attempt}"


def _settle(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _remove_tree(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
