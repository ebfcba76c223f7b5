"""A session that tells how long each plug-in took for what it computes once per cycle.

The engine knows no clock; the shell lends it one here.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from hekla.placement.framework import Opens
from hekla.placement.policy import Policy
from hekla.placement.session import Session

T = TypeVar("T")


class TimedSession(Session):
    """One cycle, with a stop-watch."""

    def __init__(
        self,
        policy: Policy,
        *,
        now: float,
        wall_s: float,
        has_time: Callable[[], bool],
        elapsed_s: Callable[[], float],
        on_opened: Callable[[str, float], None],
    ) -> None:
        super().__init__(policy, now=now, wall_s=wall_s, has_time=has_time)
        self._elapsed_s = elapsed_s
        self._on_opened = on_opened

    def opened(self, plugin: Opens[T]) -> T:
        """What a plug-in computes once per cycle; the first time, by the clock."""
        state: T | None = self._opened.get(id(plugin))
        if state is not None:
            return state
        begun_s = self._elapsed_s()
        state = super().opened(plugin)
        self._on_opened(name_of(plugin), self._elapsed_s() - begun_s)
        return state


def name_of(plugin: Any) -> str:
    """A plug-in's name in the configuration: its module's, with dashes."""
    return type(plugin).__module__.rpartition(".")[2].replace("_", "-")
