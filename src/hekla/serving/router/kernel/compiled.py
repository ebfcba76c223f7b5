# mypy: disable-error-code="no-untyped-def, no-untyped-call"
# numba types what it compiles; annotations would be ignored.
"""The compiled decision: hash the blocks, see who holds them, weigh the endpoints, count and remember the choice.

Only the child that compiles imports this (`loading.py`), as numba takes 108 MB; what came of it calls nothing outside itself,
allocates nothing and cannot fail: `compiling.py` refuses to write anything else. All integers are signed, since numba makes doubles of a
signed and an unsigned one; hashes alone are unsigned. No fast-math: costs are equal to the bit to those of `policies/soonest.py`,
so that ties fall alike.
"""

import numpy as np
from numba import cfunc, float64, int64, njit, uint64

from hekla.serving.router.endpoints import Counts
from hekla.serving.router.kernel.compiled_hash import hash_of
from hekla.serving.router.kernel.compiled_words import (
    OPTIONS,
    at_byte,
    double,
    half,
    set_at_byte,
    set_double,
    set_half,
    set_word,
    word,
)
from hekla.serving.router.kernel.layout import NO_ROOM, NOBODY, SECRET_BYTES, SLOT_BITS, Word
from hekla.serving.router.policies.soonest import MOST_LOAD
from hekla.serving.router.pool import ANSWER_WEIGHT


@njit(**OPTIONS)
def _hash_blocks(state, text, count, seed):
    """The chain of a prompt's blocks, each seeded by the one before."""
    size, hashes = word(state, Word.BLOCK_BYTES), word(state, Word.HASHES)
    secret, seeded = word(state, Word.SECRET), word(state, Word.SEEDED)
    for number in range(count):
        for at in range(0, SECRET_BYTES, 16):
            set_at_byte(seeded, at, at_byte(secret, at) + seed)
            set_at_byte(seeded, at + 8, at_byte(secret, at + 8) - seed)
        seed = hash_of(text + number * size, size, seeded)
        set_at_byte(hashes, number * 8, seed)


# ---- tables: a place is looked for from the hash on, and what is taken out leaves no hole

_SPREAD = 0x9E3779B1
"""Between the places of one block with two endpoints."""


@njit(**OPTIONS)
def _block_at(state, key):
    """Where a block stands, or would."""
    mask, keys, holders = word(state, Word.BLOCKS_MASK), word(state, Word.BLOCKS), word(state, Word.HOLDERS)
    at = key & mask
    while half(holders, at) != 0 and word(keys, at) != key:
        at = (at + 1) & mask
    return at


@njit(**OPTIONS)
def _node_at(state, key, slot):
    """Where a block of an endpoint stands, or would."""
    mask, nodes = word(state, Word.NODES_MASK), word(state, Word.NODES)
    keys, slots = word(state, Word.KEYS), word(state, Word.SLOTS)
    at = (key + slot * _SPREAD) & mask
    while True:
        node = half(nodes, at) - 1
        if node < 0 or (word(keys, node) == key and half(slots, node) == slot):
            return at
        at = (at + 1) & mask


@njit(**OPTIONS)
def _drop_block(state, hole):
    mask, keys, holders = word(state, Word.BLOCKS_MASK), word(state, Word.BLOCKS), word(state, Word.HOLDERS)
    bits, width = word(state, Word.BITS), word(state, Word.WIDTH)
    at = (hole + 1) & mask
    while half(holders, at) != 0:
        key = word(keys, at)
        if ((at - key) & mask) >= ((at - hole) & mask):
            set_word(keys, hole, key)
            set_half(holders, hole, half(holders, at))
            for part in range(width):
                set_word(bits, hole * width + part, word(bits, at * width + part))
            hole = at
        at = (at + 1) & mask
    set_half(holders, hole, 0)
    for part in range(width):
        set_word(bits, hole * width + part, 0)
    set_word(state, Word.ENTRIES, word(state, Word.ENTRIES) - 1)


@njit(**OPTIONS)
def _drop_place(state, hole):
    mask, nodes = word(state, Word.NODES_MASK), word(state, Word.NODES)
    keys, slots = word(state, Word.KEYS), word(state, Word.SLOTS)
    at = (hole + 1) & mask
    while half(nodes, at) != 0:
        node = half(nodes, at) - 1
        home = word(keys, node) + half(slots, node) * _SPREAD
        if ((at - home) & mask) >= ((at - hole) & mask):
            set_half(nodes, hole, node + 1)
            hole = at
        at = (at + 1) & mask
    set_half(nodes, hole, 0)


