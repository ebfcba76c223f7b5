"""The plain form of the kernels: NumPy, obviously right, about ten times slower than `compiled.py`.

A *program* is what a class of equal pods asks and likes, as arrays:

    ok      bool[node]      may take the pod, resources aside
    base    float32[node]   the part of the score that node facts decide
    need    int64[k]        indices of the requested resources, and
    amount  int64[k]        how much of each
    scored  int64[c]        indices of the resources whose fullness is scored,
    weight  float32[c]      how much each counts (negative: emptier is better), and
    adding  float32[c]      what the pod would add to it
    balance float32[3]      weight of balanced use of cpu and memory, and what the pod adds to each

    fullness(r)  = min(1, used / allocatable + adding / allocatable)
    score(node)  = base + sum of weight * fullness + balance * (1 - |fullness(cpu) - fullness(memory)| / 2)

Scores are rounded to 1/SCALE so that equal nodes tie in spite of rounding; a tie goes to the higher rank. -1 means
not feasible. Feasibility is exact: integers only.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hekla.placement.kernels.fragmentation import gradients as gradients

BLOCK = 128
"""Rows under one entry of the block index."""

SCALE = 1 << 20

NOT_ASKED = -(1 << 62)
"""The amount of a resource that a class does not ask for, in a table of classes: any node has more."""

Array = NDArray[Any]

np.unique(np.empty(0, np.int64))  # its first call imports numpy.ma: 6 ms and more, now and not while pods wait


def take(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    need: Array, amount: Array, row: int, sign: int,
) -> None:  # fmt: skip
    """Add `sign` times the amounts to what is in use on a row, and bring the derived columns up to date."""
    # number by number: an array operation on three numbers takes 5 us, and a start with 150,000 pods makes many of them
    for index, count in zip(need.tolist(), amount.tolist(), strict=True):
        most, taken = allocatable.item(index, row), used.item(index, row) + sign * count
        used[index, row], idle[index, row] = taken, most - taken
        share[index, row] = taken / most if most > 0 else 0.0


def score(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    ok: Array, base: Array, need: Array, amount: Array, scored: Array, weight: Array, adding: Array, balance: Array,
    height: int, out: Array,
) -> None:  # fmt: skip
    """Score rows 0 to `height`; `out` is int32[node]."""
    program = (ok, base, need, amount, scored, weight, adding, balance)
    out[:height] = _scores(idle, share, inverse, program, slice(0, height))


def best(quantised: Array, rank: Array, height: int) -> int:
    """The row with the best score, ties by rank; -1 if none is feasible."""
    if not height:
        return -1
    keys = (quantised[:height].astype(np.int64) << 32) | rank[:height]
    row = int(keys.argmax())
    return row if quantised[row] >= 0 else -1


def place_one(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    ok: Array, base: Array, need: Array, amount: Array, scored: Array, weight: Array, adding: Array, balance: Array,
    height: int, scratch: Array, rank: Array,
) -> int:  # fmt: skip
    """Score every row, take the best; its row, or -1."""
    program = (ok, base, need, amount, scored, weight, adding, balance)
    scratch[:height] = _scores(idle, share, inverse, program, slice(0, height))
    row = best(scratch, rank, height)
    if row >= 0:
        take(allocatable, used, idle, share, inverse, need, amount, row, 1)
    return row


def build(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    ok: Array, base: Array, need: Array, amount: Array, scored: Array, weight: Array, adding: Array, balance: Array,
    height: int, quantised: Array, rank: Array, keys: Array,
) -> None:  # fmt: skip
    """Score every row and note the best key of each block; `keys` is int64[block]."""
    program = (ok, base, need, amount, scored, weight, adding, balance)
    quantised[:height] = _scores(idle, share, inverse, program, slice(0, height))
    for block in range((height + BLOCK - 1) // BLOCK):
        _index_block(quantised, rank, keys, block, height)


def repair(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    ok: Array, base: Array, need: Array, amount: Array, scored: Array, weight: Array, adding: Array, balance: Array,
    height: int, quantised: Array, rank: Array, keys: Array, log: Array, start: int, end: int,
) -> None:  # fmt: skip
    """Score again the rows named in `log[start:end]`."""
    program = (ok, base, need, amount, scored, weight, adding, balance)
    rows = np.unique(log[start:end])
    quantised[rows] = _scores(idle, share, inverse, program, rows)
    for block in np.unique(rows // BLOCK):
        _index_block(quantised, rank, keys, int(block), height)


def place_run(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    ok: Array, base: Array, need: Array, amount: Array, scored: Array, weight: Array, adding: Array, balance: Array,
    height: int, quantised: Array, rank: Array, keys: Array, out: Array,
) -> int:  # fmt: skip
    """Place `len(out)` equal pods one after the other, from an index that is right; how many found a row."""
    program = (ok, base, need, amount, scored, weight, adding, balance)
    for placed in range(len(out)):
        row = best(quantised, rank, height)
        if row < 0:
            return placed
        take(allocatable, used, idle, share, inverse, need, amount, row, 1)
        quantised[row] = _scores(idle, share, inverse, program, np.array([row]))[0]
        _index_block(quantised, rank, keys, row // BLOCK, height)
        out[placed] = row
    return len(out)


def place_stream(
    allocatable: Array, used: Array, idle: Array, share: Array, inverse: Array,
    ok: Array, base: Array, profile: Array, asked: Array, least: Array,
    scored: Array, weight: Array, adding: Array, balance: Array,
    height: int, rank: Array, by_rank: Array, slot: Array, quantised: Array, keys: Array, position: Array,
    log: Array, length: int, klass: Array, count: Array, scratch: Array, out: Array,
) -> tuple[int, int, int]:  # fmt: skip
    """Place items one after the other, each a number of equal pods of one class, all of them or none.

    Programs are tables with a column for each class: `ok` and `base` are [profile, node] and `profile` names the row of
    a class; `least` [k, class] is how much it asks of the resources in `asked` [k], NOT_ASKED for nothing; `weight`
    and `adding` [c, class] belong to the resources in `scored` [c]; `balance` is [3, class].

    The first classes have an index: row `slot` of the pools `quantised` [slot, node] and `keys` [slot, block], right up
    to `position` [slot] of the log, -1 for not at all; the others have slot -1. Keys are upper bounds: no row of a
    block is better, and the row with its rank (`by_rank`) is in it. Item i asks for `count[i]` pods of class
    `klass[i]`; rows go to `out` in order and to the log.

    Stops before the first item that does not fit. (items placed, pods placed, length of the log)
    """
    amounts, done, placed = (allocatable, used, idle, share, inverse), 0, 0
    for kind, wanted in zip(klass.tolist(), count.tolist(), strict=True):
        needs, likes, at = least[:, kind] != NOT_ASKED, weight[:, kind] != 0, int(slot[kind])
        program: tuple[Any, ...] = (
            ok[profile[kind]], base[profile[kind]], asked[needs], least[needs, kind],
            scored[likes], weight[likes, kind], adding[likes, kind], balance[:, kind],
        )  # fmt: skip
        index: tuple[Any, ...] = (quantised[at], rank, keys[at])
        if at < 0:
            index = scratch, rank, np.empty(keys.shape[1], np.int64)
        given: tuple[Any, ...] = (*amounts, *program, height, *index)
        if at >= 0 and position[at] >= 0:
            changes: tuple[Any, ...] = (log, int(position[at]), length)
            repair(*given, *changes)
        else:
            build(*given)
        rows = out[placed : placed + wanted]
        found = place_run(*(*given, rows))
        log[length : length + found] = rows[:found]
        length += found
        if at >= 0:
            position[at] = length
        if found < wanted:
            for row in rows[:found][::-1].tolist():
                take(*amounts, program[2], program[3], row, -1)
            log[length : length + found] = rows[:found][::-1]
            return done, placed, length + found
        done, placed = done + 1, placed + wanted
    return done, placed, length


def _scores(idle: Array, share: Array, inverse: Array, program: tuple[Array, ...], rows: Any) -> Array:
    """The rounded scores of some rows."""
    ok, base, need, amount, scored, weight, adding, balance = program
    total = base[rows].copy()
    for position, resource in enumerate(scored):
        total += weight[position] * _fullness(share[resource, rows], inverse[resource, rows], adding[position])
    if balance[0] > 0:
        cpu = _fullness(share[0, rows], inverse[0, rows], balance[1])
        memory = _fullness(share[1, rows], inverse[1, rows], balance[2])
        total += balance[0] * (np.float32(1) - np.abs(cpu - memory) * np.float32(0.5))
    feasible = ok[rows].copy()
    for position, resource in enumerate(need):
        feasible &= idle[resource, rows] >= amount[position]
    rounded = (total * np.float32(SCALE) + np.float32(0.5)).astype(np.int32)
    return np.where(feasible, np.maximum(rounded, 0), np.int32(-1))


def _fullness(share: Array, inverse: Array, adding: Any) -> Array:
    full: Array = np.minimum(share + adding * inverse, np.float32(1))
    return full


def _index_block(quantised: Array, rank: Array, keys: Array, block: int, height: int) -> None:
    rows = slice(block * BLOCK, min(height, (block + 1) * BLOCK))
    keys[block] = ((quantised[rows].astype(np.int64) << 32) | rank[rows]).max()
