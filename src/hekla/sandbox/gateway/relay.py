"""One request on its way to a sandbox and back: wakes the sandbox if it sleeps, sends the body as it comes, passes the answer on.

What was read of the body before the connection stood is held; beyond 64 KiB the client is not read meanwhile. Whoever lags is waited for.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from hekla.sandbox.gateway.answers import JSON, whole
from hekla.sandbox.gateway.inside import Inside, InsidePool
from hekla.sandbox.gateway.visitors import Visitor
from hekla.sandbox.link import DAEMON
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.wire.raw_heads import AnswerHead, RequestHead

_REPEATABLE = frozenset({b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS"})
_REPLAYED_BYTES = 64 * 1024
_HELD_BYTES = 64 * 1024
_COOKIE = re.compile(rb"(?im)^set-cookie:[^\r\n]*")
_DOMAIN = re.compile(rb"(?i);[ \t]*domain[ \t]*(?:=[^;\r\n]*)?(?=;|$)")

Words = Callable[[int, str, str], tuple[int, bytes]]
"""A failure in the words of the door: status, stable reason and sentence in; status and body out."""


@dataclass(slots=True)
class Errand:
    """Where a request goes, and how."""

    session: Session
    port: int
    head: bytes
    """As it is sent inside."""
    wakes: bool = True
    """Whether it wakes a session that is paused; one that is frozen always wakes."""
    lines: bytes = b""
    """Headers that are added to the answer."""
    keeps_connection: bool = True
    upgrade: bytes = b""
    """The protocol that the client asks for, if any."""


class House(Protocol):
    """What a passage needs of the gateway."""

    def pool(self, session: Session, port: int) -> InsidePool:
        """Connections to a port of a session's sandbox."""

    async def woken(self, session: Session, *, from_pause: bool) -> Session:
        """The session as it runs, once it does; RefusedError."""

    def begun(self, passage: "Passage") -> None:
        """A passage begins."""

    def over(self, passage: "Passage", status: int) -> None:
        """A passage is over, in whatever way."""


