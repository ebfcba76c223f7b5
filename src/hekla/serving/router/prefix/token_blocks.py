"""Token ids as a chain of block hashes, the same for what an engine reports and for what a client asks.

    c(i) = mix(sum of token * weight over the block)      h(i) = h(i - 1) * B + c(i)     mod 2**64

A linear chain, because it has a closed form: h(i) = B**i * (h(-1) * B + sum of c(j) * B**-j), which NumPy computes for 100,000
tokens in half a millisecond where hashing block after block takes three. Engines' own hashes are opaque to us and differ between
versions and processes; `precise.py` maps them to these.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import xxhash

Tokens = Sequence[int] | np.ndarray[Any, np.dtype[np.uint32]]
_Hashes = np.ndarray[Any, np.dtype[np.uint64]]

MASK = (1 << 64) - 1
_B = 0x9E3779B97F4A7C15
_B_INVERSE = pow(_B, -1, 1 << 64)
_FEW_BLOCKS = 4
"""Up to here plain integers are faster than arrays."""


def root(adapter: str = "", group: int = 0) -> int:
    """Where chains begin; blocks of different adapters, or of different layer groups, never match."""
    return xxhash.xxh3_64_intdigest(adapter.encode(), group)


def chain(tokens: Tokens, size: int, parent: int) -> list[int]:
    """The hashes of all full blocks of `size` tokens that follow `parent`."""
    count = len(tokens) // size
    if count <= _FEW_BLOCKS:
        return chain_plainly([int(one) for one in tokens], size, parent)
    blocks = np.asarray(tokens[: count * size], dtype=np.uint32).reshape(count, size)
    contents = _mix(blocks.astype(np.uint64) @ _weights(size))
    powers, inverses = _powers(1 << (count - 1).bit_length())
    sums = np.cumsum(contents * inverses[:count]) + np.uint64(parent * _B & MASK)
    hashes: list[int] = (sums * powers[:count]).tolist()
    return hashes


def chain_plainly(tokens: Sequence[int], size: int, parent: int) -> list[int]:
    """The same, block after block."""
    weights, hashes = _plain_weights(size), []
    for start in range(0, len(tokens) - size + 1, size):
        content = sum(map(int.__mul__, tokens[start : start + size], weights)) & MASK
        parent = (parent * _B + mix(content)) & MASK
        hashes.append(parent)
    return hashes


def with_extras(hashes: Sequence[int], extras: Sequence[object], parent: int) -> list[int]:
    """The chain again, with what keeps some of its blocks apart (a salt, pictures) mixed in: `extras` has one entry per block."""
    changed, before = [], parent
    for one, extra in zip(hashes, extras, strict=True):
        content = one - before * _B  # what the block added to the chain
        if extra:
            content ^= xxhash.xxh3_64_intdigest(repr(extra).encode())
        before = one
        parent = (parent * _B + content) & MASK
        changed.append(parent)
    return changed


def mix(value: int) -> int:
    """splitmix64's finish: every bit of the input moves every bit of the output."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def _mix(values: _Hashes) -> _Hashes:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@cache
def _plain_weights(size: int) -> list[int]:
    """Odd, and as good as drawn: where two blocks differ, their sums differ."""
    return [mix((number + 1) * _B & MASK) | 1 for number in range(size)]


@cache
def _weights(size: int) -> _Hashes:
    return np.array(_plain_weights(size), dtype=np.uint64)


@cache
def _powers(count: int) -> tuple[_Hashes, ...]:
    """B**i and B**-i; counts are powers of two, so that few tables are kept."""
    steps = [np.full(count, base, dtype=np.uint64) for base in (_B, _B_INVERSE)]
    for one in steps:
        one[0] = 1
    return tuple(np.cumprod(one) for one in steps)
