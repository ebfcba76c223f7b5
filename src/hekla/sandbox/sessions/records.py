"""What is written down of a session and of a snapshot; `store.py` keeps it, `desk.py` alone changes it."""

import base64
import secrets
from collections.abc import Iterable
from enum import Enum
from typing import Any, TypeAlias

from msgspec import Struct, field

from hekla.api.agents.node_contract import Usage
from hekla.sandbox.sessions.lifecycle import LIVE, State

FOREVER = float("inf")


class Sight(Enum):
    """More than one owner's sessions."""

    ALL = "all"


class Within(Struct, frozen=True):
    """The sessions of one namespace, of an owner or of all: what a key sees that is held to a namespace."""

    namespace: str
    whose: str | Sight


Sees: TypeAlias = str | Sight | Within | None
"""Whose sessions somebody sees: one owner's, or everybody's. None: nobody is named, the platform itself asks; it is told only whether there is one."""


def is_seen(owner: str, namespace: str, sees: Sees) -> bool:
    """Whether what belongs to an owner, in a namespace, may be acted on."""
    if isinstance(sees, Within):
        return sees.namespace == namespace and is_seen(owner, namespace, sees.whose)
    return not isinstance(sees, str) or sees == owner


class SessionKind:
    """What a session was made from: plural names of objects, as they stand in paths."""

    INTERPRETER = "code-interpreters"
    RUNTIME = "agent-runtimes"
    TEMPLATE = "sandbox-templates"


class OnTimeout:
    """What becomes of a session whose time is over."""

    KILL = "kill"
    PAUSE = "pause"


class EntryPoint(Struct, frozen=True):
    """A port that a session's sandbox offers."""

    path: str
    """Requests whose path begins with it go there."""
    port: int
    protocol: str = "HTTP"


class Session(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One session. Times are seconds since 1970."""

    id: str
    kind: str
    namespace: str
    name: str
    """Of the object that it was made from."""
    owner: str
    door: str = ""
    """By which front door it came."""
    state: State = State.CREATING
    revision: int = 0
    """Counts the writes of this row: who writes over one that another gateway has changed meanwhile is told so."""

    created_s: float = 0.0
    touched_s: float = 0.0
    """When it was last used; written now and then only."""
    expires_s: float = 0.0
    """When its time is over, as its owner asked; 0: when `ends_s` says."""
    timeout_s: float = 0.0
    """What its owner asked for last: how long it lives when it is woken."""
    ends_s: float = 0.0
    """When it ends whatever its owner asks; 0: never."""
    idle_s: float = 0.0
    """How long it may be idle; 0: for ever."""
    freeze_s: float = 0.0
    """After how long without a request it is frozen; 0: never."""
    on_timeout: str = OnTimeout.KILL
    keeps_memory: bool = True
    """Whether a pause on timeout keeps processes."""
    auto_resume: bool = False
    """Whether a request wakes it from a pause."""

    sandbox: str = ""
    """Name of its Sandbox; its namespace is the session's."""
    sandbox_uid: str = ""
    pod: str = ""
    container: str = ""
    """Id of the container that the session's state is in; one that is started anew knows nothing of it."""
    entry_points: tuple[EntryPoint, ...] = ()
    access_token: str = field(default="")
    """What requests to its daemon must carry, in E2B's dialect."""
    traffic_token: str = ""
    """What requests to its ports must carry; empty: anybody who knows the id may ask."""
    is_checked: bool = True
    """Whether the daemon inside asks for a token of the router's."""
    token_key: str = ""
    """What those tokens are signed with, if the daemon has such a secret; else with the router's own key."""

    checkpoint: str = ""
    """What it resumes from, if its sandbox is gone."""
    pending_checkpoint: str = ""
    """One that was begun, and is nobody's until the row says so."""
    checkpoint_node: str = ""
    """Where these most likely lie; empty: nobody wrote it down, or they are reached from everywhere."""
    parent: str = ""
    """The session that it is a fork of."""
    snapshot: str = ""
    """The snapshot that it began with."""
    lineage: tuple[str, ...] = ()
    """Uids of the sandboxes that it descends from, the oldest first."""
    metadata: dict[str, str] = {}
    env: dict[str, str] = {}
    network: dict[str, Any] = {}
    """As E2B's clients write it."""
    mask_host: str = ""
    """The Host that servers inside are told."""
    budget: dict[str, float] = {}
    """What its owner lets it use, as `budgets.py` reads it."""
    spent: str = ""
    """Why it stands still, where that is for want of budget."""
    used: Usage = Usage()
    """In sandboxes that it had before the one that it has."""
    idempotency_key: str = ""

    @property
    def freeze_order(self) -> int:
        """The number of an order to stand still by this row. Every later row's orders are greater, whichever gateway wrote it."""
        return 2 * self.revision

    @property
    def thaw_order(self) -> int:
        """The number of an order to go on that this row is seen to sleep by: it is given before the row that says so is written."""
        return 2 * self.revision + 1

    @property
    def is_live(self) -> bool:
        """Whether its owner can see it."""
        return self.state in LIVE


class Snapshot(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A checkpoint that new sessions can begin with."""

    id: str
    owner: str
    namespace: str
    session: str
    """The session that it was taken of."""
    kind: str
    name: str
    """Of the object that that one was made from."""
    checkpoint: str
    checkpoint_node: str = ""
    """Where it most likely lies."""
    names: tuple[str, ...] = ()
    created_s: float = 0.0


def snapshot_called(text: str, seen: Iterable[Snapshot], owner: str) -> Snapshot | None:
    """The one of those somebody sees that has this id, or is theirs and has this name; None: there is none.

    Names are chosen by whoever makes a snapshot: somebody else's, whom an administrator sees, must stand for nothing of theirs.
    """
    known = tuple(seen)
    found = [one for one in known if one.id == text] or [
        one for one in known if one.owner == owner and text in one.names
    ]
    return found[0] if found else None


def new_id() -> str:
    """A session's id: 130 random bits that fit a label, a host name and a path; never chosen by a caller."""
    return base64.b32encode(secrets.token_bytes(17)).decode()[:26].lower()


def new_token() -> str:
    """A secret of 256 bits."""
    return secrets.token_hex(32)
