"""The token ids of prompts that were tokenized before, found again by how their text begins.

A prompt's text is a chain of block hashes (`blocks.py`); each block of a known prompt leads to its token ids. Of a prompt that goes on
differently, the ids are given for the share of the bytes that is common: what engines may hold of it is in that part, as nobody
tokenized the rest yet. The share is of bytes, so the end of it is right within a few tokens; a block of an engine's cache is lost or won
by that, no more.

Bounds: tokens and blocks in all; the prompt that was not asked for longest is forgotten first.
"""

from collections import OrderedDict
from typing import Any

import numpy as np

from hekla.serving.router.prefix.blocks import Blocks

Ids = np.ndarray[Any, np.dtype[np.uint32]]
MOST_TOKENS = 16 * 1024 * 1024
"""64 MB."""
MOST_BLOCKS = 262_144


class _Known:
    __slots__ = ("blocks", "ids", "size", "text_bytes")

    def __init__(self, ids: Ids, blocks: list[int], text_bytes: int, size: int) -> None:
        self.ids, self.blocks, self.text_bytes, self.size = ids, blocks, text_bytes, size


class KnownPrompts:
    """Prompts and their tokens."""

    def __init__(self, most_tokens: int = MOST_TOKENS, most_blocks: int = MOST_BLOCKS) -> None:
        self._most_tokens, self._most_blocks = most_tokens, most_blocks
        self._tokens = 0
        self._recent: OrderedDict[_Known, None] = OrderedDict()
        self._by_block: dict[int, tuple[_Known, int]] = {}
        """By a block's hash: the newest prompt that has it, and how deep it lies."""

    def find(self, blocks: Blocks, text_bytes: int) -> tuple[Ids, bool] | None:
        """The ids of the longest known beginning, and whether that is all of it; None: nothing of it is known."""
        hashes = blocks.first(blocks.count)
        for depth in range(len(hashes), 0, -1):
            found = self._by_block.get(hashes[depth - 1])
            if found is not None:
                known = found[0]
                self._recent.move_to_end(known)
                share = min(1.0, depth * known.size / known.text_bytes)
                is_all = depth == len(hashes) == len(known.blocks) and text_bytes == known.text_bytes
                return (known.ids, True) if is_all else (known.ids[: int(len(known.ids) * share)], False)
        return None

    def remember(self, blocks: Blocks, text_bytes: int, size: int, ids: Ids) -> None:
        """A prompt was tokenized; one without a whole block is too short to be worth it."""
        hashes = list(blocks.first(blocks.count)[: blocks.count])
        if not hashes or len(ids) > self._most_tokens or len(hashes) > self._most_blocks:
            return
        known = _Known(ids, hashes, max(1, text_bytes), size)
        self._recent[known] = None
        self._tokens += len(ids)
        for depth, one in enumerate(hashes, 1):
            self._by_block[one] = (known, depth)
        while self._tokens > self._most_tokens or len(self._by_block) > self._most_blocks:
            self._forget(self._recent.popitem(last=False)[0])

    def __len__(self) -> int:
        """Prompts that are known."""
        return len(self._recent)

    def _forget(self, known: _Known) -> None:
        self._tokens -= len(known.ids)
        for one in known.blocks:
            if self._by_block.get(one, (None,))[0] is known:
                del self._by_block[one]
