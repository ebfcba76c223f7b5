"""The fast lane as Python sees it: lends sockets to the machine code, does what it is told, and takes back whatever is not plain.

One callback of the loop runs the code for all sockets that are ready. It comes back for each thing that Python has to do (`layout.Command`).
"""

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import structlog

from hekla.serving.router.house import House
from hekla.serving.router.kernel.functions import Lane as Enter
from hekla.serving.router.lane.connecting import connected
from hekla.serving.router.lane.folding import fold
from hekla.serving.router.lane.layout import (
    GATHER_S,
    TICKS_PER_S,
    Call,
    Client,
    Command,
    Endpoint,
    Engine,
    Phase,
    Reason,
    State,
)
from hekla.serving.router.lane.resuming import Resuming
from hekla.serving.router.lane.slabs import Slabs
from hekla.serving.router.lane.stopping import engine_of, stopped
from hekla.serving.router.lane.ways import Template, Ways
from hekla.serving.router.plan import Refusal
from hekla.serving.router.proxy.clients import LANE_CHANCES, ClientConnection, Doorway
from hekla.serving.router.proxy.open_connections import OpenConnections
from hekla.serving.router.reading import read
from hekla.wire.raw_heads import RefusedHeadError, read_request

_PUMP: Final = int(Call.PUMP)
_REST_COUNT: Final = int(State.REST_COUNT)
_WORTH_A_CHANCE: Final = 4
"""Requests: coming and going takes as long as the lane saves on three."""
_MOST_TRUST: Final = 64
_TRUST: Final = 2
"""New connections that are let in unheard for each one that turned out to be plain."""
_MOST_UNHEARD: Final = 1_024
"""That have not asked anything yet; who comes then is Python's: one who is plain is not to fill the rows with others who are silent."""

log = structlog.get_logger(__name__)

_ENGINES_A_MOMENT: Final = 256
"""Connections to engines that are being opened for the lane at once; who comes then is Python's."""


