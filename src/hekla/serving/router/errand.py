"""The way of one request to an engine: the attempt on a connection, the leg sent beside it, the leg whose answer is the router's.

No coroutine and no task on the way: each step is called by the bytes or the news it waited for. What an attempt means for
the request is decided in `exchange.py`; `proxy/` moves the bytes.
"""

import asyncio
from collections.abc import Callable, Sequence

from hekla.serving.router.house import House
from hekla.serving.router.plan import Attempt, Fault, Refusal
from hekla.serving.router.proxy.clients import ClientConnection
from hekla.serving.router.proxy.engines import EngineConnection, Pool
from hekla.serving.router.proxy.legs import Leg
from hekla.serving.router.proxy.relay import Relay
from hekla.serving.router.proxy.usage import asking_for_usage, tells_usage
from hekla.serving.router.question import Question
from hekla.serving.router.spans import Trace
from hekla.wire.raw_heads import AnswerHead, RequestHead, changed_request_bytes, request_bytes


class Errand(Relay):
    """One request on its way to engines."""

    _question: Question | None = None
    _attempt: Attempt | None = None
    _body = b""
    _beside: Leg | None = None
    _connecting: Sequence[asyncio.Task[None]] = ()
    _is_over = _retried = _asks_usage = _removes_usage = False
    _silent_since = 0.0
    _is_paused = False
    _head_taken_up: AnswerHead | None = None
    """Of an answer that the fast lane began to pass on."""
    target_name = ""
    attempts = 0
    trace: Trace | None = None

    def __init__(self, house: House, client: ClientConnection, head: RequestHead, path: str, started_at: float) -> None:
        self.transport = client.transport
        self.started_at = started_at
        self._client = client
        self._house = house
        self.head = head
        self.path = path
        self.request_id = head.request_id or house.new_request_id()

    def _send(self, attempt: Attempt) -> None:
        target, house = attempt.target, self._house
        self._attempt = attempt
        self.attempts += 1
        self.target_name = target.name
        if self.trace is not None and house.tracing is not None:
            house.tracing.attempt(self.trace, target, house.clock())
        if attempt.head_timeout_s:
            self._silent_since = house.clock()
        if attempt.beside is not None:
            self._send_beside(attempt.beside)
        pool = house.pools.of(target)
        connection = pool.take()
        if connection is None:
            self._connect(pool, self._connected)
        else:
            self._start(connection, attempt)

    def _connect(self, pool: Pool, done: Callable[[EngineConnection | None, str], None]) -> None:
        self._connecting = (*self._connecting, pool.connect(done))

    def _connected(self, connection: EngineConnection | None, why: str) -> None:
        attempt = self._attempt
        if connection is None or attempt is None:
            self.failed(Fault.CONNECT, why)
            return
        try:
            self._start(connection, attempt)
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            connection.abort()
            self._crash(error)

    def _start(self, connection: EngineConnection, attempt: Attempt) -> None:
        body = self._body_of(attempt)
        if attempt.on_answer is None:
            self.engine = connection
            connection.start(self, self._head_of(attempt, body), body)
        else:
            leg = Leg(limit=self._house.bounds.leg_bytes, ended=self._leg_ended, failed=self._leg_failed)
            leg.connection = self.engine = connection
            connection.start(leg, self._head_of(attempt, body), body)

    def _head_of(self, attempt: Attempt, body: bytes) -> bytes:
        headers = attempt.headers
        if self.trace is not None:
            headers = (*headers, *self.trace.headers)
        if attempt.path is None and not headers and attempt.keep_headers is None and attempt.method is None:
            hides = self._house.doorkeeper is not None
            return request_bytes(self.head, len(body), self.request_id, hides_credentials=hides)
        return changed_request_bytes(
            self.head,
            len(body),
            self.request_id,
            method=attempt.method,
            path=attempt.path.encode() if attempt.path is not None else None,
            headers=headers,
            kept=attempt.keep_headers,
            hides_credentials=self._house.doorkeeper is not None,
        )

    def _body_of(self, attempt: Attempt) -> bytes:
        """The body for an engine; a stream is asked to tell its usage."""
        question = self._question
        assert question is not None
        body = self._body if attempt.body is None else attempt.body
        if not question.is_stream or question.wants_usage or attempt.on_answer is not None:
            return body
        if not tells_usage(attempt.path or self.path):
            return body
        self._removes_usage = True
        if attempt.body is not None:
            return asking_for_usage(body)
        if not self._asks_usage:
            self._asks_usage = True
            self._body = asking_for_usage(body)
        return self._body

    def _send_beside(self, attempt: Attempt) -> None:
        leg = Leg(limit=self._house.bounds.leg_bytes, ended=self._beside_ended, failed=self._beside_failed)
        self._beside = leg
        pool = self._house.pools.of(attempt.target)
        connection = pool.take()
        if connection is None:
            self._connect(pool, self._beside_connected)
        else:
            self._beside_connected(connection, "")

    def _beside_connected(self, connection: EngineConnection | None, why: str) -> None:
        attempt, leg = self._attempt, self._beside
        if leg is None or attempt is None or attempt.beside is None:
            if connection is not None:
                connection.abort()
        elif connection is None:
            self._fail_attempt(Fault.CONNECT, why)
        else:
            body = self._body if attempt.beside.body is None else attempt.beside.body
            leg.connection = connection
            connection.start(leg, self._head_of(attempt.beside, body), body)

    def take_engine(self, connection: EngineConnection, attempt: Attempt | None, said: bytes, unsent: int) -> None:
        """The fast lane's connection to the engine that was asked: go on with what it said, and with the end that it was not sent yet."""
        if self._attempt is not attempt or self._is_over or self.engine is not None:
            connection.abort()
            return
        self.engine = connection
        if self._is_paused:
            connection.pause()
        rest = b""
        if unsent and attempt is not None:
            body = self._body_of(attempt)
            rest = (self._head_of(attempt, body) + body)[-unsent:]
        connection.go_on(self, said, rest, self._head_taken_up)

    # ---- back

    def failed(self, fault: Fault, why: str) -> None:
        """The engine did not answer, or not to the end."""
        engine, attempt = self.engine, self._attempt
        self.engine = None
        if self.has_begun:
            self._break(Refusal(502, "response_forwarding", f"the engine's answer was cut short: {why}"), engine)
        elif engine is not None and attempt is not None and self._was_stale(engine, fault):
            self._connect(self._house.pools.of(attempt.target), self._connected)
        else:
            self._fail_attempt(fault, why)

    def _was_stale(self, engine: EngineConnection, fault: Fault) -> bool:
        """A kept connection that closes without a byte was closed before the request came: once more on a fresh one."""
        if self._retried or fault is not Fault.CLOSED or not engine.is_reused or engine.has_spoken:
            return False
        self._retried = True
        return True

    def _leg_ended(self, leg: Leg, body: bytes) -> None:
        attempt = self._attempt
        self.engine = None
        if attempt is None or attempt.on_answer is None:
            return
        if self._is_good(leg, body):
            self._take_leg(attempt, body)

    def _leg_failed(self, leg: Leg, fault: Fault, why: str) -> None:
        self.failed(fault, why)

    def _beside_ended(self, leg: Leg, body: bytes) -> None:
        if self._is_good(leg, body):
            self._beside = None

    def _beside_failed(self, leg: Leg, fault: Fault, why: str) -> None:
        connection, attempt = leg.connection, self._attempt
        leg.connection = None
        if self.has_begun or attempt is None or attempt.beside is None:
            self._beside = None
        elif connection is not None and self._was_stale(connection, fault):
            self._connect(self._house.pools.of(attempt.beside.target), self._beside_connected)
        else:
            self._fail_attempt(fault, why)

    def _is_good(self, leg: Leg, body: bytes) -> bool:
        """A leg's refusal is the client's answer if it is about the request, else a failed attempt."""
        if leg.status < 300:
            return True
        if self.has_begun or self._is_over:
            return False
        if leg.status < 500 and leg.status != 429:
            self._answer_with(leg.status, body)
        else:
            self._fail_attempt(Fault.BUSY, f"a leg was answered with {leg.status}")
        return False

    # ---- given up

    def _drop_errand(self) -> None:
        """Cut off whatever runs for this request."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.abort()
        self._drop_beside()
        connecting, self._connecting = self._connecting, ()
        for task in connecting:
            task.cancel()

    def _drop_beside(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.cut()

    # ---- what it means for the request

    def _fail_attempt(self, fault: Fault, why: str) -> None:
        """The engine did not answer; another may."""
        raise NotImplementedError

    def _take_leg(self, attempt: Attempt, body: bytes) -> None:
        """A leg that is the router's own (a prefill) was answered: on to the next."""
        raise NotImplementedError

    def _answer_with(self, status: int, body: bytes) -> None:
        """A leg's refusal of the request is the client's answer."""
        raise NotImplementedError

    def answered(self, head: AnswerHead, data: bytes) -> bool:
        """As `Receiver` has it."""
        raise NotImplementedError

    def whole(self, head: AnswerHead, data: bytes) -> None:
        """As `Receiver` has it."""
        raise NotImplementedError

    def ended(self) -> None:
        """As `Receiver` has it."""
        raise NotImplementedError

    def _break(self, refusal: Refusal, engine: EngineConnection | None) -> None:
        """The answer stops in the middle."""
        raise NotImplementedError

    def _crash(self, error: Exception) -> None:
        """The router made a mistake."""
        raise NotImplementedError
