"""Holds a client back to so many requests per second, as client-go's QPS and burst do. Off unless asked for."""

import asyncio

ROUNDING_S = 1e-6
"""Below this a wait is an artefact of adding fractions."""


class TokenBucket:
    """`burst` requests at once, then `rate_per_s`; waiting callers are served in order."""

    def __init__(self, rate_per_s: float, burst: int) -> None:
        if rate_per_s <= 0 or burst < 1:
            raise ValueError(f"a rate limit needs a positive rate and burst, not {rate_per_s}/s and {burst}")
        self.rate_per_s, self.burst = rate_per_s, burst
        self._next_free_s: float | None = None

    def reserve(self, now_s: float) -> float:
        """Take a token and return how long to wait before using it."""
        # A virtual clock of free slots: at most `burst` slots of the past are kept.
        oldest_s = now_s - (self.burst - 1) / self.rate_per_s
        slot_s = oldest_s if self._next_free_s is None else max(self._next_free_s, oldest_s)
        self._next_free_s = slot_s + 1 / self.rate_per_s
        wait_s = slot_s - now_s
        return wait_s if wait_s > ROUNDING_S else 0.0

    def take(self, now_s: float) -> bool:
        """Take a token if there is one now."""
        before = self._next_free_s
        if self.reserve(now_s) <= 0:
            return True
        self._next_free_s = before
        return False

    async def acquire(self) -> None:
        """Wait for a token."""
        wait_s = self.reserve(asyncio.get_running_loop().time())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
