"""Sandboxes that are ordinary children of the test, without any walls: the link's and the stock's fakes, with the real daemon inside.

The partner of the node's own in the conformance suites of links and stocks. Nothing here keeps code from anything.
"""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hekla.api.agents.node_contract import (
    Checkpoint,
    CheckpointOrder,
    Child,
    Claim,
    Claimed,
    Forked,
    ForkedChild,
    Usage,
)
from hekla.sandbox.gateway.guard import Guard, Principal, digest_of
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.link import DAEMON, LinkError, SandboxGoneError, Way
from hekla.sandbox.sessions.records import Kind
from hekla.sandbox.sessions.stock import Blueprint, Held, Order, StockError
from hekla.sandbox.sessions.store import MemoryStore, SessionStore

KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
OTHER_KEY = "e2b_76543210fedcba9876543210fedcba9876543210"
OWNER, OTHER = "alice", "bob"
BASE = Blueprint(kind=Kind.INTERPRETER, namespace="default", name="base")


@dataclass
class ChildSandbox:
    """One sandbox."""

    held: Held
    directory: Path
    claim: Claim | None = None
    process: asyncio.subprocess.Process | None = None
    is_frozen: bool = False
    began_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())


class ChildSandboxes:
    """A `SandboxLink` and a `Stock` in one: sandboxes are directories, and daemons once they are claimed."""

    def __init__(self, root: Path, blueprints: Sequence[Blueprint] = (BASE,)) -> None:
        self._root = root
        self._blueprints = {(one.kind, one.namespace, one.name): one for one in blueprints}
        self.sandboxes: dict[str, ChildSandbox] = {}
        """By pod."""
        self.checkpoints: dict[str, Path] = {}
        self.room = 1000
        """How many there may be."""
        self.before: Callable[[str], None] = lambda step: None
        """Called before each step, for tests that break things."""

    # The stock.

    def blueprint(self, kind: str, namespace: str, name: str) -> Blueprint | None:
        """What the named object says."""
        return self._blueprints.get((kind, namespace, name))

    def blueprints(self) -> list[Blueprint]:
        """All there are."""
        return list(self._blueprints.values())

    async def take(self, order: Order) -> Held:
        """A new directory, or the one that the session has."""
        self.before("take")
        for one in self.sandboxes.values():
            if one.held.session == order.session:
                return one.held
        if len(self.sandboxes) >= self.room:
            raise StockError(503, "no_room", f"there is room for {self.room} sandboxes, and all of it is taken")
        return self._new(order).held

    def _new(self, order: Order) -> ChildSandbox:
        uid = secrets.token_hex(8)
        name = f"{order.blueprint.name}-{uid[:8]}"
        held = Held(namespace=order.blueprint.namespace, name=name, uid=uid, pod=name, session=order.session)
        directory = self._root / name
        if order.restore_from:
            shutil.copytree(self.checkpoints[order.restore_from], directory, symlinks=True)
        else:
            directory.mkdir()
        made = self.sandboxes[name] = ChildSandbox(held, directory)
        self.before("taken")
        return made

    async def take_forks(self, orders: list[Order]) -> list[Held]:
        """Directories for copies."""
        self.before("take forks")
        return [self._new(order).held for order in orders]

    async def drop(self, held: Held) -> None:
        """Kill its processes and remove its directory."""
        self.before("drop")
        sandbox = self.sandboxes.get(held.pod)
        if sandbox is not None and sandbox.held.uid == held.uid:
            await self._kill(sandbox)
            del self.sandboxes[held.pod]
        self.before("dropped")

    async def held(self) -> list[Held]:
        """All that there are."""
        return [one.held for one in self.sandboxes.values()]

    async def close(self) -> None:
        """Kill all that is left."""
        for sandbox in tuple(self.sandboxes.values()):
            await self._kill(sandbox)
        self.sandboxes.clear()

    async def _kill(self, sandbox: ChildSandbox) -> None:
        process, sandbox.process = sandbox.process, None
        if process is not None:
            for one in (*_descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            await process.wait()
        shutil.rmtree(sandbox.directory, ignore_errors=True)

    # The link.

    def _found(self, pod: str) -> ChildSandbox:
        sandbox = self.sandboxes.get(pod)
        if sandbox is None:
            raise SandboxGoneError(f'sandbox "{pod}" is gone')
        return sandbox

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Start the daemon with the session's secrets."""
        self.before("claim")
        sandbox = self._found(pod)
        was = sandbox.claim
        if was is not None and was.session != claim.session:
            raise LinkError(f'sandbox "{pod}" is session "{was.session}"\'s')
        if was is None:
            sandbox.claim = claim
            await self._start(sandbox, claim)
        self.before("claimed")
        return Claimed(pod_uid=sandbox.held.uid, session=claim.session, was_claimed=was is not None)

    async def _start(self, sandbox: ChildSandbox, claim: Claim) -> None:
        read, write = os.pipe()
        told = {name: getattr(claim, name) for name in ("access_token", "public_key", "audience", "session")}
        os.write(write, json.dumps({name: value for name, value in told.items() if value}).encode())
        os.close(write)
        listen = f"unix:{self._socket(sandbox)}"
        command = [sys.executable, "-m", "hekla.sandbox.daemon.server", "--listen", listen, "--workspace", str(sandbox.directory), "--secrets-fd", str(read)]  # fmt: skip
        env = {**os.environ, **claim.env, "HOME": str(sandbox.directory)}
        sandbox.process = await asyncio.create_subprocess_exec(
            *command, cwd=sandbox.directory, env=env, pass_fds=[read], stdout=asyncio.subprocess.PIPE
        )
        os.close(read)
        assert sandbox.process.stdout is not None
        if await sandbox.process.stdout.readline() != b"listening\n":
            raise LinkError("the daemon ended before it listened")

    @staticmethod
    def _socket(sandbox: ChildSandbox) -> str:
        return f"{sandbox.directory}.sock"

    async def freeze(self, namespace: str, pod: str) -> None:
        """Stop its processes."""
        self.before("freeze")
        self._signal(self._found(pod), signal.SIGSTOP)

    async def thaw(self, namespace: str, pod: str) -> None:
        """Let them go on."""
        self.before("thaw")
        self._signal(self._found(pod), signal.SIGCONT)

    @staticmethod
    def _signal(sandbox: ChildSandbox, number: int) -> None:
        sandbox.is_frozen = number == signal.SIGSTOP
        if sandbox.process is not None:
            for one in (sandbox.process.pid, *_descendants(sandbox.process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, number)

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Copy its directory."""
        self.before("checkpoint")
        sandbox = self._found(pod)
        target = self._root / f"checkpoint-{order.checkpoint}"
        shutil.copytree(sandbox.directory, target, symlinks=True, dirs_exist_ok=True)
        self.checkpoints[order.checkpoint] = target
        self.before("checkpointed")
        return Checkpoint(checkpoint=order.checkpoint, kind=order.kind, size_bytes=0, sha256="", owner=order.owner)

    async def drop_checkpoint(self, checkpoint: str) -> None:
        """Remove the copy."""
        self.before("drop checkpoint")
        if (path := self.checkpoints.pop(checkpoint, None)) is not None:
            shutil.rmtree(path, ignore_errors=True)

    async def fork(self, namespace: str, pod: str, children: Sequence[Child]) -> Forked:
        """Copy its files into the children's directories, and start them."""
        self.before("fork")
        parent = self._found(pod)
        for child in children:
            sandbox = self._found(child.pod)
            shutil.copytree(parent.directory, sandbox.directory, symlinks=True, dirs_exist_ok=True)
            await self.claim(child.namespace, child.pod, child.claim)
        self.before("forked")
        return Forked(children=[ForkedChild(uid=child.uid) for child in children])

    async def usage(self, namespace: str, pod: str) -> Usage:
        """What its processes use now."""
        sandbox = self._found(pod)
        wall_s = asyncio.get_running_loop().time() - sandbox.began_s
        return Usage(cpu_us=1000, memory_bytes=1 << 20, storage_bytes=4096, wall_s=wall_s, source="proc")

    def way(self, namespace: str, pod: str, port: int) -> Way:
        """The daemon's socket; other ports are the test machine's."""

        async def connect(make: Callable[[], asyncio.Protocol]) -> None:
            loop = asyncio.get_running_loop()
            sandbox = self._found(pod)
            if port == DAEMON:
                await loop.create_unix_connection(make, self._socket(sandbox))
            else:
                await loop.create_connection(make, "127.0.0.1", port)

        return Way(connect)


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


PRIVATE_KEY = new_private_key()


def guard() -> Guard:
    """Who is known in tests."""
    import time

    return Guard({digest_of(KEY): Principal(OWNER), digest_of(OTHER_KEY): Principal(OTHER)}, wall=time.time)


@asynccontextmanager
async def gateway(
    sandboxes: ChildSandboxes, store: SessionStore | None = None, settings: GatewaySettings | None = None
) -> AsyncIterator[Gateway]:
    """A gateway on a port of its own over sandboxes that are children."""
    made = Gateway(
        settings or GatewaySettings(drain_s=0.0),
        store=store or MemoryStore(), stock=sandboxes, link=sandboxes, guard=guard(), mint=Mint(PRIVATE_KEY),
    )  # fmt: skip
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A short path: a socket's holds 107 characters."""
    with tempfile.TemporaryDirectory(prefix="hk-") as directory:
        yield Path(directory)
