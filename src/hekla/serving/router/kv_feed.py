"""Subscribes to what engines publish about their KV caches, and asks again for what was missed.

The shell of `prefix/following.py`, which has the rules, and `prefix/kv_events.py`, which reads; whoever keeps the index takes both's
results through `Sink`. One feed per publisher; a feed that breaks is begun anew from nothing and harms no other.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, Final, Protocol

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.prefix.following import Apply, Ask, Following, Forget, Step
from hekla.serving.router.prefix.kv_events import Batch, KvEventError, read_batch

AGAIN_S: Final = 1.0
REPLAY_TIMEOUT_S: Final = 10.0
"""From one message of a replay to the next; beyond it what is missing is given up."""
MOST_RECEIVED: Final = 1_000
"""Messages that wait in a socket; ZeroMQ drops what comes then, and the gap is asked for."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of a message, of 50,000 blocks; ZeroMQ ends a connection by which a larger one comes. An engine's step stores a few thousand."""
SLICE_S: Final = 0.002
"""So long all feeds work in one go; then requests have as long."""
_EVERYTHING: Final = b""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Publisher:
    """Where an engine publishes."""

    events: str
    """tcp://10.0.0.7:5557"""
    replay: str = ""
    """Where missed messages are asked for; empty: nowhere, and a gap makes the feed begin anew."""


class Sink(Protocol):
    """Takes what feeds bring; called from the loop that runs them."""

    def take_in(self, endpoint: Endpoint, batch: Batch) -> None:
        """The next events of an engine."""

    def forget(self, endpoint: Endpoint) -> None:
        """What was known of it by events is not so any more."""


