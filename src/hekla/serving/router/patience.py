"""How long requests wait for engines that restart: half a minute, and less for those that keep going away. Pure; `holding.py` asks it.

A model's engines have `RESTART_S` in which requests wait for them. It runs out while they are out, from the first request that met
nobody, and comes back four times as slowly while they answer: engines that are there four fifths of the time are always waited for, those
that come and go for as short as they are good for, and each of their requests is told sooner when to ask again. Begun anew with each
outage, as it was, a request that met an engine only to lose it waited half a minute each time, for as long as the engine flapped.
"""

from dataclasses import dataclass
from typing import Final

RESTART_S: Final = 30.0
"""How long after the first request that met nobody requests wait for engines that restart."""
REGAINED: Final = 0.25
"""Seconds of it that come back for each second in which the engines answer."""


@dataclass(slots=True)
class Patience:
    """What one model's requests have of it."""

    left_s: float = RESTART_S
    """As of `since`, seconds."""
    since: float = 0.0
    """When that changed its course: engines went or came."""
    is_out: bool = False
    """Whether it runs out: a request met nobody, and no engine has answered since."""

    def out(self, now: float) -> float:
        """A request meets nobody; until when it may wait, in the seconds of `now`."""
        if not self.is_out:
            self.left_s, self.since, self.is_out = self._regained(now), now, True
        return self.since + self.left_s

    def back(self, now: float) -> None:
        """An engine is there, or has answered."""
        if self.is_out:
            self.left_s, self.since, self.is_out = max(0.0, self.since + self.left_s - now), now, False

    def is_whole(self, now: float) -> bool:
        """Whether nothing is missing: there is nothing to remember."""
        return not self.is_out and self._regained(now) >= RESTART_S

    def _regained(self, now: float) -> float:
        return min(RESTART_S, self.left_s + REGAINED * (now - self.since))
