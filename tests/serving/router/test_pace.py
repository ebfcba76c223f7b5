"""What a pool learns from the answers that pass through it."""

import pytest

from hekla.serving.router.pace import WINDOW, Pace


def test_the_rate_is_what_most_tokens_were_prefilled_at():
    pace = Pace()
    for _ in range(WINDOW):
        pace.first_byte(10_000, 1.0)
        pace.first_byte(100, 1.0)  # a short prompt, mostly overhead
    assert pace.prefill_rate == 10_000.0


def test_one_wrong_guess_about_a_cache_does_not_move_it():
    pace = Pace()
    for number in range(WINDOW):
        pace.first_byte(8_000, 0.001 if number % 10 == 0 else 1.0)
    assert pace.prefill_rate == 8_000.0


def test_it_follows_an_engine_that_became_slower():
    pace = Pace()
    for seconds in (1.0, 4.0):
        for _ in range(WINDOW):
            pace.first_byte(8_000, seconds)
    assert pace.prefill_rate == 2_000.0


@pytest.mark.parametrize(("tokens", "seconds"), [(10, 1.0), (1000, 0.0), (1000, -1.0)])
def test_what_says_nothing_is_passed_over(tokens, seconds):
    pace = Pace()
    before = pace.prefill_rate
    pace.first_byte(tokens, seconds)
    assert pace.prefill_rate == before


def test_answers_teach_their_length_and_pace():
    pace = Pace()
    for _ in range(500):
        pace.ended(3_000, 1_000, 101, 5.0)
    assert pace.answer_tokens == pytest.approx(101, rel=0.01)
    assert pace.tpot_s == pytest.approx(0.05, rel=0.01)
    assert pace.bytes_per_token == pytest.approx(3.0, rel=0.01)


def test_an_engine_that_lies_about_its_tokens_moves_little():
    pace = Pace()
    pace.ended(3_000, 10**12, 0, -1.0)
    pace.ended(10**12, 64, 1, 0.0)
    assert 1.0 <= pace.bytes_per_token <= 16.0
