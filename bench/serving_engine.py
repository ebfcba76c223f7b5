"""The simulated engine against a real one: fit its step time to vLLM on this machine's CPU, then foretell a workload it was not fitted to.

First lone prompts of rising length, answers side by side, and answers far into their context: each gives one parameter
of `StepTime`. Then sixty requests as they might come, half of which share beginnings: vLLM serves them, the simulator
foretells them from their arrival times alone, and the difference is the error. Hits in the prefix cache are compared
too: they hang on no clock. Needs `make engines`.

    python -m bench serving_engine
"""

import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from bench.report import Report
from hekla.simulation.engine.engine import Engine
from hekla.simulation.engine.happenings import Ending
from hekla.simulation.engine.sequence import Ask
from hekla.simulation.engine.shape import EngineShape, StepTime
from hekla.simulation.engine.tokens import hash_blocks

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

SHAPE = EngineShape(
    block_size=32, num_blocks=1024, max_num_seqs=16, max_num_batched_tokens=2048, max_model_len=2048, max_loras=2
)
"""What enginekit's engines are started with; a CPU's budget of tokens is vLLM's default for it."""
LONE = (64, 256, 512, 1024, 1536)
SIDE_BY_SIDE = (1, 4, 8, 16)


@dataclass(frozen=True)
class Timed:
    """One request as a client saw it, in seconds after the start of its run."""

    sent_s: float
    first_s: float
    last_s: float
    tokens: int

    @property
    def first_token_s(self) -> float:
        return self.first_s - self.sent_s

    @property
    def between_s(self) -> float:
        return (self.last_s - self.first_s) / max(1, self.tokens - 1)


@dataclass(frozen=True)
class Fit:
    """What was measured: a step, and what a request costs around the engine's steps (HTTP, processes)."""

    step: StepTime
    around_s: float


class Client:
    """Sends prompts of token ids and takes times."""

    def __init__(self, url: str) -> None:
        from openai import AsyncOpenAI, DefaultAsyncHttpxClient

        self._client = AsyncOpenAI(
            base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600,
            http_client=DefaultAsyncHttpxClient(trust_env=False),
        )  # fmt: skip
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    def restart(self) -> None:
        self._began = time.perf_counter()

    async def ask(self, prompt: Sequence[int], output: int) -> Timed:
        sent = self.now()
        stream = await self._client.completions.create(
            model="tiny", prompt=list(prompt), max_tokens=output, stream=True, extra_body={"ignore_eos": True}
        )
        first = last = 0.0
        async for _ in stream:
            last = self.now()
            first = first or last
        return Timed(sent, first, last, output)


def fresh(dice: random.Random, tokens: int) -> list[int]:
    """A prompt that nobody has sent."""
    return [dice.randrange(300, 1000) for _ in range(tokens)]


async def fit(client: Client, rounds: int) -> Fit:
    """The least of runs taken in turn, as a neighbour's burst only adds; lines through them whose parts are not negative."""
    dice = random.Random(7)
    await client.ask(fresh(dice, 64), 8)  # what is done once is done
    alone, widths = [float("inf")] * len(LONE), [float("inf")] * len(SIDE_BY_SIDE)
    far = float("inf")
    for _ in range(rounds):
        for number, length in enumerate(LONE):
            alone[number] = min(alone[number], (await client.ask(fresh(dice, length), 1)).first_token_s)
        for number, count in enumerate(SIDE_BY_SIDE):
            told = await asyncio.gather(*(client.ask(fresh(dice, 64), 64) for _ in range(count)))
            widths[number] = min(widths[number], statistics.median(one.between_s for one in told))
        far = min(far, (await client.ask(fresh(dice, 1800), 64)).between_s)
    around_and_fixed, prefill, attention = fitted_to(alone, [1.0] * len(LONE), LONE, [n * n / 2 for n in LONE])
    fixed, decode = fitted_to(widths, [1.0] * len(SIDE_BY_SIDE), SIDE_BY_SIDE)
    context = max(0.0, (far - widths[0]) / 1800)
    step = StepTime(
        fixed_s=fixed, prefill_s=prefill, decode_s=decode, context_s=context, attention_s=attention, overlap=0.0
    )
    return Fit(step, max(0.0, around_and_fixed - fixed))


def fitted_to(values: Sequence[float], *columns: Sequence[float]) -> list[float]:
    """The factors of the columns, none negative, that come closest in parts of each value.

    Where one is negative, which noise does, the third is left out first, as the least that is known of, then the lesser one.
    """
    kept = list(range(len(columns)))
    weight = 1 / np.array(values)
    while True:
        matrix = np.array([columns[at] for at in kept]).T * weight[:, None]
        found = np.linalg.lstsq(matrix, np.ones(len(values)), rcond=None)[0]
        if min(found) >= 0 or len(kept) == 1:
            factors = dict(zip(kept, found, strict=True))
            return [max(0.0, float(factors.get(at, 0.0))) for at in range(len(columns))]
        del kept[2 if len(kept) == 3 else int(np.argmin(found))]


