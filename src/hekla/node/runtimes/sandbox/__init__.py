"""Sandboxes: containers for code that nobody trusts. The contract beyond `Runtime`, and its first keeper, `runtime.py`.

`SandboxRuntime` adds to a runtime what sessions need: a warm sandbox is claimed, stands still, is copied and continued. Each implementation
declares its isolation and its features; what it cannot do it refuses with a sentence, and never does weakly.
"""

import socket
from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from hekla.api.agents.node_contract import CheckpointKind, Claim, Usage
from hekla.node.runtimes import ContainerKey, NodeError, Runtime


class SandboxFeature(StrEnum):
    """What a sandbox runtime can do beside starting and claiming."""

    FREEZE = "freeze"
    CHECKPOINT_FILES = "checkpoint.filesystem"
    CHECKPOINT_INTERPRETER = "checkpoint.interpreter"
    CHECKPOINT_MEMORY = "checkpoint.memory"
    FORK = "fork"
    USAGE = "usage"
    EGRESS = "egress"


class SandboxRuntime(Runtime, Protocol):
    """Runs sandboxes. Calls are about a container that was started; one that is not there raises SandboxError 404."""

    isolation: str
    """One of `ISOLATION_STRENGTHS`."""

    @property
    def sandbox_features(self) -> frozenset[SandboxFeature]:
        """What it can do, on this host."""

    @property
    def refusal(self) -> str:
        """Why no sandbox can run on this host; empty: they can."""

    @property
    def unshared(self) -> str:
        """Why sandboxes do not share this host's processors by what their pods ask for; empty: they do."""

    async def prepare(self) -> None:
        """Make ready what the first sandbox would wait for."""

    async def claim(self, key: ContainerKey, claim: Claim) -> bool:
        """Bind a warm sandbox to a session; False if it was that session's already. Another session's: SandboxError 409."""

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """A pod on its way will be claimed so: it may be told of it as it starts. `claim` follows all the same, and is then at once."""

    def let_claim_go(self, pod_uid: str) -> None:
        """The pod has been claimed, or is not to be any more."""

    def takes_key(self, key: ContainerKey) -> bool:
        """Whether its daemon said, when it was claimed, that it took the claim's `token_key`."""

    async def claim_as_copy(self, key: ContainerKey, source: int, claim: Claim) -> bool:
        """As `claim`, and before it fill the sandbox, which was just started, with what was packed of another with its interpreters.

        One that refuses when it has a part of it ends: it is never anybody else's.
        """

    def expect_copy(self, key: ContainerKey, pod_uid: str, source: int, claim: Claim) -> None:
        """A pod on its way is to be a copy of this one: do now what can be done before it is started, which may be nothing.

        `claim_as_copy` does the rest, and `let_copy_go` ends what was begun in vain.
        """

    async def until_started(self, pod_uid: str, within_s: float) -> None:
        """Return once a container of such a pod has been started, or after that long."""

    def let_copy_go(self, pod_uid: str) -> None:
        """The pod has its copy, or is not to have one any more."""

    def has(self, key: ContainerKey) -> bool:
        """Whether it runs."""

    def session_of(self, key: ContainerKey) -> str:
        """Whose it is; empty: nobody's."""

    async def freeze(self, key: ContainerKey, order: int = 0) -> None:
        """Nothing in it runs from now on. Twice is once. A later `order` than this may have come: SandboxError 409 (`last_word.py`)."""

    async def thaw(self, key: ContainerKey, order: int = 0) -> None:
        """It goes on, unless a later `order` than this has come: SandboxError 409."""

    def last_order(self, key: ContainerKey) -> int:
        """The latest order to freeze or to thaw that had a number; 0: none had."""

    def is_frozen(self, key: ContainerKey) -> bool:
        """Whether it stands still."""

    async def pack(self, key: ContainerKey, kind: CheckpointKind, output: int) -> Sequence[str]:
        """Write what it has become to an open file; what had to be left out, as sentences."""

    async def unpack(self, key: ContainerKey, kind: CheckpointKind, source: int) -> None:
        """Fill a sandbox that was just started with what was packed."""

    async def restrict(self, key: ContainerKey, allowed: str) -> None:
        """Let it reach those from now on that a list as in `hekla.dev/egress` names; other connections are cut."""

    async def usage(self, key: ContainerKey) -> Usage:
        """What it has used since it was started."""

    async def dial(self, key: ContainerKey, port: int) -> socket.socket:
        """A connected stream to a server inside; non-blocking."""

    async def listen(self, key: ContainerKey, port: int) -> socket.socket:
        """A socket that listens on a port of the sandbox's loopback, for the node to accept from; non-blocking."""


class SandboxError(NodeError):
    """Something asked of a sandbox is refused; `code` is an HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
