"""The autoscaler's hold on an SLO: a load that rises six- to eightfold, in virtual time; how bad it gets, and for how long.

    python -m bench serving_slo

What decides is the autoscaler's and the router's own code, what serves are simulated prefill and decode engines that are ready a
minute after they are asked for (`simulation/holding_slo.py`). Nothing here is timed: a busy machine gives the same figures.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from bench.report import Report
from hekla.api.kthena import AutoscalingPolicy
from hekla.simulation.engine.shape import EngineShape, StepTime
from hekla.simulation.holding_slo import DECODE, PREFILL, Held, HoldingSlo, Window, poisson

FIRST_TOKEN_SLO_S, BETWEEN_SLO_S = 2.0, 0.06
READY_AFTER_S = 60.0
STEP_S = 120.0
SHAPES = {
    PREFILL: EngineShape(step=StepTime(fixed_s=0.02, prefill_s=1 / 4000), max_num_batched_tokens=2048),
    DECODE: EngineShape(step=StepTime(fixed_s=0.02, decode_s=0.001)),
}
"""A prefill engine takes four prompts of a thousand tokens a second; a decode engine with 40 answers is at its SLO."""


@dataclass(frozen=True)
class Scenario:
    """A load."""

    rates: tuple[float, float]
    """Requests a second, before the step and after it."""
    prompt: int
    output: int
    until_s: float = 600.0
    then: Sequence[tuple[float, float]] = ()
    """Further steps: from when, so many a second."""


SCENARIOS = {
    "prefill": Scenario((2.0, 13.0), 1000, 20),
    "decode": Scenario((0.5, 3.0), 100, 400),
    "both": Scenario((1.0, 8.0), 1000, 150, 900.0, ((STEP_S + 360.0, 1.0),)),
}
"""By the role that is short."""


def policy(*, is_fixed: bool = False, by_latency_alone: bool = False) -> AutoscalingPolicy:
    """Latency says that more are needed, load how many fewer would do; without load one fewer is tried at a time."""
    metrics = {
        PREFILL: {"ttft_seconds": str(FIRST_TOKEN_SLO_S), "prompt_tokens_rate": "2600"},
        DECODE: {"itl_seconds": str(BETWEEN_SLO_S), "requests": "25"},
    }
    if by_latency_alone:
        metrics = {role: dict(list(told.items())[:1]) for role, told in metrics.items()}
    least = {PREFILL: 2, DECODE: 1}
    roles = {
        role: {
            "minReplicas": least[role],
            "maxReplicas": least[role] if is_fixed else 8,
            "metrics": [{"metricName": name, "targetValue": value} for name, value in told.items()],
            "metricSources": {},
        }
        for role, told in metrics.items()
    }
    behavior = {
        "scaleUp": {"stablePolicy": {"instances": 4, "period": "15s"}},
        "scaleDown": {"instances": 1, "percent": 0, "period": "30s", "stabilizationWindow": "2m"},
    }
    spec = {
        "tolerancePercent": 10,
        "metrics": [{"metricName": "requests", "targetValue": "1"}],
        "behavior": behavior,
        "disaggregatedTarget": {"targetRef": {"name": "m"}, "roles": roles},
    }
    return msgspec.convert({"metadata": {"name": "slo", "namespace": "sim"}, "spec": spec}, AutoscalingPolicy)


def held(scenario: Scenario, autoscaler: AutoscalingPolicy | None = None) -> Held:
    """What comes of a load, by default under the policy above."""
    steps = [(0.0, scenario.rates[0]), (STEP_S, scenario.rates[1]), *scenario.then]
    arrivals = poisson(steps, scenario.until_s, prompt=scenario.prompt, output=scenario.output, seed=7)
    start = {PREFILL: 2, DECODE: 1}
    simulated = HoldingSlo(autoscaler or policy(), SHAPES, start, ready_after_s=READY_AFTER_S, seed=1)
    return simulated.run(arrivals, scenario.until_s)


def first_token_s(window: Window) -> float:
    """What users waited for, at the 90th percentile."""
    return window.first_token_p90_s


def between_s(window: Window) -> float:
    """What they waited between tokens, at the 90th percentile."""
    return window.between_p90_s


def run(report: Report) -> None:
    """B9: SLOs held by the autoscaler."""
    for name, scenario in SCENARIOS.items():
        found = held(scenario)
        most = max(one.prefill for one in found.windows), max(one.decode for one in found.windows)
        last = found.windows[-1]
        note = f"replicas at most {most[0]} and {most[1]}, in the end {last.prefill} and {last.decode}"
        for what, value, slo_s in (("TTFT", first_token_s, FIRST_TOKEN_SLO_S), ("ITL", between_s, BETWEEN_SLO_S)):
            report.add(f"{name} short: {what} p90 at its worst", max(map(value, found.windows)), "s", note=note)
            back_s = found.back_within(STEP_S, value, slo_s)
            report.add(f"{name} short: {what} p90 over {slo_s:g} s for the last time", back_s, "s after the step")
