"""Brings connections and requests from the fast lane back to Python, each as it would be if Python had begun it.

Sockets become transports of the loop's, which takes a turn of the loop; what came meanwhile is delivered behind what the lane had read.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Final

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.exchange import Exchange
from hekla.serving.router.house import House
from hekla.serving.router.lane.layout import Reason
from hekla.serving.router.lane.ways import Address, Facts, Template
from hekla.serving.router.local_plan import LocalPlan
from hekla.serving.router.plan import Attempt, Fault, Refusal
from hekla.serving.router.pool import Charge
from hekla.serving.router.proxy.clients import Call, ClientConnection
from hekla.serving.router.proxy.engines import EngineConnection
from hekla.serving.router.proxy.relay import Begun
from hekla.serving.router.proxy.request_headers import RequestHeaders
from hekla.serving.router.question import Question
from hekla.serving.router.reading import read
from hekla.wire.raw_heads import RequestHead, read_request

_WITHOUT_ENGINE: Final = {
    Reason.UNCONNECTED: (Fault.CONNECT, "no connection to the engine"),
    Reason.CLOSED: (Fault.CLOSED, "the engine closed the connection"),
}


Begin = Callable[[asyncio.BaseTransport], ClientConnection | EngineConnection]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A request under way in the lane, as Python takes it over; nothing of an answer was written, but of a stream that begun."""

    template: Template
    facts: Facts
    model: str
    endpoint: Endpoint
    address: Address
    """Where its connection leads, and counts."""
    data: bytes
    """The request as it came, unless its answer has begun."""
    is_stream: bool
    tokens: int
    prompt_length: int
    most_output: int
    begun: Begun | None
    request_id: bytes
    uncached: int
    context: int
    answer: int
    held: int
    ahead: int
    is_prefilled: bool
    started_at: float
    sent_at: float
    reason: Reason
    said: bytes
    """What the engine said so far."""
    unsent: int
    """Bytes at the end of the request that the engine was not sent yet."""
    is_reused: bool


class Resuming:
    """Of one lane."""

    def __init__(self, house: House) -> None:
        self._house = house

    async def idle(self, client: ClientConnection, descriptor: int, data: bytes, since: float) -> None:
        """A connection with nothing under way, and what came of a request, whose head or body began to come then."""

        def begin(transport: asyncio.BaseTransport) -> ClientConnection:
            client.come_from_lane(transport, data, since)
            return client

        if not await _entered(descriptor, begin):
            client.left_lane()

    async def request(self, client: ClientConnection, descriptor: int, engine: int, stopped: Stopped) -> None:
        """A request under way, and its engine's connection, -1: there is none."""
        made: list[tuple[Exchange, Attempt | None]] = []

        def begin(transport: asyncio.BaseTransport) -> ClientConnection:
            client.resume_from_lane(transport, lambda: self._made(client, stopped, made))
            return client

        if not await _entered(descriptor, begin):  # the client is gone, or no descriptor is left
            client.left_lane()
            client.transport = _NoTransport()
        if not made:
            self._made(client, stopped, made).abandon()
            self._close(engine, stopped)
            return
        exchange, attempt = made[0]
        if stopped.begun is not None and stopped.begun.unwritten:
            exchange.transport.write(stopped.begun.unwritten)  # now: who lags says so to a call that the client knows
        if engine < 0:
            exchange.failed(*_WITHOUT_ENGINE[stopped.reason])
        elif not await _entered(engine, self._with_engine(exchange, attempt, stopped)):
            self._house.pools.of(stopped.address).open.give_back()
            exchange.failed(*_WITHOUT_ENGINE[Reason.CLOSED])

    def _close(self, engine: int, stopped: Stopped) -> None:
        if engine >= 0:
            os.close(engine)
            self._house.pools.of(stopped.address).open.give_back()

    def _with_engine(self, exchange: Exchange, attempt: Attempt | None, stopped: Stopped) -> Begin:
        def begin(transport: asyncio.BaseTransport) -> EngineConnection:
            connection = self._house.pools.of(stopped.address).joined()
            connection.is_reused = stopped.is_reused
            connection.connection_made(transport)
            exchange.take_engine(connection, attempt, stopped.said, stopped.unsent)
            return connection

        return begin

    def _made(self, client: ClientConnection, stopped: Stopped, made: list[tuple[Exchange, Attempt | None]]) -> Call:
        """The exchange, as if it had sent the request itself."""
        house, facts = self._house, stopped.facts
        head, question = self._asked(stopped)
        traits = facts.traits
        plan = LocalPlan(
            facts.pool,
            question,
            facts.destination,
            head_timeout_s=traits.head_timeout_s,
            most_attempts=traits.most_attempts,
            retry_s=traits.retry_s,
        )
        attempt = plan.resumed(_charge(stopped), stopped.prompt_length)
        if stopped.prompt_length >= facts.pool.block_bytes:
            facts.pool.matches.note(question.model, stopped.held, question.input_tokens or 1)
        exchange = Exchange(house, client, head, stopped.template.path, stopped.started_at)
        exchange.request_id = stopped.request_id
        exchange.go_on(question, plan, attempt, stopped.sent_at)
        if stopped.begun is not None:
            exchange.go_on_streaming(stopped.begun)
        made.append((exchange, attempt if stopped.begun is None else None))
        return exchange

    def _asked(self, stopped: Stopped) -> tuple[RequestHead, Question]:
        """What was asked. Of a request whose answer has begun, nobody keeps the bytes, as nobody asks again."""
        template, user = stopped.template, stopped.facts.user
        if stopped.begun is not None:
            output, headers, wants = stopped.most_output, template.headers, not stopped.begun.leaves_usage_out
            question = Question(template.path, stopped.model, b"", stopped.tokens, output, True, wants, headers, user)
            return copy(template.head), question
        read_head = read_request(stopped.data, self._house.bounds)
        assert read_head is not None, "it was whole"
        read_head.onward = template.head.onward
        read_question = read(template.path, stopped.data[read_head.end :], RequestHeaders(read_head.lines), user)
        assert not isinstance(read_question, Refusal), "it was read"
        return read_head, read_question


