"""How many sandboxes a node keeps warm for pods that nobody has asked for yet: as many more than a few as were missing lately.

A sandbox costs 15 to 20 ms of a processor to make and 10 MiB to keep, 3 of them its interpreter. A hundred sessions at once found eight
and waited for the rest; the next hundred find a hundred. Pools of objects (`hekla.sandbox.pools`) are another thing: they have a
template and a place in a queue. Pure; `cells.py` makes and ends.
"""

from dataclasses import dataclass

KEPT_S = 600.0
"""So long without one missing, and half of what was added goes."""
SHARE_OF_MEMORY = 32
"""All of them together take at most one part in so many of the machine's memory."""
EACH_BYTES = 10 << 20
MOST = 128


@dataclass(slots=True)
class StockSize:
    """Of one runtime. `least` is kept always; none at all where it is 0."""

    least: int
    most: int
    added: int = 0
    quiet_since_s: float = 0.0
    taken_since_full: int = 0

    @property
    def wanted(self) -> int:
        """How many to keep now."""
        return self.least + self.added

    def taken(self, now_s: float) -> None:
        """One was wanted. Those that were made during a burst are missing from the next: all count that were taken since the stock was full."""
        self.taken_since_full += 1
        if self.taken_since_full > self.wanted:
            self.quiet_since_s = now_s
            if self.least:
                self.added = max(self.added, min(self.taken_since_full, self.most) - self.least)

    def filled(self) -> None:
        """As many are there as are to be kept."""
        self.taken_since_full = 0

    def rest(self, now_s: float) -> float:
        """Let go of what was not missed for long; in how many seconds to look again, 0: nothing is left to let go of."""
        if now_s - self.quiet_since_s >= KEPT_S:
            self.added //= 2
            self.quiet_since_s = now_s
        return self.quiet_since_s + KEPT_S - now_s if self.added else 0.0


def most_of(memory_bytes: int) -> int:
    """How many a machine may keep."""
    return min(MOST, memory_bytes // SHARE_OF_MEMORY // EACH_BYTES)