# ---- who was sent what, as `prefix/index.py` has it


@njit(**OPTIONS)
def _unchain(state, node, slot):
    previous, after = word(state, Word.PREVIOUS), word(state, Word.NEXT)
    before, behind = half(previous, node), half(after, node)
    if before >= 0:
        set_half(after, before, behind)
    else:
        set_word(word(state, Word.OLDEST), slot, behind)
    if behind >= 0:
        set_half(previous, behind, before)
    else:
        set_word(word(state, Word.YOUNGEST), slot, before)


@njit(**OPTIONS)
def _chain_young(state, node, slot, now):
    previous, after, youngest = word(state, Word.PREVIOUS), word(state, Word.NEXT), word(state, Word.YOUNGEST)
    last = word(youngest, slot)
    set_half(previous, node, last)
    set_half(after, node, -1)
    if last >= 0:
        set_half(after, last, node)
    else:
        set_word(word(state, Word.OLDEST), slot, node)
    set_word(youngest, slot, node)
    set_double(word(state, Word.TIMES), node, now)


@njit(**OPTIONS)
def _add_holder(state, key, slot):
    at = _block_at(state, key)
    holders, bits, width = word(state, Word.HOLDERS), word(state, Word.BITS), word(state, Word.WIDTH)
    held = half(holders, at)
    if held == 0:
        set_word(word(state, Word.BLOCKS), at, key)
        set_word(state, Word.ENTRIES, word(state, Word.ENTRIES) + 1)
    set_half(holders, at, held + 1)
    part = at * width + (slot >> 6)
    set_word(bits, part, word(bits, part) | (1 << (slot & 63)))


@njit(**OPTIONS)
def _add(state, place, key, slot, now):
    node = word(state, Word.FREE)
    set_word(state, Word.FREE, half(word(state, Word.NEXT), node))
    set_word(state, Word.FREE_COUNT, word(state, Word.FREE_COUNT) - 1)
    set_word(word(state, Word.KEYS), node, key)
    set_half(word(state, Word.SLOTS), node, slot)
    set_half(word(state, Word.NODES), place, node + 1)
    held = word(state, Word.HELD)
    set_word(held, slot, word(held, slot) + 1)
    _chain_young(state, node, slot, now)
    _add_holder(state, key, slot)


@njit(**OPTIONS)
def _drop_oldest(state, slot):
    node = word(word(state, Word.OLDEST), slot)
    key = word(word(state, Word.KEYS), node)
    _unchain(state, node, slot)
    _drop_place(state, _node_at(state, key, slot))
    at = _block_at(state, key)
    holders, bits, width = word(state, Word.HOLDERS), word(state, Word.BITS), word(state, Word.WIDTH)
    left = half(holders, at) - 1
    if left == 0:
        _drop_block(state, at)
    else:
        set_half(holders, at, left)
        part = at * width + (slot >> 6)
        set_word(bits, part, word(bits, part) & ~(1 << (slot & 63)))
    held = word(state, Word.HELD)
    set_word(held, slot, word(held, slot) - 1)
    set_half(word(state, Word.NEXT), node, word(state, Word.FREE))
    set_word(state, Word.FREE, node)
    set_word(state, Word.FREE_COUNT, word(state, Word.FREE_COUNT) + 1)


@njit(**OPTIONS)
def _capacity(state, slot):
    own = word(word(state, Word.CAPACITIES), slot)
    return own if own > 0 else word(state, Word.CAPACITY)


@njit(**OPTIONS)
def _forget_some(state, slot, now):
    own, capacity = double(word(state, Word.TTLS), slot), _capacity(state, slot)
    since = now - (own if own >= 0 else double(state, Word.TTL))
    held, oldest, times = word(state, Word.HELD), word(state, Word.OLDEST), word(state, Word.TIMES)
    before = word(held, slot)
    while word(held, slot) > capacity:
        _drop_oldest(state, slot)
    while word(held, slot) > 0 and double(times, word(oldest, slot)) < since:
        _drop_oldest(state, slot)
    set_word(state, Word.EVICTED, word(state, Word.EVICTED) + before - word(held, slot))


