"""Prefill and decode engines under a load that changes, and the autoscaler that is to hold their SLO: in virtual time.

What decides is the product's own code: the autoscaler's `decide` (metrics by replica, tolerance, pace, windows, ratio), the router's
pools and pairs. What serves is `simulation/engine`. Only time is virtual: an engine that is asked for is ready `ready_after_s` later, one
that is given up takes nothing more and ends what it has. The autoscaler sees what it would scrape: the 95th percentile, from vLLM's
buckets, of what each replica counted since the last look, and how much it has to do.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from math import inf

import msgspec
import numpy as np

from hekla.api.kthena import AutoscalingPolicy
from hekla.serving.autoscaler.algorithms.histogram import histogram_of, quantile
from hekla.serving.autoscaler.decision import HISTORY, Measured, decide, write_histories
from hekla.serving.autoscaler.measuring import PERCENTILE
from hekla.serving.autoscaler.units import units_of
from hekla.serving.router.connectors import connector_of
from hekla.serving.router.endpoints import Endpoint, Fleet
from hekla.serving.router.pair_plan import Pairing, PairPlan
from hekla.serving.router.plan import Attempt, Destination, Usage
from hekla.serving.router.question import Question
from hekla.serving.router.recipes import DEFAULT
from hekla.simulation.engine.buckets import BETWEEN_S, FIRST_TOKEN_S
from hekla.simulation.engine.engine import Engine
from hekla.simulation.engine.happenings import Emission, Ending
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.shape import EngineShape

PREFILL, DECODE = "prefill", "decode"
FIRST_TOKEN, PROMPTS, BETWEEN, REQUESTS = "ttft_seconds", "prompt_tokens_rate", "itl_seconds", "requests"
"""The metrics that a policy here may name. Of prefill: the first token's time, and prompt tokens computed in a second; of decode: the time
between tokens, and requests in it. A time says when there are too few replicas, but far below its target it does not say how many
would do, as queues are not linear; what grows with the load does.
"""
START = datetime(2026, 1, 1, tzinfo=UTC)
TICK_S = 0.05
"""How far apart engines may be in time; a prefilled prompt waits so long for its decode engine at most."""


@dataclass(frozen=True)
class Arrival:
    """One request."""

    at_s: float
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Window:
    """What users saw between two looks of the autoscaler, and what it had."""

    at_s: float
    prefill: int
    decode: int
    first_token_p90_s: float
    between_p90_s: float


@dataclass
class Held:
    """What came of it."""

    windows: list[Window] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    refused: int = 0

    def back_within(self, since_s: float, value: Callable[[Window], float], slo_s: float) -> float:
        """How long after a moment the SLO was broken for the last time; 0: it never was."""
        broken = [one.at_s for one in self.windows if one.at_s > since_s and value(one) > slo_s]
        return max(broken) - since_s if broken else 0.0


def poisson(
    steps: Sequence[tuple[float, float]], until_s: float, *, prompt: int, output: int, seed: int
) -> list[Arrival]:
    """Requests that come at random; `steps` are (from when, so many a second); lengths are lognormal around the two means."""
    dice, at_s = np.random.default_rng(seed), steps[0][0]
    found: list[Arrival] = []
    while True:
        rate = [rate for since_s, rate in steps if since_s <= at_s][-1]
        at_s += float(dice.exponential(1 / rate))
        if at_s >= until_s:
            return found
        lengths = [max(1, int(mean * dice.lognormal(-0.125, 0.5))) for mean in (prompt, output)]
        found.append(Arrival(at_s, *lengths))


@dataclass(eq=False)
class _Replica:
    engine: Engine
    endpoint: Endpoint
    role: str
    ready_s: float
    computed: int = 0
    """Prompt tokens, up to the last look."""
    seen: list[float] = field(default_factory=list)
    """Latencies since the last look."""


@dataclass(eq=False)
class _Request:
    name: str
    arrival: Arrival
    plan: PairPlan
    attempt: Attempt | None = None
    last_s: float = 0.0


class HoldingSlo:
    """One ModelServing of two roles, scaled by one policy."""

    def __init__(
        self, policy: AutoscalingPolicy, shapes: Mapping[str, EngineShape], replicas: Mapping[str, int], *,
        ready_after_s: float, look_s: float = 15.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self._policy, self._shapes, self._ready_after_s, self._look_s = policy, shapes, ready_after_s, look_s
        dice = np.random.default_rng(seed).random
        self._fleet = Fleet()
        self._pools = {role: DEFAULT.pool(role, self._fleet, dice) for role in (PREFILL, DECODE)}
        self._pairing = Pairing(self._pools[PREFILL], self._pools[DECODE], connector_of("nixl", 0))
        self._replicas: list[_Replica] = []
        self._leaving: list[_Replica] = []
        self._wanted = dict(replicas)
        self._numbers, self._order = count(), count()
        self._requests: dict[str, _Request] = {}
        self._told: list[tuple[float, int, Emission | Ending, _Replica]] = []
        self._first: list[float] = []
        self._between: list[float] = []
        self.held = Held()
        for role, number in replicas.items():
            for _ in range(number):
                self._add(role, 0.0)
        self._join(0.0)

    def run(self, arrivals: Sequence[Arrival], until_s: float) -> Held:
        """Serve all that arrive, look as the autoscaler does, and tell what users saw."""
        left = list(reversed(arrivals))
        now = looked_s = 0.0
        while now < until_s:
            now += TICK_S
            self._join(now)
            self._advance(now)
            while left and left[-1].at_s <= now:
                self._arrive(left.pop(), now)
            if now - looked_s >= self._look_s:
                looked_s = now
                self._look(now)
        return self.held

    def _add(self, role: str, ready_s: float) -> None:
        number = next(self._numbers)
        engine = Engine(self._shapes[role], seed=number)
        endpoint = Endpoint(f"{role}-{number}", "simulated", number, namespace="sim", role=role, group="g")
        endpoint.cache_tokens = engine.shape.cache_tokens
        self._replicas.append(_Replica(engine, endpoint, role, ready_s))

    def _of(self, role: str) -> list[_Replica]:
        return [one for one in self._replicas if one.role == role]

    def _join(self, now: float) -> None:
        """Engines that are ready take requests."""
        for one in self._replicas:
            if one.ready_s <= now and one.endpoint not in self._pools[one.role].members:
                one.engine.advance(now)
                self._pools[one.role].join(one.endpoint)

    def _advance(self, now: float) -> None:
        """Let all engines live until now, and hear what they tell in the order in which it happened."""
        for one in (*self._replicas, *self._leaving):
            for told in one.engine.advance(now):
                heappush(self._told, (told.at_s, next(self._order), told, one))
        while self._told:
            _, _, told, one = heappop(self._told)
            self._hear(told, one, now)

    def _arrive(self, arrival: Arrival, now: float) -> None:
        name = f"r{next(self._order)}"
        prompt = name.encode() * (arrival.prompt_tokens * 4 // len(name) + 1)  # nobody else's, so nothing is cached
        body = msgspec.json.encode({"model": "m", "prompt": ""})
        question = Question(
            "/v1/completions", "m", prompt[: arrival.prompt_tokens * 4], arrival.prompt_tokens, arrival.output_tokens,
            is_stream=True, body=body,
        )  # fmt: skip
        request = self._requests[name] = _Request(name, arrival, PairPlan(self._pairing, question, Destination("m")))
        self._send(request, now)

    def _send(self, request: _Request, now: float) -> None:
        attempt = request.plan.next(now)
        if not isinstance(attempt, Attempt):
            self.held.refused += 1
            del self._requests[request.name]
            return
        request.attempt = attempt
        # one that was given up meanwhile still does what it was chosen for
        replica = next(one for one in (*self._replicas, *self._leaving) if one.endpoint is attempt.target)
        is_prefill = attempt.on_answer is not None
        tokens = request.arrival.output_tokens
        ask = Ask(
            request.name, request.arrival.prompt_tokens, 1 if is_prefill else tokens, is_kept=is_prefill,
            is_remote=not is_prefill,
        )  # fmt: skip
        replica.engine.submit(ask, now)

    def _hear(self, told: Emission | Ending, one: _Replica, now: float) -> None:
        request = self._requests.get(told.request)
        if request is None:
            return
        if one.role == PREFILL:
            if isinstance(told, Ending):
                first_s = told.first_token_s - told.arrived_s
                one.seen.append(first_s)
                one.engine.release(request.name)  # the decode engine has fetched it
                assert request.attempt is not None
                assert request.attempt.on_answer is not None
                request.attempt.on_answer(b'{"kv_transfer_params": {"remote_host": "simulated"}}', told.at_s)
                self._send(request, now)
        elif isinstance(told, Emission):
            if told.is_first:
                self._first.append(told.at_s - request.arrival.at_s)
                request.plan.first_byte(told.at_s)
            else:
                gaps = [(told.at_s - request.last_s) / told.tokens] * told.tokens
                one.seen += gaps
                self._between += gaps
            request.last_s = told.at_s
        else:
            request.plan.ended(Usage(told.prompt_tokens, told.output_tokens), told.at_s)
            del self._requests[told.request]

    def _look(self, now: float) -> None:
        """What the autoscaler does every so often."""
        at = START + timedelta(seconds=now)
        measured = {unit.key: self._measured(unit.role, now) for unit in units_of(self._policy)}
        decision = decide(self._policy, measured, at)
        annotations = {**self._policy.metadata.annotations, HISTORY: write_histories(decision.histories)}
        metadata = msgspec.structs.replace(self._policy.metadata, annotations=annotations)
        self._policy = msgspec.structs.replace(self._policy, metadata=metadata)
        for scaling in decision.scalings:
            self.held.reasons.append(
                f"{now:.0f} s: {scaling.unit.key} {scaling.before} to {scaling.after}: {scaling.reason}"
            )
            self._scale(scaling.unit.role, scaling.after, now)
        found = [float(np.percentile(some, 90)) if some else 0.0 for some in (self._first, self._between)]
        waiting = [now - one.arrival.at_s for one in self._requests.values() if not one.last_s]
        if waiting and (waits := float(np.percentile(waiting, 90))) > found[0] and len(waiting) > len(self._first):
            found[0] = waits  # whoever has no token yet is no reason to call it fast
        self.held.windows.append(Window(now, self._wanted[PREFILL], self._wanted[DECODE], *found))
        self._first.clear()
        self._between.clear()

    def _measured(self, role: str, now: float) -> Measured:
        found = self._of(role)
        ready = [one for one in found if one.ready_s <= now]
        bounds, latency = (FIRST_TOKEN_S, FIRST_TOKEN) if role == PREFILL else (BETWEEN_S, BETWEEN)
        metrics = []
        for one in ready:
            computed, one.computed = one.computed, one.engine.totals.computed_tokens
            told = {
                PROMPTS: (one.computed - computed) / self._look_s,
                REQUESTS: float(len(one.engine.waiting) + len(one.engine.running)),
            }
            if one.seen:
                told[latency] = quantile(histogram_of(_counts(one.seen, bounds)), PERCENTILE)
                one.seen.clear()
            metrics.append(told)
        return Measured(current=self._wanted[role], ready=metrics, unready=self._wanted[role] - len(ready))

    def _scale(self, role: str, replicas: int, now: float) -> None:
        self._wanted[role] = replicas
        for _ in range(replicas - len(self._of(role))):
            self._add(role, now + self._ready_after_s)
        for one in self._of(role)[replicas:]:  # it stays listed: pairs that were chosen before end on it
            self._replicas.remove(one)
            self._pools[role].leave(one.endpoint)
            self._leaving.append(one)


def _counts(values: Sequence[float], bounds: Sequence[float]) -> Mapping[float, float]:
    """As a histogram counts them: by upper bound, all up to it."""
    counted: dict[float, float] = defaultdict(float)
    for value in values:
        at = bisect_left(bounds, value)
        counted[bounds[at] if at < len(bounds) else inf] += 1
    total, found = 0.0, {}
    for bound in (*bounds, inf):
        total += counted.get(bound, 0.0)
        found[float(bound)] = total
    return found
