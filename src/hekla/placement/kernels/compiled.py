# mypy: disable-error-code="no-untyped-def"
# numba types what it compiles; annotations would be ignored.
"""The compiled form of the kernels: numba, the same answers as `twin.py` to the bit, at about 2 ns per node.

Importing this module compiles, or loads what was compiled before from numba's cache; `python -m` on it does only
that, which is how the scheduler has it compiled by a child. No fast-math: contraction to fused multiply-add would
round differently from NumPy, and a tie would then fall otherwise. The loops are branch-free over blocks of rows, so
that they vectorise: a loop over resources inside a loop over nodes was 28 times slower.
"""

import numba
import numpy as np
from numba import boolean, float32, int32, int64

from hekla.placement.kernels.compiled_fragmentation import gradients as gradients
from hekla.placement.kernels.twin import BLOCK, NOT_ASKED, SCALE

_AMOUNTS = (int64[:, ::1],) * 3 + (float32[:, ::1],) * 2
_PROGRAM = (
    boolean[::1], float32[::1], int64[::1], int64[::1],
    int64[::1], float32[::1], float32[::1], float32[::1], int64,
)  # fmt: skip
_ROWS32, _ROWS64 = int32[::1], int64[::1]
_INDEX = (_ROWS32, _ROWS32, _ROWS64)
_NONE = numba.void
_SCALE, _ONE, _HALF = np.float32(SCALE), np.float32(1), np.float32(0.5)
_CHUNK = 2048


@numba.njit(inline="always")
def _take(allocatable, used, idle, share, need, amount, row, sign):
    for k in range(need.shape[0]):
        r = need[k]
        used[r, row] += sign * amount[k]
        idle[r, row] = allocatable[r, row] - used[r, row]
        if allocatable[r, row] > 0:
            share[r, row] = np.float32(used[r, row] / allocatable[r, row])
        else:
            share[r, row] = np.float32(0)


@numba.njit(inline="always")
def _score_chunk(
    idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, low, high, total, lacking, out
):
    """Score rows `low` to `high`, at most a chunk: one pass per resource over what stays in the first-level cache.

    Slices, so that indices begin at 0: numba would guard `low + i` against being negative, and not vectorise.
    """
    n = high - low
    start = base[low:high]
    for i in range(n):
        total[i] = start[i]
    for c in range(scored.shape[0]):
        s, v, w, a = share[scored[c], low:high], inverse[scored[c], low:high], weight[c], adding[c]
        for i in range(n):
            full = s[i] + a * v[i]
            full = full if full < _ONE else _ONE
            total[i] += w * full
    if balance[0] > 0:
        s0, v0, s1, v1 = share[0, low:high], inverse[0, low:high], share[1, low:high], inverse[1, low:high]
        b, a0, a1 = balance[0], balance[1], balance[2]
        for i in range(n):
            cpu = s0[i] + a0 * v0[i]
            cpu = cpu if cpu < _ONE else _ONE
            memory = s1[i] + a1 * v1[i]
            memory = memory if memory < _ONE else _ONE
            total[i] += b * (_ONE - abs(cpu - memory) * _HALF)
    # A sign bit says that something is lacking: or-ing differences costs less than comparing and and-ing.
    may = ok[low:high]
    for i in range(n):
        lacking[i] = np.int64(may[i]) - 1
    for k in range(need.shape[0]):
        free, least = idle[need[k], low:high], amount[k]
        for i in range(n):
            lacking[i] |= free[i] - least
    told = out[low:high]
    for i in range(n):
        rounded = np.int32(total[i] * _SCALE + _HALF)
        rounded = rounded if rounded > 0 else np.int32(0)
        told[i] = rounded if lacking[i] >= 0 else np.int32(-1)


@numba.njit(inline="always")
def _score_row(idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, row):
    fits = ok[row]
    for k in range(need.shape[0]):
        fits &= idle[need[k], row] >= amount[k]
    if not fits:
        return np.int32(-1)
    total = base[row]
    for c in range(scored.shape[0]):
        full = share[scored[c], row] + adding[c] * inverse[scored[c], row]
        total += weight[c] * min(full, _ONE)
    if balance[0] > 0:
        cpu = min(share[0, row] + balance[1] * inverse[0, row], _ONE)
        memory = min(share[1, row] + balance[2] * inverse[1, row], _ONE)
        total += balance[0] * (_ONE - abs(cpu - memory) * _HALF)
    return max(np.int32(total * _SCALE + _HALF), np.int32(0))


