"""Carries out the calls of the plug-in `extender`: POST, JSON, several at a time, each within its time, beside the cycles.

Calls are made by a thread with an event loop of its own. A cycle waits for answers no longer than `wait_s` in all; those
that are not there by then are *late*: they are kept when they come, the scheduler is woken, and the same question in a
later cycle finds its answer. So a slow service costs the cluster nothing but the start of its own pods, and one that calls
back into this process's API server is answered. A service that is silent several times in a row is left alone for a while
(`circuit.py`). What it is told, not asked, goes out in order and is not waited for; a question follows what was told before.
"""

import asyncio
import hashlib
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Condition, Thread
from typing import Any

import structlog

from hekla.placement.model import Job
from hekla.placement.plugins.extender import (
    Address,
    Answers,
    LateError,
    Service,
    ServiceError,
    SilenceError,
)
from hekla.placement.statement import Bind, Evict
from hekla.scheduler.circuit import Circuit
from hekla.wire.client import HttpClient
from hekla.wire.errors import ConnectFailedError, ConnectionLostError, TimedOutError, WireError
from hekla.wire.limits import ClientLimits

log = structlog.get_logger()

AT_ONCE = 16
"""Calls under way together, as many as Volcano's workers."""

WAIT_S = 0.05
"""How long a cycle waits for all answers together: as long as a slice of it lasts."""

FRESH_S, MOST_AGE_S = 5.0, 60.0
"""How long an answer holds from when it was last used, and from when it came: a gang is asked about task by task, and each
cycle that finds the answers for one task may need another cycle for the next."""

RETRY_S = 1.0
"""After how long a service that failed is asked again, though nothing else happens."""

MOST_ASKED, MOST_KEPT, MOST_TOLD = 20_000, 50_000, 1_000
"""Questions under way, answers kept, and things to be told; what is beyond is late, forgotten, or not told."""

_HEADERS = (("content-type", "application/json"),)

_Question = tuple[str, bytes]
"""The url, and a digest of the body."""


@dataclass
class _Kept:
    answer: bytes | ServiceError
    came_s: float
    used_s: float
    is_told: bool = False

    def is_good(self, now_s: float) -> bool:
        """Whether it still holds. A failure is told once, so that the next cycle asks again."""
        if isinstance(self.answer, ServiceError) and self.is_told:
            return False
        return now_s - self.used_s < FRESH_S and now_s - self.came_s < MOST_AGE_S


