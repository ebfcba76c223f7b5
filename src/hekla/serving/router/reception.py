"""The way of one request through the router: read, let in by the guards, planned, tried until an engine answers, told.

No coroutine and no task on the way: each step is called by the bytes or the news it waited for. `proxy/` moves the bytes,
the desk (`director.py`) decides, the ledger (`metrics.py`, `access_log.py`) takes what came of it.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from urllib.parse import unquote

import structlog

from hekla.serving.router.plan import Attempt, Desk, Destination, Fault, Guard, Plan, Refusal, Usage, Waiting
from hekla.serving.router.proxy.answers import answer_bytes, refusal_bytes
from hekla.serving.router.proxy.bounds import Bounds
from hekla.serving.router.proxy.clients import Call, ClientConnection
from hekla.serving.router.proxy.engines import EngineConnection, Pool, Pools
from hekla.serving.router.proxy.legs import Leg
from hekla.serving.router.proxy.relay import Relay
from hekla.serving.router.proxy.request_headers import RequestHeaders
from hekla.serving.router.proxy.usage import TAIL_BYTES, asking_for_usage, usage_of
from hekla.serving.router.question import Question
from hekla.serving.router.reading import INFERENCE_PATHS, read
from hekla.serving.router.telemetry import Trace, Tracing
from hekla.wire.raw_heads import AnswerHead, RequestHead, changed_request_bytes, request_bytes

log = structlog.get_logger(__name__)

BUSY = frozenset({429, 502, 503, 504})
"""Another engine may have room; any other status is the client's to read."""

NOWHERE = Destination("unknown")
"""Where a request went that was refused before it had a destination."""

CLIENT_LEFT = Refusal(499, "client_disconnected", "the client left before the answer was whole")

Told = tuple[int, bytes, bytes]
"""What the router answers itself: status, content type, text."""
Document = Callable[[], Told]
MODELS = "/v1/models/"


class House:
    """What all requests of one router share."""

    def __init__(
        self,
        desk: Desk,
        pools: Pools,
        bounds: Bounds,
        *,
        guards: Sequence[Guard] = (),
        clock: Callable[[], float],
    ) -> None:
        self.desk = desk
        self.pools = pools
        self.ledger: list[Exchange] = []
        """Requests that are over; whoever keeps the books empties it a few times a second."""
        self.bounds = bounds
        self.guards = tuple(guards)
        self.doorkeeper: Guard | None = None
        """Who knows who asks, if anybody does: then clients' keys are the router's own, and engines do not see them."""
        self.takes_any_path = False
        """Whether the desk judges the path, as where an HTTPRoute may rewrite it."""
        self.tracing: Tracing | None = None
        self.clock = clock
        self.under_way: set[Exchange] = set()
        self.refused_early = 0
        """Requests that could not be read."""
        self._id_prefix = os.urandom(6).hex().encode()
        self._ids = 0

    def stranger(self, headers: Mapping[str, str]) -> Refusal | None:
        """Why whoever asks may not know what is here; None: he may."""
        if self.doorkeeper is None:
            return None
        verdict = self.doorkeeper.admit(Question("", "", b"", 0, headers=headers), self.clock())
        if isinstance(verdict, Waiting):
            verdict.abandon()
            return Refusal(503, "authentication", "the issuer's keys are being fetched", 1.0)
        return verdict

    def new_request_id(self) -> bytes:
        """Unique among all routers, without a call for random bytes per request."""
        self._ids += 1
        return b"%b-%x" % (self._id_prefix, self._ids)


