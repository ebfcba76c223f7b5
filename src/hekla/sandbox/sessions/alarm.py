"""The one timer over the deadlines of all sessions: rings for those that are to be looked at, none later than it must."""

import asyncio
from collections.abc import Callable

from hekla.sandbox.sessions.deadlines import Deadlines
from hekla.sandbox.sessions.records import FOREVER


class Alarm:
    """Wakes up for the earliest deadline."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._deadlines = Deadlines()
        self._timer: asyncio.TimerHandle | None = None
        self.on_due: Callable[[str], None] = lambda session: None
        """Told whom to look at; whether something is due of it is for the listener to say, who may `put` it back."""

    def put(self, session: str, when: float) -> None:
        """Look at a session then, at the latest."""
        if self._deadlines.put(session, when):
            self._set()

    def forget(self, session: str) -> None:
        """It is gone."""
        self._deadlines.forget(session)

    def close(self) -> None:
        """Ring no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set(self) -> None:
        self.close()
        earliest = self._deadlines.earliest
        self._timer = None
        if earliest != FOREVER:
            delay_s = max(0.0, earliest - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._ring)

    def _ring(self) -> None:
        for session in self._deadlines.take(self._now()):
            self.on_due(session)
        self._set()
