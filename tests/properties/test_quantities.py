from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from hekla.lib import quantity

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "E-2", "e+6"]
WRITTEN = st.builds(
    lambda sign, whole, part, suffix: f"{sign}{whole}{part}{suffix}",
    st.sampled_from(["", "+", "-"]),
    st.integers(0, 10**14),
    st.one_of(st.just(""), st.integers(0, 999).map(lambda n: f".{n}")),
    st.sampled_from(SUFFIXES),
)


@given(WRITTEN)
def test_the_canonical_form_is_worth_the_same_and_is_its_own_canonical_form(text: str):
    said = quantity.canonical(text)
    assert quantity.parse(said).value == quantity.parse(text).value
    assert quantity.canonical(said) == said


@given(st.integers(0, 2**62))
def test_base_units_survive_writing(units: int):
    assert quantity.to_int(quantity.from_int(units)) == units
    assert quantity.to_int(quantity.from_bytes(units)) == units
    assert quantity.to_milli(quantity.from_milli(units)) == units


@given(WRITTEN)
def test_milli_and_whole_units_round_towards_more(text: str):
    largest = 2**63 - 1
    value = max(-largest, min(quantity.parse(text).value, largest))
    assert 0 <= quantity.to_int(text) - value < 1
    assert 0 <= Fraction(quantity.to_milli(text), 1000) - value < Fraction(1, 1000)


@given(st.text(max_size=30))
def test_any_text_is_a_quantity_or_refused(text: str):
    if quantity.is_valid(text):
        assert quantity.is_valid(quantity.canonical(text))
