"""The simulated engine against a real one: fit its step time to vLLM on this machine's CPU, then foretell a workload it was not fitted to.

Points are timed in rounds, one after the other, and a round counts only if others took less than a tenth of the processors
meanwhile (`neighbours.py`) and the client itself did not wait for one (`own_clock.py`); a point's timing is the median of its rounds. Without enough such rounds nothing is fitted, and a sentence
says why: a fit to a busy machine foretells nothing. `engine_fit.py` fits all points at once and says how far off each is when it is
left out. Then sixty requests as they might come, half of which share beginnings: vLLM serves them, the simulator foretells them from
their arrival times alone, and the difference is the error. Hits in the prefix cache hang on no clock and are compared in any case.
Needs `make engines`; takes three to four minutes.

    python -m bench serving_engine
"""

import asyncio
import json
import os
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

from bench.engine_fit import Fit, Point, beside, fitted, left_out, lone, median_error
from bench.neighbours import Neighbours, of_session
from bench.own_clock import MOST_WAITED, OwnClock, before_all_others
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
LONE = (64, 192, 384, 640, 960, 1280, 1600)
BESIDE = ((1, 64), (2, 64), (4, 64), (8, 64), (12, 64), (16, 64), (1, 900), (1, 1800), (4, 900), (4, 1800))
"""Answers side by side, and how long their prompts are."""
ANSWER = 48
MOST_TAKEN = 0.1
"""Share of the processors that others may have in a round that counts: of two, a fifth of one, which the engine's one thread leaves free."""
LEAST_ROUNDS, MOST_S = 4, 90.0
"""Rounds that are needed, and how long they are waited for."""
TRIES = 3
"""Of the workload; the first that counts is the one."""


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