@dataclass(frozen=True)
class Planned:
    """A request of the workload that was not fitted to."""

    at_s: float
    prompt: tuple[int, ...]
    output: int


def workload(step: StepTime, count: int) -> list[Planned]:
    """Poisson arrivals at about 60 % of what the engine can do; half of the prompts begin like one of four others."""
    dice = random.Random(11)
    families = [fresh(dice, 640) for _ in range(4)]
    rows = []
    for _ in range(count):
        shared = dice.choice(families)[: dice.randrange(64, 640)] if dice.random() < 0.5 else []
        rows.append(((*shared, *fresh(dice, dice.randrange(32, 700))), dice.randrange(8, 96)))
    work_s = sum(len(p) * step.prefill_s + o * (step.decode_s + step.fixed_s / 4) for p, o in rows) / count
    planned, arrives_s = [], 0.0
    for prompt, output in rows:
        arrives_s += dice.expovariate(0.6 / work_s)
        planned.append(Planned(arrives_s, prompt, output))
    return planned


async def serve(client: Client, planned: Sequence[Planned]) -> list[Timed]:
    """The real engine, asked when the plan says."""
    client.restart()

    async def one(row: Planned) -> Timed:
        await asyncio.sleep(max(0.0, row.at_s - client.now()))
        return await client.ask(row.prompt, row.output)

    return list(await asyncio.gather(*map(one, planned)))


def foretell(fitted: Fit, planned: Sequence[Planned], sent: Sequence[float]) -> tuple[list[Timed], Engine]:
    """The simulated engine, told when requests were really sent and nothing else."""
    engine = Engine(replace(SHAPE, step=fitted.step))
    order = sorted(range(len(planned)), key=lambda n: sent[n])
    told = []
    for number in order:
        row, at = planned[number], sent[number] + fitted.around_s
        told += engine.advance(at)
        engine.submit(
            Ask(str(number), len(row.prompt), row.output, tuple(hash_blocks(row.prompt, SHAPE.block_size))), at
        )
    told += engine.advance(float("inf"))
    ended = {int(one.request): one for one in told if isinstance(one, Ending)}
    return [Timed(sent[n], ended[n].first_token_s, ended[n].at_s, row.output) for n, row in enumerate(planned)], engine


def error(real: Sequence[float], told: Sequence[float]) -> float:
    """The median of how far off each was, in percent."""
    return 100 * statistics.median(abs(t - r) / r for r, t in zip(real, told, strict=True))


def at(percent: float, values: Sequence[float]) -> float:
    return float(np.percentile(values, percent))


async def measure(report: Report, url: str, figure: Callable[[str], Awaitable[float]]) -> None:
    client, rounds = Client(url), 2 if report.is_quick else 5
    fitted = await fit(client, rounds)
    step = fitted.step
    report.add("vLLM, CPU, tiny model: prefill", 1 / max(step.prefill_s, 1e-9), "tokens/s")
    report.add("  a step at least", step.fixed_s * 1000, "ms")
    report.add("  for each answer in a step", step.decode_s * 1000, "ms")
    report.add("  for a thousand tokens of context", step.context_s * 1e6, "ms")
    report.add("  around the steps, for each request", fitted.around_s * 1000, "ms")
    planned = workload(step, report.scaled(60))
    hits = await figure("vllm:prefix_cache_hits_total")
    real = await serve(client, planned)
    hits = await figure("vllm:prefix_cache_hits_total") - hits
    told, engine = foretell(fitted, planned, [one.sent_s for one in real])
    report.add("prefix hits foretold", engine.totals.prefix_hits, "tokens", baseline=hits)
    for name, look in (
        ("time to first token", lambda one: one.first_token_s),
        ("time per token after it", lambda one: one.between_s),
        ("whole time", lambda one: one.last_s - one.sent_s),
    ):
        one, other = [look(row) for row in real], [look(row) for row in told]
        for percent in (50, 90):
            report.add(
                f"{name}, p{percent}, foretold", at(percent, other) * 1000, "ms", baseline=at(percent, one) * 1000
            )
        report.add(f"  {name}: median error of one request", error(one, other), "%")


def run(report: Report) -> None:
    """B9: the simulated engine against vLLM on the CPU: what it foretells, and by how much it errs."""
    from serving.engines.enginekit import why_not

    if reason := why_not():
        print(f"  left out: {reason}")
        return
    from serving.engines.enginekit import running_engines

    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="hekla-bench-engine-"))
        [engine] = stack.enter_context(running_engines(directory, count=1))

        async def figure(name: str) -> float:
            return await asyncio.to_thread(engine.figure, name)

        asyncio.run(measure(report, engine.url, figure))
