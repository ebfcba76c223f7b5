"""When something is due of a session by itself, and the one timer that wakes up for it. Decisions here are pure; `desk.py` acts.

A use of a session moves no entry: an entry that comes up too early is put back for when the session is due by then. So a
request costs no heap operation, and the heap holds one or two entries a session.
"""

import heapq
from enum import StrEnum

from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.records import FOREVER, OnTimeout, Session


class Due(StrEnum):
    """What is to be done."""

    END = "end"
    PAUSE = "pause"
    FREEZE = "freeze"


def next_due(session: Session, *, used_s: float, is_busy: bool) -> tuple[float, Due]:
    """When what is due next; `used_s` is when it was used last. A request under way holds off idleness, not the end.

    The time that the owner asked for decides between an end and a pause; the longest life ends it in any state.
    """
    dues = [(session.ends_s or FOREVER, Due.END)]
    if session.state in (State.RUNNING, State.FROZEN):
        pauses = session.on_timeout == OnTimeout.PAUSE
        dues.append((session.expires_s or FOREVER, Due.PAUSE if pauses else Due.END))
    if not is_busy and session.state in (State.RUNNING, State.FROZEN, State.PAUSED) and session.idle_s:
        dues.append((used_s + session.idle_s, Due.END))
    if not is_busy and session.state is State.RUNNING and session.freeze_s:
        dues.append((used_s + session.freeze_s, Due.FREEZE))
    return min(dues, key=lambda one: one[0])


class Deadlines:
    """Sessions by when they are to be looked at."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._earliest: dict[str, float] = {}

    def put(self, session: str, when: float) -> bool:
        """Look at a session then, at the latest; whether that is sooner than anything else."""
        if when == FOREVER or self._earliest.get(session, FOREVER) <= when:
            return False
        self._earliest[session] = when
        heapq.heappush(self._heap, (when, session))
        return self._heap[0][0] == when

    def forget(self, session: str) -> None:
        """It is gone; its entries are passed over when they come up."""
        self._earliest.pop(session, None)

    @property
    def earliest(self) -> float:
        """When the next one is due; FOREVER: never."""
        while self._heap and self._earliest.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else FOREVER

    def take(self, now: float) -> list[str]:
        """Those that are to be looked at now."""
        taken = []
        while self.earliest <= now:
            _, session = heapq.heappop(self._heap)
            del self._earliest[session]
            taken.append(session)
        return taken
