import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hekla.node.runtimes.sandbox.encoding import encoded

TEXTS = st.text(st.characters(exclude_categories=()))
"""What the name of a file may come to: surrogates stand for bytes that are no UTF-8."""
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(st.dictionaries(TEXTS, VALUES))
def test_the_other_end_reads_what_was_meant(message: dict[str, Any]):
    assert json.loads(encoded(message)) == message
