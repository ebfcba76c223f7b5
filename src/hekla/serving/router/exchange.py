"""One request through the router: let in by the guards, planned, tried until an engine answers, told to all who count.

`errand.py` carries each attempt to an engine and back; the desk (`director.py`) decides, the ledger (`metrics.py`,
`access_log.py`) takes what came of it. `reception.py` begins one of these for every question.
"""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from hekla.serving.router.errand import Errand
from hekla.serving.router.plan import NOT_ASKED, Attempt, Destination, Fault, Plan, Refusal, Usage, Waiting
from hekla.serving.router.proxy.answers import answer_bytes, refusal_bytes
from hekla.serving.router.proxy.engines import EngineConnection
from hekla.serving.router.proxy.relay import Begun
from hekla.serving.router.proxy.usage import TAIL_BYTES, usage_of
from hekla.serving.router.question import Question
from hekla.wire.raw_heads import AnswerHead

log = structlog.get_logger(__name__)

BUSY = frozenset({429, 502, 503, 504})
"""Another engine may have room; any other status is the client's to read."""

NOWHERE = Destination("unknown")
"""Where a request went that was refused before it had a destination."""

CLIENT_LEFT = Refusal(499, "client_disconnected", "the client left before the answer was whole")

_NO_PLAN = (Refusal, Waiting)