class Client:
    """Sends prompts of token ids and takes times; by bare sockets, as a client of sixteen streams must not be what is measured."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._began = time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._began

    def restart(self) -> None:
        self._began = time.perf_counter()

    async def ask(self, prompt: Sequence[int], output: int) -> Timed:
        fields = {"model": "tiny", "prompt": list(prompt), "max_tokens": output, "stream": True, "ignore_eos": True}
        body = json.dumps(fields).encode()
        reader, writer = await asyncio.open_connection(self._host, self._port)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        sent, first, last = self.now(), 0.0, 0.0
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                last = self.now()
                first = first or last
        writer.close()
        assert first, "the engine answered without a token"
        return Timed(sent, first, last, output)


def fresh(dice: random.Random, tokens: int) -> list[int]:
    """A prompt that nobody has sent."""
    return [dice.randrange(300, 1000) for _ in range(tokens)]


async def one_round(client: Client, dice: random.Random) -> dict[Point, float]:
    """Every point once."""
    found = {}
    for length in LONE:
        found[lone(length)] = (await client.ask(fresh(dice, length), 1)).first_token_s
    for count, length in BESIDE:
        told = await asyncio.gather(*(client.ask(fresh(dice, length), ANSWER) for _ in range(count)))
        # while some are still being prefilled the others wait, so only what lies behind the last first token counts
        all_begun = max(one.first_s for one in told)
        pace = [(one.last_s - all_begun) / _left(one, all_begun) for one in told]
        found[beside(count, length + ANSWER / 2)] = statistics.median(pace)
    return found


def _left(one: Timed, since: float) -> float:
    """How many tokens came after a moment, by the mean pace of the answer."""
    return max(1.0, (one.tokens - 1) * (one.last_s - since) / max(1e-9, one.last_s - one.first_s))


async def timings(client: Client, watch: Neighbours, least: int) -> tuple[dict[Point, float], list[float]]:
    """Medians over the rounds that count, or nothing, and what others took in each round."""
    dice, rounds, shares, clock = random.Random(7), list[dict[Point, float]](), list[float](), OwnClock()
    await client.ask(fresh(dice, 64), 8)  # what is done once is done
    began = time.monotonic()
    while len(rounds) < least and time.monotonic() - began < MOST_S:
        watch.mark()
        clock.mark()
        taken = await one_round(client, dice)
        shares.append(watch.share())
        if shares[-1] <= MOST_TAKEN and clock.waited() <= MOST_WAITED:
            rounds.append(taken)
    if len(rounds) < least:
        return {}, shares
    return {point: statistics.median(one[point] for one in rounds) for point in rounds[0]}, shares


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


def foretell(fit: Fit, planned: Sequence[Planned], sent: Sequence[float]) -> tuple[list[Timed], Engine]:
    """The simulated engine, told when requests were really sent and nothing else."""
    engine = Engine(replace(SHAPE, step=fit.step))
    order = sorted(range(len(planned)), key=lambda n: sent[n])
    told = []
    for number in order:
        row, at = planned[number], sent[number] + fit.around_s
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


def told_of(report: Report, fit: Fit, errors: dict[Point, float]) -> None:
    """The fit, and how far it is to be trusted."""
    step = fit.step
    report.add("vLLM, CPU, tiny model: prefill", 1 / max(step.prefill_s, 1e-9), "tokens/s")
    report.add("  a step at least", step.fixed_s * 1000, "ms")
    report.add("  for each answer in a step", step.decode_s * 1000, "ms")
    report.add("  for a thousand tokens of context", step.context_s * 1e6, "ms")
    report.add("  for a thousand tokens before a thousand of a prompt", step.attention_s * 1e9, "ms")
    report.add("  around the steps, for each request", fit.around_s * 1000, "ms")
    worst = max(errors, key=lambda one: abs(errors[one]))
    report.add("  a timing left out of the fit is foretold within", 100 * median_error(errors), "% (median)")
    report.add(f"  the worst: {worst.name}", 100 * errors[worst], "%")


def too_busy(shares: Sequence[float], least: int) -> str:
    """Why nothing is fitted."""
    good = sum(one <= MOST_TAKEN for one in shares)
    return (
        f"no fit: others took {100 * statistics.median(shares):.0f} % of the processors (median of {len(shares)} rounds), and {good} rounds of "
        f"the {least} that are needed had less than {100 * MOST_TAKEN:.0f} %; run it on a machine that does nothing else"
    )


@dataclass(frozen=True)
class Served:
    """The workload as the real engine served it."""

    real: list[Timed]
    hits: float
    taken: float
    """Share of the processors that others had."""
    waited: float
    """Share of the time in which the client stood in the queue for a processor."""

    @property
    def counts(self) -> bool:
        """Whether its times say something."""
        return self.taken <= MOST_TAKEN and self.waited <= MOST_WAITED


async def served(
    client: Client, watch: Neighbours, planned: Sequence[Planned], forget: Callable[[], Awaitable[float]]
) -> Served:
    """The first of a few tries in which the machine was ours, or the one in which it was most."""
    await serve(client, planned)  # batches of shapes that the engine meets for the first time are not its pace
    tries, clock = [], OwnClock()
    for _ in range(TRIES):
        before = await forget()
        watch.mark()
        clock.mark()
        real = await serve(client, planned)
        waited, taken = clock.waited(), watch.share()
        tries.append(Served(real, await forget() - before, taken, waited))
        if tries[-1].counts:
            break
    return min(tries, key=lambda one: (not one.counts, one.taken + one.waited))


async def measure(report: Report, client: Client, watch: Neighbours, forget: Callable[[], Awaitable[float]]) -> None:
    """`forget` empties the engine's cache and says how many tokens were found in it so far."""
    least = 2 if report.is_quick else LEAST_ROUNDS
    measured, shares = await timings(client, watch, least)
    if measured:
        fit = fitted(measured)
        told_of(report, fit, left_out(measured))
    else:
        print(f"  {too_busy(shares, least)}")
        fit = Fit(StepTime(fixed_s=0.01, prefill_s=1e-4, decode_s=5e-4, context_s=0.0, overlap=0.0), 0.0)
    planned = workload(fit.step, report.scaled(60))
    one = await served(client, watch, planned, forget)
    told, engine = foretell(fit, planned, [row.sent_s for row in one.real])
    report.add("prefix hits foretold", engine.totals.prefix_hits, "tokens", baseline=one.hits)
    if not measured:
        return
    report.add("the client waited for a processor during the workload", 100 * one.waited, "%")
    if not one.counts:
        print(
            f"  others took {100 * one.taken:.0f} % of the processors during the workload, and the client waited for one "
            f"{100 * one.waited:.0f} % of the time: its times are left out"
        )
        return
    for name, look in (
        ("time to first token", lambda row: row.first_token_s),
        ("time per token after it", lambda row: row.between_s),
        ("whole time", lambda row: row.last_s - row.sent_s),
    ):
        real, foretold = [look(row) for row in one.real], [look(row) for row in told]
        for percent in (50, 90):
            report.add(
                f"{name}, p{percent}, foretold", at(percent, foretold) * 1000, "ms", baseline=at(percent, real) * 1000
            )
        report.add(f"  {name}: median error of one request", error(real, foretold), "%")


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
        assert engine.process is not None
        own = of_session(os.getsid(engine.process.pid))

        async def forget() -> float:
            await asyncio.to_thread(engine.ask, "POST", "/reset_prefix_cache")
            return await asyncio.to_thread(engine.figure, "vllm:prefix_cache_hits_total")

        with before_all_others() as is_first:
            if not is_first:
                print(
                    "  this user may not go before others: the client may wait for a processor and see late what came in time"
                )
            asyncio.run(measure(report, Client(engine.host, engine.port), Neighbours(lambda: own), forget))
