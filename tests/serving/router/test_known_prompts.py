"""Token ids by how a text begins: the whole of a prompt that is known, a share of one that goes on otherwise, and bounds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.prefix.blocks import Blocks
from hekla.serving.router.prefix.known_prompts import KnownPrompts

SIZE = 8


def blocks(text):
    return Blocks(text, 0, SIZE)


def ids(count, first=0):
    return np.arange(first, first + count, dtype=np.uint32)


def remembered(known, text, tokens):
    known.remember(blocks(text), len(text), SIZE, tokens)


def test_a_prompt_that_is_known_has_all_its_ids():
    known = KnownPrompts()
    remembered(known, b"a" * 20, ids(10))
    found, is_all = known.find(blocks(b"a" * 20), 20)
    assert (found.tolist(), is_all) == (list(range(10)), True)


def test_what_goes_on_has_the_ids_of_the_common_part():
    known = KnownPrompts()
    remembered(known, b"a" * 16 + b"b" * 16, ids(32))
    for text in (b"a" * 16 + b"c" * 16, b"a" * 16):
        found, is_all = known.find(blocks(text), len(text))
        assert (found.tolist(), is_all) == (list(range(16)), False)
    assert known.find(blocks(b"x" * 32), 32) is None
    assert known.find(blocks(b"a" * 7), 7) is None, "not a whole block"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 12)), max_size=40))
def test_it_stays_within_its_bounds_and_forgets_whole_prompts(texts):
    known = KnownPrompts(most_tokens=100, most_blocks=12)
    for letter, length in texts:
        text = bytes([97 + letter]) * length * SIZE + bytes([98 + letter]) * SIZE
        remembered(known, text, ids(length * 2))
        assert known._tokens <= 100
        assert len(known._by_block) <= 12
        assert {one for one, _ in known._by_block.values()} <= set(known._recent)
    assert known._tokens == sum(len(one.ids) for one in known._recent)
