"""A prompt as a chain of block hashes, each standing for its block and all before it; computed only as deep as somebody asks.

    h(0) = xxh3(first 512 bytes, seed of the model)     h(i) = xxh3(next 512 bytes, h(i - 1))

Equal hashes at one depth mean equal prompts up to there, so a table of hashes needs no positions. The rest of a prompt that
fills no block is left out: it would match only its own repetition. `index.py` remembers who holds which block.
"""

import xxhash

BLOCK_BYTES = 512
"""128 tokens or so: small enough to see a prompt's end, large enough that 100,000 tokens hash in 0.2 ms."""
MOST_BLOCKS = 8192
"""A prompt is told from others by its first 4 MB, a million tokens."""

_hash = xxhash.xxh3_64_intdigest


class Blocks:
    """The hashes of one prompt's blocks, computed when they are first asked for."""

    __slots__ = ("_hashes", "_last", "_size", "_text", "count")

    def __init__(self, text: bytes, seed: int, size: int = BLOCK_BYTES, most: int = MOST_BLOCKS) -> None:
        """`seed` keeps what may not share a cache apart: models, adapters."""
        self._text = text
        self._size = size
        self._last = seed
        self._hashes: list[int] = []
        count = len(text) // size
        self.count = count if count < most else most

    def first(self, count: int) -> list[int]:
        """The hashes of at least the first `count` blocks (fewer where the prompt ends); not to be changed."""
        hashes = self._hashes
        if len(hashes) == self.count:
            return hashes
        if count > self.count:
            count = self.count
        if len(hashes) < count:
            size, text, last, append = self._size, self._text, self._last, hashes.append
            for start in range(len(hashes) * size, count * size, size):
                last = _hash(text[start : start + size], last)
                append(last)
            self._last = last
        return hashes


def seed_of(model: str) -> int:
    """Where the chains of a model, or of a LoRA adapter, begin."""
    return _hash(model.encode())
