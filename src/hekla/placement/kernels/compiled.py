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
from hekla.placement.kernels.twin import BLOCK, SCALE

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
    best_key = np.int64(-1) << 32
    for i in range(block * BLOCK, min(height, (block + 1) * BLOCK)):
        key = (np.int64(quantised[i]) << 32) | np.int64(rank[i])
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
def _rescored(quantised, rank, keys, row, fresh, height):
    """Give a row another score, and look for its block's best key only if that may have changed.

    A pod that goes where the last one went, the usual case where nodes are packed, costs no pass over the block.
    """
    block = row // BLOCK
    before = (np.int64(quantised[row]) << 32) | np.int64(rank[row])
    after = (np.int64(fresh) << 32) | np.int64(rank[row])
    quantised[row] = fresh
    if after >= keys[block]:
        keys[block] = after
    elif before == keys[block]:
        _index_block(quantised, rank, keys, block, height)


@numba.njit(inline="always")
def _top(quantised, rank, keys, height):
    """The row with the best key, or -1."""
    key, at = np.int64(-1) << 32, 0
    for block in range((height + BLOCK - 1) // BLOCK):
        key = max(key, keys[block])
    row = np.int64(-1)
    if key >= 0:
        while keys[at] != key:
            at += 1
        row = np.int64(at * BLOCK)
        while (np.int64(quantised[row]) << 32) | np.int64(rank[row]) != key:
            row += 1
    return row


_CLASSES = (
    boolean[:, ::1], float32[:, ::1], int64[::1], int64[::1], int64[:, ::1], int64[:, ::1],
    int64[::1], int64[:, ::1], float32[:, ::1], float32[:, ::1], float32[:, ::1],
)  # fmt: skip
_STREAM = (
    int64, int32[::1], int64[::1], int32[:, ::1], int64[:, ::1], int64[::1],
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
    needs,
    need,
    amount,
    scoreds,
    scored,
    weight,
    adding,
    balance,
    height,
    rank,
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
    placed, no_keys = 0, np.empty(0, np.int64)
    for item in range(klass.shape[0]):
        kind, wanted, found = klass[item], count[item], 0
        may, start, even, at = ok[profile[kind]], base[profile[kind]], balance[kind], slot[kind]
        wants, least = need[kind, : needs[kind]], amount[kind, : needs[kind]]
        likes, much = scored[kind, : scoreds[kind]], weight[kind, : scoreds[kind]]
        more = adding[kind, : scoreds[kind]]
        told, best_keys = (quantised[at], keys[at]) if at >= 0 else (scratch, no_keys)
        if at >= 0 and position[at] >= 0 and (length - position[at]) * _ROW_COST < height:
            for change in range(position[at], length):
                row = np.int64(log[change])
                if change + 1 < length and log[change + 1] == row:
                    continue  # scored when its last change comes up
                fresh = _score_row(idle, share, inverse, may, start, wants, least, likes, much, more, even, row)
                if fresh != told[row]:
                    _rescored(told, rank, best_keys, row, fresh, height)
        else:
            _score_all(idle, share, inverse, may, start, wants, least, likes, much, more, even, height, told)
            for block in range((height + BLOCK - 1) // BLOCK if at >= 0 else 0):
                _index_block(told, rank, best_keys, block, height)
        while found < wanted:
            row = _top(told, rank, best_keys, height) if at >= 0 else _best(told, rank, height)
            if row < 0:
                break
            _take(allocatable, used, idle, share, wants, least, row, 1)
            fresh = _score_row(idle, share, inverse, may, start, wants, least, likes, much, more, even, row)
            if at >= 0:
                _rescored(told, rank, best_keys, row, fresh, height)
            else:
                told[row] = fresh
            log[length + found] = row
            out[placed + found] = row
            found += 1
        length += found
        if at >= 0:
            position[at] = length
        if found < wanted:
            for last in range(found - 1, -1, -1):
                row = np.int64(out[placed + last])
                _take(allocatable, used, idle, share, wants, least, row, -1)
                log[length] = row
                length += 1
            return item, placed, length
        placed += found
    return klass.shape[0], placed, length
