"""Where the desk gets sandboxes from: takes one that waits, or has one made, and gives it back. `kube_stock.py` does so through objects.

A sandbox carries its session's id as a label from the moment it is taken, so that after a crash each finds the other.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from hekla.sandbox.sessions.records import EntryPoint


class StockError(Exception):
    """No sandbox can be had. The status and the sentence are for who asked."""

    def __init__(self, status: int, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.reason, self.sentence = status, reason, sentence


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """What an object says of the sessions that are made from it."""

    kind: str
    namespace: str
    name: str
    idle_s: float = 900.0
    life_s: float = 8 * 3600.0
    entry_points: tuple[EntryPoint, ...] = (EntryPoint("/", 8080),)
    is_checked: bool = True
    cpu_milli: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    budget: str = ""
    """As `hekla.dev/budget`."""
    trouble: str = ""
    """What keeps sessions from being made from it; empty: nothing."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A sandbox that is wanted."""

    session: str
    blueprint: Blueprint
    owner: str = ""
    env: dict[str, str] = field(default_factory=dict)
    ends_s: float = 0.0
    """When it is to end by itself, should everybody forget it."""
    restore_from: str = ""
    restore_at: str = ""
    """Where that most likely lies."""
    node: str = ""
    """Where it has to be: what it begins with lies there. Empty: anywhere."""
    fork_of: str = ""
    """The pod that it begins as a copy of."""
    lineage: tuple[str, ...] = ()
    network: dict[str, Any] = field(default_factory=dict)
    """As E2B's clients write it."""
    tell_made: "Callable[[Held], None]" = field(default=lambda made: None, compare=False)
    """Told of a new one whose pod is named and has one container, before that is bound."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """A sandbox that is, or was, somebody's."""

    namespace: str
    name: str
    uid: str
    pod: str
    session: str
    pod_uid: str = ""
    """Of the pod itself, where a fork has to name it."""
    is_alone: bool = False
    """Whether its pod is new and has one container: whatever its node starts there is what the session claims."""
    is_warm: bool = False
    """Whether it had waited for its session."""
    container: str = ""
    """Id of the container that runs in it, as far as is known."""


class Stock(Protocol):
    """Sandboxes to be had. Methods raise StockError."""

    def blueprint(self, kind: str, namespace: str, name: str) -> Blueprint | None:
        """What the named object says; None: there is none."""

    def egress(self, kind: str, namespace: str, name: str) -> str:
        """Whom the named object lets its sandboxes reach, as `hekla.dev/egress`."""

    def blueprints(self) -> list[Blueprint]:
        """All there are."""

    async def take(self, order: Order) -> Held:
        """A sandbox that is the session's from now on and answers. Asked again for one session, it is the same."""

    async def settled(self, held: Held) -> None:
        """Return once it is written for good that it is the session's: a warm one may be claimed before that, a fork asked for."""

    async def take_forks(self, orders: list[Order]) -> list[Held]:
        """Sandboxes on the node of the one that they are to be copies of, or to be bound to it, where they wait for the fork."""

    def trouble(self, session: str) -> str:
        """What API server or scheduler says against a session's sandbox; empty if nothing."""

    async def drop(self, held: Held) -> None:
        """Give it back: it is destroyed, never reused. One that is gone already is no error."""

    async def held(self) -> list[Held]:
        """All that are somebody's, whoever took them."""

    async def logs(self, held: Held, most: int) -> str:
        """The last lines that its container wrote, each behind its time; empty: none, or there is no container."""

    def next_up(self, each: int) -> list[Held]:
        """Who waits and is taken next: so many of each template."""

    def tell_waiting(self, listener: Callable[[], None]) -> None:
        """Who is told that `next_up` may be others now: often, so it had better note it only."""

    def tell_restarts(self, listener: Callable[[str, str, str], None]) -> None:
        """Who is told when the container of somebody's sandbox was started anew: the session, the new container, and why the old one ended
        if its node said so.
        """
