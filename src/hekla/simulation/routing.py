"""Policies of the router against one another: a trace of requests through simulated engines, in virtual time.

What chooses is the router's own code (`serving/router`: pool, index, policy, counting); what serves is
`simulation/engine`. Rivals have the defaults that their own documents give (`serving/router/recipes.py`), and see what they
would see: engines are scraped once a second. The same trace, policy and seed give the same run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any

import numpy as np

from hekla.serving.router.endpoints import Endpoint, Fleet, Sample, take_in
from hekla.serving.router.explaining import explain
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Destination, Refusal, Usage
from hekla.serving.router.question import Question
from hekla.serving.router.recipes import Recipe
from hekla.simulation.engine.engine import AskError, Engine
from hekla.simulation.engine.happenings import Emission, Ending, Happening
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.shape import EngineShape, StepTime
from hekla.simulation.llm_traces import BLOCK_TOKENS, Turn, pace_for

SCRAPE_EVERY_S = 1.0
MODEL = "simulated"

QWEN3_32B = EngineShape(
    block_size=BLOCK_TOKENS, num_blocks=2000, max_num_seqs=256, max_num_batched_tokens=8192, max_model_len=1 << 20,
    step=StepTime(),
)  # fmt: skip
"""Qwen3-32B on two H100 with an FP8 cache of a million tokens, in blocks as coarse as the traces know them."""


@dataclass(frozen=True)
class Slo:
    """What counts as served well."""

    first_token_s: float = 2.0
    between_s: float = 0.2
    """Mean time between an answer's tokens."""


@dataclass
class Replayed:
    """What came of a trace under one policy."""

    policy: str
    replicas: int
    asked: int
    span_s: float
    endings: list[Ending] = field(default_factory=list)
    refused: int = 0
    computed: list[int] = field(default_factory=list)
    """Prompt tokens that each replica computed."""
    busy_s: list[float] = field(default_factory=list)
    prefix_hits: int = 0
    prefix_queries: int = 0
    preemptions: int = 0

    def first_token_s(self, percent: float) -> float:
        """A percentile of the time to first token over all that were asked; who was refused waits for ever."""
        times = sorted(one.first_token_s - one.arrived_s for one in self.endings)
        place = max(0, ceil(percent / 100 * self.asked) - 1)
        return times[place] if place < len(times) else inf

    def between_s(self, percent: float) -> float:
        """A percentile of the mean time between an answer's tokens."""
        means = [
            (one.at_s - one.first_token_s) / (one.output_tokens - 1) for one in self.endings if one.output_tokens > 1
        ]
        return float(np.percentile(means, percent)) if means else 0.0

    @property
    def hit_rate(self) -> float:
        """Prompt tokens found in caches."""
        return self.prefix_hits / max(1, self.prefix_queries)

    @property
    def imbalance(self) -> float:
        """The busiest replica's time at work, over the mean."""
        return max(self.busy_s) / (sum(self.busy_s) / len(self.busy_s) or 1.0)

    @property
    def prefill_imbalance(self) -> float:
        """The same of prompt tokens computed."""
        return max(self.computed) / (sum(self.computed) / len(self.computed) or 1.0)

    def goodput(self, slo: Slo) -> float:
        """The share of all requests asked that was served well; refusals were not."""
        good = sum(
            one.first_token_s - one.arrived_s <= slo.first_token_s
            and one.at_s - one.first_token_s <= slo.between_s * max(1, one.output_tokens - 1)
            for one in self.endings
        )
        return good / max(1, self.asked)


