"""Tokens of the simulated engine."""

from hypothesis import given
from hypothesis import strategies as st

from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.tokens import Scribe, detokenize, hash_blocks, natural_length, render_chat, tokenize


@given(st.text())
def test_a_text_comes_back_from_its_tokens(text):
    encodable = text.encode("utf-8", "replace").decode()
    tokens = tokenize(encodable)
    assert detokenize(tokens) == encodable
    assert all(0 <= one < 1 << 32 for one in tokens), "routers take events with ids of 32 bits alone"


@given(st.lists(st.integers(0, 1 << 34)))
def test_any_numbers_give_some_text(tokens):
    assert isinstance(detokenize(tokens), str)


def test_a_conversation_that_comes_back_begins_with_the_tokens_it_had():
    said = [("system", "be brief"), ("user", "what is a lava field?")]
    prompt = tokenize(render_chat(said))
    scribe, ask = Scribe(), Ask(id="1", prompt_tokens=len(prompt), output_tokens=9, tokens=tuple(prompt))
    answer = [scribe.token(ask, number) for number in range(9)]
    again = tokenize(render_chat([*said, ("assistant", detokenize(answer)), ("user", "and then?")]))
    assert again[: len(prompt) + 9] == prompt + answer


def test_blocks_are_named_by_all_that_stands_before_them():
    one, other = hash_blocks([1, 2, 3, 4, 5, 6], 2), hash_blocks([9, 2, 3, 4, 5, 6], 2)
    assert len(one) == 3
    assert not set(one) & set(other)
    assert hash_blocks([1, 2, 3, 4, 5], 2) == one[:2], "a block that is not whole has no name"


def test_answers_have_about_the_mean_length():
    lengths = [natural_length([number], 64) for number in range(2000)]
    assert min(lengths) >= 1
    assert 56 < sum(lengths) / len(lengths) < 72
