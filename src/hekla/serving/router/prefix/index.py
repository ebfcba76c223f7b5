"""Remember which engine was sent which prompt, and so guess who still holds its beginning in cache.

One dictionary from block hash to a bit mask of endpoints: one operation on a large integer asks all of them at once. Each
endpoint forgets as its engine does, the least recently used first and the ends of prompts before their beginnings. So what
an endpoint holds is closed under truncation: who holds block i holds all before it, and a search may halve the depth.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Protocol

from hekla.serving.router.prefix.blocks import Blocks

MOST_REMEMBERED = 65_536
"""Blocks per endpoint, whatever its engine says of its cache: eight million tokens, 15 MB of memory."""
_NOBODY = repeat(0)
STRIDE = 8
"""Blocks looked at before the first jump; an ordinary chat ends within."""


class PromptMemory(Protocol):
    """Who was sent what: this form of it, or the flat one that the compiled decision uses (`flat_index.py`)."""

    capacity: int
    ttl_s: float

    @property
    def evicted(self) -> int:
        """Blocks forgotten for their age or for want of room, since the router began."""

    @property
    def entries(self) -> int:
        """Blocks that somebody holds."""

    def match(self, blocks: Blocks, among: int) -> list[tuple[int, int]]:
        """Who holds how many of the first blocks: (endpoints as bits, depth), only those that hold any."""

    def insert(self, blocks: Blocks, slot: int, now: float) -> None:
        """The endpoint was sent this prompt and will hold it, as far as it has room."""

    def resize(self, slot: int, capacity: int, ttl_s: float | None = None) -> None:
        """The engine told how much it can hold; or its events are known, and guesses are only for what has just been sent."""

    def forget(self, slot: int) -> None:
        """The endpoint is gone or began anew: nothing of it stays. One that was never heard of is fine."""

    def expire(self, now: float) -> None:
        """Forget what is older than its time; called now and then, as endpoints that get nothing are not looked at otherwise."""

    def held(self, slot: int) -> int:
        """How many blocks the endpoint is believed to hold."""


class PrefixIndex:
    """Who was sent what, bounded for each endpoint."""

    def __init__(self, capacity: int = 4096, ttl_s: float = 3600.0) -> None:
        """`capacity` is the blocks remembered for an endpoint whose cache is not known; 4,096 are half a million tokens."""
        self.capacity = capacity
        self.ttl_s = ttl_s
        self.holders: dict[int, int] = {}
        self.evicted = 0
        """Blocks forgotten for their age or for want of room, since the router began."""
        self._recent: dict[int, OrderedDict[int, float]] = {}
        self._capacities: dict[int, int] = {}
        self._ttls: dict[int, float] = {}

    @property
    def entries(self) -> int:
        """Blocks that somebody holds."""
        return len(self.holders)

    def recent(self) -> Iterator[tuple[int, Mapping[int, float]]]:
        """By endpoint: its blocks and when they were last sent, the oldest first."""
        yield from self._recent.items()

    def sizes(self) -> Iterator[tuple[int, int, float | None]]:
        """Endpoints that have a size of their own, and how long they remember if that is their own, too."""
        for slot, capacity in self._capacities.items():
            yield slot, capacity, self._ttls.get(slot)

    def match(self, blocks: Blocks, among: int) -> list[tuple[int, int]]:
        """Who holds how many of the first blocks: (endpoints as bits, depth), only those that hold any."""
        if blocks.count <= STRIDE:
            return self._match_few(blocks.first(STRIDE), among)
        found: list[tuple[int, int]] = []
        depth, reach, holders = 0, STRIDE, self.holders.get
        while among and depth < blocks.count:
            reach = min(reach, blocks.count)
            hashes = blocks.first(reach)
            all_the_way = holders(hashes[reach - 1], 0) & among
            if among != all_the_way:
                self._settle(hashes, among ^ all_the_way, depth, reach - 1, found)
            among, depth, reach = all_the_way, reach, reach * 2
        if among and depth:
            found.append((among, depth))
        return found

    def _match_few(self, hashes: list[int], among: int) -> list[tuple[int, int]]:
        """The same, block by block; first the last one, as of a short question behind a long beginning that all were sent."""
        holders = self.holders.get
        if among and hashes and holders(hashes[-1], 0) & among == among:
            return [(among, len(hashes))]
        found: list[tuple[int, int]] = []
        depth = 0
        for held in map(holders, hashes, _NOBODY):
            left = held & among
            if left != among:
                if depth:
                    found.append((among ^ left, depth))
                if not left:
                    return found
                among = left
            depth += 1
        if among and depth:
            found.append((among, depth))
        return found

    def _settle(self, hashes: list[int], among: int, low: int, high: int, found: list[tuple[int, int]]) -> None:
        """All of `among` hold `low` blocks and none more than `high`: find where each of them ends, by halves."""
        while low < high:
            middle = (low + high + 1) // 2
            deep = self.holders.get(hashes[middle - 1], 0) & among
            if deep == among:
                low = middle
            elif deep:
                self._settle(hashes, deep, middle, high, found)
                among, high = among ^ deep, middle - 1
            else:
                high = middle - 1
        if low:
            found.append((among, low))

    def insert(self, blocks: Blocks, slot: int, now: float) -> None:
        """The endpoint was sent this prompt and will hold it, as far as it has room."""
        recent = self._recent.get(slot)
        if recent is None:
            recent = self._recent[slot] = OrderedDict()
        capacity = self._capacities.get(slot, self.capacity)
        holders, bit, touch = self.holders, 1 << slot, recent.move_to_end
        hashes = blocks.first(capacity)
        if len(hashes) > capacity:
            hashes = hashes[:capacity]
        ends_first = reversed(hashes)  # the beginning last: what is most recent is forgotten last
        for one in ends_first:
            if one in recent:
                touch(one)
                recent[one] = now
                break
            holders[one] = holders.get(one, 0) | bit
            recent[one] = now
        for one in ends_first:  # who holds a block holds all before it
            touch(one)
            recent[one] = now
        if len(recent) > capacity:
            self._forget_some(slot, recent, capacity, now)

    def resize(self, slot: int, capacity: int, ttl_s: float | None = None) -> None:
        """The engine told how much it can hold; or its events are known, and guesses are only for what has just been sent."""
        self._capacities[slot] = min(MOST_REMEMBERED, max(1, capacity))
        if ttl_s is not None:
            self._ttls[slot] = ttl_s

    def forget(self, slot: int) -> None:
        """The endpoint is gone or began anew: nothing of it stays. One that was never heard of is fine."""
        self._capacities.pop(slot, None)
        self._ttls.pop(slot, None)
        for one in self._recent.pop(slot, ()):
            self._clear(one, 1 << slot)

    def expire(self, now: float) -> None:
        """Forget what is older than its time; called now and then, as endpoints that get nothing are not looked at otherwise."""
        for slot, recent in self._recent.items():
            self._forget_some(slot, recent, self._capacities.get(slot, self.capacity), now)

    def held(self, slot: int) -> int:
        """How many blocks the endpoint is believed to hold."""
        return len(self._recent.get(slot, ()))

    def _forget_some(self, slot: int, recent: OrderedDict[int, float], capacity: int, now: float) -> None:
        since, bit = now - self._ttls.get(slot, self.ttl_s), 1 << slot
        before = len(recent)
        while len(recent) > capacity:
            self._clear(recent.popitem(last=False)[0], bit)
        while recent and recent[next(iter(recent))] < since:
            self._clear(recent.popitem(last=False)[0], bit)
        self.evicted += before - len(recent)

    def _clear(self, one: int, bit: int) -> None:
        left = self.holders[one] & ~bit
        if left:
            self.holders[one] = left
        else:
            del self.holders[one]