class Exchange(Relay):
    """One request under way, and what is known of it when it is over."""

    _question: Question | None = None
    _plan: Plan | None = None
    _attempt: Attempt | None = None
    _body = b""
    _beside: Leg | None = None
    _connecting: Sequence[asyncio.Task[None]] = ()
    _waiting: Waiting | None = None
    _admitted = 0
    _is_over = _is_paused = _retried = _asks_usage = _removes_usage = False
    _is_out = _was_cut = False
    """Whether the last engine that was asked seems to be gone, and may come back."""
    _silent_since = 0.0
    model = ""
    destination = NOWHERE
    target_name = ""
    attempts = 0
    status = 0
    refusal: Refusal | None = None
    """What the router answered itself."""
    input_tokens = 0
    """Estimated."""
    usage_told: Usage | None = None
    trace: Trace | None = None
    planned_at = first_byte_at = ended_at = 0.0

    def __init__(self, house: House, client: ClientConnection, head: RequestHead, path: str, started_at: float) -> None:
        self.transport = client.transport
        self._house = house
        self._client = client
        self.head = head
        self.path = path
        self.request_id = head.request_id or house.new_request_id()
        self.started_at = started_at

    # ---- in

    def begin(self, question: Question) -> None:
        """Let it in, plan it, try it; whatever goes wrong in a decision is this request's trouble alone."""
        self._question, self._body = question, question.body
        self.model, self.input_tokens = question.model, question.input_tokens
        self._house.under_way.add(self)
        self._admit(self.started_at)

    def turn_away(self, refusal: Refusal) -> None:
        """A body in which no question could be read."""
        self._refuse(refusal)

    def _admit(self, now: float) -> None:
        """Ask the guards, the desk and the plan, one after the other; the common case waits for nobody."""
        house, question = self._house, self._question
        assert question is not None
        guards = house.guards
        try:
            while self._admitted < len(guards):
                verdict = guards[self._admitted].admit(question, now)
                if verdict is not None:
                    self._take_verdict(verdict, self._resume_admission)
                    return
                self._admitted += 1
            plan = house.desk.plan(question, now)
            if isinstance(plan, Refusal | Waiting):
                self._take_verdict(plan, self._resume_planning)
                return
            self._plan, self.destination, self.planned_at = plan, plan.destination, now
            self._try(plan, now)
        except Exception as error:  # noqa: BLE001 - a guard or a policy may be wrong; the router goes on
            self._crash(error)

    def _take_verdict(self, verdict: Refusal | Waiting, resume: Callable[[Refusal | None], None]) -> None:
        if isinstance(verdict, Refusal):
            self._refuse(verdict)
        else:
            self._waiting = verdict
            verdict.when_ready(resume)

    def _resume_admission(self, refusal: Refusal | None) -> None:
        self._waiting = None
        if refusal is not None:
            self._refuse(refusal)
        else:
            self._admitted += 1
            self._admit(self._house.clock())

    def _resume_planning(self, refusal: Refusal | None) -> None:
        self._waiting = None
        if refusal is not None:
            self._refuse(refusal)
        else:
            self._admit(self._house.clock())

    # ---- out

    def _try(self, plan: Plan, now: float) -> None:
        step = plan.next(now)
        if not isinstance(step, Refusal):
            self._send(step)
        elif (held := self._house.desk.hold(plan.destination) if self._is_out else None) is not None:
            self._plan = self._attempt = None  # it begins anew when an engine is back
            plan.ended(None, now)
            self._take_verdict(held, self._resume_planning)
        else:
            self._refuse(step)

    def _try_again(self) -> None:
        plan, house = self._plan, self._house
        assert plan is not None
        if self.attempts >= house.bounds.attempts:
            self._refuse(Refusal(503, "proxy", f"the request failed on {self.attempts} engines"))
            return
        try:
            self._try(plan, house.clock())
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            self._crash(error)

    def _send(self, attempt: Attempt) -> None:
        target, house = attempt.target, self._house
        self._attempt = attempt
        self.attempts += 1
        self.target_name = target.name
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
        if self.trace is not None and attempt.keep_headers is None:
            headers = (*headers, (b"traceparent", self.trace.header))
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
        if not (attempt.path or self.path).endswith("/completions"):
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

    # ---- back

    def answered(self, head: AnswerHead, data: bytes) -> bool:
        """The engine's head came. Nothing is written yet: until the body begins, another engine may be tried."""
        if head.status in BUSY and self._goes_elsewhere():
            return False
        event_bytes = self._house.bounds.event_bytes if self._removes_usage else 0
        self.prepare(self.head, head, data, event_bytes=event_bytes)
        return True

    def whole(self, head: AnswerHead, data: bytes) -> None:
        """A whole answer in one piece, whose connection is free again: what most answers are that are no streams."""
        self.engine = None
        if self.has_begun or (head.status in BUSY and self._goes_elsewhere()):
            return
        status = self.status = head.status
        self.has_begun = True
        self.transport.write(self.whole_bytes(self.head, head, data))
        now = self.first_byte_at = self._house.clock()
        if status < 400:
            self.usage_told = usage_of(data[-TAIL_BYTES:])
            if self._plan is not None:
                try:
                    self._plan.first_byte(now)
                except Exception as error:  # noqa: BLE001 - as in `_admit`
                    self._complain(error)
        self._settle(now, keeps_alive=self.head.keeps_alive)

    def _goes_elsewhere(self) -> bool:
        """Another engine may have room; if none has, the client gets this engine's answer."""
        plan, attempt, house = self._plan, self._attempt, self._house
        assert plan is not None
        assert attempt is not None
        try:
            plan.failed(attempt, Fault.BUSY, house.clock())
            if self.attempts >= house.bounds.attempts:
                return False
            step = plan.next(house.clock())
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            self._crash(error)
            return True
        if isinstance(step, Refusal):
            return False
        self._drop_beside()
        self.engine, self._retried = None, False
        self._send(step)
        return True

    def began(self) -> None:
        """The first byte: no other attempt from here on, so what was asked need not be kept."""
        now = self.first_byte_at = self._silent_since = self._house.clock()
        self.status = self.upstream_status
        plan, question = self._plan, self._question
        if plan is not None and self.upstream_status < 400:
            try:
                plan.first_byte(now)
            except Exception as error:  # noqa: BLE001 - as in `_admit`
                self._complain(error)
        if question is not None:
            question.body = question.prompt = self._body = b""
            self._attempt = None
        self._client.body_is_done()

    def ended(self) -> None:
        """The answer is whole."""
        self.engine = None
        self.finish(keeps_alive=self.head.keeps_alive and not self.is_open_ended)

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

    def _fail_attempt(self, fault: Fault, why: str) -> None:
        self._retried = False
        plan, attempt, house = self._plan, self._attempt, self._house
        self._drop_engine()
        if plan is None or attempt is None or self._is_over:
            return
        self._is_out = fault is Fault.CONNECT or (fault is Fault.CLOSED and not self._was_cut)
        self._was_cut |= fault is Fault.CLOSED  # what cuts two engines off may be what kills them
        log.debug("attempt failed", target=self.target_name, fault=fault.value, why=why, attempt=self.attempts)
        self._tell(plan.failed, attempt, fault, house.clock())
        self._try_again()

    def _leg_ended(self, leg: Leg, body: bytes) -> None:
        attempt = self._attempt
        self.engine = None
        if attempt is None or attempt.on_answer is None:
            return
        if self._is_good(leg, body):
            self._tell(attempt.on_answer, body, self._house.clock())
            self.attempts -= 1  # a leg is half an attempt
            self._try_again()

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
            self._drop_engine()
            self.status = self.upstream_status = leg.status
            keeps_alive = self.head.keeps_alive
            self.transport.write(answer_bytes(leg.status, body, keeps_alive=keeps_alive))
            self.finish(keeps_alive=keeps_alive)
        else:
            self._fail_attempt(Fault.BUSY, f"a leg was answered with {leg.status}")
        return False

    # ---- over

    def _refuse(self, refusal: Refusal) -> None:
        """The router's own answer."""
        self._drop_engine()
        self.status, self.refusal = refusal.status, refusal
        keeps_alive = self.head.keeps_alive
        self.transport.write(refusal_bytes(refusal, keeps_alive=keeps_alive, request_id=self.request_id))
        self.finish(keeps_alive=keeps_alive)

    def _crash(self, error: Exception) -> None:
        log.error("a request met a mistake of the router", path=self.path, model=self.model, exc_info=error)
        if not self._is_over:
            self._refuse(Refusal(500, "proxy", "the router made a mistake; its log says more"))

    def _break(self, refusal: Refusal, engine: EngineConnection | None) -> None:
        """The answer stops in the middle: say so where the stream allows it, and close."""
        self.refusal = refusal
        self.break_off(refusal, engine)
        self.finish(keeps_alive=None)

    def abandon(self) -> None:
        """The client left: the engine stops at once."""
        if self._is_over:
            return
        self._drop_engine()
        self.status = self.status or CLIENT_LEFT.status
        self.refusal = CLIENT_LEFT
        self.finish(keeps_alive=None)

    def _drop_engine(self) -> None:
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.abort()
        self._drop_beside()
        connecting, self._connecting = self._connecting, ()
        for task in connecting:
            task.cancel()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._tell(waiting.abandon)

    def _drop_beside(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            beside.cut()

    def finish(self, *, keeps_alive: bool | None) -> None:
        """Tell everybody who counts; exactly once. None: the client's connection is of no more use."""
        if self._is_over:
            return
        if self.has_begun and self.status < 400:
            self.usage_told = self.usage()
        self.forget()
        self._settle(self._house.clock(), keeps_alive=keeps_alive)

    def _settle(self, now: float, *, keeps_alive: bool | None) -> None:
        self._is_over = True
        self.ended_at = now
        house, plan, question, usage = self._house, self._plan, self._question, self.usage_told
        if usage is None and self.has_begun and self.upstream_status < 300 and question is not None:
            # cut short by whomever: what was sent was generated, and must not pass free
            self.usage_told = Usage(question.input_tokens, self.events)
        if self._beside is not None:
            self._drop_beside()
        if plan is not None:
            try:
                plan.ended(usage, now)
            except Exception as error:  # noqa: BLE001 - as in `_admit`
                self._complain(error)
        while self._admitted and question is not None:
            self._admitted -= 1
            try:
                house.guards[self._admitted].ended(question, self.usage_told, now)
            except Exception as error:  # noqa: BLE001 - as in `_admit`
                self._complain(error)
        self._plan = self._question = self._attempt = None
        self._body = b""
        house.under_way.discard(self)
        house.ledger.append(self)
        if keeps_alive is None:
            self._client.cut()
        else:
            self._client.done(keeps_alive=keeps_alive)

    def _tell(self, told: Callable[..., None], *news: object) -> None:
        try:
            told(*news)
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        """What those who count do with the news is not the client's trouble."""
        log.error("a request's news met a mistake of the router", path=self.path, model=self.model, exc_info=error)

    # ---- meanwhile

    def pause(self) -> None:
        """The client lags."""
        self._is_paused = True
        if self.engine is not None:
            self.engine.pause()

    def resume(self) -> None:
        """It caught up."""
        self._is_paused = False
        self.is_moving = True
        if self.engine is not None:
            self.engine.resume()

    def tick(self, now: float) -> None:
        """End what takes too long."""
        bounds = self._house.bounds
        if bounds.total_timeout_s and now - self.started_at > bounds.total_timeout_s:
            self._time_out(f"the request took longer than {bounds.total_timeout_s:g} s")
        elif self.has_begun:
            if self.is_moving or self._is_paused:
                self.is_moving, self._silent_since = False, now
            elif bounds.silence_timeout_s and now - self._silent_since > bounds.silence_timeout_s:
                self._time_out(f"the engine said nothing for {bounds.silence_timeout_s:g} s")
        elif self._attempt is not None and 0 < self._attempt.head_timeout_s < now - self._silent_since:
            self._fail_attempt(Fault.TIMEOUT, f"no answer within {self._attempt.head_timeout_s:g} s")

    def _time_out(self, why: str) -> None:
        refusal = Refusal(504, "proxy", why)
        if not self.has_begun:
            self._refuse(refusal)
            return
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.abort()
        self._break(refusal, engine)


class Reception:
    """Takes every request that came whole: answers it from a document of its own, or begins its exchange."""

    def __init__(
        self, house: House, documents: Mapping[str, Document], model: Callable[[str], Told] | None = None
    ) -> None:
        """`model` tells of one model by its name, at /v1/models/NAME."""
        self._house = house
        self._documents = documents
        self._model = model

    def receive(self, client: ClientConnection, head: RequestHead, body: bytes) -> Call | None:
        """Answer it now (None), or in time."""
        path = path_of(head.target)
        if head.method != b"POST" or path in self._documents:
            self._answer(client, head, path)
            return None
        house = self._house
        if path not in INFERENCE_PATHS and not house.takes_any_path:
            self._turn_away(client, head, Refusal(404, "not_found", f"{path} is no path that models are asked by"))
            return None
        exchange = Exchange(house, client, head, path, house.clock())
        if house.tracing is not None:
            exchange.trace = house.tracing.begin(head.lines)
        question = read(path, body, RequestHeaders(head.lines))
        if isinstance(question, Refusal):  # what is wrong with a stranger's request is not told to him
            exchange.turn_away(self._house.stranger(RequestHeaders(head.lines)) or question)
            return None
        if b"?" in head.target:
            question.query = head.target.decode("ascii").partition("?")[2]
        exchange.begin(question)
        return exchange

    def _answer(self, client: ClientConnection, head: RequestHead, path: str) -> None:
        document = self._documents.get(path)
        is_head = head.method == b"HEAD"
        if document is None and self._model is not None and path.startswith(MODELS):
            document = partial(self._model, unquote(path[len(MODELS) :]))
        if document is None and path in INFERENCE_PATHS:
            refusal = Refusal(405, "not_found", f"{path} is asked with POST", allow="POST")
        elif document is None:
            refusal = Refusal(404, "not_found", f"{path} is not known; ask with POST, or GET /v1/models")
        elif not (is_head or head.method == b"GET"):
            refusal = Refusal(405, "not_found", f"{path} is read with GET", allow="GET, HEAD")
        elif path.startswith("/v1/") and (stranger := self._house.stranger(RequestHeaders(head.lines))) is not None:
            refusal = stranger
        else:
            status, content_type, text = document()
            client.transport.write(
                answer_bytes(status, text, content_type=content_type, keeps_alive=head.keeps_alive, is_head=is_head)
            )
            client.done(keeps_alive=head.keeps_alive)
            return
        self._turn_away(client, head, refusal)

    @staticmethod
    def _turn_away(client: ClientConnection, head: RequestHead, refusal: Refusal) -> None:
        is_head = head.method == b"HEAD"
        client.transport.write(refusal_bytes(refusal, keeps_alive=head.keeps_alive, is_head=is_head))
        client.done(keeps_alive=head.keeps_alive)

    def refused(self, client: ClientConnection, refusal: Refusal) -> None:
        """A request that could not be read."""
        log.debug("request refused", status=refusal.status, why=refusal.message)
        self._house.refused_early += 1


@lru_cache(maxsize=1024)
def path_of(target: bytes) -> str:
    """The path of a request's target, without query, and without the host that a proxy's client may write before it."""
    text = target.decode("ascii")
    if not text.startswith("/"):
        text = "/" + text.partition("://")[2].partition("/")[2]
    return text.partition("?")[0]