@njit(**OPTIONS)
def _insert(state, count, slot, now):
    """The beginning last: what is most recent is forgotten last."""
    capacity = _capacity(state, slot)
    hashes, nodes = word(state, Word.HASHES), word(state, Word.NODES)
    at = min(count, capacity) - 1
    while at >= 0:
        key = word(hashes, at)
        place = _node_at(state, key, slot)
        node = half(nodes, place) - 1
        if node >= 0:
            _unchain(state, node, slot)
            _chain_young(state, node, slot, now)
        else:
            _add(state, place, key, slot, now)
        at -= 1
    if word(word(state, Word.HELD), slot) > capacity:
        _forget_some(state, slot, now)


@njit(**OPTIONS)
def _match(state, count, left):
    """How many of the first blocks each of the `left` endpoints holds, block by block until nobody is left."""
    hashes, depths, who = word(state, Word.HASHES), word(state, Word.DEPTHS), word(state, Word.LEFT)
    holders, bits, width = word(state, Word.HOLDERS), word(state, Word.BITS), word(state, Word.WIDTH)
    depth = 0
    while depth < count and left > 0:
        at = _block_at(state, word(hashes, depth))
        if half(holders, at) == 0:
            break
        kept = 0
        for number in range(left):
            slot = word(who, number)
            if (word(bits, at * width + (slot >> 6)) >> (slot & 63)) & 1:
                set_word(who, kept, slot)
                kept += 1
            else:
                set_word(depths, slot, depth)
        left = kept
        depth += 1
    for number in range(left):
        set_word(depths, word(who, number), depth)


# ---- the choice, as `policies/soonest.py` has it

_IN_FLIGHT, _UNANSWERED = Counts.word("in_flight"), Counts.word("unanswered")
_PREFILL, _ELSEWHERE = Counts.word("prefill_tokens"), Counts.word("elsewhere_prefill_tokens")
_CONTEXT, _DECODE = Counts.word("context_tokens"), Counts.word("decode_tokens")
_ASSIGNED, _LATELY = Counts.word("assigned"), Counts.word("prefilled_lately")
_BUSY, _BUSY_SINCE, _HEARD = Counts.word("busy_s"), Counts.word("busy_since"), Counts.word("heard_at")


@njit(**OPTIONS)
def _soonest(state, tokens, per_block, now, rate):
    """The member whose first token comes soonest, by its number; the first of equals."""
    base, company, standing = double(state, Word.BASE), double(state, Word.COMPANY), double(state, Word.STANDING)
    dearest, context = double(state, Word.DEAREST), double(state, Word.CONTEXT)
    evenness, busyness = double(state, Word.EVENNESS), double(state, Word.BUSYNESS) * rate
    underway, last = double(state, Word.UNDERWAY) * rate, now - double(state, Word.HALF_STEP)
    token_load, depths, members = double(state, Word.TOKEN_LOAD), word(state, Word.DEPTHS), word(state, Word.MEMBERS)
    best, lowest = -1, np.inf
    for number in range(word(state, Word.MEMBER_COUNT)):
        one, slot = word(members, 2 * number), word(members, 2 * number + 1)
        load = double(one, _LATELY) * token_load
        price = base + company * word(one, _UNANSWERED)
        price += standing * load / (1 - load) if load < MOST_LOAD else dearest
        uncached = tokens - int(word(depths, slot) * per_block)
        cost = (
            (word(one, _PREFILL) + word(one, _ELSEWHERE))
            + (price if price < dearest else dearest) * uncached
            + context * word(one, _CONTEXT)
            + evenness * double(one, _ASSIGNED)
            + busyness * double(one, _BUSY)
        )
        if double(one, _HEARD) > last and word(one, _IN_FLIGHT) > 0:
            cost += underway * (double(one, _HEARD) - last)
        if cost < lowest:
            best, lowest = number, cost
    return best


