"""A load that rises six- to eightfold: the autoscaler brings each role's SLO back in bounded time, and touches the role that is short alone."""

import pytest
from bench.serving_slo import (
    BETWEEN_SLO_S,
    FIRST_TOKEN_SLO_S,
    READY_AFTER_S,
    SCENARIOS,
    STEP_S,
    Scenario,
    between_s,
    first_token_s,
    held,
    policy,
)

from hekla.simulation.holding_slo import Arrival, poisson

ALLOWED_S = 4 * READY_AFTER_S
"""Seeing it, an engine's start, another for what was short still, and the queue that has grown meanwhile."""


def test_prefill_that_is_short_is_scaled_and_the_first_token_is_back_under_its_slo():
    found = held(SCENARIOS["prefill"])
    assert max(map(first_token_s, found.windows)) > FIRST_TOKEN_SLO_S, "the step must hurt, or nothing is shown"
    assert 0 < found.back_within(STEP_S, first_token_s, FIRST_TOKEN_SLO_S) <= ALLOWED_S
    assert max(one.decode for one in found.windows) <= 2 < max(one.prefill for one in found.windows), "decode had room"
    assert found.refused == 0
    assert any("ttft_seconds is" in reason for reason in found.reasons)


def test_decode_that_is_short_is_scaled_and_tokens_are_back_under_their_slo():
    found = held(SCENARIOS["decode"])
    assert 0 < found.back_within(STEP_S, between_s, BETWEEN_SLO_S) <= ALLOWED_S
    assert found.windows[-1].decode >= 2
    assert {one.prefill for one in found.windows} == {2}


@pytest.mark.slow
def test_both_slos_are_held_and_no_engine_is_kept_when_the_load_is_gone():
    found = held(SCENARIOS["both"])
    for value, slo_s in ((first_token_s, FIRST_TOKEN_SLO_S), (between_s, BETWEEN_SLO_S)):
        assert 0 < found.back_within(STEP_S, value, slo_s) <= ALLOWED_S, found.reasons
        late = [one for one in found.windows if one.at_s > STEP_S + ALLOWED_S]
        assert max(map(value, late)) <= slo_s, "shrinking breaks nothing"
    assert max(one.prefill for one in found.windows) > 2 < max(one.decode for one in found.windows)
    assert (found.windows[-1].prefill, found.windows[-1].decode) <= (2, 2)


@pytest.mark.slow
def test_by_latency_alone_prefill_comes_to_rest_under_a_constant_load():
    """It swung between two and ten: a third of the target with three engines says nothing of two."""
    found = held(Scenario((8.0, 8.0), 1000, 20, 1500.0), policy(by_latency_alone=True))
    assert any("2 are too few, 3 held it" in reason for reason in found.reasons)
    settled = [one for one in found.windows if one.at_s > 1210]
    assert {one.prefill for one in settled} == {3}
    assert max(one.first_token_p90_s for one in settled if one.at_s > 1300) <= FIRST_TOKEN_SLO_S


def test_without_an_autoscaler_the_same_load_breaks_it_for_good():
    found = held(Scenario((1.0, 10.0), 1000, 50, 300.0), policy(is_fixed=True))
    assert found.windows[-1].first_token_p90_s > FIRST_TOKEN_SLO_S


def test_a_wave_of_requests_is_drawn_by_its_rate_and_its_seed():
    once, again = (poisson([(0.0, 2.0), (100.0, 8.0)], 200.0, prompt=10, output=5, seed=3) for _ in range(2))
    assert once == again
    assert isinstance(once[0], Arrival)
    early = sum(one.at_s < 100 for one in once)
    assert 150 < early < 250
    assert (len(once) - early) / early == pytest.approx(4.0, rel=0.3)
