"""Sandboxes that are ordinary children of the test, without any walls: real daemons behind the faces of `paper_sandboxes.py`.

The partner of the node's own in the conformance suites. Nothing here keeps code from anything.
"""

import asyncio
import contextlib
import json
import os
import pwd
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hekla.api.agents.node_contract import Claim
from hekla.sandbox.gateway.guard import Guard, Principal, digest_of
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.link import DAEMON, LinkError, Way
from hekla.sandbox.sessions.stock import Blueprint
from hekla.sandbox.sessions.store import MemoryStore, SessionStore
from hekla.testing.paper_sandboxes import BASE, PaperSandbox, PaperSandboxes

KEY = "e2b_0123456789abcdef0123456789abcdef01234567"
OTHER_KEY = "e2b_76543210fedcba9876543210fedcba9876543210"
OWNER, OTHER = "alice", "bob"
PRIVATE_KEY = new_private_key()


class ChildSandboxes(PaperSandboxes):
    """A `SandboxLink` and a `Stock` in one: sandboxes are directories, and daemons once they are claimed."""

    def __init__(self, root: Path, blueprints: Sequence[Blueprint] = (BASE,)) -> None:
        super().__init__(blueprints)
        self._root = root
        self._processes: dict[str, asyncio.subprocess.Process] = {}
        """By uid."""

    def directory(self, sandbox: PaperSandbox) -> Path:
        """Its files."""
        return self._root / sandbox.held.uid

    def _socket(self, sandbox: PaperSandbox) -> str:
        return f"{self.directory(sandbox)}.sock"

    async def begin(self, sandbox: PaperSandbox, claim: Claim) -> None:
        """Start the daemon with the session's secrets, over what was packed."""
        directory = self.directory(sandbox)
        if source := sandbox.files.get("directory"):
            shutil.copytree(source, directory, symlinks=True)
        else:
            directory.mkdir()
        read, write = os.pipe()
        told = {
            name: getattr(claim, name) for name in ("access_token", "public_key", "audience", "session", "token_key")
        }
        os.write(write, json.dumps({name: value for name, value in told.items() if value}).encode())
        os.close(write)
        command = [
            sys.executable, "-m", "hekla.sandbox.daemon.server", "--listen", f"unix:{self._socket(sandbox)}",
            "--workspace", str(directory), "--secrets-fd", str(read), *_as_nobody(directory),
        ]  # fmt: skip
        env = {**os.environ, **claim.env, "HOME": str(directory)}
        process = await asyncio.create_subprocess_exec(
            *command, cwd=directory, env=env, pass_fds=[read], stdout=asyncio.subprocess.PIPE
        )
        self._processes[sandbox.held.uid] = process
        os.close(read)
        assert process.stdout is not None
        if await process.stdout.readline() != b"listening\n":
            raise LinkError("the daemon ended before it listened")

    async def end(self, sandbox: PaperSandbox) -> None:
        """Kill its processes and remove its directory."""
        process = self._processes.pop(sandbox.held.uid, None)
        if process is not None:
            for one in (*_descendants(process.pid), process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            await process.wait()
        shutil.rmtree(self.directory(sandbox), ignore_errors=True)

    async def freeze(self, namespace: str, pod: str, order: int) -> None:
        """Stop its processes."""
        await super().freeze(namespace, pod, order)
        self._signal(self.found(pod), signal.SIGSTOP)

    async def thaw(self, namespace: str, pod: str, order: int) -> None:
        """Let them go on."""
        await super().thaw(namespace, pod, order)
        self._signal(self.found(pod), signal.SIGCONT)

    def _signal(self, sandbox: PaperSandbox, number: int) -> None:
        process = self._processes.get(sandbox.held.uid)
        if process is not None:
            for one in (process.pid, *_descendants(process.pid)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one, number)

    async def packed(self, sandbox: PaperSandbox, checkpoint: str) -> dict[str, Any]:
        """A copy of its directory."""
        target = self._root / f"packed-{checkpoint}"
        shutil.copytree(self.directory(sandbox), target, symlinks=True)
        return {"directory": target}

    def way(self, namespace: str, pod: str, port: int) -> Way:
        """The daemon's socket; other ports are the test machine's."""

        async def connect(make: Callable[[], asyncio.Protocol]) -> None:
            loop = asyncio.get_running_loop()
            sandbox = self.found(pod)
            if port == DAEMON:
                await loop.create_unix_connection(make, self._socket(sandbox))
            else:
                await loop.create_connection(make, "127.0.0.1", port)

        return Way(connect)


def _as_nobody(directory: Path) -> list[str]:
    """Root's log-in shells read what the machine's owner has put there, which may take a minute: commands are nobody's."""
    if os.geteuid() != 0:
        return []
    nobody = pwd.getpwnam("nobody")
    for path in (directory, *directory.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    directory.parent.chmod(0o755)
    return ["--default-user", "nobody"]


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *_descendants(child)]
    return found


def guard() -> Guard:
    """Who is known in tests."""
    return Guard({digest_of(KEY): Principal(OWNER), digest_of(OTHER_KEY): Principal(OTHER)}, wall=time.time)


@asynccontextmanager
async def gateway(
    sandboxes: PaperSandboxes,
    store: SessionStore | None = None,
    settings: GatewaySettings | None = None,
    who: Guard | None = None,
) -> AsyncIterator[Gateway]:
    """A gateway on a port of its own."""
    made = Gateway(
        settings or GatewaySettings(drain_s=0.0),
        store=store or MemoryStore(), stock=sandboxes, link=sandboxes, guard=who or guard(), mint=Mint(PRIVATE_KEY),
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
