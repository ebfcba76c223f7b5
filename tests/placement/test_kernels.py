import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hekla.placement.kernels import BLOCK, NOT_ASKED, compiled, twin

NAMES = ("take", "score", "best", "place_one", "build", "repair", "place_run", "place_stream")


def cluster(seed: int, height: int, resources: int = 5):
    """Random columns: some nodes lack resources, some are full, some overfull."""
    dice = np.random.default_rng(seed)
    rows = max(64, 1 << (height - 1).bit_length())
    allocatable = dice.integers(0, 9, (resources, rows)) * dice.choice([1, 1000, 1 << 30], (resources, 1))
    used = (allocatable * dice.choice([0, 0.3, 0.5, 1, 1.2], (resources, rows))).astype(np.int64)
    share = np.where(allocatable > 0, used / np.maximum(allocatable, 1), 0).astype(np.float32)
    inverse = np.where(allocatable > 0, np.float32(1) / np.maximum(allocatable, 1), 0).astype(np.float32)
    return allocatable, used, allocatable - used, share, inverse


def program(seed: int, amounts):
    dice = np.random.default_rng(seed + 1)
    resources, rows = amounts[0].shape
    need = np.sort(dice.choice(resources, dice.integers(1, resources), replace=False)).astype(np.int64)
    asked = np.array([dice.choice(np.maximum(amounts[0][r], 1)) // dice.integers(1, 5) for r in need], np.int64)
    scored = np.sort(dice.choice(resources, dice.integers(0, resources), replace=False)).astype(np.int64)
    ok = dice.random(rows) < 0.8
    base = (dice.random(rows) * dice.choice([0, 0.3])).astype(np.float32)
    weight = dice.normal(0, 0.3, len(scored)).astype(np.float32)
    adding = np.array([dice.choice(np.maximum(amounts[0][r], 1)) for r in scored], np.float32)
    balance = np.array([dice.choice([0, 0.4]), 500, 1 << 28], np.float32)
    return ok, base, need, asked, scored, weight, adding, balance


def copies(arrays):
    return tuple(array.copy() for array in arrays)


@pytest.mark.parametrize("name", NAMES)
def test_both_forms_take_the_same_arguments(name: str) -> None:
    plain = list(inspect.signature(getattr(twin, name)).parameters)
    assert plain == list(inspect.signature(getattr(compiled, name).py_func).parameters)


@given(seed=st.integers(0, 10_000), height=st.integers(1, 700), count=st.integers(1, 60))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_compiled_kernels_equal_their_twins_to_the_bit(seed: int, height: int, count: int) -> None:
    columns = cluster(seed, height)
    rows = columns[0].shape[1]
    asked = program(seed, columns)
    rank = np.random.default_rng(seed).permutation(rows).astype(np.int32)
    results = []
    for form in (twin, compiled):
        amounts = copies(columns)
        quantised = np.full(rows, -1, np.int32)
        keys = np.full((rows + BLOCK - 1) // BLOCK, -1 << 32, np.int64)
        one = form.place_one(*amounts, *asked, height, quantised, rank)
        form.build(*amounts, *asked, height, quantised, rank, keys)
        out = np.full(count, -1, np.int32)
        placed = form.place_run(*amounts, *asked, height, quantised, rank, keys, out)
        after_run = (*copies(amounts), quantised.copy(), keys.copy(), out.copy())
        for row in out[:placed]:
            form.take(*amounts, asked[2], asked[3], int(row), -1)
        form.repair(*amounts, *asked, height, quantised, rank, keys, out[:placed].copy(), 0, placed)
        rescored = np.full(rows, -1, np.int32)
        form.score(*amounts, *asked, height, rescored)
        assert (rescored[:height] == quantised[:height]).all(), "repaired rows differ from rows scored anew"
        results.append((one, placed, form.best(quantised, rank, height), *after_run, *amounts, quantised, keys))
    for plain, fast in zip(*results, strict=True):
        assert np.array_equal(plain, fast)


@given(seed=st.integers(0, 10_000), height=st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_what_is_given_back_is_back_to_the_bit(seed: int, height: int) -> None:
    columns = cluster(seed, height)
    need = np.array([0, 2], np.int64)
    asked = np.array([7, 13], np.int64)
    rows = np.random.default_rng(seed).integers(0, height, 50)
    amounts = copies(columns)
    for sign in (1, -1):
        for row in rows:
            twin.take(*amounts, need, asked, int(row), sign)
    assert all(np.array_equal(before, after) for before, after in zip(columns, amounts, strict=True))


def tables(programs, resources: int):
    """Programs as the columns of tables, each with a profile of its own."""
    asked = scored = np.arange(resources)
    least = np.full((resources, len(programs)), NOT_ASKED, np.int64)
    weight, adding = np.zeros((2, resources, len(programs)), np.float32)
    for kind, (_, _, need, amount, likes, much, more, _) in enumerate(programs):
        least[need, kind], weight[likes, kind], adding[likes, kind] = amount, much, more
    ok, base = np.stack([p[0] for p in programs]), np.stack([p[1] for p in programs])
    profile = np.arange(len(programs))
    balance = np.ascontiguousarray(np.stack([p[7] for p in programs], axis=1))
    return ok, base, profile, asked, least, scored, weight, adding, balance


def one_by_one(amounts, programs, height: int, rank, klass, count) -> list[int]:
    """Where items go if every pod is placed by a pass over all nodes; up to the first that does not fit."""
    placed: list[int] = []
    for kind, number in zip(klass, count, strict=True):
        scratch = np.zeros(amounts[0].shape[1], np.int32)
        rows = [twin.place_one(*amounts, *programs[kind], height, scratch, rank) for _ in range(number)]
        if -1 in rows:
            for row in [row for row in rows if row >= 0]:
                twin.take(*amounts, programs[kind][2], programs[kind][3], row, -1)
            return placed
        placed += rows
    return placed


@given(seed=st.integers(0, 10_000), height=st.integers(1, 700), kinds=st.integers(1, 6), indexed=st.integers(0, 6))
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_stream_goes_where_each_pod_goes_by_itself(seed: int, height: int, kinds: int, indexed: int) -> None:
    """Over several calls, between which others take and give: what an index holds is repaired, never trusted."""
    dice, columns = np.random.default_rng(seed), cluster(seed, height)
    rows, resources = columns[0].shape[1], len(columns[0])
    programs = [program(seed + kind, columns) for kind in range(kinds)]
    rank = np.zeros(rows, np.int32)
    rank[:height] = 1 + dice.permutation(height)
    by_rank = np.zeros(height + 1, np.int32)
    by_rank[rank[:height]] = np.arange(height)
    slot = np.array([kind if kind < indexed else -1 for kind in range(kinds)])
    plain, fast, slow = copies(columns), copies(columns), copies(columns)
    states = [
        (np.full((kinds, rows), -1, np.int32), np.full((kinds, -(-rows // BLOCK)), -1 << 32), np.full(kinds, -1),
         np.zeros(4096, np.int32), np.zeros(rows, np.int32)) for _ in range(2)
    ]  # fmt: skip
    lengths = [0, 0]
    for _ in range(3):
        klass, count = dice.integers(0, kinds, 12), dice.choice([1, 1, 1, 2, 7], 12)
        expected = one_by_one(plain, programs, height, rank, klass, count)
        for which, (form, amounts) in enumerate(((twin, slow), (compiled, fast))):
            quantised, keys, position, log, scratch = states[which]
            out = np.full(int(count.sum()), -1, np.int32)
            items, placed, lengths[which] = form.place_stream(
                *amounts, *tables(programs, resources), height, rank, by_rank, slot, quantised, keys, position,
                log, lengths[which], klass, count, scratch, out,
            )  # fmt: skip
            assert out[:placed].tolist() == expected
            assert placed == sum(count[:items])
        row, kind = int(dice.integers(0, height)), int(dice.integers(0, kinds))
        for which, amounts in enumerate((slow, fast, plain)):
            twin.take(*amounts, programs[kind][2], programs[kind][3], row, -1)
            if which < 2:
                states[which][3][lengths[which]] = row
                lengths[which] += 1
    assert all(np.array_equal(*one) for one in zip((*plain, *plain), (*fast, *slow), strict=True))