class Replay:
    """One trace, one policy, so many engines."""

    def __init__(self, recipe: Recipe, replicas: int, *, shape: EngineShape = QWEN3_32B, seed: int = 0) -> None:
        self._dice = np.random.default_rng(seed)
        self._engines = [Engine(shape, seed=seed + number) for number in range(replicas)]
        self._pool = recipe.pool(MODEL, Fleet(), self._dice.random)
        for number, engine in enumerate(self._engines):
            one = self._pool.join(Endpoint(f"engine-{number}", "simulated", number))
            one.cache_tokens = engine.shape.cache_tokens
        self._destination = Destination(MODEL)
        self._plans: dict[str, LocalPlan] = {}
        self._scraped_s = 0.0
        self._latencies: list[list[tuple[float, float]]] = [[] for _ in self._engines]
        self._result = Replayed(recipe.name, replicas, 0, 0.0)

    def run(self, turns: Sequence[Turn], speed: float = 1.0) -> Replayed:
        """Everything to its end; `speed` makes requests come so many times as fast."""
        self._go_through(turns, speed)
        self._hear(float("inf"))
        return self._summed(turns[-1].at_s / speed if turns else 0.0)

    def explain(self, turns: Sequence[Turn], number: int, speed: float = 1.0) -> dict[str, Any]:
        """Everything up to one request, counted from 0, and what the router saw when it came."""
        self._go_through(turns[:number], speed)
        now = turns[number].at_s / speed
        self._pass_time(now)
        return explain(self._pool, _question(turns[number]), now) | {"policy": self._result.policy}

    def _go_through(self, turns: Sequence[Turn], speed: float) -> None:
        for number, turn in enumerate(turns):
            now = turn.at_s / speed
            self._pass_time(now)
            self._send(str(number), turn, now)

    def _pass_time(self, now: float) -> None:
        while self._scraped_s + SCRAPE_EVERY_S <= now:
            self._scraped_s += SCRAPE_EVERY_S
            self._hear(self._scraped_s)
            for engine, one, latencies in zip(self._engines, self._pool.members, self._latencies, strict=True):
                take_in(one, _scraped(engine, latencies))
                latencies.clear()
        self._hear(now)

    def _hear(self, until: float) -> None:
        """Let the engines run, and tell the router what it would see, in the order in which it would."""
        happened: list[Happening] = []
        for number, engine in enumerate(self._engines):
            told = engine.advance(until)
            happened += told
            self._latencies[number] += [_latency(one) for one in told if isinstance(one, Ending)]
        happened.sort(key=lambda one: one.at_s)
        for one in happened:
            plan = self._plans[one.request]
            if isinstance(one, Emission):
                if one.is_first:
                    plan.first_byte(one.at_s)
                continue
            plan.ended(Usage(one.prompt_tokens, one.output_tokens, one.cached_tokens), one.at_s)
            del self._plans[one.request]
            self._result.endings.append(one)

    def _send(self, name: str, turn: Turn, now: float) -> None:
        self._result.asked += 1
        plan = LocalPlan(self._pool, _question(turn), self._destination)
        attempt = plan.next(now)
        if isinstance(attempt, Refusal):
            plan.ended(None, now)
            self._result.refused += 1
            return
        ask = Ask(name, turn.prompt_tokens, turn.output_tokens, turn.whole_blocks())
        try:
            self._engines[attempt.target.port].submit(ask, now)
        except AskError:
            plan.ended(None, now)
            self._result.refused += 1
            return
        self._plans[name] = plan

    def _summed(self, span_s: float) -> Replayed:
        result = self._result
        result.span_s = span_s
        for engine in self._engines:
            result.computed.append(engine.totals.computed_tokens)
            result.busy_s.append(engine.totals.busy_s)
            result.prefix_hits += engine.totals.prefix_hits
            result.prefix_queries += engine.totals.prefix_queries
            result.preemptions += engine.totals.preemptions
        return result


def _question(turn: Turn) -> Question:
    prompt = turn.prompt_bytes()
    return Question("/v1/completions", MODEL, prompt, turn.prompt_tokens, turn.output_tokens, is_stream=True)


def _latency(ending: Ending) -> tuple[float, float]:
    answer_s = ending.at_s - ending.first_token_s
    return ending.first_token_s - ending.arrived_s, answer_s / max(1, ending.output_tokens - 1)


def _scraped(engine: Engine, latencies: Sequence[tuple[float, float]]) -> Sample:
    """What /metrics of that engine would say."""
    ttft_s, tpot_s = (
        (sum(column) / len(latencies) for column in zip(*latencies, strict=True)) if latencies else (None, None)
    )
    return Sample(
        kv_usage=engine.usage, waiting=len(engine.waiting), running=len(engine.running), ttft_s=ttft_s, tpot_s=tpot_s
    )


def speed_for(turns: Sequence[Turn], replicas: int, load: float, shape: EngineShape = QWEN3_32B) -> float:
    """How fast the trace must run for perfect caches to leave the replicas that share of their prefill rate to do."""
    return pace_for(turns, load * replicas / shape.step.prefill_s)
