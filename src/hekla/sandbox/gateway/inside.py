"""Connections to servers inside sandboxes: opened along the link's way, kept for the next request, read no faster than the client takes.

One connection carries one request at a time. It knows where an answer ends, and hands what comes to a receiver (`relay.py`).
"""

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, cast

from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.link import LinkError, NotYetError, SandboxGoneError, Way
from hekla.wire.chunks import BrokenChunksError, Chunks
from hekla.wire.raw_heads import AnswerHead, RefusedHeadError, read_answer

Key = tuple[str, str, int]
"""Namespace, pod and port."""
_MOST_HEADS = 64
_LONGEST_HEAD = 2048
_WAITED_LONG = frozenset({503, 504})
"""Of one that was opened ahead: who waited for it has waited as long as he would for his own."""
LOOK_AGAIN_S = 0.05
"""Between two looks at a node that is starting."""


class Receiver(Protocol):
    """Takes one answer. After `ended` or `failed` nothing more comes."""

    is_head: bool
    """Whether the answer has a head alone."""
    is_sent: bool
    """Whether the whole request was sent; the connection of one that was not is not kept."""
    wants_upgrade: bool
    wants_payload: bool

    def answered(self, head: AnswerHead) -> None:
        """The head came."""

    def upgraded(self, head: AnswerHead) -> None:
        """The server took the upgrade: bytes from now on."""

    def piece(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """A part of the body as it came, and its payload if wanted."""

    def ended(self) -> None:
        """The answer is whole; the connection is free already."""

    def failed(self, why: str, *, may_repeat: bool) -> None:
        """The answer ended early, or never began; `may_repeat`: the connection was kept and nothing came on it."""

    def lags(self, is_behind: bool) -> None:
        """The server inside reads slower than the client sends, or caught up."""


class Inside(asyncio.Protocol):
    """One connection to one port of one sandbox."""

    __slots__ = (
        "_chunks", "_head", "_is_tunnel", "_left", "_partial", "_pool", "_receiver", "_transport", "has_spoken", "idle_since",
        "is_reused",
    )  # fmt: skip

    def __init__(self, pool: "InsidePool") -> None:
        self._pool = pool
        self._receiver: Receiver | None = None
        self._head: AnswerHead | None = None
        self._partial = b""
        self._left = 0
        self._chunks: Chunks | None = None
        self._is_tunnel = False
        self._transport: asyncio.Transport | None = None
        self.is_reused = False
        self.has_spoken = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ready for a request."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._pool.bounds.write_ahead_bytes)

    @property
    def is_usable(self) -> bool:
        """Whether a request may be put on it."""
        return self._transport is not None and not self._transport.is_closing()

    def start(self, receiver: Receiver, head: bytes) -> None:
        """Send the head of a request; its answer goes to the receiver."""
        self._receiver, self._head, self.has_spoken = receiver, None, False
        self.write(head)

    def write(self, data: bytes) -> None:
        """Send a part of a request's body, or of a tunnel."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Read no more for now: the client lags."""
        if self.is_usable:
            assert self._transport is not None
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.is_usable:
            assert self._transport is not None
            self._transport.resume_reading()

    def pause_writing(self) -> None:
        """The server inside lags."""
        if self._receiver is not None:
            self._receiver.lags(True)

    def resume_writing(self) -> None:
        """It caught up."""
        if self._receiver is not None:
            self._receiver.lags(False)

    def abort(self) -> None:
        """Drop it at once: the server inside sees that nobody waits."""
        self._receiver = None
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Hand on what came."""
        receiver = self._receiver
        if receiver is None:
            self.abort()  # it speaks without being asked
        elif self._is_tunnel:
            receiver.piece(data, None, False)
        elif self._head is None:
            self._take_head(receiver, data)
        elif self._chunks is not None:
            self._take_chunks(receiver, self._chunks, data)
        else:
            self._take_body(receiver, data)

    def _take_head(self, receiver: Receiver, data: bytes) -> None:
        self.has_spoken = True
        if self._partial:
            data, self._partial = self._partial + data, b""
        end = data.find(b"\r\n\r\n") + 4
        head = self._pool.heads.get(data[:end]) if end > 3 else None
        if head is None:
            try:
                head = read_answer(data, self._pool.bounds)
            except RefusedHeadError:
                self._fail("the server inside does not speak HTTP/1.1")
                return
            if head is None:
                self._partial = data
                return
            self._pool.remember(head, data)
        rest = data[head.end :]
        if head.status == 101 and receiver.wants_upgrade:
            self._head, self._is_tunnel = head, True
            receiver.upgraded(head)
            if rest:
                receiver.piece(rest, None, False)
        elif head.status < 200:
            if head.status == 101:
                self._fail("the server inside switched protocols without being asked")
            elif rest:
                self._take_head(receiver, rest)
        else:
            self._begin_body(receiver, head, rest)

    def _begin_body(self, receiver: Receiver, head: AnswerHead, rest: bytes) -> None:
        self._head = head
        self._chunks = Chunks() if head.is_chunked and not receiver.is_head else None
        self._left = 0 if receiver.is_head else head.body_length
        receiver.answered(head)
        if self._receiver is receiver and (rest or not self._left):
            if self._chunks is None:
                self._take_body(receiver, rest)
            elif rest:
                self._take_chunks(receiver, self._chunks, rest)

    def _take_body(self, receiver: Receiver, data: bytes) -> None:
        left, count = self._left, len(data)
        if left < 0 or count < left:  # until it closes, or goes on
            self._left = left if left < 0 else left - count
            if data:
                receiver.piece(data, [data] if receiver.wants_payload else None, False)
            return
        self._end(receiver, data[:left] if count > left else data, None, is_clean=count == left)

    def _take_chunks(self, receiver: Receiver, chunks: Chunks, data: bytes) -> None:
        payload: list[bytes] | None = [] if receiver.wants_payload else None
        try:
            end = chunks.feed(data, payload)
        except BrokenChunksError:
            self._fail("the answer of the server inside is broken")
            return
        if end < 0:
            receiver.piece(data, payload, False)
        else:
            self._end(receiver, data[:end], payload, is_clean=end == len(data))

    def _end(self, receiver: Receiver, data: bytes, payload: list[bytes] | None, *, is_clean: bool) -> None:
        if payload is None and receiver.wants_payload:
            payload = [data] if data else []
        receiver.piece(data, payload, True)
        if self._receiver is not receiver:
            return
        self._receiver = None
        head = self._head
        assert head is not None
        if is_clean and head.keeps_alive and receiver.is_sent:
            self._pool.give_back(self)
        else:
            self.abort()
        receiver.ended()

    def _fail(self, why: str) -> None:
        receiver, may_repeat = self._receiver, self.is_reused and not self.has_spoken
        self.abort()
        if receiver is not None:
            receiver.failed(why, may_repeat=may_repeat)

    def eof_received(self) -> bool:
        """An answer without a length ends here, and so does a tunnel; any other was cut short."""
        receiver, head = self._receiver, self._head
        if receiver is not None and head is not None and self._chunks is None and (self._left < 0 or self._is_tunnel):
            self._receiver = None
            receiver.piece(b"", [] if receiver.wants_payload else None, True)
            receiver.ended()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """The server inside is gone, or was dropped."""
        self._pool.lost(self)
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.failed(
                "the server inside closed the connection", may_repeat=self.is_reused and not self.has_spoken
            )


class InsidePool:
    """The kept connections to one port of one sandbox, and the way there."""

    def __init__(self, pools: "InsidePools", key: Key, way: Way) -> None:
        self._pools, self._key = pools, key
        self.way = way
        self.bounds = pools.bounds
        self.idle: list[Inside] = []
        self.heads = pools.heads
        self.used_s = pools.now
        """When a request was last begun or ended, coarsely."""
        self.is_at_head = False
        """Whether its sandbox is among those that are claimed next: what is idle stays."""
        self._ahead: asyncio.Task[None] | None = None
        """Opens one that nobody has asked for yet."""
        self._in_vain = 0, ""
        """Why the last such was not opened."""

    def remember(self, head: AnswerHead, data: bytes) -> None:
        """Keep a head for the next answer that begins so: reading one takes 5 us."""
        if len(self.heads) >= _MOST_HEADS:
            self.heads.clear()
        if head.end <= _LONGEST_HEAD:
            self.heads[data[: head.end]] = head

    def take(self) -> Inside | None:
        """A kept connection, the one used last."""
        self.used_s = self._pools.now
        while self.idle:
            connection = self.idle.pop()
            if connection.is_usable:
                connection.is_reused = True
                return connection
        return None

    def give_back(self, connection: Inside) -> None:
        """The answer is whole: keep the connection, up to a bound."""
        if len(self.idle) < self.bounds.inside_idle_connections and self._pools.has(self._key, self):
            self.used_s = connection.idle_since = self._pools.now
            self.idle.append(connection)
        else:
            connection.abort()

    def cool(self) -> None:
        """It is claimed, or another is before it: what is idle stays as long as any that was just used."""
        self.is_at_head = False
        self.used_s = self._pools.now
        for connection in self.idle:
            connection.idle_since = self._pools.now

    def lost(self, connection: Inside) -> None:
        """A connection is gone."""
        if connection in self.idle:
            self.idle.remove(connection)

    def connect(self, done: Callable[[Inside | None, int, str], None]) -> "asyncio.Task[None]":
        """Open a connection and hand it to `done`, or None with a status and why not; cancel the task to give up."""
        return self._pools.spawn(self._connect(done))

    def connect_ahead(self) -> None:
        """Open one for whoever asks next. Who asks meanwhile waits for it: a server inside that is to let in two is later with both."""
        if not self.idle and self._ahead is None:
            self._in_vain = 0, ""
            self._ahead = self._pools.spawn(self._open(self._keep))
            self._ahead.add_done_callback(self._over)

    def _keep(self, connection: Inside | None, status: int, why: str) -> None:
        if connection is not None:
            self.give_back(connection)
        else:
            self._in_vain = status, why

    def _over(self, opening: "asyncio.Task[None]") -> None:
        if self._ahead is opening:
            self._ahead = None

    async def _connect(self, done: Callable[[Inside | None, int, str], None]) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            await asyncio.wait({ahead})
            if (kept := self.take()) is not None:
                done(kept, 0, "")
                return
            status, why = self._in_vain
            if status in _WAITED_LONG:
                done(None, status, why)
                return
        await self._open(done)

    async def _open(self, done: Callable[[Inside | None, int, str], None]) -> None:
        made: list[Inside] = []

        def make() -> Inside:
            made.append(Inside(self))
            return made[-1]

        try:
            await self._connect_in_time(make)
        except TimeoutError:
            done(None, 504, f"no connection within {self.bounds.connect_timeout_s:g} s")
        except LinkError as error:
            status = 404 if isinstance(error, SandboxGoneError) else 503 if isinstance(error, NotYetError) else 502
            done(None, status, str(error))
        except OSError as error:
            done(None, 502, error.strerror or str(error))
        else:
            done(made[-1], 0, "")

    async def _connect_in_time(self, make: Callable[[], Inside]) -> None:
        """A node that is starting again is waited for: who asks meanwhile is held, and told 503 if it takes too long."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + self.bounds.node_patience_s
        while True:
            try:
                async with asyncio.timeout(self.bounds.connect_timeout_s):
                    await self.way.connect(make)
                return
            except NotYetError:
                if loop.time() >= patience:
                    raise
            await asyncio.sleep(LOOK_AGAIN_S)


class InsidePools:
    """The pools of a gateway."""

    def __init__(self, bounds: Bounds, way: Callable[[str, str, int], Way]) -> None:
        self.bounds = bounds
        self._way = way
        self._pools: dict[Key, InsidePool] = {}
        self._connecting: set[asyncio.Task[Any]] = set()
        self.now = 0.0
        """Coarse: of the last sweep."""
        self.heads: dict[bytes, AnswerHead] = {}

    def of(self, key: Key) -> InsidePool:
        """The pool of a port."""
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = InsidePool(self, key, self._way(*key))
        return pool

    def has(self, key: Key, pool: InsidePool) -> bool:
        """Whether a pool is still the one of its port."""
        return self._pools.get(key) is pool

    def forget(self, namespace: str, pod: str) -> None:
        """A sandbox is gone, or is another one now."""
        for key in [key for key in self._pools if key[:2] == (namespace, pod)]:
            for connection in self._pools.pop(key).idle:
                connection.abort()

    def spawn(self, connecting: Any) -> "asyncio.Task[None]":
        """Run one connecting, and hold it until it is done."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return task

    def sweep(self, now: float) -> None:
        """Close what was kept unused for too long."""
        self.now = now
        for key, pool in tuple(self._pools.items()):
            if pool.is_at_head:
                pool.used_s = now
                continue
            for connection in [one for one in pool.idle if now - one.idle_since > self.bounds.inside_idle_s]:
                pool.idle.remove(connection)
                connection.abort()
            if not pool.idle and now - pool.used_s > self.bounds.inside_idle_s:
                del self._pools[key]

    def close(self) -> None:
        """Drop all kept connections."""
        for task in self._connecting:
            task.cancel()
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            for connection in pool.idle:
                connection.abort()
