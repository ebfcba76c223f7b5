"""The histogram of what engines were believed to hold."""

from hypothesis import given
from hypothesis import strategies as st

from hekla.serving.router.metrics_pages import read_page
from hekla.serving.router.prefix.tally import MOST_MODELS, MatchTally, lines_of

NAME = "ratio"


def page(*tallies: MatchTally) -> dict[str, float]:
    return read_page("\n".join(lines_of(tallies, NAME)))[NAME].samples


@given(st.lists(st.tuples(st.integers(0, 1200), st.integers(1, 1000)), min_size=1, max_size=40))
def test_each_prompt_is_in_the_bucket_of_its_share(story: list[tuple[int, int]]) -> None:
    one, other = MatchTally(), MatchTally()
    for number, (held, tokens) in enumerate(story):
        (one, other)[number % 2].note("m", held, tokens)
    told = page(one, other)
    for tenths in range(11):
        within = sum(min(held, tokens) * 10 <= tenths * tokens for held, tokens in story)
        assert told[f'ratio_bucket{{model="m",le="{tenths / 10:g}"}}'] == within
    assert told['ratio_bucket{model="m",le="+Inf"}'] == told['ratio_count{model="m"}'] == len(story)
    assert abs(told['ratio_sum{model="m"}'] - sum(min(1.0, held / tokens) for held, tokens in story)) < 1e-6


def test_names_of_clients_are_bounded_and_cannot_write_lines() -> None:
    tally = MatchTally()
    for number in range(MOST_MODELS + 50):
        tally.note(f'm"\n{number}', 1, 2)
    told = page(tally)
    assert told['ratio_count{model="_other"}'] == 50
    assert len(tally.by_model) == MOST_MODELS + 1