class Exchange(Errand):
    """One request under way, and what is known of it when it is over."""

    _plan: Plan | None = None
    _waiting: Waiting | None = None
    _pausing: asyncio.TimerHandle | None = None
    """Until the next attempt, where a ModelServer asks for time between two."""
    _admitted = 0
    _attempts_before = 0
    """Attempts before it last waited for engines to come back."""
    _is_out = _was_cut = False
    """Whether the last engine that was asked seems to be gone, and may come back."""
    model = ""
    destination = NOWHERE
    status = 0
    refusal: Refusal | None = None
    """What the router answered itself."""
    input_tokens = 0
    """Estimated."""
    usage_told: Usage | None = None
    planned_at = first_byte_at = ended_at = 0.0

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
        try:
            for guard in house.guards[self._admitted :]:
                verdict = guard.admit(question, now)
                if verdict is not None:
                    self._take_verdict(verdict, self._resume_admission)
                    return
                self._admitted += 1
            plan = house.desk.plan(question, now)
            if isinstance(plan, _NO_PLAN):
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

    def go_on(self, question: Question, plan: Plan, attempt: Attempt, sent_at: float) -> None:
        """Go on with what the fast lane began: it was let in, planned, and sent to one engine."""
        self._question, self._body = question, question.body
        self.model, self.input_tokens = question.model, question.input_tokens
        self._plan, self.destination, self.planned_at = plan, plan.destination, self.started_at
        self._admitted, self._attempt, self.attempts = len(self._house.guards), attempt, 1
        self.target_name, self._silent_since = attempt.target.name, sent_at
        if self._body:
            self._body_of(attempt)  # whether the engine was asked for its usage
        self._house.under_way.add(self)

    def go_on_streaming(self, begun: Begun) -> None:
        """Go on with a stream that the fast lane began to pass on."""
        house = self._house
        self._head_taken_up = self.take_up(self.head, begun, house.bounds)
        self.status, self.first_byte_at, self._silent_since = begun.status, begun.first_byte_at, house.clock()
        self._attempt = None

    # ---- out

    def _try(self, plan: Plan, now: float) -> None:
        step = plan.next(now)
        if not isinstance(step, Refusal):
            self._send(step)
        elif (held := self._house.desk.hold(plan.destination) if self._is_out else None) is not None:
            self._plan = self._attempt = None  # it begins anew when an engine is back
            self._attempts_before = self.attempts  # three engines that restart were six attempts within half a second
            plan.ended(None, now)
            self._take_verdict(held, self._resume_planning)
        else:
            self._refuse(step)

    def _try_again(self) -> None:
        plan, house = self._plan, self._house
        assert plan is not None
        if self.attempts - self._attempts_before >= house.bounds.attempts:
            self._refuse(Refusal(503, "proxy", f"the request failed on {self.attempts} engines"))
            return
        try:
            self._try(plan, house.clock())
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            self._crash(error)

    # ---- back

    def answered(self, head: AnswerHead, data: bytes) -> bool:
        """The engine's head came. Nothing is written yet: until the body begins, another engine may be tried."""
        if head.status in BUSY and self._goes_elsewhere(head.status):
            return False
        if head.status == 200 and not head.body_length:
            self.said_nothing()
            return False
        event_bytes = self._house.bounds.event_bytes if self._removes_usage else 0
        self.prepare(self.head, head, data, event_bytes=event_bytes)
        return True

    def whole(self, head: AnswerHead, data: bytes) -> None:
        """A whole answer in one piece, whose connection is free again: what most answers are that are no streams."""
        self.engine = None
        if self.has_begun or (head.status in BUSY and self._goes_elsewhere(head.status)):
            return
        if head.status == 200 and not head.body_length:
            self.said_nothing()
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

    def said_nothing(self) -> None:
        """A 200 with nothing behind it answers no question: no client can read it, and another engine may do better."""
        self._fail_attempt(Fault.GARBAGE, "the engine answered with nothing")

    def _goes_elsewhere(self, status: int) -> bool:
        """Another engine may have room; if none has, the client gets this engine's answer."""
        plan, attempt, house = self._plan, self._attempt, self._house
        assert plan is not None
        assert attempt is not None
        try:
            plan.failed(attempt, Fault.BUSY, house.clock())
            if self.attempts - self._attempts_before >= house.bounds.attempts:
                return False
            step = plan.next(house.clock())
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            self._crash(error)
            return True
        if isinstance(step, Refusal):
            return False
        if self.trace is not None:
            self.trace.tried(house.clock(), status=status, error=str(status), why="another engine may have room")
        self._drop_beside()
        self.engine, self._retried = None, False
        self._later(attempt.retry_s, partial(self._send_now, step))
        return True

    def _send_now(self, attempt: Attempt) -> None:
        try:
            self._send(attempt)
        except Exception as error:  # noqa: BLE001 - as in `_admit`
            self._crash(error)

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

    def _fail_attempt(self, fault: Fault, why: str) -> None:
        self._retried = False
        plan, attempt, house = self._plan, self._attempt, self._house
        self._drop_engine()
        if plan is None or attempt is None or self._is_over:
            return
        is_unreached = fault is Fault.CONNECT and not house.pools.of(attempt.target).is_full
        self._is_out = is_unreached or (fault is Fault.CLOSED and not self._was_cut)
        self._was_cut |= fault is Fault.CLOSED  # what cuts two engines off may be what kills them
        log.debug("attempt failed", target=self.target_name, fault=fault.value, why=why, attempt=self.attempts)
        self._tell(plan.failed, attempt, fault, house.clock())
        if self.trace is not None:
            self.trace.tried(house.clock(), error=fault.value, why=why)
        self._later(attempt.retry_s, self._try_again)

    def _later(self, after_s: float, step: Callable[[], None]) -> None:
        """Go on, after the time that a ModelServer's `retryInterval` gives an engine to recover."""
        if after_s:
            self._pausing = asyncio.get_running_loop().call_later(after_s, step)
        else:
            step()

    def _take_leg(self, attempt: Attempt, body: bytes) -> None:
        assert attempt.on_answer is not None
        self._tell(attempt.on_answer, body, self._house.clock())
        self.attempts -= 1  # a leg is half an attempt
        if self.trace is not None:
            self.trace.tried(self._house.clock(), status=200)
        self._try_again()

    def _answer_with(self, status: int, body: bytes) -> None:
        self._drop_engine()
        self.status = self.upstream_status = status
        keeps_alive = self.head.keeps_alive
        named = b"x-request-id: %b\r\n" % self.request_id
        self.transport.write(answer_bytes(status, body, keeps_alive=keeps_alive, extra=named))
        self.finish(keeps_alive=keeps_alive)

    # ---- over

    def _refuse(self, refusal: Refusal) -> None:
        """The router's own answer."""
        self._drop_engine()
        self.status, self.refusal = refusal.status, refusal
        keeps_alive = self.head.keeps_alive
        self.transport.write(refusal_bytes(refusal, self.path, keeps_alive=keeps_alive, request_id=self.request_id))
        self.finish(keeps_alive=keeps_alive)

    def _crash(self, error: Exception) -> None:
        log.error("a request met a mistake of the router", path=self.path, model=self.model, exc_info=error)
        if not self._is_over:
            self._refuse(Refusal(500, "proxy", "the router made a mistake; its log says more"))

    def _break(self, refusal: Refusal, engine: EngineConnection | None) -> None:
        """The answer stops in the middle: say so where the stream allows it, and close."""
        self.refusal = refusal
        self.break_off(refusal, engine, self.path)
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
        self._drop_errand()
        pausing, self._pausing = self._pausing, None
        if pausing is not None:
            pausing.cancel()
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            self._tell(waiting.abandon)

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
        admitted, self._admitted = self._admitted, 0
        if admitted and question is not None:
            told = self.usage_told if self.target_name else NOT_ASKED
            for guard in house.guards[admitted - 1 :: -1]:
                try:
                    guard.ended(question, told, now)
                except Exception as error:  # noqa: BLE001 - as in `_admit`
                    self._complain(error)
        self._plan = self._question = self._attempt = None
        self._body = b""
        house.under_way.discard(self)
        house.ledger.append(self)
        if house.has_lane and question is not None:
            self._client.is_plain = self.status == 200
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