@njit(**OPTIONS)
def _count(one, uncached, tokens, answer, now):
    """As `Pool.charge` does."""
    in_flight = word(one, _IN_FLIGHT)
    if in_flight == 0:
        set_double(one, _BUSY_SINCE, now)
    set_word(one, _IN_FLIGHT, in_flight + 1)
    set_word(one, _UNANSWERED, word(one, _UNANSWERED) + 1)
    set_word(one, _PREFILL, word(one, _PREFILL) + uncached)
    set_double(one, _LATELY, double(one, _LATELY) + uncached)
    set_word(one, _CONTEXT, word(one, _CONTEXT) + tokens + answer)
    set_word(one, _DECODE, word(one, _DECODE) + answer)
    set_double(one, _ASSIGNED, double(one, _ASSIGNED) + (uncached + ANSWER_WEIGHT * answer))


@njit(**OPTIONS)
def decide_for(state, text, length, seed, tokens, answer, now, rate):
    """Choose an endpoint for a prompt, count it there and remember it: tokens held and slot in one number."""
    count_of_members, members = word(state, Word.MEMBER_COUNT), word(state, Word.MEMBERS)
    if count_of_members == 0:
        return NOBODY
    count = min(length // word(state, Word.BLOCK_BYTES), word(state, Word.MOST_BLOCKS))
    if word(state, Word.FREE_COUNT) < count:
        return NO_ROOM
    left = word(state, Word.LEFT)
    for number in range(count_of_members):
        set_word(left, number, word(members, 2 * number + 1))
    _hash_blocks(state, text, count, seed)
    _match(state, count, count_of_members)
    per_block = float64(word(state, Word.BLOCK_BYTES) * tokens) / float64(length) if length > 0 else 0.0
    best = _soonest(state, tokens, per_block, now, rate)
    if best < 0:
        return NOBODY
    one, slot = word(members, 2 * best), word(members, 2 * best + 1)
    held = int(word(word(state, Word.DEPTHS), slot) * per_block)
    _count(one, tokens - held if held < tokens else 1, tokens, answer, now)
    if count > 0:
        _insert(state, count, slot, now)
    return (held << SLOT_BITS) | slot


# ---- what `functions.py` calls


@cfunc(int64(int64, int64, int64, uint64, int64, int64, float64, float64), **OPTIONS)
def decide(state, text, length, seed, tokens, answer, now, rate):
    """Choose an endpoint for a prompt, count it there and remember it: tokens held and slot in one number."""
    return decide_for(state, text, length, seed, tokens, answer, now, rate)


@cfunc(int64(int64, int64, int64, uint64), **OPTIONS)
def hash_blocks(state, text, count, seed):
    """The hashes of so many blocks, written to `HASHES`."""
    _hash_blocks(state, text, count, seed)
    return count


@cfunc(int64(int64, int64, int64), **OPTIONS)
def match(state, count, left):
    """How many of the blocks in `HASHES` the endpoints in `LEFT` hold, written to `DEPTHS`."""
    _match(state, count, left)
    return 0


@cfunc(int64(int64, int64, int64, float64), **OPTIONS)
def insert(state, count, slot, now):
    """The endpoint was sent the blocks in `HASHES`."""
    if word(state, Word.FREE_COUNT) < min(count, _capacity(state, slot)):
        return NO_ROOM
    _insert(state, count, slot, now)
    return 0


@cfunc(int64(int64, int64), **OPTIONS)
def forget(state, slot):
    """Nothing of an endpoint stays."""
    while word(word(state, Word.HELD), slot) > 0:
        _drop_oldest(state, slot)
    return 0


@cfunc(int64(int64, int64, float64), **OPTIONS)
def expire(state, slot, now):
    """Forget what is too old or too much of an endpoint."""
    _forget_some(state, slot, now)
    return 0


@cfunc(int64(int64, int64), **OPTIONS)
def rehash(state, slots):
    """The tables are new and empty: enter all nodes of so many endpoints."""
    set_word(state, Word.ENTRIES, 0)
    keys, nodes, after = word(state, Word.KEYS), word(state, Word.NODES), word(state, Word.NEXT)
    for slot in range(slots):
        node = word(word(state, Word.OLDEST), slot)
        while node >= 0:
            key = word(keys, node)
            set_half(nodes, _node_at(state, key, slot), node + 1)
            _add_holder(state, key, slot)
            node = half(after, node)
    return 0


EXPORTS = (decide, hash_blocks, match, insert, forget, expire, rehash)
"""In the order of `functions.SHAPES`."""