def _charge(stopped: Stopped) -> Charge:
    pool = stopped.facts.pool
    charge = Charge(
        pool,
        stopped.endpoint,
        stopped.uncached,
        stopped.context,
        stopped.answer,
        stopped.ahead,
        stopped.begun.first_byte_at if stopped.begun is not None else stopped.started_at,
        stopped.started_at,
        stopped.is_stream,
        is_answered=stopped.begun is not None,
        is_prefilled=stopped.is_prefilled,
    )
    if not stopped.is_prefilled and not stopped.is_stream:
        pool.await_prefill(charge, stopped.started_at + stopped.ahead / pool.pace.prefill_rate)
    return charge


async def _entered(descriptor: int, begin: Begin) -> bool:
    """Make a transport of a descriptor; whether it could be. `begin` is called before anything is read."""
    entering = _Entering(begin)
    one: socket.socket | None = None
    try:
        one = socket.socket(fileno=descriptor)
        transport, _ = await asyncio.get_running_loop().connect_accepted_socket(lambda: entering, one)
        entering.keep_pausing(transport)
    except OSError:
        if one is not None:
            one.close()
        else:
            os.close(descriptor)
        return entering.is_made
    return entering.is_made


class _Entering(asyncio.Protocol):
    """Of a transport that is made: gives way to what `begin` makes."""

    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        self._made: ClientConnection | EngineConnection | None = None
        self.is_made = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Hand it on before anything is read."""
        self.is_made = True
        self._made = self._begin(transport)
        transport.set_protocol(self._made)

    def keep_pausing(self, transport: asyncio.Transport) -> None:
        """Who had enough at once paused in vain: uvloop reads from behind `connection_made` on, whatever was said in it."""
        if self._made is not None and self._made.is_paused and not transport.is_closing():
            transport.pause_reading()


class _NoTransport(asyncio.Transport):
    """Of a client who is gone."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """To nobody."""

    def is_closing(self) -> bool:
        """Since long."""
        return True

    def close(self) -> None:
        """It is."""

    def abort(self) -> None:
        """It is."""