class ExtenderCalls:
    """The extenders of a configuration, connected."""

    def __init__(
        self, *, on_news: Callable[[], None] = lambda: None, wait_s: float = WAIT_S,
        elapsed_s: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`on_news` is called, from another thread, when late answers have come or a service may be asked again."""
        self._extenders: list[Any] = []
        """Plug-ins that have a service: `Extender`, with or without what is switched off."""

        self._on_news, self._wait_s, self._elapsed_s = on_news, wait_s, elapsed_s
        self._left_s = wait_s
        self._guard = Condition()
        self._kept: OrderedDict[_Question, _Kept] = OrderedDict()
        self._under_way: set[_Question] = set()
        self._late: set[_Question] = set()
        self._circuits: dict[str, Circuit] = {}
        self._to_tell: deque[tuple[Address, str, bytes]] = deque()
        self._told = self._said = 0
        self.counted: Counter[tuple[str, str]] = Counter()
        """Calls by verb and what came of them: ok, wrong, silent, late (more than a cycle waits), unasked, untold."""

        self._tries_again = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: Thread | None = None
        self._client: HttpClient | None = None
        self._more_told: asyncio.Condition | None = None
        self._telling: asyncio.Task[None] | None = None

    def connect(self, tiers: Iterable[Iterable[object]]) -> None:
        """Have the calls of these plug-ins carried out; the others' no more."""
        self._extenders = [p for tier in tiers for p in tier if isinstance(getattr(p, "service", None), Service)]
        for plugin in self._extenders:
            plugin.service.connect(self.call, self.tell)

    def begin_cycle(self) -> None:
        """From now on a cycle may wait again."""
        self._left_s = self._wait_s

    def entered(self, jobs: Iterable[Job]) -> None:
        """Tell those who want to know who was let in."""
        for plugin in self._extenders:
            for job in jobs:
                plugin.entered(job)

    def decided(self, decision: Bind | Evict) -> None:
        """Tell those who want to know where a pod was put, or what it leaves."""
        for plugin in self._extenders:
            plugin.decided(decision.task, decision.node, is_placed=isinstance(decision, Bind))

    def end_session(self) -> None:
        """Tell those who want to know that a cycle is over."""
        for plugin in self._extenders:
            plugin.end_session()

    @property
    def silent(self) -> dict[str, str]:
        """Why services are not asked at present, by url."""
        now_s = self._elapsed_s()
        with self._guard:
            return {url: one.sentence(now_s) for url, one in self._circuits.items() if not one.may_ask(now_s)}

    # What placement calls

    def call(self, address: Address, verb: str, bodies: Sequence[bytes]) -> Answers:
        """Send each body to a verb, unless its answer is known; answers in the same order, late ones among them."""
        self._start(address)
        assert self._loop is not None
        url = f"{address.url}/{verb}"
        questions = [(url, hashlib.blake2b(body, digest_size=16).digest()) for body in bodies]
        with self._guard:
            known = [self._known(question) for question in questions]
            rest = self._why_not_ask(address)
            fresh = {
                question: body for question, body, answer in zip(questions, bodies, known, strict=True)
                if answer is None and rest is None and question not in self._under_way
            }  # fmt: skip
            room = MOST_ASKED - len(self._under_way)
            chosen = dict(list(fresh.items())[: max(room, 0)])
            self._under_way.update(chosen)
            said = self._said
        if chosen:
            asyncio.run_coroutine_threadsafe(self._ask_all(address, verb, chosen, said), self._loop)
        return self._awaited(address, verb, questions, known, rest)

    def tell(self, address: Address, verb: str, body: bytes) -> None:
        """Send a body to a verb after all that was told before, without waiting."""
        self._start(address)
        assert self._loop is not None
        with self._guard:
            if len(self._to_tell) >= MOST_TOLD or self._why_not_ask(address) is not None:
                self.counted[verb, "untold"] += 1
                return
            self._to_tell.append((address, verb, body))
            self._said += 1
        self._loop.call_soon_threadsafe(self._tell_on)

    def close(self) -> None:
        """Stop the thread, if there is one."""
        if self._loop is not None and self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(timeout=30.0)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=30.0)
            self._loop.close()
            self._loop = self._thread = self._client = None

    # What is known

    def _known(self, question: _Question) -> bytes | ServiceError | None:
        """An answer that holds; None if it has to be asked for."""
        kept, now_s = self._kept.get(question), self._elapsed_s()
        if kept is None:
            return None
        if not kept.is_good(now_s):
            del self._kept[question]
            return None
        kept.used_s, kept.is_told = now_s, True
        return kept.answer

    def _why_not_ask(self, address: Address) -> SilenceError | None:
        circuit, now_s = self._circuits.get(address.url), self._elapsed_s()
        return SilenceError(circuit.sentence(now_s)) if circuit is not None and not circuit.may_ask(now_s) else None

    def _awaited(
        self, address: Address, verb: str, questions: Sequence[_Question], known: Sequence[bytes | ServiceError | None],
        rest: SilenceError | None,
    ) -> Answers:  # fmt: skip
        """The answers, after as long a wait as the cycle has left."""
        missing = {question for question, answer in zip(questions, known, strict=True) if answer is None}
        begun_s = time.monotonic()
        with self._guard:
            if missing and rest is None:
                self._guard.wait_for(lambda: not missing & self._under_way, timeout=max(self._left_s, 0.0))
                self._left_s -= time.monotonic() - begun_s
            late = LateError(f"the extender at {address.url} has not answered {verb} yet")
            found = {question: self._known(question) or rest or late for question in missing}
            self._late.update(question for question, answer in found.items() if answer is late)
            answers = [
                found[question] if answer is None else answer for question, answer in zip(questions, known, strict=True)
            ]
            for word, which in (("late", late), ("unasked", rest)):
                if number := sum(answer is which for answer in answers if answer is not None):
                    self.counted[verb, word] += number
        return answers

    def _came(self, address: Address, verb: str, answers: Mapping[_Question, bytes | ServiceError]) -> None:
        """Keep answers that came together, and tell those who wait for them."""
        now_s = self._elapsed_s()
        with self._guard:
            self._under_way.difference_update(answers)
            for question, answer in answers.items():
                self._kept[question] = _Kept(answer, now_s, now_s)
                self._kept.move_to_end(question)
            while len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
            self._note(address, verb, list(answers.values()))
            self._guard.notify_all()

    def _note(self, address: Address, verb: str, answers: Sequence[bytes | ServiceError]) -> None:
        """Count what came of calls that were made together, and have the circuit know: silence counts once."""
        circuit, rest_s = self._circuits.setdefault(address.url, Circuit()), 0.0
        for answer in answers:
            is_wrong = isinstance(answer, ServiceError)
            self.counted[verb, "silent" if isinstance(answer, SilenceError) else "wrong" if is_wrong else "ok"] += 1
        silence = next((answer for answer in answers if isinstance(answer, SilenceError)), None)
        if silence is not None:
            rest_s = circuit.was_silent(self._elapsed_s(), str(silence))
        else:
            circuit.answered()
        if rest_s:
            log.warning("extender left alone", url=address.url, why=circuit.words, rest_s=rest_s)
        has_failed = any(isinstance(answer, ServiceError) for answer in answers)
        if has_failed and self._loop is not None and (rest_s or not self._tries_again):
            self._tries_again = True
            self._loop.call_later(rest_s or RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._tries_again = False
        self._on_news()

    # In the thread

    def _start(self, address: Address) -> None:
        if self._loop is not None:
            return
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="extender calls", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(address), self._loop).result()

    async def _begin(self, address: Address) -> None:
        limits = ClientLimits(connections_per_origin=AT_ONCE, body_bytes=address.most_bytes)
        self._client, self._more_told = HttpClient(limits=limits), asyncio.Condition()

    async def _end(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._client is not None:
            await self._client.close()

    async def _ask_all(self, address: Address, verb: str, bodies: dict[_Question, bytes], said: int) -> None:
        """All of them, a few at a time; after the first silence the rest is not sent."""
        assert self._more_told is not None
        async with self._more_told:
            await self._more_told.wait_for(lambda: self._told >= said)
        left = list(bodies.items())
        silence: SilenceError | None = None
        while left and silence is None:
            some, left = left[:AT_ONCE], left[AT_ONCE:]
            answers = await asyncio.gather(*(self._call_one(address, verb, body) for _, body in some))
            self._came(address, verb, {question: answer for (question, _), answer in zip(some, answers, strict=True)})
            silence = next((answer for answer in answers if isinstance(answer, SilenceError)), None)
        with self._guard:
            if silence is not None:
                now_s = self._elapsed_s()
                self._under_way.difference_update(question for question, _ in left)
                self._kept.update({question: _Kept(silence, now_s, now_s) for question, _ in left})
            is_news = not self._late.isdisjoint(bodies)
            self._late -= bodies.keys()
            self._guard.notify_all()
        if is_news:
            self._on_news()

    def _tell_on(self) -> None:
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_all(), name="extender tells")

    async def _tell_all(self) -> None:
        """One after the other, in the order in which they were said; none to a service that is left alone."""
        assert self._more_told is not None
        while self._to_tell:
            with self._guard:
                address, verb, body = self._to_tell.popleft()
                rest = self._why_not_ask(address)
                if rest is not None:
                    self.counted[verb, "untold"] += 1
            answer = await self._call_one(address, verb, body) if rest is None else None
            with self._guard:
                if answer is not None:
                    self._note(address, verb, [answer])
                self._told += 1
            async with self._more_told:
                self._more_told.notify_all()

    async def _call_one(self, address: Address, verb: str, body: bytes) -> bytes | ServiceError:
        url = f"{address.url}/{verb}"
        assert self._client is not None
        try:
            async with asyncio.timeout(address.timeout_s):
                response = await self._client.request("POST", url, _HEADERS, body, timeout_s=address.timeout_s)
        except (TimeoutError, TimedOutError):
            return SilenceError(f"extender at {url} did not answer within {address.timeout_s:g} s")
        except (ConnectFailedError, ConnectionLostError) as error:
            return SilenceError(f"extender at {url} cannot be reached: {error}")
        except (WireError, ValueError) as error:
            return ServiceError(f"extender at {url} answered wrongly: {error}")
        if response.status != 200:
            return ServiceError(f"failed {verb} with extender at URL {url}, code {response.status}")
        assert isinstance(response.body, bytes), "an answer that was read whole is bytes"
        return response.body
