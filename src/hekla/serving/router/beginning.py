"""Requests that come while a router still learns what there is: held until it knows, and then answered by that.

A process of a crew that is started anew shares its port from its first moment: whom the kernel sends to it must not hear that a
model is unknown whose route it has not read yet. A guard (`plan.Guard`) right behind the one that finds out who asks: strangers
take no places. `running.py` tells it to look.
"""

from collections.abc import Callable
from typing import Final

from hekla.serving.router.held import Held
from hekla.serving.router.plan import Refusal, Usage, Waiting
from hekla.serving.router.question import Question

HOLD_S: Final = 10.0
"""How long after its beginning a router holds requests; then it answers by what it knows, or says that it knows nothing."""
LOOK_S: Final = 0.02
"""How often it is looked whether all is known."""
MOST_HELD: Final = 1_000
"""Requests held; one more is refused."""


class Beginning:
    """The first moments of one router."""

    def __init__(
        self,
        missing: Callable[[], str],
        is_blind: Callable[[], bool],
        now: Callable[[], float],
        refused: Callable[[], str] = lambda: "",
    ) -> None:
        """`missing` says what is not known yet; `is_blind`, whether that is what no request can be answered without; `refused`,
        why waiting for it is in vain: the API server does not let the router read it.
        """
        self._missing = missing
        self._is_blind = is_blind
        self._refused = refused
        self._now = now
        self._until = now() + HOLD_S
        self._held: list[Held] = []
        self.is_over = False

    def admit(self, question: Question, now: float) -> Refusal | Waiting | None:
        """As `Guard`."""
        if self.is_over or self.look():
            return None
        if len(self._held) >= MOST_HELD:
            self._held = [one for one in self._held if not one.is_abandoned]
        if self._is_late() or len(self._held) >= MOST_HELD:
            return self._refusal()
        self._held.append(Held())
        return self._held[-1]

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """As `Guard`."""

    def look(self) -> bool:
        """Let go who waits once all is known, or enough and time is up; whether it is over."""
        is_late = self._is_late()
        self.is_over = self.is_over or not self._missing() or (is_late and not self._is_blind())
        if self.is_over or is_late:
            held, self._held = self._held, []
            for one in held:
                one.go(None if self.is_over else self._refusal())
        return self.is_over

    def _is_late(self) -> bool:
        return self._now() >= self._until or bool(self._refused())

    def _refusal(self) -> Refusal:
        if self._refused():
            said = (
                f"the API server does not let the router read what it routes by; {self._missing()}; try again in 30 s"
            )
            return Refusal(503, "pod_discovery", said, 30.0)
        return Refusal(503, "pod_discovery", f"the router has just begun; {self._missing()}; try again in 1 s", 1.0)
