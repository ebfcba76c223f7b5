"""What is reckoned to happen at some time, in a wheel of hundredths of a second; no clock of its own.

A heap would be exact, and takes 2 us more of a chat where a few thousand are waited for; here it is a list for each
hundredth. Nothing is told before its time, and everything within a hundredth after it, if somebody asks.
"""

from typing import Final, Generic, TypeVar

TICKS_PER_S: Final = 100

T = TypeVar("T")


class Wheel(Generic[T]):
    """Things by the time at which they are due."""

    __slots__ = ("_by_tick", "_tick", "next_s")

    def __init__(self) -> None:
        self._by_tick: dict[int, list[T]] = {}
        self._tick = 0
        """All up to this one were told."""
        self.next_s = 0.0
        """Before this time there is nothing to tell, so that nobody need ask."""

    def add(self, thing: T, due_s: float) -> None:
        """Tell it at this time or a little later; what is past already, with the next."""
        tick = int(due_s * TICKS_PER_S) + 1
        if tick <= self._tick:
            tick = self._tick + 1
        there = self._by_tick.get(tick)
        if there is None:
            self._by_tick[tick] = [thing]
        else:
            there.append(thing)

    def over(self, now: float) -> list[T]:
        """What was due until now and was not told yet, the earliest first."""
        tick, by_tick = int(now * TICKS_PER_S), self._by_tick
        passed = range(self._tick + 1, tick + 1)
        found = passed if len(passed) <= len(by_tick) else sorted(one for one in by_tick if one <= tick)
        told = [thing for one in found if one in by_tick for thing in by_tick.pop(one)]
        self._tick, self.next_s = max(tick, self._tick), (tick + 1) / TICKS_PER_S
        return told
