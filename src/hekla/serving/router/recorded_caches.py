"""Asks Redis who holds a prompt, where engines' side-cars are Kthena's: the second half of the plug-in `kvcache-aware`.

On where the configuration names the plug-in and the router has a Redis. A request waits `WAIT_S` at most for its tokens and the answer
together; what comes later is left, and the engines' own events and the guess from text decide. While Redis is gone it is not asked for
a second at a time. `prefix/recorded.py` has the format, `record_stores.py` the server.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf
from typing import Final, Protocol

import structlog

from hekla.serving.router.backends import Backend
from hekla.serving.router.histograms import Counts, Histograms
from hekla.serving.router.plan import Waiting
from hekla.serving.router.prefix.recorded import Entries, Recorded, RecordFormat, recorded_of, stale
from hekla.serving.router.question import Question
from hekla.serving.router.tokenizing import MOST_ASKED, Held, NotTokenizedError, Tokenizing

WAIT_S: Final = 0.025
"""20 ms for an engine that tokenizes, 5 for Redis."""
TIMEOUT_S: Final = 0.25
"""How long the server may take before it counts as gone."""
EXPLAIN_S: Final = 1.0
"""How long an explanation waits for tokens and Redis together: nobody's request is behind it."""
ALONE_S: Final = 1.0
"""How long it is not asked then."""
SWEEP_EVERY_S: Final = 3600.0
SWEEP_TIMEOUT_S: Final = 30.0
DURATIONS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
SHARES: Final = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
NAME: Final = "kthena_router_kvcache_aware"

log = structlog.get_logger(__name__)


class RecordsGoneError(Exception):
    """The server does not answer."""


class Records(Protocol):
    """Where side-cars write."""

    async def rows(self, keys: Sequence[str]) -> list[Entries]:
        """The entries of each key, none where it is not there; raises RecordsGoneError."""

    async def sweep(self, too_old: Callable[[Entries], list[bytes]]) -> int:
        """Take the entries out that are too old, and say how many they were; raises RecordsGoneError.

        One that was cut short, by an error or by cancelling it, is gone on with by the next.
        """

    async def close(self) -> None:
        """End the connections."""


