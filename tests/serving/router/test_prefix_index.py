"""The memory of who was sent which prompt: its matches, its bounds, and how it forgets."""

from hekla.serving.router.prefix.blocks import BLOCK_BYTES, Blocks, seed_of
from hekla.serving.router.prefix.index import MOST_REMEMBERED, PrefixIndex
from serving.router.poolkit import prompt

ALL = (1 << 64) - 1


def blocks(*names, seed=1):
    return Blocks(prompt(*names), seed)


def depths(index, *names):
    """How many of the blocks each slot holds."""
    return {slot: depth for slots, depth in index.match(blocks(*names), ALL) for slot in range(64) if slots >> slot & 1}


def test_blocks_stand_for_all_before_them():
    one, other = blocks("a", "b", "c"), blocks("x", "b", "c")
    assert len(set(one.first(3)) | set(other.first(3))) == 6
    assert blocks("a", "b").first(2) == one.first(3)[:2]
    assert blocks("a", seed=seed_of("m")).first(1) != blocks("a", seed=seed_of("n")).first(1)


def test_blocks_are_hashed_only_as_deep_as_asked_and_the_rest_of_a_prompt_is_left_out():
    one = Blocks(prompt(*range(100)) + b"rest", 1)
    assert one.count == 100
    assert len(one.first(8)) == 8
    assert one.first(10)[:8] == one.first(8)[:8]
    assert len(one.first(1000)) == 100
    assert Blocks(b"x" * (BLOCK_BYTES - 1), 1).count == 0
    assert Blocks(b"x" * 100, 1, size=10, most=4).count == 4


def test_each_endpoint_is_found_as_deep_as_it_goes():
    index = PrefixIndex()
    long = [f"{number}" for number in range(300)]
    for slot, depth in enumerate([300, 7, 8, 9, 100, 299, 0]):
        index.insert(blocks(*long[:depth], f"own {slot}"), slot, 0.0)
    assert depths(index, *long) == {0: 300, 1: 7, 2: 8, 3: 9, 4: 100, 5: 299}


def test_only_those_that_are_asked_about_are_told():
    index = PrefixIndex()
    for slot in range(3):
        index.insert(blocks("a", "b"), slot, 0.0)
    assert index.match(blocks("a", "b"), 0b101) == [(0b101, 2)]
    assert index.match(blocks("z"), ALL) == []
    assert index.match(Blocks(b"", 1), ALL) == []


def test_the_least_recently_used_goes_first_and_ends_before_beginnings():
    index = PrefixIndex(capacity=4)
    index.insert(blocks("a", "b", "c"), 0, 0.0)
    index.insert(blocks("x", "y"), 0, 1.0)
    assert depths(index, "a", "b", "c") == {0: 2}
    assert depths(index, "x", "y") == {0: 2}
    index.insert(blocks("a"), 0, 2.0)
    index.insert(blocks("p", "q"), 0, 3.0)
    assert depths(index, "a", "b") == {0: 1}
    assert index.held(0) == 4


def test_a_prompt_longer_than_the_cache_is_remembered_from_its_beginning():
    index = PrefixIndex(capacity=3)
    index.insert(blocks(*range(10)), 0, 0.0)
    assert depths(index, *range(10)) == {0: 3}


def test_what_is_too_old_is_forgotten_also_where_nothing_new_arrives():
    index = PrefixIndex(ttl_s=10.0)
    index.insert(blocks("a"), 0, 0.0)
    index.insert(blocks("b"), 1, 5.0)
    index.expire(11.0)
    assert (depths(index, "a"), depths(index, "b")) == ({}, {1: 1})
    index.resize(1, 100, ttl_s=1.0)
    index.expire(11.0)
    assert index.holders == {}


def test_a_smaller_cache_forgets_at_once_what_it_cannot_hold():
    index = PrefixIndex()
    index.insert(blocks(*range(8)), 0, 0.0)
    index.resize(0, 3)
    index.expire(0.0)
    assert depths(index, *range(8)) == {0: 3}


def test_an_engine_that_lies_about_its_cache_is_remembered_within_bounds():
    index = PrefixIndex()
    index.resize(0, 10**18)
    for number in range(20):
        index.insert(Blocks(f"{number:064d}".encode() * 8192, 1), 0, 0.0)
    assert index.held(0) <= MOST_REMEMBERED
    index.resize(0, -5)
    index.expire(0.0)
    assert index.held(0) == 1


def test_an_endpoint_that_is_forgotten_leaves_nothing_and_may_be_forgotten_again():
    index = PrefixIndex()
    index.insert(blocks("a", "b"), 0, 0.0)
    index.insert(blocks("a"), 1, 0.0)
    index.forget(0)
    index.forget(0)
    index.forget(7)
    assert depths(index, "a", "b") == {1: 1}
    index.forget(1)
    assert index.holders == {}
    index.insert(blocks("a"), 0, 1.0)
    assert depths(index, "a") == {0: 1}


def test_ten_million_prompts_would_stay_under_the_bound():
    index = PrefixIndex(capacity=1000)
    for number in range(5000):
        index.insert(Blocks(f"{number:0512d}".encode() * 2, 1), number % 2, float(number))
    assert len(index.holders) <= 2000
    assert index.held(0) == index.held(1) == 1000