class Turns:
    """Has all feeds of a router together take half of its time at most, whatever engines send.

    What waits in a socket is received without a pause for the loop: an engine that told all it had, or that tells without end, kept
    every request waiting for 8 to 20 s.
    """

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._worked_s = self._rest_s = 0.0
        self._resting = asyncio.Lock()

    async def mine(self) -> None:
        """Go on, after the rest that is due."""
        async with self._resting:
            rest_s, self._rest_s = self._rest_s, 0.0
            if rest_s:
                await asyncio.sleep(rest_s)

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Count what is done in it."""
        began = self.clock()
        try:
            yield
        finally:
            self._worked_s += self.clock() - began
            if self._worked_s >= SLICE_S:
                self._rest_s, self._worked_s = self._worked_s, 0.0


class Feed:
    """One publisher followed."""

    def __init__(
        self,
        context: zmq.asyncio.Context,
        endpoint: Endpoint,
        publisher: Publisher,
        sink: Sink,
        turns: Turns | None = None,
    ) -> None:
        """`turns` are those of all feeds; None: it is the only one."""
        self._turns = turns or Turns()
        self._context = context
        self._endpoint = endpoint
        self._publisher = publisher
        self._sink = sink
        self._asked = asyncio.Event()
        self._order = asyncio.Lock()
        self._start = 0
        self.following = Following()
        self.messages = 0
        self.faults = 0
        """Messages that could not be read."""
        self.gaps = 0
        self.is_connected = False

    async def run(self) -> None:
        """Follow until cancelled, whatever happens."""
        while True:
            try:
                await self._follow()
            except* (zmq.ZMQError, OSError, ValueError) as errors:
                first = errors.exceptions[0]
                log.warning("kv feed broken", engine=self._endpoint.name, at=self._publisher.events, why=str(first))
            await self._take(self.following.disconnected)
            await asyncio.sleep(AGAIN_S)

    async def _follow(self) -> None:
        events = self._context.socket(zmq.SUB)
        events.setsockopt(zmq.RCVHWM, MOST_RECEIVED)
        events.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        events.setsockopt(zmq.RECONNECT_IVL, 100)
        events.setsockopt(zmq.RECONNECT_IVL_MAX, 2_000)
        events.setsockopt(zmq.LINGER, 0)
        monitor = events.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        try:
            events.subscribe(_EVERYTHING)
            events.connect(self._publisher.events)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._watch(monitor))
                group.create_task(self._receive(events))
                if self._publisher.replay:
                    group.create_task(self._replay())
        finally:
            self.is_connected = False
            events.disable_monitor()
            events.close(linger=0)

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        while True:
            told: Any = await recv_monitor_message(monitor)
            self.is_connected = told["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if not self.is_connected:
                await self._take(self.following.disconnected)
            elif self._publisher.replay:
                self.following.next = 0  # an engine that is idle tells nothing by itself of what it holds
                self._ask(0)

    async def _receive(self, events: zmq.asyncio.Socket) -> None:
        while True:
            frames = await events.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                self.faults += 1
                continue
            self.messages += 1
            await self._take(partial(self.following.received, int.from_bytes(frames[1], "big"), frames[2]))

    async def _replay(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            asking = self._context.socket(zmq.DEALER)
            asking.setsockopt(zmq.LINGER, 0)
            asking.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
            try:
                asking.connect(self._publisher.replay)
                await asking.send_multipart((b"", self._start.to_bytes(8, "big")))
                with contextlib.suppress(TimeoutError):
                    await self._take_replay(asking)
            finally:
                asking.close(linger=0)
            await self._take(self.following.replay_ended)

    async def _take_replay(self, asking: zmq.asyncio.Socket) -> None:
        while True:
            async with asyncio.timeout(REPLAY_TIMEOUT_S):
                frames = await asking.recv_multipart()
            number, payload = frames[-2:] if len(frames) >= 2 else (b"", b"")  # with the topic before them, or without
            if len(number) != 8 or int.from_bytes(number, "big", signed=True) < 0:
                return
            await self._take(partial(self.following.replayed, int.from_bytes(number, "big"), payload))

    def _ask(self, start: int) -> None:
        self._start = start
        self._asked.set()

    async def _take(self, news: Callable[[], list[Step]]) -> None:
        """Do what follows from news, all of it before what follows from others."""
        async with self._order:
            await self._carry_out(news())

    async def _carry_out(self, steps: list[Step]) -> None:
        for step in steps:
            match step:
                case Apply(payload):
                    await self._turns.mine()
                    with self._turns.working():
                        self._apply(payload)
                case Ask(start):
                    self.gaps += 1
                    if self._publisher.replay:
                        self._ask(start)
                    else:
                        await self._carry_out(self.following.replay_ended())
                case Forget(reason):
                    log.info("kv events forgotten", engine=self._endpoint.name, why=reason)
                    self._sink.forget(self._endpoint)

    def _apply(self, payload: bytes) -> None:
        try:
            batch = read_batch(payload)
        except KvEventError as error:
            self.faults += 1
            log.warning("kv events unreadable", engine=self._endpoint.name, why=str(error))
            return
        self.faults += batch.skipped
        self._sink.take_in(self._endpoint, batch)


class Feeds:
    """The feeds of all engines that publish; `run` must run beside it."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._context = zmq.asyncio.Context()
        self._wanted: dict[Endpoint, Publisher] = {}
        self._running: dict[Endpoint, tuple[Publisher, Feed, asyncio.Task[None]]] = {}
        self._changed = asyncio.Event()
        self._turns = Turns()

    def follow(self, wanted: dict[Endpoint, Publisher]) -> None:
        """Follow these and no others from now on."""
        if wanted != self._wanted:
            self._wanted = dict(wanted)
            self._changed.set()

    def feeds(self) -> dict[str, Feed]:
        """By the engines' names, for metrics."""
        return {endpoint.name: feed for endpoint, (_, feed, _) in self._running.items()}

    async def run(self) -> None:
        """Begin and end feeds until cancelled."""
        try:
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._end([one for one, (at, _, _) in self._running.items() if self._wanted.get(one) != at])
                for endpoint, publisher in self._wanted.items():
                    if endpoint not in self._running:
                        feed = Feed(self._context, endpoint, publisher, self._sink, self._turns)
                        self._running[endpoint] = publisher, feed, asyncio.create_task(feed.run())
        finally:
            await self._end(list(self._running))
            self._context.destroy(linger=0)

    async def _end(self, endpoints: list[Endpoint]) -> None:
        ending = [self._running.pop(one)[2] for one in endpoints]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for endpoint in endpoints:
            self._sink.forget(endpoint)
