"""Nodes are ordered by name as people count, however they come and go."""

import re

from hypothesis import given
from hypothesis import strategies as st

from hekla.placement.columns import Nodes, NodeSpec, natural_key

names = st.text(alphabet="ab-.0129", max_size=8)


def as_people_count(name: str) -> tuple[tuple[int, int, str], ...]:
    """Numbers by value and before words; a name that ends before one that goes on; then the name itself."""
    parts = (part for part in re.split(r"(\d+)", name) if part)
    return *((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts), (-1, 0, name)


@given(st.lists(names, max_size=20))
def test_the_key_of_a_name_orders_as_people_count(some: list[str]) -> None:
    assert sorted(some, key=natural_key) == sorted(some, key=as_people_count)


@given(st.lists(names, max_size=30), st.sampled_from([0, 7]))
def test_ranks_are_those_of_a_list_sorted_anew(steps: list[str], seed: int) -> None:
    nodes = Nodes(seed=seed)
    for name in steps:  # a name that comes again goes
        if name in nodes.row_of:
            nodes.remove(name)
        else:
            nodes.put(NodeSpec(name=name))
    in_order = sorted(nodes.row_of, key=nodes.tie if seed else as_people_count)
    assert sorted(nodes.row_of, key=lambda name: -int(nodes.rank()[nodes.row_of[name]])) == in_order
    assert not nodes.rank()[~nodes.is_live].any()
