"""What the gateway asks of the node that a sandbox runs on; `hekla.app` makes one of the node's contract (`api/agents/node_contract.py`).

In one process the link calls the node agent; on a cluster it is HTTP to the node's endpoint. Every call may be repeated.
`hekla.testing.sandboxes` has one whose sandboxes are ordinary children of the test.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hekla.api.agents.node_contract import Checkpoint, CheckpointOrder, Child, Claim, Claimed, Forked, Usage

Connect = Callable[[Callable[[], asyncio.Protocol]], Awaitable[None]]
"""Opens a connection for the protocol that its argument makes; raises OSError where nobody listens, LinkError where there is no sandbox."""


DAEMON = 0
"""The daemon, as a port: envd, code interpreter, picod and agent-sandbox's server are one door that no code inside can take."""


class LinkError(Exception):
    """The node did not do what was asked. LinkError > NotYetError, SandboxGoneError, TooLateError, UnansweredError, UnsupportedError. The sentence says which sandbox, and why."""


class NotYetError(LinkError):
    """The node, or the sandbox on it, is still starting: asked again a little later, it may be there."""


class SandboxGoneError(LinkError):
    """There is no such sandbox on any node."""


class TooLateError(LinkError):
    """Somebody else was first: another session has the sandbox, or a later order has come."""


class UnansweredError(LinkError):
    """It was asked and did not answer, or what makes no sense: whether it did what was asked nobody knows."""


class UnsupportedError(LinkError):
    """Its runtime cannot do that."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a port inside a sandbox is reached."""

    connect: Connect
    prefix: bytes = b""
    """Stands before every path, where the connection leads to the node and not inside."""
    lines: bytes = b""
    """Headers that are added to every request, each line with its CRLF."""


class SandboxLink(Protocol):
    """The nodes, as the gateway sees them. Methods raise LinkError."""

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Make a sandbox a session's own."""

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """A pod that is on its way will be claimed so: its node may tell its daemon as it starts, if that node is in this process."""

    def let_claim_go(self, pod_uid: str) -> None:
        """It was claimed, or is not to be any more."""

    async def freeze(self, namespace: str, pod: str, order: int) -> None:
        """Let its processes stand still; TooLateError after a greater order."""

    async def thaw(self, namespace: str, pod: str, order: int) -> None:
        """Let them go on; TooLateError after a greater order."""

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Write a checkpoint of it."""

    def place(self, namespace: str, pod: str) -> str:
        """The node on which checkpoints of a sandbox lie; empty: it is not known, or they are reached from everywhere."""

    async def node_of(self, checkpoint: str, likely: str = "") -> str:
        """The node on which a checkpoint lies, first looked for on the likely one; empty: any sandbox may begin with it.

        SandboxGoneError: it is nowhere.
        """

    async def drop_checkpoint(self, checkpoint: str, likely: str = "") -> None:
        """Forget a checkpoint, first on the likely node; one that is gone is no error."""

    async def fork(self, namespace: str, pod: str, children: Awaitable[Sequence[Child]]) -> Forked:
        """Let pods that wait for it begin as copies of this one, which may pack before it is known who they are."""

    async def restrict(self, namespace: str, pod: str, allowed: str) -> None:
        """Let it reach those from now on that a list as in `hekla.dev/egress` names."""

    async def usage(self, namespace: str, pod: str) -> Usage:
        """What it has used."""

    def way(self, namespace: str, pod: str, port: int) -> Way:
        """How one of its ports is reached; DAEMON is the daemon's door, whichever port its clients know it by."""
