"""The seam of the router: what the data plane asks of the decisions, attempt by attempt, and what it tells them.

The data plane (`proxy/`, `errand.py`, `exchange.py`) moves bytes and knows no policy; the desk (`director.py`) knows routes, pools and
policies and does no I/O. `now` is monotonic seconds throughout. A plan belongs to one request and is used from one loop.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct

from hekla.serving.router.question import Question


class Refusal(Struct, frozen=True):
    """Why a request is answered by the router itself."""

    status: int
    """HTTP status."""
    reason: str
    """A stable code: one of `error_type` in specs/serving.md 2.14."""
    message: str
    """A sentence for the client."""
    retry_after_s: float | None = None
    """When it may be asked again; None: do not."""
    param: str | None = None
    """The field of the body that is wrong, where one is."""
    allow: str = ""
    """The methods that the path has, where the method is wrong."""
    detail: str = ""
    """What the access log, spans and `hekla route explain` say in the message's place: it names objects of the cluster, which are no
    client's business, and says what an operator can do."""

    @property
    def for_operators(self) -> str:
        """The sentence for whoever runs the router."""
        return self.detail or self.message


NOBODY_READY: Final = "no engine of the model is ready; try again later"
LEADS_NOWHERE: Final = (
    "the model is not set up completely: its route leads nowhere; only whoever runs this service can mend it"
)
NO_PROVIDER: Final = "the provider of the model is not set up completely; only whoever runs this service can mend it"
"""What clients are told where the details are for operators."""

UPSTREAM: Final = "upstream_response"
"""The code of an engine's or provider's own 4xx or 5xx, which goes on to the client."""


class Fault(StrEnum):
    """How an attempt failed before its first byte reached the client."""

    CONNECT = "connect"
    """No connection."""
    CLOSED = "closed"
    """The engine closed the connection before a whole head."""
    GARBAGE = "garbage"
    """The engine answered what is not HTTP."""
    TIMEOUT = "timeout"
    """No head in time."""
    BUSY = "busy"
    """429, 502, 503 or 504."""


class Target(Protocol):
    """An address that an attempt goes to; `endpoints.Endpoint` and an external provider both are one."""

    name: str
    """For logs and metrics: pod or provider."""
    host: str
    """Address, or name for TLS."""
    port: int
    """TCP port."""
    is_tls: bool
    """Whether the engine speaks HTTPS."""
    verifies: bool
    """Whether its certificate is checked; not for a pod, which is dialled by address."""


class Destination(Struct, frozen=True, gc=False):
    """Where a request was sent, in the words of the metrics (set D of 2.14); made once per route and model, not per request."""

    model: str
    """The model asked for, or `unknown`."""
    model_route: str = "none"
    backend_type: str = "none"
    """model_server, inference_pool, external_provider, unresolved or none."""
    backend_name: str = "none"
    upstream_model: str = "none"
    maker: str = ""
    """What answers, as traces name it: vllm, sglang, openai, anthropic; empty: nobody says."""


class Attempt(Struct, gc=False):
    """One request to one target."""

    target: Target
    body: bytes | None = None
    """Another body than the client's; None sends the client's unchanged."""
    path: str | None = None
    """Another path than the client's."""
    headers: Sequence[tuple[bytes, bytes]] = ()
    """Headers set for the target, over the client's."""
    head_timeout_s: float = 0.0
    """How long to wait for the answer's first byte; 0: for ever, as a long prefill may take minutes."""
    on_answer: Callable[[bytes, float], None] | None = None
    """Takes the body of a leg that is not for the client (a prefill) and the time; then `next` is asked again. None: the
    answer is the client's. A leg answered with 429 or 5xx has failed; any other 4xx of it is the client's answer."""
    keep_headers: frozenset[bytes] | None = None
    """Of the client's headers only these go on, in lower case: a stranger must not see the rest; None: all."""
    method: bytes | None = None
    """Another method than the client's: GET for a question to an engine."""
    beside: "Attempt | None" = None
    """A leg sent at the same time (SGLang's prefill); its answer is read and dropped. If it fails before the first byte
    of this one, this one is cut off and fails with it."""
    retry_s: float = 0.0
    """How long to wait before the next attempt, if this one fails; 0: no time."""


class Usage(Struct, frozen=True, gc=False):
    """What the engine counted."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


NOT_ASKED: Final = Usage()
"""No engine was asked (a later guard or the desk refused it, it waited in vain, its client left): it used no tokens."""


class Plan(Protocol):
    """One request's way: which engines to try, and what became of it."""

    destination: Destination

    def next(self, now: float) -> Attempt | Refusal:
        """The next attempt; a refusal when nobody is left to ask."""

    def failed(self, attempt: Attempt, fault: Fault, now: float) -> None:
        """The attempt failed before its first byte; `next` may be asked again."""

    def first_byte(self, now: float) -> None:
        """The answer began: prefill is over."""

    def ended(self, usage: Usage | None, now: float) -> None:
        """The request is over, answered or abandoned; called exactly once for a plan that `next` was asked of."""


class Waiting:
    """A request that has to wait (in a queue, for a key to be fetched, for the first replica); one holder, one loop."""

    __slots__ = ()

    def when_ready(self, resume: Callable[["Refusal | None"], None]) -> None:
        """Call `resume` once, later: with None the request goes on, with a refusal it ends."""
        raise NotImplementedError

    def abandon(self) -> None:
        """The client left: give up the place; `resume` is not called any more."""
        raise NotImplementedError


class Guard(Protocol):
    """Asked of every request before the desk, in order: who asks, whether they may, how much, and when."""

    def admit(self, question: Question, now: float) -> Refusal | Waiting | None:
        """None lets it in; a guard that learns who asks writes `question.user`."""

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """A request that was let in is over; called exactly once, in the reverse order. `usage` may be `NOT_ASKED`, and None where
        nobody knows what an engine used.
        """


class Desk(Protocol):
    """Decides for every request; one per router process."""

    def plan(self, question: Question, now: float) -> Plan | Refusal | Waiting:
        """The way of one request, or why there is none; after a wait it is asked again."""

    def hold(self, destination: Destination) -> Waiting | Refusal | None:
        """All engines of a destination took no connection: whether the request may wait for one to come back."""

    def models(self) -> Sequence[str]:
        """The names that `GET /v1/models` lists."""
