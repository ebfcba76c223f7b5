"""The link of a gateway that shares its process with the node agent: plain calls. `sandbox/cluster_link.py` is the one over HTTPS."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from hekla.api.agents.node_contract import Checkpoint, CheckpointOrder, Child, Claim, Claimed, Forked, Usage
from hekla.node.runtimes.sandbox import SandboxError
from hekla.node.sandbox_desk import SandboxDesk
from hekla.sandbox.link import LinkError, NotYetError, SandboxGoneError, TooLateError, UnsupportedError, Way

Told = TypeVar("Told")


class NodeLink:
    """A `SandboxLink` into the node agent of this process."""

    def __init__(self, find: Callable[[], SandboxDesk | None]) -> None:
        self._find = find

    def _desk(self) -> SandboxDesk:
        desk = self._find()
        if desk is None:
            raise NotYetError("no node agent runs here; it was left out, or is not up yet")
        return desk

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Make a sandbox a session's own."""
        return await _told(self._desk().claim(namespace, pod, claim))

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """The node hears of it before the pod is there."""
        if (desk := self._find()) is not None:
            desk.expect_claim(pod_uid, claim)

    def let_claim_go(self, pod_uid: str) -> None:
        """The node forgets it."""
        if (desk := self._find()) is not None:
            desk.let_claim_go(pod_uid)

    async def freeze(self, namespace: str, pod: str, order: int) -> None:
        """Let its processes stand still."""
        await _told(self._desk().freeze(namespace, pod, order))

    async def thaw(self, namespace: str, pod: str, order: int) -> None:
        """Let them go on."""
        await _told(self._desk().thaw(namespace, pod, order))

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Write a checkpoint of it."""
        return await _told(self._desk().checkpoint(namespace, pod, order))

    def place(self, namespace: str, pod: str) -> str:
        """The nodes of this process have their checkpoints in common."""
        return ""

    async def node_of(self, checkpoint: str, likely: str = "") -> str:
        """The nodes of this process have their checkpoints in common."""
        return ""

    async def drop_checkpoint(self, checkpoint: str, likely: str = "") -> None:
        """Forget a checkpoint."""
        try:
            self._desk().drop_checkpoint(checkpoint)
        except SandboxError as error:
            if error.code != 404:
                raise _worded(error) from error

    async def fork(self, namespace: str, pod: str, children: Awaitable[Sequence[Child]]) -> Forked:
        """Let pods that wait for it begin as copies of this one."""
        return await _told(self._desk().fork(namespace, pod, children))

    async def restrict(self, namespace: str, pod: str, allowed: str) -> None:
        """Other destinations from now on."""
        await _told(self._desk().restrict(namespace, pod, allowed))

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
    kind = {404: SandboxGoneError, 409: TooLateError, 412: UnsupportedError, 503: NotYetError}.get(
        error.code, LinkError
    )
    return kind(str(error))
