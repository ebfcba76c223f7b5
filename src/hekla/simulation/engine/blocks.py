"""The paged KV cache: blocks with owners, blocks that hold a known prefix, and the oldest unowned given away first.

A block whose content is known stays findable after its last owner has gone, until its room is needed. Blocks of one
request are let go from its end, so that the longest tails go first and what others share goes last, as in vLLM.
"""

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """All blocks of one engine."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._owners = [0] * num_blocks
        self._hash_of: list[int | None] = [None] * num_blocks
        self._by_hash: dict[int, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict((block, None) for block in range(num_blocks))
        self.removed: list[int] = []
        """Hashes that were forgotten since the list was last emptied; its reader empties it."""

    @property
    def free(self) -> int:
        """Blocks without an owner."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Blocks whose content is known."""
        return len(self._by_hash)

    def match(self, hashes: Sequence[int], most: int) -> int:
        """How many leading blocks, of `most` at most, are here."""
        known, count = self._by_hash, 0
        for one in hashes[:most]:
            if one not in known:
                break
            count += 1
        return count

    def can_take(self, hashes: Sequence[int], new: int) -> bool:
        """Whether these known blocks and so many new ones can be had together."""
        unowned = sum(1 for one in hashes if not self._owners[self._by_hash[one]])
        return new + unowned <= len(self._free)

    def share(self, hashes: Sequence[int]) -> list[int]:
        """Become another owner of known blocks."""
        blocks = [self._by_hash[one] for one in hashes]
        for block in blocks:
            if not self._owners[block]:
                del self._free[block]
            self._owners[block] += 1
        return blocks

    def take(self, count: int) -> list[int]:
        """Become the owner of so many blocks of unknown content; the caller has seen that they are there."""
        assert count <= len(self._free), f"{count} blocks asked of {len(self._free)} free ones"
        return [self._take_oldest() for _ in range(count)]

    def _take_oldest(self) -> int:
        block, _ = self._free.popitem(last=False)
        self._owners[block] = 1
        forgotten = self._hash_of[block]
        if forgotten is not None:
            self._hash_of[block] = None
            del self._by_hash[forgotten]
            self.removed.append(forgotten)
        return block

    def learn(self, block: int, content: int) -> bool:
        """Make a block findable by its content; False where another block has the same."""
        if content in self._by_hash or self._hash_of[block] is not None:
            return False
        self._by_hash[content] = block
        self._hash_of[block] = content
        return True

    def let_go(self, blocks: Sequence[int]) -> None:
        """End ownership, from the last block to the first."""
        for block in reversed(blocks):
            self._owners[block] -= 1
            if not self._owners[block]:
                self._free[block] = None
                if self._hash_of[block] is None:
                    self._free.move_to_end(block, last=False)  # nothing is lost by reusing it, so it goes first

    def forget(self) -> bool:
        """Forget all content, as `reset_prefix_cache` does; False while blocks are owned."""
        if len(self._free) != self.num_blocks:
            return False
        self._by_hash.clear()
        self._hash_of = [None] * self.num_blocks
        return True

    def check(self) -> None:
        """Assert that no block is lost or owned twice over."""
        unowned = [block for block, owners in enumerate(self._owners) if owners == 0]
        assert set(unowned) == set(self._free), "free blocks are those without owners"
        assert all(owners >= 0 for owners in self._owners), "no block is let go more often than taken"
        assert all(self._hash_of[block] == content for content, block in self._by_hash.items()), "the two maps agree"
