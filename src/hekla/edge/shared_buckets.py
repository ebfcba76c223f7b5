"""Token buckets that several doors keep in common: what one request asks of them, and the keeper for one process.

`redis_buckets.py` keeps them in a server; both pass the same tests.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hekla.edge.buckets import Bucket


class BucketsGoneError(Exception):
    """The keeper cannot be reached; nobody knows what it took."""


@dataclass(frozen=True)
class Share:
    """What one request asks of one bucket."""

    key: str
    amount: int
    """What the bucket holds and what flows in per period."""
    period_s: float
    take: int
    """What is taken; negative gives back."""
    need: int | None = None
    """What must be there; None: nothing, and the bucket may go into debt."""


@dataclass(frozen=True)
class Lack:
    """Which share there was not enough for, and when there will be; infinite for more than the bucket holds."""

    number: int
    wait_s: float


@dataclass(frozen=True)
class Foreign:
    """What is kept under a bucket's key is no bucket: somebody else wrote it, and it stays as it is."""

    why: str


Answer = Lack | Foreign | None
"""None: all shares were taken."""


class SharedBuckets(Protocol):
    """Keeps buckets by key."""

    async def take(self, asked: Sequence[Sequence[Share]]) -> list[Answer]:
        """For each request, in order, take all its shares, or none and say which is lacking; raises BucketsGoneError."""

    async def close(self) -> None:
        """Nobody asks any more."""


def place_of(address: str) -> tuple[str, int] | None:
    """Host and port of a server, as `host`, `host:port` or `[::1]:port`; None: it is no address."""
    host, _, port = address.rpartition(":") if ":" in address and not address.endswith("]") else (address, "", "6379")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        return None
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65_536
    return (host, int(port)) if is_port and host and not any(map(str.isspace, host)) else None


class AbsentBuckets:
    """Buckets that cannot be reached by this installation; whoever asks goes on alone, and his log says why."""

    def __init__(self, why: str) -> None:
        self._why = why

    async def take(self, asked: Sequence[Sequence[Share]]) -> list[Answer]:
        """As `SharedBuckets`."""
        raise BucketsGoneError(self._why)

    async def close(self) -> None:
        """As `SharedBuckets`."""


class MemoryBuckets:
    """Buckets in this process, filled by the caller's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[str, Bucket] = {}

    async def take(self, asked: Sequence[Sequence[Share]]) -> list[Answer]:
        """As `SharedBuckets`."""
        return [self._take(shares, self._now()) for shares in asked]

    async def close(self) -> None:
        """As `SharedBuckets`."""

    def _take(self, shares: Sequence[Share], now: float) -> Lack | None:
        for number, one in enumerate(shares):
            if one.need is not None and self._bucket(one, now).fill(now) < one.need:
                return Lack(number, self._bucket(one, now).wait_s(one.need, now))
        for one in shares:
            self._bucket(one, now).settle(one.take, now)
        return None

    def _bucket(self, share: Share, now: float) -> Bucket:
        found = self._buckets.get(share.key)
        if found is None:
            found = self._buckets[share.key] = Bucket(amount=share.amount, period_s=share.period_s, now=now)
        return found
