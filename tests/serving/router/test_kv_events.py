"""What engines publish, in both encodings, and what nobody should publish."""

import msgspec
import pytest

from hekla.serving.router.prefix.kv_events import Cleared, KvEventError, Removed, Stored, read_batch


def packed(value):
    return msgspec.msgpack.encode(value)


def batch(*events, rank=None):
    return read_batch(packed([1.5, list(events), rank]))


def test_the_two_encodings_say_the_same():
    arrays = batch(["BlockStored", [7, 8], 6, [1, 2, 3, 4], 2, None, "GPU", "sql", [["salt"], None], 1], rank=3)
    names = {"block_hashes": [7, 8], "parent_block_hash": 6, "token_ids": [1, 2, 3, 4], "block_size": 2}
    more = {"lora_id": None, "medium": "GPU", "lora_name": "sql", "extra_keys": [["salt"], None], "group_idx": 1}
    maps = batch({"type": "BlockStored", **names, **more}, rank=3)
    assert arrays == maps
    assert arrays.rank == 3
    assert arrays.events == [
        Stored([7, 8], 6, [1, 2, 3, 4], 2, None, "GPU", "sql", [["salt"], None], 1),
    ]


def test_older_engines_leave_trailing_fields_out_and_newer_ones_add_some():
    assert batch(["BlockStored", [7], None, [1], 1]).events == [Stored([7], None, [1], 1)]
    newer = ["BlockStored", [7], None, [1], 1, None, None, None, None, 0, "full_attention", None, "what comes next"]
    assert batch(newer).events[0].kv_cache_spec_kind == "full_attention"
    assert batch({"type": "BlockRemoved", "block_hashes": [7], "new": 1}).events == [Removed([7])]


def test_hashes_may_be_bytes_and_are_opaque():
    wide = bytes(range(32))
    stored, removed = batch(["BlockStored", [wide], wide, [1], 1], ["BlockRemoved", [wide], "CPU"]).events
    assert stored.block_hashes == [wide]
    assert removed == Removed([wide], "CPU")


def test_hashes_use_all_64_bits():
    assert batch(["BlockRemoved", [2**64 - 1]]).events == [Removed([2**64 - 1])]


def test_a_batch_may_be_a_map_and_its_rank_may_be_missing():
    as_map = read_batch(packed({"ts": 1.0, "events": [["AllBlocksCleared"]], "data_parallel_rank": 2}))
    assert (as_map.events, as_map.rank) == ([Cleared()], 2)
    assert read_batch(packed([1.0, [["AllBlocksCleared"]]])).rank is None


@pytest.mark.parametrize(
    "event",
    [
        ["BlockMoved", [1]],
        {"type": "BlockMoved"},
        {"no": "type"},
        [],
        7,
        None,
        [["BlockStored"]],
        ["BlockStored", [7], None, [1], 1.5],
        ["BlockStored", [7], None, [1], 0],
        ["BlockStored", [7], None, [1], -1],
        ["BlockStored", [7], None, [1, 2, 3], 2],
        ["BlockStored", [], None, [], 2],
        ["BlockStored", [7], None, [-1], 1],
        ["BlockStored", [7], None, [2**32], 1],
        ["BlockStored", [7], None, ["token"], 1],
        ["BlockStored", [7], None, [1], 1, None, None, None, [None, None]],
        ["BlockStored"],
        ["BlockRemoved", "all"],
    ],
)
def test_an_event_that_makes_no_sense_is_left_out_and_the_others_are_kept(event):
    read = batch(event, ["BlockRemoved", [1]])
    assert (read.events, read.skipped) == ([Removed([1])], 1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\xff" * 100,
        packed(7),
        packed([1.0]),
        packed([1.0, 7]),
        packed({"events": None}),
        b"\x91" * 100_000,
    ],
)
def test_what_is_no_batch_is_refused_with_a_sentence(payload):
    with pytest.raises(KvEventError, match="the payload of"):
        read_batch(payload)
