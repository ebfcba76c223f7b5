"""A load that rises fourfold: the autoscaler brings each role's SLO back in bounded time, and touches the role that is short alone."""

import msgspec
import pytest

from hekla.api.kthena import AutoscalingPolicy
from hekla.simulation.engine.shape import EngineShape, StepTime
from hekla.simulation.holding_slo import DECODE, PREFILL, Arrival, HoldingSlo, poisson

FIRST_TOKEN_SLO_S, BETWEEN_SLO_S = 2.0, 0.06
READY_AFTER_S = 60.0
SHAPES = {
    PREFILL: EngineShape(step=StepTime(fixed_s=0.02, prefill_s=1 / 4000), max_num_batched_tokens=2048),
    DECODE: EngineShape(step=StepTime(fixed_s=0.02, decode_s=0.001)),
}
"""A prefill engine takes four prompts of a thousand tokens a second; a decode engine with 40 answers is at its SLO."""
STEP_S, END_S = 120.0, 600.0
ALLOWED_S = 4 * READY_AFTER_S
"""Seeing it, an engine's start, and another for what was short still, with the queue that has grown meanwhile."""


def policy(**more):
    """Latency says that more are needed, load how many fewer would do."""
    roles = {
        PREFILL: [{"metricName": "ttft_seconds", "targetValue": str(FIRST_TOKEN_SLO_S)},
                  {"metricName": "prompt_tokens_rate", "targetValue": "2600"}],
        DECODE: [{"metricName": "itl_seconds", "targetValue": str(BETWEEN_SLO_S)},
                 {"metricName": "requests", "targetValue": "25"}],
    }  # fmt: skip
    target = {
        "targetRef": {"name": "m"},
        "roles": {
            role: {
                "minReplicas": 2 if role == PREFILL else 1,
                "maxReplicas": 8,
                "metrics": metrics,
                "metricSources": {},
            }
            for role, metrics in roles.items()
        },
    }
    behavior = {
        "scaleUp": {"stablePolicy": {"instances": 4, "period": "15s"}},
        "scaleDown": {"instances": 1, "percent": 0, "period": "30s", "stabilizationWindow": "2m"},
    }
    metrics = [{"metricName": "requests", "targetValue": "1"}]
    spec = {"tolerancePercent": 10, "metrics": metrics, "behavior": behavior, "disaggregatedTarget": target, **more}
    return msgspec.convert({"metadata": {"name": "slo", "namespace": "sim"}, "spec": spec}, AutoscalingPolicy)


def held(*, rates, prompt=1000, output=100, until_s=END_S, then=(), autoscaler=None):
    arrivals = poisson([(0.0, rates[0]), (STEP_S, rates[1]), *then], until_s, prompt=prompt, output=output, seed=7)
    simulated = HoldingSlo(
        autoscaler or policy(), SHAPES, {PREFILL: 2, DECODE: 1}, ready_after_s=READY_AFTER_S, seed=1
    )  # fmt: skip
    return simulated.run(arrivals, until_s)


def first(window):
    return window.first_token_p90_s


def between(window):
    return window.between_p90_s


def test_prefill_that_is_short_is_scaled_and_the_first_token_is_back_under_its_slo():
    found = held(rates=(2.0, 13.0), output=20)
    assert max(map(first, found.windows)) > FIRST_TOKEN_SLO_S, "the step must hurt, or nothing is shown"
    assert found.back_within(STEP_S, first, FIRST_TOKEN_SLO_S) <= ALLOWED_S
    assert max(one.prefill for one in found.windows) > 2
    assert max(one.decode for one in found.windows) <= 2, (
        "decode had room: one more for the queue that was let go, no more"
    )
    assert found.refused == 0


def test_decode_that_is_short_is_scaled_and_tokens_are_back_under_their_slo():
    found = held(prompt=100, output=400, rates=(0.5, 3.0))
    assert max(map(between, found.windows)) > BETWEEN_SLO_S
    assert found.back_within(STEP_S, between, BETWEEN_SLO_S) <= ALLOWED_S
    assert found.windows[-1].decode >= 2
    assert {one.prefill for one in found.windows} == {2}


@pytest.mark.slow
def test_both_slos_are_held_when_both_roles_are_short_and_no_engine_is_kept_when_the_load_is_gone():
    found = held(rates=(1.0, 8.0), output=150, until_s=900.0, then=[(STEP_S + 360.0, 1.0)])
    for value, slo_s in ((first, FIRST_TOKEN_SLO_S), (between, BETWEEN_SLO_S)):
        assert found.back_within(STEP_S, value, slo_s) <= ALLOWED_S, found.reasons
    peak = max(one.prefill for one in found.windows), max(one.decode for one in found.windows)
    assert peak > (2, 1)
    assert (found.windows[-1].prefill, found.windows[-1].decode) <= (2, 2)
    late = [one for one in found.windows if one.at_s > STEP_S + ALLOWED_S]
    assert max(map(first, late)) <= FIRST_TOKEN_SLO_S, "shrinking breaks nothing"
    assert any("ttft_seconds is" in reason or "prompt_tokens_rate is" in reason for reason in found.reasons)


def test_without_an_autoscaler_the_same_load_breaks_both_for_good():
    frozen = policy()
    fixed = msgspec.to_builtins(frozen)
    for role in fixed["spec"]["disaggregatedTarget"]["roles"].values():
        role["maxReplicas"] = role["minReplicas"]
    found = held(rates=(1.0, 10.0), output=50, until_s=300.0, autoscaler=msgspec.convert(fixed, AutoscalingPolicy))
    assert found.windows[-1].first_token_p90_s > FIRST_TOKEN_SLO_S


def test_a_wave_of_requests_is_drawn_by_its_rate_and_its_seed():
    once, again = (poisson([(0.0, 2.0), (100.0, 8.0)], 200.0, prompt=10, output=5, seed=3) for _ in range(2))
    assert once == again
    assert isinstance(once[0], Arrival)
    early = sum(one.at_s < 100 for one in once)
    assert 150 < early < 250
    assert (len(once) - early) / early == pytest.approx(4.0, rel=0.3)
