"""Who holds how much of a prompt by what Kthena's side-cars recorded in Redis, in Kthena's format. Pure.

    block    16 token ids; the last one of a prompt may have fewer
    hash     the first 8 bytes of SHA-256 over the ids as big-endian numbers of 32 bits, without the highest bit
    key      matrix:kv:block:{model}@{hash}: a hash of Redis, {pod}.{namespace} -> when it was written, in seconds
    score    blocks held from the beginning on, without a gap / blocks of the prompt * 100

A hash stands for its block alone and not for what is before it, so a block in the middle of another document matches as well; that only
what is held from the beginning on counts makes that rare. An entry from before the pod's containers began is of a cache that is gone.
`recorded_caches.py` asks; `policies/kvcache_aware.py` scores.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.prefix.token_blocks import Tokens

KEY_PREFIX: Final = "matrix:kv:block:"
LIFE_S: Final = 24 * 3600
"""What is older is swept away; Kthena's side-cars forget by then which block of an engine an entry is of."""

Entries = Mapping[bytes, bytes]
"""One key's: who wrote, and when."""


@dataclass(frozen=True, kw_only=True)
class RecordFormat:
    """How prompts are cut: the arguments of `kvcache-aware`."""

    block_tokens: int = 16
    """`blockSizeToHash`; it must be what engines cache by."""
    most_blocks: int = 128
    """`maxBlocksToMatch`: of how many blocks a prompt is looked up."""

    def keys(self, model: str, ids: Tokens) -> list[str]:
        """Where the blocks of a prompt are recorded."""
        width = 4 * self.block_tokens
        text = np.asarray(ids[: self.block_tokens * self.most_blocks], dtype=">u4").tobytes()
        return [f"{KEY_PREFIX}{model}@{hash_of(text[at : at + width])}" for at in range(0, len(text), width)]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What is recorded of one prompt."""

    blocks: int
    held: Mapping[str, int]
    """By `pod.namespace`: how many blocks from the beginning on."""

    def score(self, endpoint: Endpoint) -> int:
        """0 to 100, as Kthena's."""
        return int(self.held.get(owner_of(endpoint), 0) / self.blocks * 100) if self.blocks else 0

    @property
    def share(self) -> float:
        """Of the prompt, held by who holds most."""
        return max(self.held.values(), default=0) / self.blocks if self.blocks else 0.0


def hash_of(block: bytes) -> int:
    """Of one block's ids as they are hashed; 63 bits."""
    return int.from_bytes(hashlib.sha256(block).digest()[:8], "big") & 0x7FFF_FFFF_FFFF_FFFF


def owner_of(endpoint: Endpoint) -> str:
    """As side-cars sign; a pod with several engines has one side-car."""
    return f"{endpoint.name.partition(':')[0]}.{endpoint.namespace}"


def recorded_of(rows: Sequence[Entries], among: Sequence[Endpoint]) -> Recorded:
    """What these engines hold of a prompt whose blocks have these entries, in order."""
    held: dict[str, int] = {}
    left = {owner_of(one).encode(): one.started_s for one in among}
    for depth, entries in enumerate(rows):
        left = {owner: began_s for owner, began_s in left.items() if _is_held(entries.get(owner), began_s)}
        if not left:
            break
        for owner in left:
            held[owner.decode()] = depth + 1
    return Recorded(len(rows), held)


def stale(entries: Entries, now_s: float) -> list[bytes]:
    """Whose entries of one key are too old to say anything; what is no time is left alone."""
    return [owner for owner, written in entries.items() if written.isdigit() and now_s - int(written) > LIFE_S]


def _is_held(written: bytes | None, began_s: float) -> bool:
    """Times are whole seconds: what was written in the second in which the containers began may be from before."""
    return written is not None and not (began_s and written.isdigit() and int(written) <= began_s)
