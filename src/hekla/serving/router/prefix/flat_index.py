"""Who was sent which prompt, as `index.py` has it, in flat arrays that the compiled decision reads and writes (`kernel/`).

A node for each block of each endpoint, chained from old to young; a table from block and endpoint to node, and one from
block to who holds it. 76 bytes a block instead of 229. Arrays grow by doubling and never shrink; how many blocks an endpoint
may have is bounded as in `index.py`.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hekla.serving.router.kernel.functions import Kernel
from hekla.serving.router.kernel.layout import NO_ROOM, SECRET_BYTES, Word
from hekla.serving.router.prefix.blocks import BLOCK_BYTES, MOST_BLOCKS, Blocks
from hekla.serving.router.prefix.index import MOST_REMEMBERED, PrefixIndex

NODES: Final = 4096
"""To begin with."""
SLOTS_A_WORD: Final = 64

SECRET: Final = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
"""XXH3's default secret, as its specification lists it."""


class FlatIndex:
    """Who was sent what, bounded for each endpoint."""

    def __init__(self, kernel: Kernel, capacity: int = 4096, ttl_s: float = 3600.0) -> None:
        """`capacity` and `ttl_s` as `PrefixIndex` has them."""
        assert len(SECRET) == SECRET_BYTES
        self.kernel = kernel
        self._words = np.zeros(len(Word), np.int64)
        self._doubles = self._words.view(np.float64)
        self.state = int(self._words.ctypes.data)
        """Where it stands in memory, for the compiled functions."""
        self._arrays: dict[Word, NDArray[Any]] = {}
        self._slots = self._nodes = 0
        self._hashes: NDArray[np.uint64] = np.zeros(1, np.uint64)
        """Of the prompt that is looked at."""
        self.capacity, self.ttl_s = capacity, ttl_s
        self._words[Word.FREE] = -1
        self._put(Word.SECRET, np.frombuffer(SECRET, np.uint8))
        self._put(Word.SEEDED, np.zeros(SECRET_BYTES, np.uint8))
        self.see(BLOCK_BYTES, MOST_BLOCKS)
        self._add_nodes(NODES)
        self._add_slots(SLOTS_A_WORD)

    @classmethod
    def of(cls, plain: PrefixIndex, kernel: Kernel) -> "FlatIndex":
        """What a plain index remembers, in the same order."""
        flat = cls(kernel, plain.capacity, plain.ttl_s)
        flat._words[Word.EVICTED] = plain.evicted
        for slot, capacity, ttl_s in plain.sizes():
            flat.resize(slot, capacity, ttl_s)
        flat._fill({slot: recent for slot, recent in plain.recent() if recent})
        return flat

    # ---- as `PrefixIndex`

    @property
    def capacity(self) -> int:
        """Blocks remembered for an endpoint whose cache is not known."""
        return int(self._words[Word.CAPACITY])

    @capacity.setter
    def capacity(self, blocks: int) -> None:
        self._words[Word.CAPACITY] = blocks

    @property
    def ttl_s(self) -> float:
        """How long a block is remembered."""
        return float(self._doubles[Word.TTL])

    @ttl_s.setter
    def ttl_s(self, seconds: float) -> None:
        self._doubles[Word.TTL] = seconds

    @property
    def evicted(self) -> int:
        """Blocks forgotten for their age or for want of room."""
        return int(self._words[Word.EVICTED])

    @property
    def entries(self) -> int:
        """Blocks that somebody holds."""
        return int(self._words[Word.ENTRIES])

    def match(self, blocks: Blocks, among: int) -> list[tuple[int, int]]:
        """Who holds how many of the first blocks: (endpoints as bits, depth), only those that hold any."""
        held, depths, left = (self._arrays[one] for one in (Word.HELD, Word.DEPTHS, Word.LEFT))
        asked = [slot for slot in np.flatnonzero(held).tolist() if among >> slot & 1]
        left[: len(asked)] = asked
        self.kernel.match(self.state, self._take_in(blocks, blocks.count), len(asked))
        found: dict[int, int] = {}
        for slot in asked:
            depth = int(depths[slot])
            found[depth] = found.get(depth, 0) | 1 << slot
        return [(slots, depth) for depth, slots in found.items() if depth]

    def insert(self, blocks: Blocks, slot: int, now: float) -> None:
        """The endpoint was sent this prompt and will hold it, as far as it has room."""
        self.reach(slot)
        own = int(self._arrays[Word.CAPACITIES][slot]) or self.capacity
        self._insert(self._take_in(blocks, own), slot, now)

    def resize(self, slot: int, capacity: int, ttl_s: float | None = None) -> None:
        """The engine told how much it can hold; or how long guesses about it count."""
        self.reach(slot)
        self._arrays[Word.CAPACITIES][slot] = min(MOST_REMEMBERED, max(1, capacity))
        if ttl_s is not None:
            self._arrays[Word.TTLS][slot] = ttl_s

    def forget(self, slot: int) -> None:
        """The endpoint is gone or began anew: nothing of it stays. One that was never heard of is fine."""
        if slot < self._slots:
            self._arrays[Word.CAPACITIES][slot] = 0
            self._arrays[Word.TTLS][slot] = -1.0
            self.kernel.forget(self.state, slot)

    def expire(self, now: float) -> None:
        """Forget what is older than its time."""
        for slot in np.flatnonzero(self._arrays[Word.HELD]).tolist():
            self.kernel.expire(self.state, slot, now)

    def held(self, slot: int) -> int:
        """How many blocks the endpoint is believed to hold."""
        return int(self._arrays[Word.HELD][slot]) if slot < self._slots else 0

    # ---- for the compiled decision

    def see(self, block_bytes: int, most_blocks: int) -> None:
        """How much of a prompt is looked at."""
        self._words[Word.BLOCK_BYTES], self._words[Word.MOST_BLOCKS] = block_bytes, most_blocks
        self._make_room_for_hashes(most_blocks)

    def weigh_by(self, weights: tuple[float, ...], token_load: float, step_s: float) -> None:
        """What the policy weighs by, in the order of the words from `BASE` on."""
        self._doubles[Word.BASE : Word.BASE + len(weights)] = weights
        self.load_by(token_load, step_s)

    def load_by(self, token_load: float, step_s: float) -> None:
        """What share of an endpoint's recent time a token sent there took, and how long a step takes; both change once a second."""
        self._doubles[Word.TOKEN_LOAD], self._doubles[Word.HALF_STEP] = token_load, step_s / 2

    def choose_among(self, members: list[tuple[int, int]]) -> None:
        """The endpoints that may be chosen: the addresses of their counts, and their slots."""
        for _, slot in members:
            self.reach(slot)
        self._put(Word.MEMBERS, np.array(members or [(0, 0)], np.int64).ravel())
        self._words[Word.MEMBER_COUNT] = len(members)

    def hashes(self, count: int) -> list[int]:
        """Of the first blocks of the prompt that was looked at last."""
        return [int(one) for one in self._hashes[:count]]

    def grow(self) -> None:
        """A prompt needs more nodes than are free."""
        self._add_nodes(max(self._nodes, len(self._hashes)))

    def reach(self, slot: int) -> None:
        """The endpoint has a place by number."""
        if slot >= self._slots:
            self._add_slots((slot // SLOTS_A_WORD + 1) * SLOTS_A_WORD)

    # ---- memory

    def _fill(self, recent: Mapping[int, Mapping[int, float]]) -> None:
        """Take over blocks and times by endpoint, the oldest first: column by column, and the tables once.

        A node after the other is written, so that each is chained to its neighbours, and the free ones are behind them.
        """
        total = sum(map(len, recent.values()))
        if not total:
            return
        self.reach(max(recent))
        if 2 * total > self._nodes:  # there is room for as much again before the arrays grow
            self._add_nodes(2 * total - self._nodes)
        arrays, at = self._arrays, 0
        arrays[Word.PREVIOUS][:] = np.arange(-1, self._nodes - 1)
        arrays[Word.NEXT][:] = np.arange(1, self._nodes + 1)
        for slot, blocks in recent.items():
            begin, at = at, at + len(blocks)
            arrays[Word.KEYS][begin:at] = np.fromiter(blocks.keys(), np.uint64, len(blocks)).view(np.int64)
            arrays[Word.TIMES][begin:at] = np.fromiter(blocks.values(), np.float64, len(blocks))
            arrays[Word.SLOTS][begin:at] = slot
            arrays[Word.PREVIOUS][begin] = arrays[Word.NEXT][at - 1] = -1
            arrays[Word.OLDEST][slot], arrays[Word.YOUNGEST][slot] = begin, at - 1
            arrays[Word.HELD][slot] = len(blocks)
        arrays[Word.NEXT][-1] = -1
        self._words[Word.FREE], self._words[Word.FREE_COUNT] = at, self._nodes - at
        self._rehash()

    def _insert(self, count: int, slot: int, now: float) -> None:
        while self.kernel.insert(self.state, count, slot, now) == NO_ROOM:
            self.grow()

    def _take_in(self, blocks: Blocks, most: int) -> int:
        """Have a prompt's hashes looked at; how many there are."""
        hashes = blocks.first(most)[:most]
        self._make_room_for_hashes(len(hashes))
        self._hashes[: len(hashes)] = hashes
        return len(hashes)

    def _make_room_for_hashes(self, count: int) -> None:
        if Word.HASHES not in self._arrays or count > len(self._hashes):
            self._hashes = np.zeros(max(count, 1), np.uint64)
            self._put(Word.HASHES, self._hashes)

    def _put(self, word: Word, array: NDArray[Any]) -> None:
        """Keep an array, and write down where it is."""
        self._arrays[word] = array
        self._words[word] = array.ctypes.data

    def _longer(self, word: Word, length: int, kind: Any, fill: float) -> None:
        """An array with what it had, and room for more."""
        array = np.full(length, fill, kind)
        if (before := self._arrays.get(word)) is not None:
            array[: len(before)] = before
        self._put(word, array)

    def _add_nodes(self, more: int) -> None:
        before, after = self._nodes, self._nodes + more
        self._longer(Word.KEYS, after, np.int64, 0)
        self._longer(Word.TIMES, after, np.float64, 0)
        for word in (Word.SLOTS, Word.PREVIOUS, Word.NEXT):
            self._longer(word, after, np.int32, -1)
        following = self._arrays[Word.NEXT]
        following[before:after] = np.arange(before + 1, after + 1)
        following[after - 1] = self._words[Word.FREE]
        self._words[Word.FREE] = before
        self._words[Word.FREE_COUNT] += more
        self._nodes = after
        self._rehash()

    def _add_slots(self, slots: int) -> None:
        for word, fill in ((Word.OLDEST, -1), (Word.YOUNGEST, -1), (Word.HELD, 0), (Word.CAPACITIES, 0)):
            self._longer(word, slots, np.int64, fill)
        for word in (Word.DEPTHS, Word.LEFT):
            self._longer(word, slots, np.int64, 0)
        self._longer(Word.TTLS, slots, np.float64, -1.0)
        self._slots = slots
        self._words[Word.WIDTH] = slots // SLOTS_A_WORD
        self._rehash()

    def _rehash(self) -> None:
        """New tables, twice as large as they must be so that a search ends after a place or two."""
        if not self._slots:
            return
        places = 1 << (2 * self._nodes - 1).bit_length()
        self._put(Word.NODES, np.zeros(places, np.int32))
        self._put(Word.BLOCKS, np.zeros(places, np.int64))
        self._put(Word.HOLDERS, np.zeros(places, np.int32))
        self._put(Word.BITS, np.zeros(places * int(self._words[Word.WIDTH]), np.int64))
        self._words[Word.NODES_MASK] = self._words[Word.BLOCKS_MASK] = places - 1
        self.kernel.rehash(self.state, self._slots)
