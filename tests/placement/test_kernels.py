import inspect

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hekla.placement.kernels import BLOCK, compiled, twin

NAMES = ("take", "score", "best", "place_one", "build", "repair", "place_run")


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
