"""One number of replicas spread over several kinds of hardware: the cheapest first, in blocks that grow.

    each kind has its minimum; what it may have above it is cut into blocks of 1, r, r^2... replicas
    blocks are taken in order of what they cost, the last one in part

With r = 1 the cheapest kind is filled before the next; with larger r its later blocks are dear enough for others to come in
between, so that no kind is all alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of hardware: how many replicas may run on it, and what each costs beside those on others."""

    least: int
    most: int
    cost: int = 0


def spread(replicas: int, kinds: Sequence[Hardware], *, expansion_percent: int = 200) -> list[int]:
    """How many replicas of each kind."""
    shares = [kind.least for kind in kinds]
    left = min(max(replicas, sum(shares)), sum(kind.most for kind in kinds)) - sum(shares)
    for _, number, size in sorted(_blocks(kinds, expansion_percent)):
        taken = min(left, size)
        shares[number] += taken
        left -= taken
    return shares


def _blocks(kinds: Sequence[Hardware], expansion_percent: int) -> list[tuple[int, int, int]]:
    """(cost, kind, replicas) of each block."""
    found: list[tuple[int, int, int]] = []
    for number, kind in enumerate(kinds):
        left, size = kind.most - kind.least, 1.0
        if expansion_percent <= 100 and left > 0:  # below 100 all blocks are of one replica: a million of them are one
            found.append((kind.cost, number, left))
            continue
        while left > 0:
            block = min(left, max(int(size), 1))
            found.append((kind.cost * block, number, block))
            left -= block
            size *= expansion_percent / 100
    return found
