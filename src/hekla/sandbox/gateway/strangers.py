"""Who asks for sessions that are not there, or with keys that are none: so many times from one address, then 429 until time has passed.

An id has 130 random bits and a key is looked up by its digest, so nothing is found by trying; this keeps the trying from costing much.
An address that is over its allowance is refused even what it guesses right, else the refusals would tell which guess was. Whoever shows
a valid key, or a token of the session's own, is never a stranger: behind a load balancer all clients have one address, and one
stranger's misses would shut out everybody.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from hekla.sandbox.gateway.shares import origin_of


@dataclass(slots=True)
class Strangers:
    """Misses by address, each forgiven after a while."""

    at_once: int = 1000
    """Misses of one address that are answered as such; the next is 429."""
    per_s: float = 50.0
    """How many are forgiven in a second."""
    most: int = 10_000
    """Addresses that are remembered; the one that missed longest ago is forgotten."""
    _misses: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)
    """By origin: how many, and as of when."""

    def missed(self, address: str, now: float) -> None:
        """It asked for what is not there."""
        origin = origin_of(address)
        self._misses[origin] = (self._left(origin, now) + 1.0, now)
        self._misses.move_to_end(origin)
        if len(self._misses) > self.most:
            self._misses.popitem(last=False)

    def is_over(self, address: str, now: float) -> bool:
        """Whether it has missed too often."""
        origin = origin_of(address)
        return origin in self._misses and self._left(origin, now) >= self.at_once

    def __bool__(self) -> bool:
        """Whether anybody has missed at all: most gateways never see one, and pay nothing."""
        return bool(self._misses)

    def _left(self, origin: str, now: float) -> float:
        count, since = self._misses.get(origin, (0.0, now))
        return max(0.0, count - (now - since) * self.per_s)