class Passage:
    """One request on its way."""

    __slots__ = (
        "_answered", "_connection", "_house", "_is_over", "_is_tunnel", "_pending", "_pending_size", "_replay", "_task", "_words", "errand",
        "head", "is_head", "is_sent", "refusal", "started_s", "status", "visitor", "wants_payload", "wants_upgrade", "written",
    )  # fmt: skip

    def __init__(self, house: House, visitor: Visitor, head: RequestHead, words: Words) -> None:
        self._house, self.visitor, self.head, self._words = house, visitor, head, words
        self.errand: Errand | None = None
        self._connection: Inside | None = None
        self._task: asyncio.Task[None] | None = None
        self._pending: list[bytes] = []
        self._pending_size = 0
        self._replay: bytes | None = b""
        """What was sent of the body, while it is small enough to be sent again; None: it is not."""
        self._answered = False
        self._is_tunnel = False
        self._is_over = False
        self.is_head = head.method == b"HEAD"
        self.is_sent = False
        self.wants_payload = head.is_http_1_0  # to such a client no chunks may go
        self.wants_upgrade = False
        self.status = 0
        self.refusal: RefusedError | None = None
        self.written = 0
        self.started_s = asyncio.get_running_loop().time()

    def begin(self, errand: Errand) -> None:
        """Wake the session if need be, and connect."""
        self.errand, self.wants_upgrade = errand, bool(errand.upgrade)
        self._house.begun(self)
        if errand.session.state is State.RUNNING:
            self._dial(errand)
        else:
            self._task = asyncio.get_running_loop().create_task(self._wake(errand))

    def begin_later(self, finding: Coroutine[None, None, Errand]) -> None:
        """The same, once it is known where the request goes: another gateway may have made the session."""
        self._task = asyncio.get_running_loop().create_task(self._find(finding))

    async def _find(self, finding: Coroutine[None, None, Errand]) -> None:
        try:
            errand = await finding
        except (RefusedError, StoreUnavailableError) as refusal:
            self._refuse_as(refusal)
            return
        self._task = None
        if not self._is_over:
            self.begin(errand)

    async def _wake(self, errand: Errand) -> None:
        try:
            errand.session = await self._house.woken(errand.session, from_pause=errand.wakes)
        except (RefusedError, StoreUnavailableError) as refusal:
            self._refuse_as(refusal)
            return
        self._task = None
        if not self._is_over:
            self._dial(errand)

    def _dial(self, errand: Errand) -> None:
        pool = self._house.pool(errand.session, errand.port)
        connection = pool.take() if errand.keeps_connection or self.head.method in _REPEATABLE else None
        if connection is not None:
            self._connected(pool, connection, 0, "")
        else:
            self._task = pool.connect(partial(self._connected, pool))

    def _connected(self, pool: InsidePool, connection: Inside | None, status: int, why: str) -> None:
        self._task, errand = None, self.errand
        assert errand is not None
        if self._is_over:
            if connection is not None:
                connection.abort()
            return
        if connection is None:
            self._refuse(status, "port_closed" if status == 502 else "unreachable", why)
            return
        self._connection = connection
        connection.start(self, along(pool.way.prefix, pool.way.lines, errand.head))
        pending, self._pending, self._pending_size = self._pending, [], 0
        for data in pending:
            self._send(connection, data)
        self.visitor.release()

    def _send(self, connection: Inside, data: bytes) -> None:
        replay = self._replay
        if replay is not None:
            self._replay = replay + data if len(replay) + len(data) <= _REPLAYED_BYTES else None
        connection.write(data)

    # From the client.

    def feed(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """A part of the body."""
        self.is_sent = self.is_sent or is_last
        if self._is_over or not data:
            return
        if self._connection is not None:
            self._send(self._connection, data)
        else:
            self._pending.append(data)
            self._pending_size += len(data)
            if (
                not is_last and self._pending_size > _HELD_BYTES
            ):  # else it is read on, so that it is seen when the client leaves
                self.visitor.hold()

    def raw(self, data: bytes) -> None:
        """Bytes of a tunnel."""
        if self._connection is not None:
            self._connection.write(data)

    def abandon(self) -> None:
        """The client left: the server inside sees its connection end."""
        if not self._is_over:
            self._end(self.status or 499)

    def pause(self) -> None:
        """The client lags."""
        if self._connection is not None:
            self._connection.pause()

    def resume(self) -> None:
        """The client caught up."""
        if self._connection is not None:
            self._connection.resume()

    def tick(self, now: float) -> None:
        """Commands may run, and say nothing, as long as they like."""

    # From the sandbox.

    def answered(self, head: AnswerHead) -> None:
        """Pass the head on."""
        self._answered, self.status = True, head.status
        request, lines, errand = self.head, head.lines, self.errand
        assert errand is not None
        if errand.port != DAEMON:
            lines = of_this_host_alone(lines)
        if head.is_chunked and not request.is_http_1_0:
            lines += b"transfer-encoding: chunked\r\n"
        elif head.body_length < 0 and not self.is_head:
            request.keeps_alive = False
        if not request.keeps_alive:
            lines += b"connection: close\r\n"
        elif request.is_http_1_0:
            lines += b"connection: keep-alive\r\n"
        self.visitor.transport.write(b"%b%b%b\r\n" % (head.opening, lines, errand.lines))

    def upgraded(self, head: AnswerHead) -> None:
        """From now on, bytes both ways."""
        self._answered = self._is_tunnel = self.is_sent = True
        self.status, errand = 101, self.errand
        assert errand is not None
        upgrade = b"connection: Upgrade\r\nupgrade: %b\r\n" % errand.upgrade
        lines = of_this_host_alone(head.lines)
        self.visitor.transport.write(b"%b%b%b%b\r\n" % (head.opening, lines, upgrade, errand.lines))
        self.visitor.tunnel()

    def piece(self, data: bytes, payload: list[bytes] | None, is_last: bool) -> None:
        """Pass a part of the answer on."""
        out = data if payload is None else b"".join(payload)
        if out:
            self.written += len(out)
            self.visitor.transport.write(out)

    def ended(self) -> None:
        """The answer is whole."""
        self._connection = None
        keeps = self.head.keeps_alive and not self._is_tunnel
        visitor, status = self.visitor, self.status
        self._end(status)
        visitor.done(keeps_alive=keeps)

    def failed(self, why: str, *, may_repeat: bool) -> None:
        """The server inside broke off."""
        self._connection = None
        if self._is_over:
            return
        if self._answered:
            visitor = self.visitor
            self._end(self.status)
            visitor.cut()
        elif self.errand is not None and may_repeat and self.head.method in _REPEATABLE and self._replay is not None:
            self._pending = [self._replay] if self._replay else []
            self._replay = b""
            self._dial(self.errand)
        else:
            self._refuse(502, "broken_off", why)

    def lags(self, is_behind: bool) -> None:
        """The server inside takes no more for now."""
        if is_behind:
            self.visitor.hold()
        else:
            self.visitor.release()

    # The end.

    def cut(self, reason: str, sentence: str) -> None:
        """The session ended: so does whatever runs for it."""
        if self._is_over:
            return
        if self._answered:
            visitor = self.visitor
            self._end(self.status)
            visitor.cut()
        else:
            self._refuse(502, reason, sentence)

    def _refuse_as(self, refusal: RefusedError | StoreUnavailableError) -> None:
        if isinstance(refusal, RefusedError):
            self._refuse(refusal.status, refusal.reason, refusal.sentence)
        else:
            self._refuse(503, "store", str(refusal))

    def _refuse(self, status: int, reason: str, sentence: str) -> None:
        if self._is_over:
            return
        self.refusal = RefusedError(status, reason, sentence)
        shown, body = self._words(status, reason, sentence)
        keeps = self.head.keeps_alive and self.is_sent
        answer = whole(
            shown,
            body,
            content_type=JSON,
            lines=self.errand.lines if self.errand else b"",
            keeps_alive=keeps,
            is_head=self.is_head,
        )
        visitor = self.visitor
        self._end(shown)
        visitor.transport.write(answer)
        visitor.done(keeps_alive=keeps)

    def _end(self, status: int) -> None:
        self._is_over = True
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._pending = []
        self._house.over(self, status)


def of_this_host_alone(lines: bytes) -> bytes:
    """Cookies of a user's server without `Domain`: beside its host are the previews of other people's sandboxes."""
    return _COOKIE.sub(lambda cookie: _DOMAIN.sub(b"", cookie[0]), lines)


def along(prefix: bytes, lines: bytes, head: bytes) -> bytes:
    """The head as the way wants it: a longer path, more headers."""
    if not prefix and not lines:
        return head
    first, _, rest = head.partition(b"\r\n")
    method, target, version = first.split(b" ")
    return b"%b %b%b %b\r\n%b%b" % (method, prefix, target, version, lines, rest)