@numba.njit(inline="always")
def _index_block(quantised, rank, keys, block, height):
    scores, ranks = (
        quantised[block * BLOCK : min(height, (block + 1) * BLOCK)],
        rank[block * BLOCK : min(height, (block + 1) * BLOCK)],
    )
    best_key = np.int64(-1) << 32
    for i in range(scores.shape[0]):
        key = (np.int64(scores[i]) << 32) | np.int64(ranks[i])
        best_key = max(best_key, key)
    keys[block] = best_key


@numba.njit(inline="always")
def _score_all(idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, height, out):
    total = np.empty(_CHUNK, np.float32)
    lacking = np.empty(_CHUNK, np.int64)
    for low in range(0, height, _CHUNK):
        _score_chunk(
            idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance,
            low, min(height, low + _CHUNK), total, lacking, out,
        )  # fmt: skip


@numba.njit(inline="always")
def _best(quantised, rank, height):
    """The highest score first, which vectorises; then the highest rank among the blocks that hold it."""
    top = np.int32(-1)
    for i in range(height):
        top = max(top, quantised[i])
    row, highest = np.int64(-1), np.int32(-1)
    if top < 0:
        return row
    for low in range(0, height, BLOCK):
        block, ranks = quantised[low : min(height, low + BLOCK)], rank[low : min(height, low + BLOCK)]
        peak = np.int32(-1)
        for i in range(block.shape[0]):
            peak = max(peak, np.int32(-1) if block[i] != top else ranks[i])
        if peak > highest:
            highest = peak
            for i in range(block.shape[0]):
                if block[i] == top and ranks[i] == peak:
                    row = np.int64(low + i)
    return row


@numba.njit([_NONE(*_AMOUNTS, _ROWS64, _ROWS64, int64, int64)], cache=True)
def take(allocatable, used, idle, share, inverse, need, amount, row, sign):
    """See `twin.take`."""
    _take(allocatable, used, idle, share, need, amount, row, sign)


@numba.njit([_NONE(*_AMOUNTS, *_PROGRAM, _ROWS32)], cache=True)
def score(
    allocatable, used, idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, height, out
):
    """See `twin.score`."""
    _score_all(idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, height, out)


@numba.njit([int64(_ROWS32, _ROWS32, int64)], cache=True)
def best(quantised, rank, height):
    """See `twin.best`."""
    return _best(quantised, rank, height)


@numba.njit([int64(*_AMOUNTS, *_PROGRAM, _ROWS32, _ROWS32)], cache=True)
def place_one(
    allocatable,
    used,
    idle,
    share,
    inverse,
    ok,
    base,
    need,
    amount,
    scored,
    weight,
    adding,
    balance,
    height,
    scratch,
    rank,
):
    """See `twin.place_one`."""
    _score_all(idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, height, scratch)
    row = _best(scratch, rank, height)
    if row >= 0:
        _take(allocatable, used, idle, share, need, amount, row, 1)
    return row