class MemoryRecords:
    """The same in this process."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[bytes, bytes]] = {}

    async def rows(self, keys: Sequence[str]) -> list[Entries]:
        """As `Records`."""
        return [self.entries.get(key, {}) for key in keys]

    async def sweep(self, too_old: Callable[[Entries], list[bytes]]) -> int:
        """As `Records`."""
        swept = 0
        for entries in self.entries.values():
            for one in too_old(entries):
                del entries[one]
                swept += 1
        return swept

    async def close(self) -> None:
        """As `Records`."""


class RecordedCaches:
    """What one router asks its Redis."""

    def __init__(
        self, tokenizing: Tokenizing, connect: Callable[[], Records | None], *,
        now: Callable[[], float], wall: Callable[[], float], wait_s: float = WAIT_S,
    ) -> None:  # fmt: skip
        """`connect` is asked when the plug-in is first configured; None: there is no Redis."""
        self.format: RecordFormat | None = None
        """How prompts are cut; None: nobody asks."""
        self._tokenizing = tokenizing
        self._connect = connect
        self._now, self._wall = now, wall
        self._wait_s = wait_s
        self._records: Records | None = None
        self._alone_until = -inf
        self._under_way: set[asyncio.Task[None]] = set()
        self._explaining = 0
        self._took_redis = Histograms(
            f"{NAME}_redis_duration_seconds", "How long Redis took to say who holds a prompt", DURATIONS_S
        )
        self._took_tokens = Histograms(
            f"{NAME}_tokenize_duration_seconds", "How long it took to tokenize a prompt", DURATIONS_S
        )
        self._shares = Histograms(
            f"{NAME}_match_ratio", "Share of a prompt's blocks that the best engine is recorded to hold", SHARES
        )
        self._errors = Counts(f"{NAME}_errors_total", "Prompts that were not looked up, by what failed", ("model", "stage"))  # fmt: skip

    def configure(self, told: RecordFormat | None) -> None:
        """Ask from now on, or do not."""
        if told is not None and self._records is None:
            self._records = self._connect()
        self.format = told if self._records is not None else None

    @property
    def is_on(self) -> bool:
        """Whether prompts are looked up."""
        return self.format is not None

    def of_text(self, backend: Backend, question: Question) -> Waiting | None:
        """Find out what is recorded of a prompt, and its tokens on the way; None: the request goes on at once."""
        if self.format is None or self._now() < self._alone_until or len(self._under_way) >= MOST_ASKED:
            return self._tokenizing.of_text(backend, question)
        question.was_tokenized = True
        held = Held()
        task = asyncio.create_task(self._look_up(self.format, backend, question, held), name="router looks up caches")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        asyncio.get_running_loop().call_later(self._wait_s, held.go)
        return held

    async def explain(self, backend: Backend, question: Question) -> Recorded | str | None:
        """Note in a question that will not be sent what is recorded; returns it, or why it is not known. None: nobody is asked.

        Neither the plug-in's metrics nor whether Redis counts as gone change.
        """
        question.token_ids = question.recorded = None  # another backend may have been asked for it before
        if self.format is None:
            return None
        if self._now() < self._alone_until:
            return "Redis did not answer a moment ago, so requests go on without it"
        if self._explaining >= MOST_ASKED:
            return f"{MOST_ASKED} explanations ask already; ask again in {EXPLAIN_S:g} s"
        self._explaining += 1
        try:
            async with asyncio.timeout(EXPLAIN_S):
                return await self._noted(self.format, backend, question)
        except NotTokenizedError as error:
            return f"the prompt's tokens are not known: {error}"
        except (RecordsGoneError, TimeoutError) as error:
            return (
                f"Redis or the engine's tokens are not to be had: {str(error) or f'no answer within {EXPLAIN_S:g} s'}"
            )
        finally:
            self._explaining -= 1

    async def run(self) -> None:
        """Sweep old entries away once an hour, as Kthena's router does."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            await self.sweep()

    async def sweep(self) -> None:
        """Once."""
        if self._records is None or not self.is_on:
            return
        now_s = self._wall()
        try:
            async with asyncio.timeout(SWEEP_TIMEOUT_S):
                swept = await self._records.sweep(lambda entries: stale(entries, now_s))
        except (RecordsGoneError, TimeoutError) as error:
            log.warning("old cache records not all swept", why=str(error) or f"not done in {SWEEP_TIMEOUT_S:g} s", again_in_s=SWEEP_EVERY_S)  # fmt: skip
        else:
            log.info("old cache records swept", entries=swept)

    async def close(self) -> None:
        """Ask no more."""
        for task in tuple(self._under_way):
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._records is not None:
            await self._records.close()

    def lines(self) -> Iterator[str]:
        """Kthena's metrics of the plug-in."""
        for one in (self._shares, self._took_redis, self._took_tokens, self._errors):
            yield from one.lines()

    async def _look_up(self, cut: RecordFormat, backend: Backend, question: Question, held: Held) -> None:
        model = question.model
        try:
            began = self._now()
            ids = await self._tokenizing.ids_of(backend, question)
            self._took_tokens.note((model,), self._now() - began)
            rows = await self._rows(cut.keys(model, ids), model)
            if held.is_waiting:  # else the choice was made without it
                recorded = recorded_of(rows, [*backend.decode.members, *backend.prefill.members])
                question.token_ids, question.recorded = ids, recorded
                self._shares.note((model,), recorded.share)
        except NotTokenizedError as error:
            self._errors.add((model, "tokenize"))
            log.debug("prompt not tokenized", server=backend.traits.key, why=str(error))
        except (RecordsGoneError, TimeoutError) as error:
            self._errors.add((model, "redis"))
            self._alone_until = self._now() + ALONE_S
            log.warning("cache records unreachable", why=str(error) or type(error).__name__, alone_s=ALONE_S)
        finally:
            held.go()

    async def _noted(self, cut: RecordFormat, backend: Backend, question: Question) -> Recorded:
        assert self._records is not None, "it is on"
        ids = await self._tokenizing.ids_of(backend, question)
        rows = await self._records.rows(cut.keys(question.model, ids))
        recorded = recorded_of(rows, [*backend.decode.members, *backend.prefill.members])
        question.token_ids, question.recorded = ids, recorded
        return recorded

    async def _rows(self, keys: Sequence[str], model: str) -> list[Mapping[bytes, bytes]]:
        assert self._records is not None, "it is on"
        began = self._now()
        async with asyncio.timeout(TIMEOUT_S):
            rows = await self._records.rows(keys)
        self._took_redis.note((model,), self._now() - began)
        return list(rows)


def records_at(address: str, password: str) -> Records | None:
    """The records in the Redis at HOST:PORT; None where there is none."""
    if not address:
        return None
    try:
        from redis.asyncio import Redis

        from hekla.serving.router.record_stores import RedisRecords
    except ImportError:
        log.warning("cache records not read", why='the package "redis" is not installed; install hekla[redis]')
        return None
    host, _, port = address.rpartition(":")
    return RedisRecords(Redis(host=host, port=int(port), password=password or None))
