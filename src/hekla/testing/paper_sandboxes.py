"""Sandboxes on paper: a link and a stock whose sandboxes are rows in memory, which tests break wherever they like.

`sandboxes.py` puts real daemons behind the same two faces.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from hekla.sandbox.link import LinkError, SandboxGoneError, TooLateError, Way
from hekla.sandbox.sessions.records import SessionKind
from hekla.sandbox.sessions.stock import Blueprint, Held, Order, StockError

BASE = Blueprint(kind=SessionKind.INTERPRETER, namespace="default", name="base")


@dataclass
class PaperSandbox:
    """One sandbox."""

    held: Held
    claim: Claim | None = None
    is_frozen: bool = False
    egress: str = ""
    """Whom it was told last that it may reach."""
    files: dict[str, Any] = field(default_factory=dict)
    """What is in it, for those who copy it."""
    began_s: float = field(default_factory=lambda: asyncio.get_running_loop().time())
    stood_s: float = 0.0
    """How long it stood still, up to the last thaw."""
    froze_s: float = 0.0
    """When it froze last."""
    order: int = 0
    """The latest to freeze or to thaw."""

    def take(self, order: int) -> None:
        """An order that comes after a later one is refused."""
        if order < self.order:
            raise TooLateError(f"order {order} comes too late: order {self.order} has come before it")
        self.order = order

    def frozen_s(self, now: float) -> float:
        """How long it stood still until now."""
        return self.stood_s + (now - self.froze_s if self.is_frozen else 0.0)


class PaperSandboxes:
    """A `SandboxLink` and a `Stock` in one."""

    def __init__(self, blueprints: Sequence[Blueprint] = (BASE,)) -> None:
        self._blueprints = {(one.kind, one.namespace, one.name): one for one in blueprints}
        self.sandboxes: dict[str, PaperSandbox] = {}
        """By pod."""
        self.checkpoints: dict[str, dict[str, Any]] = {}
        self.written: dict[str, str] = {}
        """What containers wrote, by pod."""
        self.room = 1000
        """How many there may be."""
        self.before: Callable[[str], None] = lambda step: None
        """Called before and after each step, for tests that break things there."""
        self.takes_s = 0.0
        """How long it takes to start one."""
        self.checkpoint_nodes: dict[str, str] = {}
        """Where checkpoints lie that are not everywhere."""
        self.places: dict[str, str] = {}
        """Nodes of sandboxes, by pod."""
        self.likely_nodes: list[str] = []
        """Where checkpoints were looked for first."""
        self.asked_nodes: list[str] = []
        """Of those that were taken with a node in mind, which."""
        self.refuses = ""
        """What is said to stand in the way of those that start."""
        self._on_restart: Callable[[str, str, str], None] = lambda session, container, why: None

    # The stock.

    def blueprint(self, kind: str, namespace: str, name: str) -> Blueprint | None:
        """What the named object says."""
        return self._blueprints.get((kind, namespace, name))

    def egress(self, kind: str, namespace: str, name: str) -> str:
        """Anywhere: sessions narrow it."""
        return "*"

    def blueprints(self) -> list[Blueprint]:
        """All there are."""
        return list(self._blueprints.values())

    async def take(self, order: Order) -> Held:
        """A new one, or the one that the session has."""
        self.before("take")
        self.asked_nodes += [order.node] if order.node else []
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        for one in self.sandboxes.values():
            if one.held.session == order.session:
                return one.held
        if len(self.sandboxes) >= self.room:
            raise StockError(503, "no_room", f"there is room for {self.room} sandboxes, and all of it is taken")
        held = self._new(order).held
        self.before("taken")
        return held

    def _new(self, order: Order) -> PaperSandbox:
        uid = secrets.token_hex(8)
        name = f"{order.blueprint.name}-{uid[:8]}"
        held = Held(
            namespace=order.blueprint.namespace,
            name=name,
            uid=uid,
            pod=name,
            session=order.session,
            container=f"{uid}/0",
        )
        made = self.sandboxes[name] = PaperSandbox(held)
        if order.restore_from:
            made.files = dict(self.checkpoints[order.restore_from])
        return made

    async def settled(self, held: Held) -> None:
        """Paper is durable."""
        self.before("settle")

    async def take_forks(self, orders: list[Order]) -> list[Held]:
        """Places for copies."""
        self.before("take forks")
        held = [self._new(order).held for order in orders]
        self.before("taken forks")
        return held

    async def drop(self, held: Held) -> None:
        """It is gone."""
        self.before("drop")
        sandbox = self.sandboxes.get(held.pod)
        if sandbox is not None and sandbox.held.uid == held.uid:
            await self.end(sandbox)
            self.sandboxes.pop(held.pod, None)
        self.before("dropped")

    async def held(self) -> list[Held]:
        """All that there are."""
        return [one.held for one in self.sandboxes.values()]

    async def logs(self, held: Held, most: int) -> str:
        """What a test put there."""
        return self.written.get(held.pod, "")

    def next_up(self, each: int) -> list[Held]:
        """None waits: each is made when it is asked for."""
        return []

    def trouble(self, session: str) -> str:
        """As the test says."""
        return self.refuses

    def tell_waiting(self, listener: Callable[[], None]) -> None:
        """There is nothing to tell."""

    def tell_restarts(self, listener: Callable[[str, str, str], None]) -> None:
        """Told by `start_anew`."""
        self._on_restart = listener

    def start_anew(self, pod: str, why: str = "") -> None:
        """Its container ended, for which its node gives a reason or none, and another one runs: empty, and nobody's."""
        sandbox = self.sandboxes[pod]
        uid, _, count = sandbox.held.container.partition("/")
        held = replace(sandbox.held, container=f"{uid}/{int(count) + 1}")
        self.sandboxes[pod] = PaperSandbox(held)
        self._on_restart(held.session, held.container, why)

    async def close(self) -> None:
        """End all that is left."""
        for sandbox in tuple(self.sandboxes.values()):
            await self.end(sandbox)
        self.sandboxes.clear()

    # The link.

    def found(self, pod: str) -> PaperSandbox:
        """The sandbox of a pod."""
        sandbox = self.sandboxes.get(pod)
        if sandbox is None:
            raise SandboxGoneError(f'sandbox "{pod}" is gone')
        return sandbox

    async def claim(self, namespace: str, pod: str, claim: Claim) -> Claimed:
        """Make it a session's own."""
        self.before("claim")
        sandbox = self.found(pod)
        was = sandbox.claim
        if was is not None and was.session != claim.session:
            raise TooLateError(f'sandbox "{pod}" is session "{was.session}"\'s')
        if was is None:
            sandbox.claim = claim
            await self.begin(sandbox, claim)
        self.before("claimed")
        return Claimed(
            pod_uid=sandbox.held.uid, session=claim.session, was_claimed=was is not None,
            takes_key=was is None and bool(claim.token_key),
        )  # fmt: skip

    async def begin(self, sandbox: PaperSandbox, claim: Claim) -> None:
        """Something may start in it now."""

    async def end(self, sandbox: PaperSandbox) -> None:
        """Whatever runs in it ends now."""

    def expect_claim(self, pod_uid: str, claim: Claim) -> None:
        """Paper hears of it when it is claimed."""

    def let_claim_go(self, pod_uid: str) -> None:
        """Nothing was kept."""

    async def freeze(self, namespace: str, pod: str, order: int) -> None:
        """It stands still."""
        self.before("freeze")
        sandbox = self.found(pod)
        sandbox.take(order)
        if not sandbox.is_frozen:
            sandbox.is_frozen, sandbox.froze_s = True, asyncio.get_running_loop().time()
        self.before("frozen")

    async def thaw(self, namespace: str, pod: str, order: int) -> None:
        """It goes on."""
        self.before("thaw")
        sandbox = self.found(pod)
        sandbox.take(order)
        sandbox.stood_s, sandbox.is_frozen = sandbox.frozen_s(asyncio.get_running_loop().time()), False
        self.before("thawed")

    async def checkpoint(self, namespace: str, pod: str, order: CheckpointOrder) -> Checkpoint:
        """Keep what is in it."""
        self.before("checkpoint")
        self.checkpoints[order.checkpoint] = await self.packed(self.found(pod), order.checkpoint)
        self.before("checkpointed")
        return Checkpoint(checkpoint=order.checkpoint, kind=order.kind, size_bytes=0, sha256="", owner=order.owner)

    async def packed(self, sandbox: PaperSandbox, checkpoint: str) -> dict[str, Any]:
        """What is in a sandbox."""
        return dict(sandbox.files)

    def place(self, namespace: str, pod: str) -> str:
        """The one that a test names."""
        return self.places.get(pod, "")

    async def node_of(self, checkpoint: str, likely: str = "") -> str:
        """The one that a test names."""
        self.likely_nodes.append(likely)
        return self.checkpoint_nodes.get(checkpoint, "")

    async def drop_checkpoint(self, checkpoint: str, likely: str = "") -> None:
        """Forget it."""
        self.likely_nodes.append(likely)
        self.before("drop checkpoint")
        self.checkpoints.pop(checkpoint, None)
        self.before("dropped checkpoint")

    async def fork(self, namespace: str, pod: str, children: Awaitable[Sequence[Child]]) -> Forked:
        """Fill the children."""
        named = await children
        self.before("fork")
        parent = self.found(pod)
        done = [await self._filled(parent, child) for child in named]
        self.before("forked")
        return Forked(children=done)

    async def _filled(self, parent: PaperSandbox, child: Child) -> ForkedChild:
        try:
            self.found(child.pod).files = await self.packed(parent, child.uid)
            await self.claim(child.namespace, child.pod, child.claim)
        except LinkError as error:
            return ForkedChild(uid=child.uid, error=str(error))
        return ForkedChild(uid=child.uid)

    async def restrict(self, namespace: str, pod: str, allowed: str) -> None:
        """Keep what it was told."""
        self.before("restrict")
        self.found(pod).egress = allowed
        self.before("restricted")

    async def usage(self, namespace: str, pod: str) -> Usage:
        """Half a processor while it is awake, and little else."""
        sandbox, now = self.found(pod), asyncio.get_running_loop().time()
        wall_s, frozen_s = now - sandbox.began_s, sandbox.frozen_s(now)
        return Usage(
            cpu_us=1000 + int((wall_s - frozen_s) * 500_000), memory_bytes=1 << 20, memory_byte_s=wall_s * (1 << 20),
            storage_bytes=4096, wall_s=wall_s, frozen_s=frozen_s, source="proc",
        )  # fmt: skip

    def way(self, namespace: str, pod: str, port: int) -> Way:
        """Nobody listens on paper."""

        async def connect(make: Callable[[], asyncio.Protocol]) -> None:
            raise ConnectionRefusedError(f"nothing listens on port {port} of {pod}")

        return Way(connect)
