"""Where each number of the compiled decision stands: words of eight bytes, in one block that Python and machine code both read."""

from enum import IntEnum, auto


class Word(IntEnum):
    """One block per memory of prompts: sizes, addresses of its arrays, and what the policy weighs by."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[int]) -> int:
        return count

    # ---- who was sent what: a node for each block of each endpoint, in a chain per endpoint from old to young
    FREE = auto()
    """The first free node; they are chained by `NEXT`. -1: none."""
    FREE_COUNT = auto()
    NODES_MASK = auto()
    """Places in the table of nodes, a power of two, less one."""
    NODES = auto()
    """By block and endpoint: the node's number plus one, 0 where a place is free. 32 bits each."""
    KEYS = auto()
    """By node: the block's hash."""
    TIMES = auto()
    """By node: when it was last sent. A double."""
    SLOTS = auto()
    """By node, 32 bits each, as the next two."""
    PREVIOUS = auto()
    NEXT = auto()

    # ---- who holds a block: a bit per endpoint
    BLOCKS_MASK = auto()
    BLOCKS = auto()
    """By block: its hash."""
    HOLDERS = auto()
    """By block: how many hold it, 0 where a place is free. 32 bits each."""
    BITS = auto()
    """By block: who holds it, `WIDTH` words."""
    WIDTH = auto()
    ENTRIES = auto()
    """Blocks that somebody holds."""
    EVICTED = auto()

    # ---- by endpoint
    OLDEST = auto()
    YOUNGEST = auto()
    HELD = auto()
    CAPACITIES = auto()
    """0: as everybody's."""
    TTLS = auto()
    """A double; below 0: as everybody's."""
    CAPACITY = auto()
    TTL = auto()
    """Everybody's, a double."""

    # ---- one prompt
    BLOCK_BYTES = auto()
    MOST_BLOCKS = auto()
    HASHES = auto()
    """Of the prompt that is looked at, as many as `MOST_BLOCKS`."""
    SECRET = auto()
    """XXH3's 192 bytes."""
    SEEDED = auto()
    """The same, mixed with a seed."""
    AMONG = auto()
    """Who is asked about, `WIDTH` words of bits."""
    DEPTHS = auto()
    """By endpoint: how many blocks of the prompt it holds."""
    LEFT = auto()
    """Endpoints that hold all blocks seen so far."""

    # ---- the choice
    MEMBERS = auto()
    """Pairs: the address of an endpoint's counts, its slot."""
    MEMBER_COUNT = auto()
    BASE = auto()
    """From here on as `policies/soonest.py` has them, doubles."""
    COMPANY = auto()
    STANDING = auto()
    DEAREST = auto()
    CONTEXT = auto()
    EVENNESS = auto()
    BUSYNESS = auto()
    UNDERWAY = auto()
    TOKEN_LOAD = auto()
    HALF_STEP = auto()
    """Seconds."""


SLOT_BITS = 16
"""What `decide` returns: tokens held, shifted by so many bits, and the slot."""
NO_ROOM, NOBODY = -1, -2
"""What it returns otherwise: more nodes are needed, and nothing was changed; there is nobody to choose."""
SECRET_BYTES = 192
LONG = 241
"""Blocks shorter than this are hashed another way by XXH3, which is not here."""
