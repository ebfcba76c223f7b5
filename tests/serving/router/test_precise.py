"""The index of what engines say that they hold."""

import pytest

from hekla.serving.router.prefix.kv_events import Batch, Cleared, Removed, Stored
from hekla.serving.router.prefix.precise import MOST_PARKED, PreciseIndex
from hekla.serving.router.prefix.token_blocks import chain, chain_plainly, root

ALL = (1 << 64) - 1
SIZE = 4


def tokens(count, start=0):
    return [start + number for number in range(count * SIZE)]


def stored(hashes, ids, parent=None, **more):
    return Stored(list(hashes), parent, list(ids), SIZE, **more)


def apply(index, slot, *events, rank=0):
    return index.apply(slot, Batch(events, rank))


def depths(index, ids, adapter=""):
    found = index.match(ids, ALL, adapter)
    return {slot: depth for slots, depth in found for slot in range(64) if slots >> slot & 1}


@pytest.mark.parametrize("size", [1, 4, 16, 64])
@pytest.mark.parametrize("count", [0, 1, 4, 5, 33, 600])
def test_the_chain_of_arrays_is_the_plain_chain(size, count):
    ids = [number * 7919 % 151_936 for number in range(size * count + size // 2)]
    assert chain(ids, size, root("m")) == chain_plainly(ids, size, root("m"))


def test_a_chain_goes_on_where_another_ended():
    ids = tokens(40)
    whole = chain(ids, SIZE, root())
    assert chain(ids[20 * SIZE :], SIZE, whole[19]) == whole[20:]


def test_what_is_stored_is_found_from_the_beginning():
    index = PreciseIndex()
    apply(index, 0, stored([1, 2, 3], tokens(3)))
    apply(index, 1, stored([b"x", b"y"], tokens(2)))
    assert depths(index, tokens(3)) == {0: 12, 1: 8}
    assert depths(index, tokens(3, start=1)) == {}
    assert depths(index, tokens(9)[4:]) == {}


def test_blocks_that_come_one_by_one_make_the_same_chain():
    index, ids = PreciseIndex(), tokens(3)
    for number in range(3):
        parent = number if number else None
        apply(index, 0, stored([number + 1], ids[number * SIZE : (number + 1) * SIZE], parent))
    assert depths(index, ids) == {0: 12}


def test_a_block_that_is_removed_ends_the_match_and_one_that_never_was_is_passed_over():
    index = PreciseIndex()
    apply(index, 0, stored([1, 2, 3], tokens(3)))
    apply(index, 0, Removed([2, 99]))
    assert depths(index, tokens(3)) == {0: 4}
    assert index.held(0) == 2
    apply(index, 0, Removed([1, 2, 3]))
    assert (depths(index, tokens(3)), index.holders) == ({}, {})


def test_engines_hashes_are_their_own():
    index = PreciseIndex()
    apply(index, 0, stored([1], tokens(1)))
    apply(index, 1, stored([1], tokens(1, start=50)))
    apply(index, 1, Removed([1]))
    assert depths(index, tokens(1)) == {0: 4}


def test_all_cleared_is_all_cleared_and_is_told():
    index = PreciseIndex()
    assert not apply(index, 0, stored([1, 2], tokens(2)))
    assert apply(index, 0, Cleared())
    assert (depths(index, tokens(2)), index.held(0)) == ({}, 0)


def test_a_child_waits_for_its_parent():
    index, ids = PreciseIndex(), tokens(4)
    apply(index, 0, stored([3, 4], ids[8:], parent=2))
    assert depths(index, ids) == {}
    apply(index, 0, stored([1, 2], ids[:8]))
    assert depths(index, ids) == {0: 16}


def test_those_that_wait_for_ever_are_bounded():
    index = PreciseIndex()
    for number in range(2 * MOST_PARKED):
        apply(index, 0, stored([number], tokens(1), parent=10_000 + number))
    index.forget(0)
    assert index.held(0) == 0


def test_an_engine_that_stores_and_never_removes_begins_anew():
    index = PreciseIndex(most_blocks=100)
    for number in range(1000):
        apply(index, 0, stored([number], tokens(1, start=number)))
        assert index.held(0) <= 100
    assert len(index.holders) <= 100


def test_the_one_that_told_most_makes_room_when_all_together_told_too_much():
    index = PreciseIndex(most_in_all=100)
    apply(index, 0, stored(range(1, 61), tokens(60)))
    apply(index, 1, stored(range(1, 31), tokens(30, start=1000)))
    apply(index, 1, stored(range(101, 121), tokens(20, start=2000)))
    assert (index.held(0), index.held(1)) == (0, 30)
    apply(index, 1, stored(range(101, 121), tokens(20, start=2000)))
    assert index.held(1) == 50


def test_an_endpoint_that_is_forgotten_leaves_nothing():
    index = PreciseIndex()
    index.forget(3)
    apply(index, 3, stored([1, 2], tokens(2)), stored([9], tokens(1), parent=77))
    apply(index, 4, stored([1], tokens(1)))
    index.forget(3)
    index.forget(3)
    assert depths(index, tokens(2)) == {4: 4}
    assert index.held(3) == 0
    apply(index, 3, Removed([1]))  # events that were on their way
    apply(index, 3, stored([5], tokens(1)))
    assert depths(index, tokens(2)) == {3: 4, 4: 4}
    index.forget(3)
    index.forget(4)
    assert index.holders == {}


def test_adapters_do_not_share_blocks():
    index = PreciseIndex()
    apply(index, 0, stored([1], tokens(1), lora_name="sql", extra_keys=[["sql"]]))
    assert depths(index, tokens(1)) == {}
    assert depths(index, tokens(1), adapter="sql") == {0: 4}


def test_a_salt_keeps_a_chain_apart_from_its_first_block_on():
    index = PreciseIndex()
    apply(index, 0, stored([1, 2], tokens(2), extra_keys=[["salt"], None]))
    assert depths(index, tokens(2)) == {}
    apply(index, 0, stored([3, 4], tokens(2)))
    apply(index, 0, Removed([1, 2]))
    assert depths(index, tokens(2)) == {0: 8}


def test_a_hybrid_model_holds_a_block_when_all_its_full_attention_groups_do():
    index = PreciseIndex()
    apply(index, 0, stored([1, 2], tokens(2), group_idx=0), stored([1, 2], tokens(2), group_idx=1))
    assert depths(index, tokens(2)) == {0: 8}
    apply(index, 0, Removed([2], group_idx=1))
    assert depths(index, tokens(2)) == {0: 4}
    apply(index, 0, Removed([1], group_idx=1))
    assert depths(index, tokens(2)) == {}
    apply(index, 1, stored([1, 2], tokens(2), group_idx=0))
    assert depths(index, tokens(2)) == {1: 8}


def test_groups_with_a_sliding_window_are_not_asked():
    index = PreciseIndex()
    apply(index, 0, stored([1], tokens(1), group_idx=0))
    apply(index, 0, stored([1], tokens(1, 9), group_idx=1, kv_cache_spec_sliding_window=128))
    apply(index, 0, stored([1], tokens(1, 9), group_idx=2, kv_cache_spec_kind="sliding_window"))
    assert depths(index, tokens(1)) == {0: 4}


def test_a_block_in_two_tiers_is_gone_when_both_have_dropped_it():
    index = PreciseIndex()
    apply(index, 0, stored([1], tokens(1), medium="GPU"), stored([1], tokens(1), medium="CPU"))
    apply(index, 0, Removed([1], medium="GPU"))
    assert depths(index, tokens(1)) == {0: 4}
    apply(index, 0, Removed([1], medium="CPU"))
    assert depths(index, tokens(1)) == {}


def test_ranks_of_one_endpoint_have_caches_of_their_own():
    index = PreciseIndex()
    apply(index, 0, stored([1], tokens(1)), rank=0)
    apply(index, 0, stored([1], tokens(1)), rank=1)
    apply(index, 0, Cleared(), rank=0)
    assert depths(index, tokens(1)) == {0: 4}
    apply(index, 0, Removed([1]), rank=1)
    assert index.holders == {}


def test_a_block_that_is_told_twice_is_removed_once():
    index = PreciseIndex()
    apply(index, 0, stored([1], tokens(1)))
    apply(index, 0, stored([1], tokens(1)))
    apply(index, 0, Removed([1]))
    assert (index.holders, index.held(0)) == ({}, 0)
