"""Budgets that all routers share: asked of Redis in batches, and kept by each router alone while Redis is gone.

A guard (`plan.Guard`) for the routes whose `rateLimit` has `global.redis`; `run` must run beside it. While the server does not answer
in time the router applies the limit by itself, so that N routers let in up to N budgets: a limit that is too wide for a while is
better than a service that is down. It says so in the log, once until the server is back, and in `is_gone` for the metrics.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog

from hekla.edge.shared_buckets import Answer, BucketsGoneError, Foreign, Lack, Share, SharedBuckets
from hekla.serving.router.limits import TOO_MUCH_INPUT, TOO_MUCH_OUTPUT, Budget, Limit, refusal_of
from hekla.serving.router.plan import NOT_ASKED, Refusal, Usage, Waiting
from hekla.serving.router.question import Question

PREFIX: Final = "kthena:ratelimit"
TIMEOUT_S: Final = 0.25
"""How long requests wait for the server before the router decides alone."""
ALONE_S: Final = 1.0
"""How long it goes on alone before it asks the server again."""
MOST_PENDING: Final = 20_000
"""Requests and settlements that wait for the server; one more is decided alone."""
NOBODYS: Final = Question("", "", b"", 0)
"""Of no request: the server is asked whether it is there."""

log = structlog.get_logger()


class SharedLimits:
    """The guard of the budgets in one server."""

    def __init__(self, buckets: SharedBuckets, now: Callable[[], float], *, server: str = "") -> None:
        """`server` is what the log calls it."""
        self._buckets = buckets
        self._now = now
        self._server = server
        self._is_gone = False
        self._limits: Mapping[str, Limit] = {}
        self._own: dict[Limit, Budget] = {}
        self._pending: list[_Asked] = []
        self._asking: list[_Asked] = []
        """The batch that the server is asked for now."""
        self._told: set[str] = set()
        """Keys that hold what is no bucket, once told of."""
        self._wanted = asyncio.Event()
        self._alone_until = -math.inf

    def set_routes(self, limits: Mapping[str, Limit]) -> None:
        """Take the limits whose budgets are in this server, by the name that is asked for."""
        self._limits = dict(limits)
        self._told.clear()
        self._own = {limit: budget for limit, budget in self._own.items() if limit in set(limits.values())}

    @property
    def is_alone(self) -> bool:
        """Whether the router decides by itself because the server is gone."""
        return self._now() < self._alone_until

    @property
    def is_gone(self) -> bool:
        """Whether the server did not answer when it was asked last; a second later the next request, or `ask_anew`, asks it again."""
        return self._is_gone

    def ask_anew(self) -> None:
        """Ask a server that is gone for nothing, so that it is known to be back where no request comes."""
        if not self._is_gone or self.is_alone or self._pending or self._asking:
            return
        for limit in self._limits.values():
            if shares := _shares(limit, NOBODYS):
                self._put(_Asked(limit, NOBODYS, [replace(one, take=0, need=None) for one in shares]))
                return

    def admit(self, question: Question, now: float) -> Refusal | Waiting | None:
        """Ask the server, or decide alone while it is gone."""
        limit = self._limits.get(question.model)
        if limit is None:
            return None
        if not (shares := _shares(limit, question)):
            return None
        if now < self._alone_until or len(self._pending) >= MOST_PENDING:
            return self._decide_alone(limit, question, now)
        asked = _Asked(limit, question, shares)
        self._put(asked)
        return asked

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """Settle what the engine counted with whom the estimate was taken from; the server is told of an answer's tokens anyway."""
        limit = self._limits.get(question.model)
        if limit is None or usage is None:
            return
        is_alone = now < self._alone_until or len(self._pending) >= MOST_PENDING
        if question.taken_alone:
            self._budget(limit, now).settle(question.input_tokens, usage, now)
            usage = Usage(0, usage.output_tokens)
        elif is_alone:  # what the server took is not given back here, where it was not taken
            self._budget(limit, now).settle(min(question.input_tokens, usage.input_tokens), usage, now)
        if not is_alone:
            self._settle(limit, question, usage)

    async def run(self) -> None:
        """Carry batches to the server for ever."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            batch = self._asking = [one for one in self._pending if not one.is_abandoned]
            self._pending = []
            if not batch:
                continue
            try:
                answers = await self._ask([one.shares for one in batch])
            except Exception:  # a mistake of ours, which is told where this is begun anew: nobody is to wait for it
                self._go_alone(batch)
                raise
            if answers is None:
                self._go_alone(batch)
            else:
                for one, answer in zip(batch, answers, strict=True):
                    self._take_answer(one, answer)
            self._asking = []

    def _take_answer(self, one: "_Asked", answer: Answer) -> None:
        if isinstance(answer, Foreign):
            if answer.why not in self._told:
                self._told.add(answer.why)
                log.warning("shared limit unusable, each router keeps it alone", server=self._server, why=answer.why)
            self._go_alone([one])
            return
        one.go(_refusal(one, answer))
        if one.is_abandoned and answer is None:  # its client left while the server took for it
            self._settle(one.limit, one.question, NOT_ASKED)

    async def close(self) -> None:
        """No route names the server any more: whoever still waits goes on alone, and the connections end."""
        self._alone_until = math.inf
        batch, self._asking, self._pending = [*self._asking, *self._pending], [], []
        self._go_alone(batch)
        await self._buckets.close()

    def _go_alone(self, batch: "Sequence[_Asked]") -> None:
        for one in batch:
            one.go(self._decide_alone(one.limit, one.question, self._now()) if one.is_request else None)

    def _settle(self, limit: Limit, question: Question, usage: Usage) -> None:
        if shares := _settlement(limit, question, usage):
            self._put(_Asked(limit, question, shares))

    def _put(self, asked: "_Asked") -> None:
        self._pending.append(asked)
        self._wanted.set()

    async def _ask(self, asked: Sequence[Sequence[Share]]) -> list[Answer] | None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answers = await self._buckets.take(asked)
        except (BucketsGoneError, TimeoutError) as error:
            self._alone_until = self._now() + ALONE_S
            if not self._is_gone:
                why = str(error) or f"no answer within {TIMEOUT_S:g} s"
                log.warning("shared limits unreachable, each router keeps them alone", server=self._server, why=why)
            self._is_gone = True
            return None
        if self._is_gone:
            log.info("shared limits reachable again", server=self._server)
        self._is_gone = False
        return answers

    def _decide_alone(self, limit: Limit, question: Question, now: float) -> Refusal | None:
        budget = self._budget(limit, now)
        refusal = budget.refusal(question.input_tokens, now)
        if refusal is None:
            budget.take(question.input_tokens)
            question.taken_alone = True
        return refusal

    def _budget(self, limit: Limit, now: float) -> Budget:
        budget = self._own.get(limit)
        if budget is None:
            budget = self._own[limit] = Budget(limit, now)
        return budget


class _Asked(Waiting):
    """A request, or a settlement that nobody waits for, on its way to the server."""

    __slots__ = ("_resume", "is_abandoned", "limit", "question", "shares")

    def __init__(self, limit: Limit, question: Question, shares: Sequence[Share]) -> None:
        self.limit = limit
        self.question = question
        self.shares = shares
        self.is_abandoned = False
        self._resume: Callable[[Refusal | None], None] | None = None

    @property
    def is_request(self) -> bool:
        """Whether somebody waits for it."""
        return self._resume is not None

    def when_ready(self, resume: Callable[[Refusal | None], None]) -> None:
        self._resume = resume

    def abandon(self) -> None:
        self._resume, self.is_abandoned = None, True

    def go(self, refusal: Refusal | None) -> None:
        """Tell what was decided."""
        if self._resume is not None:
            resume, self._resume = self._resume, None
            resume(refusal)


def _shares(limit: Limit, question: Question) -> list[Share]:
    shares = []
    if limit.input_tokens is not None:
        tokens = question.input_tokens
        shares.append(Share(_key(limit, "input"), limit.input_tokens, limit.period_s, tokens, tokens))
    if limit.output_tokens is not None:
        shares.append(Share(_key(limit, "output"), limit.output_tokens, limit.period_s, 0, 1))
    return shares


def _settlement(limit: Limit, question: Question, usage: Usage) -> list[Share]:
    shares = []
    is_known = usage.input_tokens or usage is NOT_ASKED
    more = usage.input_tokens - question.input_tokens if is_known else 0
    if limit.input_tokens is not None and more:
        shares.append(Share(_key(limit, "input"), limit.input_tokens, limit.period_s, more))
    if limit.output_tokens is not None and usage.output_tokens:
        shares.append(Share(_key(limit, "output"), limit.output_tokens, limit.period_s, usage.output_tokens))
    return shares


def _key(limit: Limit, kind: str) -> str:
    return f"{PREFIX}:{limit.key}:{kind}"


def _refusal(one: _Asked, lack: Lack | None) -> Refusal | None:
    if lack is None:
        return None
    words = TOO_MUCH_INPUT if one.shares[lack.number].key.endswith(":input") else TOO_MUCH_OUTPUT
    return refusal_of(one.limit, words, one.question.input_tokens, lack.wait_s)