class Lane:
    """One router's."""

    def __init__(self, enter: Enter, house: House, doorway: Doorway, make_ways: Callable[[Slabs], Ways]) -> None:
        self._enter, self._house, self._doorway, self._clock = enter, house, doorway, house.clock
        self._pools = house.pools
        self._loop = asyncio.get_running_loop()
        self._id_prefix = os.urandom(6).hex().encode()
        self.slabs = Slabs(house.bounds, self._id_prefix)
        self._state = self.slabs.state
        self.ways = make_ways(self.slabs)
        self.ways.reckon = self.reckon
        self._epoll = select.epoll()
        self.slabs.words[State.EPOLL] = self._epoll.fileno()
        self._clients: dict[int, ClientConnection] = {}
        self._unheard: set[int] = set()
        """Rows of those that came in before they said anything, and were not seen to be plain yet."""
        self._trust = 0
        """How many such may come that are not plain, until one is again; and a head that was plain."""
        self._latest = 0
        self._resuming = Resuming(house)
        self._connecting: set[asyncio.Task[None]] = set()
        self._given_back: set[asyncio.Task[None]] = set()
        """What is on its way to Python, and goes on whatever becomes of the lane: who cut it would leave its sockets open."""

        self._word = self.slabs.words.data
        self._rest: asyncio.TimerHandle | None = None
        """When streams have rested."""
        self._tick = 0
        self.taken = 0
        """Requests that came whole through the lane."""
        self._is_closed = False

    def begin(self) -> None:
        """Take what comes from now on, once the code was seen to do what it is to do (`opening.py`)."""
        self._loop.add_reader(self._epoll.fileno(), self._ready)
        self._pools.keepers.append(self.make_room)
        self._doorway.lane = self

    # ---- in

    def consider(self, client: ClientConnection) -> None:
        """A connection whose last request was plain: take it, once what was written is gone."""
        if client.lane_chances:
            self._loop.call_soon(self._adopt, client)

    def _adopt(self, client: ClientConnection) -> None:
        if self._is_closed:  # since it was considered
            return
        memo = client.memo
        self.fold()
        template = self.ways.template(memo) if memo is not None else None
        client.lane_chances -= 1
        if template is None:
            return
        before = client.transport
        try:
            descriptor = os.dup(before.get_extra_info("socket").fileno())
        except OSError:  # none is left: it goes on as it is
            return
        before.pause_reading()
        number = self._enter(self._state, Call.ADOPT, descriptor, template.number, 0, 0, self._clock())
        if number < 0:
            os.close(descriptor)
            before.resume_reading()
            return
        before.set_protocol(asyncio.Protocol())  # it is told nothing of the end of its transport
        before.abort()
        client.go_into_lane(_InLane(self, number))
        self._clients[number] = client
        self._latest, self._trust = template.number, min(self._trust + _TRUST, _MOST_TRUST)

    def welcome(self, client: ClientConnection, one: socket.socket) -> bool:
        """Take a connection that has said nothing yet, as long as most of those before it were plain; whether it was taken."""
        if not self._trust or self._is_closed or len(self._unheard) >= _MOST_UNHEARD:
            return False
        number = self._enter(self._state, Call.ADOPT, one.fileno(), self._latest, 0, 0, self._clock())
        if number < 0:
            return False
        one.detach()
        self._doorway.connections.add(client)
        client.go_into_lane(_InLane(self, number))
        self._clients[number] = client
        self._unheard.add(number)
        return True

    # ---- what the code does

    def _ready(self, have_rested: int = 0) -> None:
        try:
            self._go_on(self._clock(), have_rested)
        except Exception:  # a mistake of ours is not to be made for every event
            log.exception("the fast lane broke and is closed")
            self.close()

    def _have_rested(self) -> None:
        self._rest = None
        self._ready(1)

    def _go_on(self, now: float, have_rested: int = 0) -> None:
        if self.ways.is_stale:
            self._refresh(now)
        tick = int(now * TICKS_PER_S)
        if tick != self._tick:
            self._tick = tick
            self.ways.keep_up(now)
        self._follow(self._enter(self._state, _PUMP, have_rested, 0, 0, 0, now), _PUMP, now)
        if self._word[_REST_COUNT] and self._rest is None and not self._is_closed:
            self._rest = self._loop.call_later(GATHER_S, self._have_rested)

    def _refresh(self, now: float) -> None:
        self.fold()
        self.ways.refresh(now)
        self._drop_moved()

    def _drop_moved(self) -> None:
        moved, self.ways.moved = self.ways.moved, []
        for slot in moved:
            self._enter(self._state, Call.DROP, slot, 0, 0, 0, 0.0)

    def _follow(self, command: int, what: int, now: float) -> None:
        """Do what the code asks for, and let it go on until it asks for nothing."""
        while command:
            self._do(command, now)
            command = self._enter(self._state, what, 0, 0, 0, 0, now)

    def _do(self, command: int, now: float) -> None:
        number = int(self.slabs.words[State.CLIENT])
        if command == Command.GONE:
            self._let_go(number).left_lane()
        elif command == Command.CONNECT:
            self._connect(number, now)
        elif command == Command.HAND_OVER:
            self._hand_over(number, now)
        elif command == Command.TAKE_OVER:
            self._take_over(number, now)
        else:
            self.fold()

    def _let_go(self, number: int) -> ClientConnection:
        if number in self._unheard:
            self._unheard.discard(number)
            was_plain = bool(self.slabs.clients[number, Client.SERVED])
            self._trust = min(self._trust + _TRUST, _MOST_TRUST) if was_plain else max(self._trust - 1, 0)
        return self._clients.pop(number)

    def _hand_over(self, number: int, now: float) -> None:
        """A request that is not for the lane, or not yet: the connection goes on in Python."""
        words, row = self.slabs.words, self.slabs.clients[number]
        data = self.slabs.buffer(int(row[Client.BUFFER]), int(row[Client.LENGTH]))
        data += self.slabs.text(int(words[State.DATA]), int(words[State.LENGTH]))
        reason, descriptor = int(words[State.REASON]), int(row[Client.FD])
        since = float(row.view("float64")[Client.SINCE]) if row[Client.PHASE] == Phase.PARTIAL else now
        if reason == Reason.UNKNOWN:
            self._learn(self.ways.heads[int(row[Client.TEMPLATE])], data, now)
        client = self._release(number)
        self._spawn(self._given_back, self._resuming.idle(client, descriptor, data, since))

    def _learn(self, template: Template, data: bytes, now: float) -> None:
        """A model was asked for of which the lane knows nothing."""
        try:
            head = read_request(data, self._house.bounds)
        except RefusedHeadError:
            return
        question = read(template.path, data[head.end :]) if head is not None else None
        if question is not None and not isinstance(question, Refusal):
            self.ways.know(template, question.model, now)
            self._drop_moved()

    def _take_over(self, number: int, now: float) -> None:
        """A request that was sent and does not go on plainly."""
        descriptor, said, is_reused = engine_of(self.slabs, number)
        what = stopped(self.slabs, self.ways, self._id_prefix, number, said, is_reused=is_reused)
        client_descriptor = int(self.slabs.clients[number, Client.FD])
        client = self._release(number)
        self._spawn(self._given_back, self._resuming.request(client, client_descriptor, descriptor, what))

    def _release(self, number: int) -> ClientConnection:
        served = int(self.slabs.clients[number, Client.SERVED])
        self._enter(self._state, Call.RELEASE, number, 0, 0, 0, 0.0)
        client = self._let_go(number)
        client.lane_chances = min(LANE_CHANCES, client.lane_chances + served // _WORTH_A_CHANCE)
        return client

    # ---- connections to engines

    def _connect(self, number: int, now: float) -> None:
        """A request waits for a connection to its engine."""
        row = self.slabs.clients[number]
        slot, generation, serial = (int(row[one]) for one in (Client.ENDPOINT, Client.GENERATION, Client.SERIAL))
        if len(self._connecting) >= _ENGINES_A_MOMENT:
            self._unconnected(number, generation, "too many connections are being opened")
            return
        attach = partial(self._attach, number, generation, slot, serial)
        self._spawn(self._connecting, connected(self._pools, self.ways.addresses[serial], attach))

    def _attach(
        self, number: int, generation: int, slot: int, serial: int, one: socket.socket | None, why: str
    ) -> bool:
        """Whether the code has the connection, and gives its count back."""
        if one is None:
            self._unconnected(number, generation, why)
            return False
        if int(self.slabs.endpoints[slot, Endpoint.SERIAL]) != serial:
            one.close()
            self._unconnected(number, generation, "the engine is gone")
            return False
        now, descriptor = self._clock(), one.detach()
        command = self._enter(self._state, Call.ATTACH, descriptor, slot, number, generation, now)
        if command < 0:
            os.close(descriptor)
            self._unconnected(number, generation, "too many connections to engines are open")
            return False
        if command:
            self._do(command, now)
        self._go_on(now)
        return True

    def make_room(self, host: str, port: int) -> None:
        """Close what is kept unused to an address."""
        for slot in self.ways.slots(host, port):
            self._enter(self._state, Call.DROP, slot, 0, 0, 0, 0.0)

    def _unconnected(self, number: int, generation: int, why: str) -> None:
        """Another engine is asked, by Python."""
        row = self.slabs.clients[number]
        if number not in self._clients or int(row[Client.GENERATION]) != generation:
            return
        log.debug("no connection for the fast lane", why=why)
        self.slabs.words[State.REASON] = Reason.UNCONNECTED
        self._take_over(number, self._clock())

    # ---- time, and the end

    def sweep(self, now: float) -> None:
        """End what takes too long."""
        try:
            self._follow(self._enter(self._state, Call.SWEEP, 0, 0, 0, 0, now), Call.SWEEP, now)
            self._hear()
        except Exception:  # likewise, and who asks for this keeps everybody's time
            log.exception("the fast lane broke and is closed")
            self.close()

    def _hear(self) -> None:
        """Of those that came in unheard, some were seen to be plain by now."""
        rows = list(self._unheard)
        served = self.slabs.clients[rows, Client.SERVED].tolist() if rows else []
        plain = [number for number, count in zip(rows, served, strict=True) if count]
        self._unheard.difference_update(plain)
        self._trust = min(self._trust + _TRUST * len(plain), _MOST_TRUST)

    def reckon(self, now: float) -> None:
        """Whose prefill is reckoned to be over by now, is over."""
        self._enter(self._state, Call.RECKON, 0, 0, 0, 0, now)

    def fold(self) -> None:
        """Put what is over on the house's list."""
        lot = fold(self.slabs, self.ways, self._id_prefix)
        if lot is not None:
            self.taken += len(lot)
            self._house.lots.append(lot)

    @property
    def connections(self) -> int:
        """Clients' connections that are in the lane."""
        return len(self._clients)

    def leave(self, number: int) -> None:
        """A connection is to end when nothing is under way on it."""
        self._ended(Call.LEAVE, number)

    def cut(self, number: int) -> None:
        """A connection is to end now."""
        self.fold()
        self._ended(Call.CUT, number)

    def _ended(self, how: Call, number: int) -> None:
        now = self._clock()
        command = self._enter(self._state, how, number, 0, 0, 0, now)
        if command:
            self._do(command, now)

    def under_way(self) -> Iterable[tuple[Any, str, int]]:
        """Where to, by which path, how many."""
        return self.ways.under_way()

    def close(self) -> None:
        """Drop everything; nothing comes into it any more. Once: its descriptors' numbers are somebody else's afterwards."""
        self._doorway.lane = None
        if self._is_closed:
            return
        self._is_closed = True
        if self._rest is not None:
            self._rest.cancel()
        if self.make_room in self._pools.keepers:
            self._pools.keepers.remove(self.make_room)
        self._loop.remove_reader(self._epoll.fileno())  # first: whatever fails below, the loop must not call for ever
        self.slabs.words[State.IS_CLOSED] = 1
        for task in self._connecting:
            task.cancel()
        for number in list(self._clients):
            self._cut_surely(number)
        for engine in self.slabs.engines[: int(self.slabs.words[State.ENGINE_HIGH])].tolist():
            if engine[Engine.PHASE]:
                with contextlib.suppress(OSError):
                    os.close(engine[Engine.FD])
                OpenConnections.from_address(engine[Engine.OPEN]).give_back()
        self._epoll.close()
        self._fold_surely()

    def _cut_surely(self, number: int) -> None:
        """One connection that cannot be cut keeps no other from it."""
        try:
            self.cut(number)
        except Exception:  # it is closed because something is broken, which may be this
            log.exception("a connection of the fast lane was not cut")

    def _fold_surely(self) -> None:
        try:
            self.fold()
        except Exception:  # likewise
            log.exception("what the fast lane did last is in no book")

    def _spawn(self, tasks: set[asyncio.Task[None]], work: Any) -> None:
        task = self._loop.create_task(work)
        tasks.add(task)
        task.add_done_callback(partial(self._ended_task, tasks))

    def _ended_task(self, tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("the fast lane could not give something back", exc_info=error)


class _InLane(asyncio.Transport):
    """Stands for a connection's transport while the lane has it."""

    def __init__(self, lane: Lane, number: int) -> None:
        super().__init__()
        self._lane, self._number = lane, number

    def close(self) -> None:
        """As soon as nothing is under way."""
        self._lane.leave(self._number)

    def abort(self) -> None:
        """Now."""
        self._lane.cut(self._number)

    def is_closing(self) -> bool:
        """Not while it stands for one."""
        return False