@numba.njit([_NONE(*_AMOUNTS, *_PROGRAM, *_INDEX)], cache=True)
def build(
    allocatable,
    used,
    idle,
    share,
    inverse,
    ok,
    base,
    need,
    amount,
    scored,
    weight,
    adding,
    balance,
    height,
    quantised,
    rank,
    keys,
):
    """See `twin.build`."""
    _score_all(idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, height, quantised)
    for block in range((height + BLOCK - 1) // BLOCK):
        _index_block(quantised, rank, keys, block, height)


@numba.njit([_NONE(*_AMOUNTS, *_PROGRAM, *_INDEX, _ROWS32, int64, int64)], cache=True)
def repair(
    allocatable,
    used,
    idle,
    share,
    inverse,
    ok,
    base,
    need,
    amount,
    scored,
    weight,
    adding,
    balance,
    height,
    quantised,
    rank,
    keys,
    log,
    start,
    end,
):
    """See `twin.repair`."""
    for position in range(start, end):
        row = log[position]
        fresh = _score_row(idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, row)
        if fresh != quantised[row]:
            quantised[row] = fresh
            _index_block(quantised, rank, keys, row // BLOCK, height)


@numba.njit([int64(*_AMOUNTS, *_PROGRAM, *_INDEX, _ROWS32)], cache=True)
def place_run(
    allocatable,
    used,
    idle,
    share,
    inverse,
    ok,
    base,
    need,
    amount,
    scored,
    weight,
    adding,
    balance,
    height,
    quantised,
    rank,
    keys,
    out,
):
    """See `twin.place_run`."""
    blocks = (height + BLOCK - 1) // BLOCK
    for placed in range(out.shape[0]):
        key = np.int64(-1) << 32
        for block in range(blocks):
            key = max(key, keys[block])
        if key < 0:
            return placed
        block = 0
        while keys[block] != key:
            block += 1
        row = block * BLOCK
        while (np.int64(quantised[row]) << 32) | np.int64(rank[row]) != key:
            row += 1
        _take(allocatable, used, idle, share, need, amount, row, 1)
        quantised[row] = _score_row(
            idle, share, inverse, ok, base, need, amount, scored, weight, adding, balance, row
        )  # fmt: skip
        _index_block(quantised, rank, keys, block, height)
        out[placed] = row
    return out.shape[0]


@numba.njit(inline="always")
def _leader(quantised, by_rank, rank, keys, height):
    """The row with the best key, or -1, where the keys of blocks are upper bounds.

    A block is looked at only when its bound leads and no row reaches it: most changes of a row are never looked at.
    """
    while True:
        key = np.int64(-1) << 32
        for block in range(keys.shape[0]):
            key = max(key, keys[block])
        if key < 0:
            return np.int64(-1)
        row = np.int64(by_rank[key & 0xFFFFFFFF])  # who had this key once, so it tells the block
        if quantised[row] == key >> 32:
            return row
        _index_block(quantised, rank, keys, row // BLOCK, height)


@numba.njit(inline="always")
def _score_classes(
    idle, share, inverse, ok, base, profile, asked, least, scored, weight, adding, balance, row, total, lacking, fresh
):
    """Score one row for many classes at once: one pass per resource, as in `_score_chunk`."""
    n = fresh.shape[0]
    for c in range(n):
        total[c] = base[profile[c], row]
        lacking[c] = np.int64(ok[profile[c], row]) - 1
    for k in range(scored.shape[0]):
        s, v, w, a = share[scored[k], row], inverse[scored[k], row], weight[k], adding[k]
        for c in range(n):
            full = s + a[c] * v
            full = full if full < _ONE else _ONE
            total[c] += w[c] * full
    s0, v0, s1, v1 = share[0, row], inverse[0, row], share[1, row], inverse[1, row]
    b, a0, a1 = balance[0], balance[1], balance[2]
    for c in range(n):
        cpu = s0 + a0[c] * v0
        cpu = cpu if cpu < _ONE else _ONE
        memory = s1 + a1[c] * v1
        memory = memory if memory < _ONE else _ONE
        total[c] += b[c] * (_ONE - abs(cpu - memory) * _HALF)
    for k in range(asked.shape[0]):
        free, amounts = idle[asked[k], row], least[k]
        for c in range(n):
            lacking[c] |= free - amounts[c]
    for c in range(n):
        rounded = np.int32(total[c] * _SCALE + _HALF)
        rounded = rounded if rounded > 0 else np.int32(0)
        fresh[c] = rounded if lacking[c] >= 0 else np.int32(-1)


@numba.njit(inline="always")
def _column(table, names, kind, none, found, values):
    """The part of a class's column that counts, in two buffers; how long it is."""
    n = 0
    for k in range(names.shape[0]):
        if table[k, kind] != none:
            found[n], values[n] = names[k], table[k, kind]
            n += 1
    return n


@numba.njit(inline="always")
def _unpacked(asked, least, scored, weight, adding, balance, kind):
    """The program of one class as `_score_row` reads it."""
    need, amount = np.empty(asked.shape[0], np.int64), np.empty(asked.shape[0], np.int64)
    likes, much = np.empty(scored.shape[0], np.int64), np.empty(scored.shape[0], np.float32)
    more, even = np.empty(scored.shape[0], np.float32), np.empty(3, np.float32)
    needs = _column(least, asked, kind, NOT_ASKED, need, amount)
    n = 0
    for k in range(scored.shape[0]):
        if weight[k, kind] != 0:
            likes[n], much[n], more[n] = scored[k], weight[k, kind], adding[k, kind]
            n += 1
    even[0], even[1], even[2] = balance[0, kind], balance[1, kind], balance[2, kind]
    return need[:needs], amount[:needs], likes[:n], much[:n], more[:n], even


@numba.njit(inline="always")
def _take_one(allocatable, used, idle, share, asked, least, kind, row, sign):
    for k in range(asked.shape[0]):
        if least[k, kind] != NOT_ASKED:
            r = asked[k]
            used[r, row] += sign * least[k, kind]
            idle[r, row] = allocatable[r, row] - used[r, row]
            if allocatable[r, row] > 0:
                share[r, row] = np.float32(used[r, row] / allocatable[r, row])
            else:
                share[r, row] = np.float32(0)


_CLASSES = (
    boolean[:, ::1], float32[:, ::1], int64[::1], int64[::1], int64[:, ::1],
    int64[::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],
)  # fmt: skip
_STREAM = (
    int64, int32[::1], int32[::1], int64[::1], int32[:, ::1], int64[:, ::1], int64[::1],
    int32[::1], int64, int64[::1], int64[::1], int32[::1], int32[::1],
)  # fmt: skip
_TRIPLE = numba.types.UniTuple(int64, 3)  # type: ignore[no-untyped-call]  # numba has no types
_ROW_COST = 16
"""Scoring a row by itself costs as much as so many in a pass over all."""


@numba.njit([_TRIPLE(*_AMOUNTS, *_CLASSES, *_STREAM)], cache=True)
def place_stream(
    allocatable,
    used,
    idle,
    share,
    inverse,
    ok,
    base,
    profile,
    asked,
    least,
    scored,
    weight,
    adding,
    balance,
    height,
    rank,
    by_rank,
    slot,
    quantised,
    keys,
    position,
    log,
    length,
    klass,
    count,
    scratch,
    out,
):
    """See `twin.place_stream`."""
    n = 0
    while n < slot.shape[0] and slot[n] >= 0:
        n += 1
    for kind in range(n):
        at = slot[kind]
        may, start, told, best_keys = ok[profile[kind]], base[profile[kind]], quantised[at], keys[at]
        wants, amount, likes, much, more, even = _unpacked(asked, least, scored, weight, adding, balance, kind)
        if position[at] >= 0 and (length - position[at]) * _ROW_COST < height:
            for change in range(position[at], length):
                row = np.int64(log[change])
                if change + 1 == length or log[change + 1] != row:  # else scored when its last change comes up
                    told[row] = _score_row(
                        idle, share, inverse, may, start, wants, amount, likes, much, more, even, row
                    )  # fmt: skip
                    key = (np.int64(told[row]) << 32) | np.int64(rank[row])
                    best_keys[row // BLOCK] = max(best_keys[row // BLOCK], key)
        else:
            _score_all(idle, share, inverse, may, start, wants, amount, likes, much, more, even, height, told)
            best_keys[:] = np.int64(-1) << 32
            for block in range((height + BLOCK - 1) // BLOCK):
                _index_block(told, rank, best_keys, block, height)
    total, lacking, fresh = np.empty(n, np.float32), np.empty(n, np.int64), np.empty(n, np.int32)
    placed, done = 0, 0
    for item in range(klass.shape[0]):
        kind, found = klass[item], 0
        if kind >= n:
            may, start = ok[profile[kind]], base[profile[kind]]
            wants, amount, likes, much, more, even = _unpacked(asked, least, scored, weight, adding, balance, kind)
            _score_all(idle, share, inverse, may, start, wants, amount, likes, much, more, even, height, scratch)
        while found < count[item]:
            if kind < n:
                row = _leader(quantised[slot[kind]], by_rank, rank, keys[slot[kind]], height)
            else:
                row = _best(scratch, rank, height)
            if row < 0:
                break
            _take_one(allocatable, used, idle, share, asked, least, kind, row, 1)
            if kind >= n and found + 1 < count[item]:
                scratch[row] = _score_row(
                    idle, share, inverse, ok[profile[kind]], base[profile[kind]], wants, amount, likes, much, more, even, row
                )  # fmt: skip
            if n:
                _score_classes(
                    idle, share, inverse, ok, base, profile, asked, least, scored, weight, adding, balance, row,
                    total, lacking, fresh,
                )  # fmt: skip
                block, mine = row // BLOCK, np.int64(rank[row])
                for c in range(n):
                    at = slot[c]
                    quantised[at, row] = fresh[c]
                    keys[at, block] = max(keys[at, block], (np.int64(fresh[c]) << 32) | mine)
            log[length + found] = row
            out[placed + found] = row
            found += 1
        length += found
        if found < count[item]:
            break
        placed += found
        done += 1
    for c in range(n):
        position[slot[c]] = length
    if done < klass.shape[0]:  # what the last one found is given back, which the log tells to all
        for last in range(found - 1, -1, -1):
            row = np.int64(out[placed + last])
            _take_one(allocatable, used, idle, share, asked, least, klass[done], row, -1)
            log[length] = row
            length += 1
    return done, placed, length
