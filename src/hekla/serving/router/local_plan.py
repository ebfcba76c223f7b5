"""One request's way over the endpoints of one pool: choose, count, and on a fault go on to another, never to the same twice.

Implements `plan.Plan`. After the first byte there is no going on: a stream that began is never begun again elsewhere.
"""

from hekla.serving.router.endpoints import Endpoint
from hekla.serving.router.plan import NOBODY_READY, Attempt, Destination, Fault, Refusal, Usage
from hekla.serving.router.pool import Charge, Pool
from hekla.serving.router.question import Question

MOST_ATTEMPTS = 5
"""Kthena's: five pods are asked, then the client is told."""


class LocalPlan:
    """A plan over one pool."""

    __slots__ = (
        "_adapter",
        "_body",
        "_charge",
        "_head_timeout_s",
        "_most_attempts",
        "_pool",
        "_prompt_bytes",
        "_question",
        "_retry_s",
        "_session",
        "_tried",
        "destination",
    )

    def __init__(
        self,
        pool: Pool,
        question: Question,
        destination: Destination,
        *,
        body: bytes | None = None,
        adapter: str = "",
        session: str = "",
        head_timeout_s: float = 0.0,
        most_attempts: int = MOST_ATTEMPTS,
        retry_s: float = 0.0,
    ) -> None:
        self.destination = destination
        self._pool = pool
        self._question = question
        self._prompt_bytes = len(question.prompt)
        """The prompt itself is let go when the answer begins."""
        self._body = body
        self._adapter = adapter
        self._session = session
        self._head_timeout_s = head_timeout_s
        self._most_attempts = most_attempts
        self._retry_s = retry_s
        self._tried: list[Endpoint] = []
        self._charge: Charge | None = None

    def resumed(self, charge: Charge, prompt_bytes: int) -> Attempt:
        """The fast lane has made the first attempt, for a prompt of so many bytes."""
        self._charge, self._prompt_bytes = charge, prompt_bytes
        self._tried.append(charge.endpoint)
        one = charge.endpoint
        return Attempt(one, self._body, None, one.headers, self._head_timeout_s, retry_s=self._retry_s)

    def next(self, now: float) -> Attempt | Refusal:
        """The best endpoint that was not asked yet."""
        pool, tried = self._pool, self._tried
        if not tried and not self._session and not self._adapter:
            charge = pool.send(self._question, now)
            if charge is not None:
                self._charge = charge
                tried.append(charge.endpoint)
                one = charge.endpoint
                return Attempt(one, self._body, None, one.headers, self._head_timeout_s, retry_s=self._retry_s)
        candidates = pool.candidates(now, tried)
        if not candidates or len(tried) >= self._most_attempts:
            return self._nobody_left()
        look = pool.look(self._question, now, adapter=self._adapter, session=self._session)
        chosen = pool.choose(look, candidates)
        if chosen is None:
            return self._none_will_do()
        tried.append(chosen)
        self._charge = pool.charge(look, chosen)
        return Attempt(chosen, self._body, None, chosen.headers, self._head_timeout_s, retry_s=self._retry_s)

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """Its counts are taken back and the endpoint sits out; a busy one is busy, not ill, but others are asked first all the same."""
        if self._charge is not None:
            self._charge.end(now)
            self._pool.fault(self._charge.endpoint, now, is_busy=fault is Fault.BUSY)
            self._charge = None

    def first_byte(self, now: float) -> None:
        """Prefill is over."""
        if self._charge is not None:
            self._charge.first_byte(now)

    def ended(self, usage: Usage | None, now: float) -> None:
        """Learn from it and take its counts back."""
        charge, self._charge = self._charge, None
        if charge is None:
            return
        if usage is not None:
            self._pool.learn(charge, self._prompt_bytes, usage, now)
        charge.end(now)

    def _nobody_left(self) -> Refusal:
        if self._tried:
            return Refusal(503, "proxy", "request to all pods failed", retry_after_s=1.0)
        is_pool = self.destination.backend_type == "inference_pool"
        kind, name = ("inference pool", self.destination.backend_name) if is_pool else ("model server", self._pool.name)
        said = f"no available pods for {kind}: {name}{self._pool.absence}"
        return Refusal(503, "pod_discovery", NOBODY_READY, retry_after_s=1.0, detail=said)

    def _none_will_do(self) -> Refusal:
        if self._tried:
            return Refusal(503, "proxy", "request to all pods failed")
        return Refusal(503, "scheduling", "can't schedule to target pod: no pod passed the filters", retry_after_s=1.0)
