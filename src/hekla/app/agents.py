"""The gateway of the embedded platform: on loopback, for the sandboxes that run here; `hekla status` shows where.

Its link calls the node agent of this process; a platform without one (`--without node`) has a gateway that says so.
"""

import asyncio
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from hekla.api.agents import CodeInterpreter
from hekla.api.agents.node_contract import Checkpoint, CheckpointOrder, Child, Claim, Claimed, Forked, Usage
from hekla.app.data_directory import DataDirectory
from hekla.app.features import Features
from hekla.kube.client import Client
from hekla.kube.errors import AlreadyExistsError
from hekla.kube.informer import Informers
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.sandbox_desk import SandboxDesk
from hekla.sandbox.gateway.guard import Guard, read_keys
from hekla.sandbox.gateway.minting import Mint, new_private_key
from hekla.sandbox.gateway.running import Gateway, GatewaySettings
from hekla.sandbox.link import LinkError, SandboxGoneError, UnsupportedError, Way
from hekla.sandbox.sessions.kube_stock import KubeStock
from hekla.sandbox.sessions.sqlite_store import SqliteSessions
from hekla.sandbox.sessions.store import SessionStore

log = structlog.get_logger(__name__)

HOST = "127.0.0.1"
KEY_PREFIX = "e2b_"
"""Clients of E2B insist on it, and on hexadecimal digits behind it; others take any key."""
FIRST_INTERPRETERS = ("base", "code-interpreter-v1")
"""What E2B's clients ask for when their users name no template."""

Told = TypeVar("Told")


async def run_embedded_gateway(features: Features, informers: Informers) -> None:
    """Serve until cancelled; where it listens is written down meanwhile."""
    directory = features.directory
    directory.agents_url.unlink(missing_ok=True)  # of a life that was killed: clients wait for this one's
    await _make_first_interpreters(informers.client)
    stock = KubeStock(informers)
    await stock.start()
    store = _store(directory)
    guard = Guard(read_keys(_made_once(directory.agents_key, _new_keys).decode()), wall=_wall)
    mint = Mint(_made_once(directory.pki / "sandboxes.key", new_private_key))
    gateway = Gateway(
        GatewaySettings(host=HOST, port=features.settings.agents_port, or_any_port=True),
        store=store, stock=stock, link=NodeLink(lambda: features.sandboxes), guard=guard, mint=mint, named=stock,
    )  # fmt: skip
    try:
        await gateway.start()
        directory.agents_url.write_text(f"http://{HOST}:{gateway.port}\n")
        log.info("gateway of sandboxes is ready", url=f"http://{HOST}:{gateway.port}")
        await asyncio.Event().wait()
    finally:
        directory.agents_url.unlink(missing_ok=True)
        await gateway.stop()
        await store.close()


def _wall() -> float:
    import time

    return time.time()


def _store(directory: DataDirectory) -> SessionStore:
    """A file of our own; or the Redis or Valkey that several gateways share, named as AgentCube's programs name it."""
    kind = os.environ.get("STORE_TYPE", "")
    if kind not in ("redis", "valkey"):
        return SqliteSessions(directory.agents_state)
    from redis.asyncio import Redis

    from hekla.sandbox.sessions.redis_store import RedisSessions

    address = os.environ.get(f"{kind.upper()}_ADDR", "127.0.0.1:6379").partition(",")[0]
    password = os.environ.get(f"{kind.upper()}_PASSWORD") or None
    return RedisSessions(Redis.from_url(f"redis://{address}", password=password))


async def _make_first_interpreters(client: Client) -> None:
    for name in FIRST_INTERPRETERS:
        try:
            await client.create(CodeInterpreter, {"metadata": {"name": name}, "spec": {"template": {}}}, "default")
        except AlreadyExistsError:
            log.debug("exists already", name=name)


def _new_keys() -> bytes:
    return f"admin: {KEY_PREFIX}{secrets.token_hex(20)}\n".encode()


def _made_once(path: Path, make: Callable[[], bytes]) -> bytes:
    """A secret of whoever owns the directory, unless there is one: loopback is open to every user of the machine."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        file.write(make())
    return path.read_bytes()


class NodeLink:
    """A `SandboxLink` into the node agent of this process."""

    def __init__(self, find: Callable[[], SandboxDesk | None]) -> None:
        self._find = find

    def _desk(self) -> SandboxDesk:
        desk = self._find()
        if desk is None:
            raise LinkError("no node agent runs here; it was left out, or is not up yet")
        return desk

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Make a sandbox a session's own."""
        return await _told(self._desk().claim(namespace, pod, claim))

    async def freeze(self, namespace: str, pod: str) -> None:
        """Let its processes stand still."""
        await _told(self._desk().freeze(namespace, pod))

    async def thaw(self, namespace: str, pod: str) -> None:
        """Let them go on."""
        await _told(self._desk().thaw(namespace, pod))

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Write a checkpoint of it."""
        return await _told(self._desk().checkpoint(namespace, pod, order))

    async def drop_checkpoint(self, checkpoint: str) -> None:
        """Forget a checkpoint."""
        try:
            self._desk().drop_checkpoint(checkpoint)
        except SandboxError as error:
            if error.code != 404:
                raise _worded(error) from error

    async def fork(self, namespace: str, pod: str, children: Sequence[Child]) -> Forked:
        """Let pods that wait for it begin as copies of this one."""
        return await _told(self._desk().fork(namespace, pod, children))

    async def usage(self, namespace: str, pod: str) -> Usage:
        """What it has used."""
        return await _told(self._desk().usage(namespace, pod))

    def way(self, namespace: str, pod: str, port: int) -> Way:
        """A connection that the node hands out."""

        async def connect(make: Callable[[], asyncio.Protocol]) -> None:
            try:
                connection = await self._desk().dial(namespace, pod, port)
            except SandboxError as error:
                if error.code == 502:
                    raise ConnectionRefusedError(str(error)) from error
                raise _worded(error) from error
            loop = asyncio.get_running_loop()
            if connection.family == socket.AF_UNIX:
                await loop.create_unix_connection(make, sock=connection)
            else:
                await loop.create_connection(make, sock=connection)

        return Way(connect)


async def _told(asked: Awaitable[Told]) -> Told:
    try:
        return await asked
    except SandboxError as error:
        raise _worded(error) from error


def _worded(error: SandboxError) -> LinkError:
    kind = {404: SandboxGoneError, 412: UnsupportedError}.get(error.code, LinkError)
    return kind(str(error))
