"""The life of a session as one table: what may happen in each state, and where it leads.

    creating ──taken──▶ claimed ──bound──▶ running ◀──thaw── frozen
       ▲  │                │                 │  └──freeze─────▶ │
       │  └──failed──▶ expiring ◀──end, lost─┴──────────────────┤
       │               │    ▲                                   │
     resume          removed └── end, lost ──┐               pause
       │               ▼                     │                  ▼
       └──────────────gone                 paused ◀─────────────┘

A session that resumes goes the way of a new one; if that fails it is paused still (`put back`). Warm is the state of a sandbox
that waits for a session. Whoever acts writes the state first and acts then, so that whoever finds a session after a crash knows
from its state alone what may be left of it (`recovery.py`).
"""

from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """Where a session is in its life."""

    CREATING = "creating"
    """It is written down; a sandbox is looked for."""
    WARM = "warm"
    """A sandbox waits for it: the state of those that have no owner yet."""
    CLAIMED = "claimed"
    """A sandbox is its own, and is being told so."""
    RUNNING = "running"
    FROZEN = "frozen"
    """Its processes stand still, in memory; the next request wakes them."""
    PAUSED = "paused"
    """It was put to sleep; its sandbox stands still, or is gone and there is a checkpoint of it."""
    EXPIRING = "expiring"
    """Its time is over; what it held is being given back."""
    GONE = "gone"
    """Nothing is left."""


class Event(StrEnum):
    """What may happen to a session."""

    WARM = "warm"
    TAKEN = "taken"
    BOUND = "bound"
    FREEZE = "freeze"
    THAW = "thaw"
    PAUSE = "pause"
    RESUME = "resume"
    PUT_BACK = "put back"
    FAILED = "failed"
    LOST = "lost"
    END = "end"
    REMOVED = "removed"


_S, _E = State, Event
TABLE = MappingProxyType({
    (_S.CREATING, _E.WARM): _S.WARM, (_S.CREATING, _E.TAKEN): _S.CLAIMED, (_S.WARM, _E.TAKEN): _S.CLAIMED,
    (_S.CLAIMED, _E.BOUND): _S.RUNNING,
    (_S.CREATING, _E.FAILED): _S.EXPIRING, (_S.WARM, _E.FAILED): _S.EXPIRING, (_S.CLAIMED, _E.FAILED): _S.EXPIRING,
    (_S.RUNNING, _E.FREEZE): _S.FROZEN, (_S.FROZEN, _E.THAW): _S.RUNNING,
    (_S.RUNNING, _E.PAUSE): _S.PAUSED, (_S.FROZEN, _E.PAUSE): _S.PAUSED,
    (_S.PAUSED, _E.THAW): _S.RUNNING, (_S.PAUSED, _E.RESUME): _S.CREATING,
    (_S.CREATING, _E.PUT_BACK): _S.PAUSED, (_S.CLAIMED, _E.PUT_BACK): _S.PAUSED,
    (_S.WARM, _E.LOST): _S.EXPIRING, (_S.CLAIMED, _E.LOST): _S.EXPIRING, (_S.RUNNING, _E.LOST): _S.EXPIRING,
    (_S.FROZEN, _E.LOST): _S.EXPIRING, (_S.PAUSED, _E.LOST): _S.EXPIRING,
    (_S.CREATING, _E.END): _S.EXPIRING, (_S.WARM, _E.END): _S.EXPIRING, (_S.CLAIMED, _E.END): _S.EXPIRING,
    (_S.RUNNING, _E.END): _S.EXPIRING, (_S.FROZEN, _E.END): _S.EXPIRING, (_S.PAUSED, _E.END): _S.EXPIRING,
    (_S.EXPIRING, _E.END): _S.EXPIRING, (_S.EXPIRING, _E.LOST): _S.EXPIRING, (_S.EXPIRING, _E.REMOVED): _S.GONE,
})  # fmt: skip

LIVE = frozenset({State.CREATING, State.WARM, State.CLAIMED, State.RUNNING, State.FROZEN, State.PAUSED})
"""States of a session that its owner can see."""
BEING_MADE = frozenset({State.CREATING, State.WARM, State.CLAIMED})
"""States that lead to one that serves, or to an end."""
SERVING = frozenset({State.RUNNING, State.FROZEN})
"""States in which a request is let in, perhaps after a moment."""


class IllegalEventError(Exception):
    """Something was asked of a session that cannot happen in its state."""

    def __init__(self, state: State, event: Event) -> None:
        super().__init__(f'a session that is {state} cannot take "{event}"')
        self.state, self.event = state, event


def after(state: State, event: Event) -> State:
    """The state that an event leads to; raises IllegalEventError."""
    try:
        return TABLE[state, event]
    except KeyError:
        raise IllegalEventError(state, event) from None


def takes(state: State, event: Event) -> bool:
    """Whether an event can happen in a state."""
    return (state, event) in TABLE
