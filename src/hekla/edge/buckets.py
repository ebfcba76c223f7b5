"""Token buckets, filled by elapsed time: how much may pass per second, with a burst. The clock is the caller's.

What is known only afterwards (the tokens of an answer) is settled afterwards, and may leave a debt that must be refilled first;
a limiter that forgets what does not fit lets the largest answers pass free.
"""

import ctypes
import math


class Bucket(ctypes.Structure):
    """`amount` units per `period_s` seconds, full at first; four doubles, which machine code reads where they stand (`router/lane/`)."""

    __slots__ = ()
    _fields_ = (
        ("amount", ctypes.c_double),
        ("rate", ctypes.c_double),
        ("level", ctypes.c_double),
        ("at", ctypes.c_double),
    )

    amount: float
    rate: float
    level: float
    at: float

    def __init__(self, *, amount: int, period_s: float, now: float) -> None:
        super().__init__(float(amount), amount / period_s, float(amount), now)

    def fill(self, now: float) -> float:
        """Add what came in since the last look; the level, negative in debt."""
        level = self.level
        if now > self.at:
            level += (now - self.at) * self.rate
            self.level = level = level if level < self.amount else self.amount
            self.at = now
        return level

    def take(self, units: int, now: float) -> bool:
        """Take `units`, or nothing if there are not as many."""
        if self.fill(now) < units:
            return False
        self.level -= units
        return True

    def spend(self, units: int) -> None:
        """Take `units` of what `fill` has just shown to be there."""
        self.level -= units

    def settle(self, units: int, now: float) -> None:
        """Take `units` that were used already, into debt if need be; give back where negative."""
        level = self.level
        if now > self.at:  # as `fill`, without a call: every answer settles two
            level += (now - self.at) * self.rate
            level = level if level < self.amount else self.amount
            self.at = now
        level -= units
        self.level = level if level < self.amount else self.amount

    def wait_s(self, units: int, now: float) -> float:
        """Seconds until `units` are there; infinite for more than the bucket holds."""
        missing = units - self.fill(now)
        if units > self.amount:
            return math.inf
        return max(0.0, missing / self.rate)
