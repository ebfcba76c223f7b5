"""Whether a queue takes work, as a table: opening, closing, and the time in which it only empties.

`queue.py` finds out what happened; `admission_queue.py` keeps queues a tree.
"""

from collections.abc import Mapping
from enum import StrEnum

from hekla.api.volcano.scheduling import QueueState as State


class Trigger(StrEnum):
    """What moves a queue from one state to another."""

    OPEN = "it is opened"
    CLOSE_EMPTY = "it is closed while empty"
    CLOSE_BUSY = "it is closed while gangs are in it"
    EMPTIED = "its last gang leaves"


TRANSITIONS: Mapping[State, Mapping[Trigger, State]] = {
    State.OPEN: {Trigger.CLOSE_EMPTY: State.CLOSED, Trigger.CLOSE_BUSY: State.CLOSING},
    State.CLOSING: {Trigger.OPEN: State.OPEN, Trigger.EMPTIED: State.CLOSED},
    State.CLOSED: {Trigger.OPEN: State.OPEN},
    State.UNKNOWN: {
        Trigger.OPEN: State.OPEN,
        Trigger.CLOSE_EMPTY: State.CLOSED,
        Trigger.CLOSE_BUSY: State.CLOSING,
    },
}

SHUT = frozenset({State.CLOSED, State.CLOSING})
"""States in which a queue takes no new work."""


def after(state: State, trigger: Trigger) -> State:
    """The state that follows; a trigger that means nothing in this state changes nothing."""
    return TRANSITIONS[state].get(trigger, state)


def read(text: str) -> State:
    """The state that a queue says it is in: a new one is Open, a word that nobody knows is Unknown."""
    if not text:
        return State.OPEN
    return State(text) if text in set(State) else State.UNKNOWN


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {State.OPEN}"]
    for state, row in TRANSITIONS.items():
        lines += [f"    {state} --> {following}: {trigger.value}" for trigger, following in row.items()]
    return "\n".join(lines) + "\n"
