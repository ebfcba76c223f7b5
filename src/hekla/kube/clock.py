"""Where the shells of this package get the time from. Decisions get it as `now`, from here.

Two questions, two answers: `now` is what people write into objects, and may jump when somebody sets the clock;
`elapsed_s` only ever moves forward and also counts while the machine sleeps, so leases are judged by it.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

from hekla.kube.timestamps import parse_rfc3339, rfc3339, rfc3339_micro

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
"""When virtual time begins."""


class Clock(Protocol):
    """The time, for one shell."""

    def now(self) -> datetime:
        """The wall clock, with a time zone."""

    def elapsed_s(self) -> float:
        """Seconds since some moment in the past; never goes back."""


class SystemClock:
    """The clock of the machine we run on."""

    def now(self) -> datetime:
        """The wall clock in UTC."""
        return datetime.now(UTC)

    def elapsed_s(self) -> float:
        """Seconds since boot, sleep included where the kernel counts it (a leader must not oversleep its lease)."""
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()


class LoopClock:
    """The event loop's own time, so that a loop with virtual time takes the wall clock along."""

    def __init__(self, epoch: datetime = EPOCH) -> None:
        self.epoch = epoch
        self.skew_s = 0.0
        """Set by tests to let the wall clock jump."""

    def now(self) -> datetime:
        """The epoch plus what the loop has seen pass."""
        return self.epoch + timedelta(seconds=asyncio.get_running_loop().time() + self.skew_s)

    def elapsed_s(self) -> float:
        """The loop's time."""
        return asyncio.get_running_loop().time()


__all__ = ["EPOCH", "Clock", "LoopClock", "SystemClock", "parse_rfc3339", "rfc3339", "rfc3339_micro"]
