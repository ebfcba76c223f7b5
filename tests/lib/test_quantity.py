import math

import pytest

from hekla.lib import quantity

CANONICAL = {
    "0.5": "500m", "1024Mi": "1Gi", "1000m": "1", "100m": "100m", "1.5Gi": "1536Mi", "0.5Gi": "512Mi", "1000": "1k",
    "1e3": "1e3", "1E3": "1e3", "1500": "1500", "0": "0", "00": "0", "0Mi": "0", "-5": "-5", "+5": "5", "1023": "1023",
    "1023Ki": "1023Ki", "1Ei": "1Ei", "1E": "1E", "12e6": "12e6", "100000Ki": "100000Ki", "1.": "1", ".5": "500m",
    "0.1Ki": "102400m", "0.0001": "100u", "1n": "1n", "0.1n": "1n", "1e-3": "1e-3", "1024": "1024", "2048Ki": "2Mi",
    "9999999999999999999Gi": "9223372036854775807", "128Mi": "128Mi", "500m": "500m", "12500m": "12500m", "1e1": "10",
}  # fmt: skip


@pytest.mark.parametrize(("written", "said"), CANONICAL.items())
def test_a_quantity_is_written_as_kubernetes_writes_it(written: str, said: str):
    assert quantity.canonical(written) == said


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("banana", "quantities must match the regular expression"),
        ("", "quantities must match the regular expression"),
        ("1.2.3", "quantities must match the regular expression"),
        ("1 Gi", "quantities must match the regular expression"),
        ("1GiB", "quantities must match the regular expression"),
        ("1Mu", "unable to parse quantity's suffix"),
        ("1KiKi", "unable to parse quantity's suffix"),
        ("1e99999999999", "unable to parse quantity's suffix"),
        ("m", "unable to parse numeric part of quantity"),
        ("٣", "quantities must match the regular expression"),
    ],
)
def test_what_is_not_a_quantity_is_refused_with_kubernetes_sentence(text: str, sentence: str):
    with pytest.raises(quantity.QuantityError, match=sentence[:30]):
        quantity.parse(text)
    assert not quantity.is_valid(text)


def test_base_units_round_up():
    assert quantity.to_milli("0.0001") == 1
    assert quantity.to_milli("1.5") == 1500
    assert quantity.to_int("100m") == 1
    assert quantity.to_int("1Gi") == 2**30
    assert quantity.to_int("-1500m") == -1
    assert (quantity.to_int(3), quantity.to_milli(3)) == (3, 3000)


def test_nobody_counts_beyond_what_64_bits_hold():
    # 10 * 1e308 was a number that no gauge could tell: /metrics failed for as long as one pod asked for it
    largest = 2**63 - 1
    assert [quantity.to_int(text) for text in ("1e308", "-1e308", "9E", "9" * 200)] == [
        largest,
        -largest,
        9 * 10**18,
        largest,
    ]
    assert quantity.to_milli("1e999") == largest * 1000


def test_what_no_float_holds_is_infinite():
    assert [quantity.to_float(text) for text in ("1500m", 3, "1e400", "-1e400")] == [1.5, 3.0, math.inf, -math.inf]


def test_base_units_are_written_in_the_form_of_their_resource():
    assert quantity.from_bytes(2**30) == "1Gi"
    assert quantity.from_bytes(1000) == "1k"
    assert quantity.from_milli(1500) == "1500m"
    assert quantity.from_milli(2000) == "2"
    assert quantity.from_int(110) == "110"
