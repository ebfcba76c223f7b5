"""Connections to engines: kept for the next request, bounded per engine, and read no faster than the client takes.

One connection carries one request at a time. It knows where an answer ends and hands what comes to a receiver
(`relay.py` for the client's answer, `legs.py` for one that the router reads itself).
"""

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Protocol, cast
from weakref import WeakValueDictionary

from hekla.serving.router.plan import Fault, Target
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.open_connections import OpenConnections
from hekla.wire.chunks import OPENINGS, BrokenChunksError, Chunks
from hekla.wire.raw_heads import AnswerHead, RefusedHeadError, read_answer
from hekla.wire.together import send_together

_JOIN_UNDER = 128 * 1024
"""A body up to this size is copied behind its head: one write; a larger one is a write of its own."""
_MOST_HEADS = 32
_LONGEST_HEAD = 2048
_MOST_INTERIM = 16
"""Answers of 1xx before one answer: an engine with more of them talks nonsense."""


class Receiver(Protocol):
    """Takes one answer. After `ended` or `failed` nothing more comes."""

    wants_payload: bool
    """Whether `piece` needs the payload out of its chunks."""

    def answered(self, head: AnswerHead, data: bytes) -> bool:
        """The head came, the first `head.end` bytes of `data`; False: the rest is not wanted, and the connection is cut."""

    def whole(self, head: AnswerHead, data: bytes) -> None:
        """Instead of the others: a whole answer with a length in one piece; the connection is free already."""

    def steady(self) -> Callable[[bytes], bool] | None:
        """Takes chunks from here on by their opening alone; it looks at how one ends. False: not this one. None: not now."""

    def piece(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """A part of the body as it came, and its payload if wanted; `is_last` comes with the end of a body that has one."""

    def ended(self) -> None:
        """The answer is whole; the connection is free already."""

    def failed(self, fault: Fault, why: str) -> None:
        """The answer ended early, or never began."""


class EngineConnection(asyncio.Protocol):
    """One connection to one engine."""

    __slots__ = (
        "_chunks",
        "_head",
        "_interim",
        "_left",
        "_partial",
        "_pool",
        "_receiver",
        "_steady",
        "has_spoken",
        "idle_since",
        "is_counted",
        "is_paused",
        "is_reused",
        "transport",
    )

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._receiver: Receiver | None = None
        self._head: AnswerHead | None = None
        self._partial = b""
        self._left = self._interim = 0
        self._chunks: Chunks | None = None
        self._steady: Callable[[bytes], bool] | None = None
        """The short way of a stream's chunks, while it stands between two of them."""
        self.transport: asyncio.Transport | None = None
        self.is_counted = True
        """Whether it still counts as open."""
        self.is_paused = False
        """Whether nothing is to be read for now."""
        self.is_reused = False
        self.has_spoken = False
        """Whether a byte of the present answer came."""
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for a request."""
        self.transport = cast(asyncio.Transport, transport)

    @property
    def is_between_chunks(self) -> bool:
        """Whether a chunk may be written behind what came so far."""
        return self._chunks is not None and self._chunks.is_between

    def start(self, receiver: Receiver, head: bytes, body: bytes) -> None:
        """Send a request; its answer goes to the receiver."""
        self._receiver, self._head, self.has_spoken = receiver, None, False
        self._steady, self._interim = None, 0
        transport = self.transport
        assert transport is not None
        if len(body) < _JOIN_UNDER:
            transport.write(head + body)
        else:
            send_together(transport, head, body)

    def go_on(self, receiver: Receiver, said: bytes, unsent: bytes, head: AnswerHead | None) -> None:
        """A request was sent already, but for what is left of it; so much of the answer came, behind whole chunks where its head is known."""
        self._receiver, self._head, self.has_spoken = receiver, head, head is not None
        if head is not None:
            self._chunks = Chunks()
        if unsent and self.transport is not None:
            self.transport.write(unsent)
        if said:
            self.data_received(said)

    def pause(self) -> None:
        """Read no more for now: the client lags."""
        self.is_paused = True
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self.is_paused = False
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Drop it at once: the engine stops generating."""
        self._receiver = self._steady = None
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on what came; the common case is one whole piece of a known body."""
        steady = self._steady
        if steady is not None and data.startswith(OPENINGS[len(data)]) and steady(data):
            return
        receiver = self._receiver
        if receiver is None:
            self.abort()  # it speaks without being asked
            return
        if self._head is None:
            self._take_head(receiver, data)
        elif self._chunks is not None:
            self._take_chunks(receiver, self._chunks, data)
        else:
            self._take_body(receiver, data)

    def _take_head(self, receiver: Receiver, data: bytes) -> None:
        self.has_spoken = True
        if self._partial:
            data, self._partial = self._partial + data, b""
        known = self._pool.heads.get(data[: data.find(b"\r\n\r\n") + 4])
        if known is not None:
            self._begin_body(receiver, known, data)
            return
        try:
            head = read_answer(data, self._pool.bounds)
        except RefusedHeadError as error:
            self._fail(Fault.GARBAGE, error.sentence)
            return
        if head is None:
            self._partial = data
        elif head.status < 200:
            self._skip_interim(receiver, head, data)
        else:
            self._pool.remember(head, data)
            self._begin_body(receiver, head, data)

    def _skip_interim(self, receiver: Receiver, head: AnswerHead, data: bytes) -> None:
        """100 and 103 concern this hop; 101 was not asked for."""
        self._interim += 1
        if self._interim > _MOST_INTERIM:
            self._fail(Fault.GARBAGE, f"the engine sent more than {_MOST_INTERIM} interim answers")
        elif head.status == 101:
            self._fail(Fault.GARBAGE, "the engine switched protocols without being asked")
        elif len(data) > head.end:
            self._take_head(receiver, data[head.end :])

    def _begin_body(self, receiver: Receiver, head: AnswerHead, data: bytes) -> None:
        if len(data) == head.end + head.body_length and head.keeps_alive and not head.is_event_stream:
            self._receiver = None
            self._pool.give_back(self)
            receiver.whole(head, data)
            return
        self._head, self._chunks = head, None
        if head.is_chunked:
            self._chunks = Chunks()
        self._left = head.body_length
        if not receiver.answered(head, data):
            self.abort()
            return
        rest = data[head.end :]
        if rest or head.body_length == 0:
            self._take_body(receiver, rest)

    def _take_body(self, receiver: Receiver, data: bytes) -> None:
        chunks = self._chunks
        if chunks is not None:
            self._take_chunks(receiver, chunks, data)
            return
        left = self._left
        if left < 0:  # until it closes
            receiver.piece(data, [data] if receiver.wants_payload else None, False)
            return
        count = len(data)
        if count < left:
            self._left = left - count
            receiver.piece(data, [data] if receiver.wants_payload else None, False)
            return
        self._end(receiver, data[:left] if count > left else data, None, is_clean=count == left)

    def _take_chunks(self, receiver: Receiver, chunks: Chunks, data: bytes) -> None:
        payload: list[bytes] | None = [] if receiver.wants_payload else None
        try:
            end = chunks.feed(data, payload)
        except BrokenChunksError as error:
            self._fail(Fault.GARBAGE, str(error))
            return
        if end < 0:
            receiver.piece(data, payload, False)
            self._steady = receiver.steady() if chunks.is_between and self._receiver is receiver else None
        else:
            self._end(receiver, data[:end], payload, is_clean=end == len(data))

    def _end(self, receiver: Receiver, data: bytes, payload: list[bytes] | None, *, is_clean: bool) -> None:
        """The last piece: free the connection first, so that what follows from the end of the answer finds it."""
        self._steady = None
        if payload is None and receiver.wants_payload:
            payload = [data] if data else []
        receiver.piece(data, payload, True)
        if self._receiver is not receiver:
            return  # the piece could not be written, and the exchange gave up
        self._receiver = None
        head = self._head
        assert head is not None
        if is_clean and head.keeps_alive:
            self._pool.give_back(self)
        else:
            self.abort()
        receiver.ended()

    def _fail(self, fault: Fault, why: str) -> None:
        receiver = self._receiver
        self.abort()
        if receiver is not None:
            receiver.failed(fault, why)

    def eof_received(self) -> bool:
        """An answer without a length ends here; any other was cut short."""
        receiver, head = self._receiver, self._head
        if receiver is not None and head is not None and self._chunks is None and self._left < 0:
            receiver.piece(b"", [] if receiver.wants_payload else None, True)
            if self._receiver is receiver:
                self._receiver = None
                receiver.ended()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The engine is gone, or was dropped."""
        self._pool.lost(self)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            why = f": {error.strerror or error}" if isinstance(error, OSError) else ""
            receiver.failed(Fault.CLOSED, f"the engine closed the connection{why}")


class Pool:
    """The connections to one address."""

    def __init__(self, pools: "Pools", target: Target) -> None:
        self._pools = pools
        self.bounds = pools.own_bounds.get((target.host, target.port), pools.bounds)
        self._host, self._port = target.host, target.port
        self._is_tls, self._verifies = target.is_tls, target.verifies
        self.idle: list[EngineConnection] = []
        self.open = pools.open_to(target.host, target.port)
        self.heads: dict[bytes, AnswerHead] = {}
        """Heads of late answers by their bytes: streams begin alike, and reading one takes 5 us."""

    @property
    def is_full(self) -> bool:
        """Whether as many connections as there may be are open to that address: an engine that is there and refused by us."""
        return self.open.count >= self.bounds.engine_connections

    def remember(self, head: AnswerHead, data: bytes) -> None:
        """Keep a head for the next answer that begins so."""
        if len(self.heads) >= _MOST_HEADS:
            self.heads.clear()
        if head.end <= _LONGEST_HEAD:
            self.heads[data[: head.end]] = head

    def take(self) -> EngineConnection | None:
        """A kept connection, the one used last; the others may thus grow old."""
        idle = self.idle
        while idle:
            connection = idle.pop()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                connection.is_reused = True
                return connection
        return None

    def give_back(self, connection: EngineConnection) -> None:
        """The answer is whole: keep the connection, up to a bound."""
        if connection.is_paused:  # whoever lagged at the last piece is not the next one
            connection.resume()
        if len(self.idle) < self.bounds.engine_idle_connections and not self._pools.is_closed:
            connection.idle_since = self._pools.now
            self.idle.append(connection)
        else:
            connection.abort()

    def joined(self) -> EngineConnection:
        """A connection that somebody else opened and counted, and that is this pool's from now on."""
        return EngineConnection(self)

    def lost(self, connection: EngineConnection) -> None:
        """A connection is gone; may be said twice."""
        if connection.is_counted:
            connection.is_counted = False
            self.open.give_back()
        if connection.idle_since and connection in self.idle:
            self.idle.remove(connection)

    def connect(self, done: Callable[[EngineConnection | None, str], None]) -> "asyncio.Task[None]":
        """Open a connection and hand it to `done`, or None and why not; cancel the task to give up."""
        return self._pools.spawn(self._connect(done))

    async def _connect(self, done: Callable[[EngineConnection | None, str], None]) -> None:
        try:
            connection = await self._opened()
        except TimeoutError:
            done(None, f"no connection to {self._host}:{self._port} within {self.bounds.connect_timeout_s:g} s")
        except (OSError, ssl.SSLError) as error:
            done(None, f"no connection to {self._host}:{self._port}: {error.strerror or error}")
        else:
            done(connection, "")

    async def _opened(self) -> EngineConnection:
        make_room = partial(self._pools.make_room, self._host, self._port)
        if not await self.open.take(self.bounds.engine_connections, make_room):
            raise OSError(0, f"{self.open.count} connections to it are open already")
        connection = EngineConnection(self)
        is_made = False
        try:
            async with asyncio.timeout(self.bounds.connect_timeout_s):
                await asyncio.get_running_loop().create_connection(
                    lambda: connection,
                    self._host,
                    self._port,
                    ssl=self._pools.tls_context(verifies=self._verifies) if self._is_tls else None,
                    server_hostname=self._host if self._is_tls else None,
                )
            is_made = True
        finally:
            if not is_made:
                connection.abort()
                self.lost(connection)
        return connection

    def sweep(self, before: float) -> None:
        """Close what was kept unused for too long."""
        old = [one for one in self.idle if one.idle_since < before]
        self.idle = [one for one in self.idle if one.idle_since >= before]
        for connection in old:
            connection.abort()


class Pools:
    """The pools of a router, one for each address that was asked."""

    def __init__(self, bounds: Bounds, engine_ca_file: str = "") -> None:
        self.bounds = bounds
        self.own_bounds: dict[tuple[str, int], Bounds] = {}
        """Of engines whose ModelServer says other bounds than the router's."""
        self.now = 0.0
        """Coarse: of the last sweep."""
        self.is_closed = False
        self._engine_ca_file = engine_ca_file
        self.keepers: list[Callable[[str, int], None]] = []
        """Who else keeps connections unused, and closes those to an address when there is no room for another."""
        self._pools: dict[tuple[str, int, bool, bool], Pool] = {}
        self._open: WeakValueDictionary[tuple[str, int], OpenConnections] = WeakValueDictionary()
        self._connecting: set[asyncio.Task[None]] = set()
        self._contexts: dict[bool, ssl.SSLContext] = {}

    def of(self, target: Target) -> Pool:
        """The pool of a target's address."""
        key = (target.host, target.port, target.is_tls, target.verifies)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool(self, target)
        return pool

    def open_to(self, host: str, port: int) -> OpenConnections:
        """What counts as open to an address, by whatever protocol; whoever opens connections to it holds on to this."""
        found = self._open.get((host, port))
        if found is None:
            found = self._open[host, port] = OpenConnections()
        return found

    def make_room(self, host: str, port: int) -> None:
        """Close a connection to an address that is kept unused, if there is one."""
        for (its_host, its_port, *_), pool in self._pools.items():
            if (its_host, its_port) == (host, port) and pool.idle:
                pool.idle.pop(0).abort()
                return
        for keeper in self.keepers:
            keeper(host, port)

    def bound(self, host: str, port: int, bounds: Bounds | None) -> None:
        """Keep to these bounds with one engine from now on; None: to the router's."""
        if bounds is None:
            self.own_bounds.pop((host, port), None)
        else:
            self.own_bounds[host, port] = bounds
        for (its_host, its_port, *_), pool in self._pools.items():
            if (its_host, its_port) == (host, port):
                pool.bounds = bounds or self.bounds

    def spawn(self, connecting: "asyncio._CoroutineLike[None]") -> "asyncio.Task[None]":
        """Run one connecting, and hold it until it is done."""
        task = asyncio.get_running_loop().create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    def tls_context(self, *, verifies: bool) -> ssl.SSLContext:
        """Providers, which have names, are verified; pods, which have addresses, only against a CA that was given.

        A pod's certificate cannot name its address; Kubernetes' own probes verify it no more than we do.
        """
        if verifies not in self._contexts:
            self._contexts[verifies] = self._new_context(verifies)
        return self._contexts[verifies]

    def _new_context(self, verifies: bool) -> ssl.SSLContext:
        if verifies:
            return ssl.create_default_context()
        context = ssl.create_default_context(cafile=self._engine_ca_file or None)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED if self._engine_ca_file else ssl.CERT_NONE
        return context

    def sweep(self, now: float) -> None:
        """Close kept connections that are old, and forget addresses that nobody asks any more."""
        self.now = now
        for key, pool in tuple(self._pools.items()):
            pool.sweep(now - pool.bounds.engine_idle_s)
            if not pool.open.count and not pool.idle:
                del self._pools[key]

    def close(self) -> None:
        """Drop kept connections and keep none from now on."""
        self.is_closed = True
        for pool in self._pools.values():
            pool.sweep(float("inf"))
        for task in self._connecting:
            task.cancel()
