"""The front: finds the door of a request by its headers, then its host, then its path, and keeps count of what is under way.

A request is judged by the headers of `_DECIDING` alone, each of which may come once: two readers that pick different ones of two
headers would let a client speak to one sandbox in another's name.
"""

import asyncio
import re
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from hekla.sandbox.gateway.answers import document
from hekla.sandbox.gateway.bounds import Bounds
from hekla.sandbox.gateway.documents import Asked, Document, Handler, Reply
from hekla.sandbox.gateway.guard import Guard
from hekla.sandbox.gateway.inside import InsidePool, InsidePools
from hekla.sandbox.gateway.metrics import GatewayMetrics
from hekla.sandbox.gateway.minting import Mint
from hekla.sandbox.gateway.relay import Errand, Passage
from hekla.sandbox.gateway.shares import Answer
from hekla.sandbox.gateway.strangers import Strangers
from hekla.sandbox.gateway.unsaid import unsaid, without_quotes
from hekla.sandbox.gateway.visitors import Taker, Visitor
from hekla.sandbox.link import DAEMON, SandboxLink
from hekla.sandbox.sessions.desk import Desk
from hekla.sandbox.sessions.lifecycle import State
from hekla.sandbox.sessions.limits import RefusedError
from hekla.sandbox.sessions.records import Session
from hekla.sandbox.sessions.store import StoreUnavailableError
from hekla.wire.raw_heads import RequestHead

log = structlog.get_logger(__name__)
access = structlog.get_logger("hekla.sandbox.access")

_DECIDING = re.compile(
    rb"(?i)\n(host|authorization|x-api-key|x-access-token|e2b-sandbox-id|e2b-sandbox-port|e2b-traffic-access-token|x-sandbox-id"
    rb"|x-sandbox-namespace|x-sandbox-port|x-sandbox-uid|x-sandbox-pod-ip|x-agentcube-session-id|upgrade|connection"
    rb"|idempotency-key|content-type|accept|mcp-session-id|origin|user-agent|forwarded|x-forwarded-for|x-forwarded-proto):"
    rb"[ \t]*+([^\r\n]*+)"
)
_MAY_REPEAT = frozenset({"connection", "accept", "forwarded", "x-forwarded-for", "x-forwarded-proto", "user-agent"})
_LONGEST = 8192
_NAMED = frozenset({"e2b-sandbox-id", "x-sandbox-id", "x-agentcube-session-id"})
_LONGEST_ID = 128
LONGEST_SENTENCE = 256
"""Of a refusal, in the log."""


@dataclass(slots=True)
class Arrival:
    """A request as the doors see it."""

    visitor: Visitor
    head: RequestHead
    headers: dict[str, str]
    """Those that decide something."""
    path: str
    """Without the query, as it came."""

    @property
    def upgrade(self) -> bytes:
        """The protocol that is asked for instead of HTTP."""
        asked = self.headers.get("upgrade", "")
        return asked.encode("latin-1") if asked and "upgrade" in self.headers.get("connection", "").lower() else b""


Proof = Callable[[Session], bool]
"""Whether a request shows a secret of that session's own: no guess has one, so whoever shows it is no stranger."""
Prove = Callable[[Arrival], Proof | None]
"""The proof of a request; None: it shows no secret at all, so that no session needs to be looked for."""


def _shows_nothing(arrival: Arrival) -> None:
    """Of dialects in which the id of a session is all that opens it."""


class Wording(Protocol):
    """How the clients of a dialect read refusals."""

    def worded(self, status: int, reason: str, sentence: str) -> tuple[int, bytes]:
        """A refusal as its clients read it."""


class Door(Wording, Protocol):
    """One dialect."""

    name: str

    def takes(self, arrival: Arrival) -> bool:
        """Whether a request is in this dialect."""

    def receive(self, house: "House", arrival: Arrival) -> Taker:
        """Take it; RefusedError."""


@dataclass
class House:
    """What doors share: the desk, the guard, the ways inside, and the count of what is under way."""

    desk: Desk
    guard: Guard
    mint: Mint
    link: SandboxLink
    bounds: Bounds
    pools: InsidePools
    metrics: GatewayMetrics
    domain: str = ""
    """Of preview hosts: `<port>-<session>.<domain>`."""
    wall: Callable[[], float] = time.time
    strangers: Strangers = field(default_factory=Strangers)
    under_way: dict[str, set[Passage]] = field(default_factory=dict)
    """Passages by session."""
    count: int = 0

    def __post_init__(self) -> None:
        """Whatever runs for a session ends with it; what is asked of it first finds the door open."""
        self.desk.tell_ends(self.session_ended)
        self.desk.tell_claims(self._sandbox_is_claimed)

    # What passages need.

    def pool(self, session: Session, port: int) -> InsidePool:
        """Connections to a port of a session's sandbox."""
        return self.pools.of((session.namespace, session.pod, port))

    async def woken(self, session: Session, *, from_pause: bool) -> Session:
        """The session as it runs."""
        current = await self.desk.find(session.id)
        if current.state is State.RUNNING:
            return current
        if current.state is State.PAUSED and not (from_pause and current.auto_resume):
            raise RefusedError(502, "paused", f'session "{session.id}" is paused; connect to it first')
        if current.state not in (State.FROZEN, State.PAUSED, State.CREATING, State.CLAIMED):
            raise RefusedError(404, "session_not_found", f'session "{session.id}" not found')
        self.metrics.woken()
        return await self.desk.wake(session.id)

    def begun(self, passage: Passage) -> None:
        """A passage begins."""
        assert passage.errand is not None
        session = passage.errand.session
        self.count += 1
        self.under_way.setdefault(session.id, set()).add(passage)
        self.desk.enter(session)

    def over(self, passage: Passage, status: int) -> None:
        """A passage is over."""
        took_s = asyncio.get_running_loop().time() - passage.started_s
        self.metrics.passed(status, took_s)
        if passage.errand is None:
            self.log(passage.head, status, took_s, **_why(passage.refusal))
            return
        session = passage.errand.session
        self.count -= 1
        its = self.under_way.get(session.id)
        if its is not None:
            its.discard(passage)
            if not its:
                del self.under_way[session.id]
        self.desk.leave(session)
        self.log(
            passage.head,
            status,
            took_s,
            session=session.id,
            owner=session.owner,
            port=passage.errand.port,
            bytes=passage.written,
            **_why(passage.refusal),
        )

    def log(self, head: RequestHead, status: int, took_s: float, **more: Any) -> None:
        """One line for one request: never its query, where signatures stand, nor a header."""
        path = head.target.partition(b"?")[0].decode("latin-1")
        access.info(
            "request",
            method=head.method.decode(),
            path=unsaid(path[:256]),
            status=status,
            took_ms=round(took_s * 1000, 2),
            **more,
        )

    def _sandbox_is_claimed(self, namespace: str, pod: str) -> None:
        """Connect to its daemon while that reads whose it is: a millisecond of the first request. A connection knows nothing of a claim."""
        self.pools.of((namespace, pod, DAEMON)).connect_ahead()

    def session_ended(self, session: str) -> None:
        """Nothing may run for it any more."""
        for passage in tuple(self.under_way.get(session, ())):
            if passage.errand is not None:
                self.pools.forget(passage.errand.session.namespace, passage.errand.session.pod)
            passage.cut(*self._why_cut(session))
        self.mint.forget(session)

    def _why_cut(self, session: str) -> tuple[str, str]:
        row = self.desk.known(session)
        if row is not None and row.spent:
            return "budget_spent", f'session "{session}" stands still: {row.spent}'
        return "session_ended", f'The sandbox "{session}" was not found: it has ended'

    # What doors need.

    def passage(
        self,
        arrival: Arrival,
        door: Door,
        session: str,
        errand: Callable[[Session], Errand],
        prove: Prove = _shows_nothing,
    ) -> Passage:
        """Send a request on its way to a session; `errand` says how, or refuses. RefusedError where there is no such session."""
        is_stranger = bool(self.strangers) and self._is_stranger(arrival)
        if is_stranger:
            errand = _proven(prove(arrival), errand)
        passage = Passage(self, arrival.visitor, arrival.head, door.worded)
        known = self.desk.known(session)
        if known is not None:
            passage.begin(self._led(arrival, known, errand))
        elif self.desk.is_shared:
            passage.begin_later(self._found(arrival, session, errand, is_stranger=is_stranger))
        else:
            raise self._nothing_there(arrival, _nowhere(session), is_stranger=is_stranger)
        return passage

    def passage_now(self, arrival: Arrival, door: Door, errand: Errand) -> Passage:
        """The same for whom the door has let in: a task for it would have the client's body wait for its turn, and be read no further meanwhile."""
        passage = Passage(self, arrival.visitor, arrival.head, door.worded)
        passage.begin(errand)
        return passage

    def passage_later(self, arrival: Arrival, door: Door, finding: Coroutine[None, None, Errand]) -> Passage:
        """The same, once it is known where it goes; the client's body waits meanwhile."""
        passage = Passage(self, arrival.visitor, arrival.head, door.worded)
        passage.begin_later(finding)
        return passage

    async def _found(
        self, arrival: Arrival, session: str, errand: Callable[[Session], Errand], *, is_stranger: bool
    ) -> Errand:
        try:
            row = await self.desk.find(session)
        except RefusedError as refusal:
            if refusal.reason == "session_not_found":  # of one that ended it says more, and nobody knows who asks
                refusal = _nowhere(session)
            raise self._nothing_there(arrival, refusal, is_stranger=is_stranger) from None
        return self._led(arrival, row, errand)

    def _nothing_there(self, arrival: Arrival, refusal: RefusedError, *, is_stranger: bool) -> RefusedError:
        """What somebody is told; a stranger the same as where there is a session, else that would tell which guess was right."""
        if is_stranger:
            return too_many_misses()
        self.missed(arrival.visitor.peer)
        return refusal

    def _led(self, arrival: Arrival, session: Session, errand: Callable[[Session], Errand]) -> Errand:
        """The errand; an id that does not open what was asked, or a wrong token, is a miss, too."""
        try:
            return errand(session)
        except RefusedError as refusal:
            if refusal.status in (401, 403, 404):
                self.missed(arrival.visitor.peer)
            raise

    def missed(self, address: str) -> None:
        """Somebody asked for what is not there, or is not theirs."""
        self.strangers.missed(address, asyncio.get_running_loop().time())

    def _is_stranger(self, arrival: Arrival) -> bool:
        if not self.strangers.is_over(arrival.visitor.peer, asyncio.get_running_loop().time()):
            return False
        secret = arrival.headers.get("x-api-key") or arrival.headers.get("authorization", "").partition(" ")[2].strip()
        return self.guard.by_key(secret) is None

    def document(self, arrival: Arrival, door: Door, answer: Handler) -> Document:
        """Have a request answered by a coroutine; its refusals are worded by the door."""

        async def safely(asked: Asked) -> Reply:
            try:
                return await answer(asked)
            except RefusedError as refusal:
                return self.refused(door, asked.peer, refusal)
            except StoreUnavailableError as error:
                return self.refusal(door, RefusedError(503, "store", str(error), retry_after_s=1.0))
            except asyncio.CancelledError:
                raise
            except Exception as error:  # the border to the doors: reported, and answered 500
                log.exception("a door failed", door=door.name, path=asked.path[:256], error=type(error).__name__)
                return self.refusal(door, RefusedError(500, "internal", "internal server error"))

        head = arrival.head
        is_secure = arrival.visitor.is_tls or arrival.headers.get("x-forwarded-proto") == "https"
        base = f"{'https' if is_secure else 'http'}://{arrival.headers.get('host', '')}"
        target = head.target.decode("latin-1")
        asked = Asked(head.method.decode(), target, arrival.headers, b"", peer=arrival.visitor.peer, base_url=base)
        return Document(
            arrival.visitor, head, asked, safely, door=door.name, limit=self.bounds.document_bytes, finished=self._answered
        )  # fmt: skip

    def _counted(self, address: str, refusal: RefusedError) -> RefusedError:
        """A wrong key is a miss; too many of them are told so instead."""
        if refusal.status != 401:
            return refusal
        over = self.strangers.is_over(address, asyncio.get_running_loop().time())
        self.missed(address)
        return too_many_misses() if over else refusal

    def _answered(self, document: Document, status: int) -> None:
        took_s = asyncio.get_running_loop().time() - document.started_s
        self.metrics.answered(document.door, status, took_s)
        self.log(
            document.head, status, took_s, door=document.door, owner=document.asked.owner, **_why(document.refusal)
        )

    def refused(self, door: "Wording", address: str, refusal: RefusedError) -> Reply:
        """A refusal of somebody at an address as an answer, counted if it is a miss."""
        return self.refusal(door, self._counted(address, refusal))

    def refusal(self, door: "Wording", refusal: RefusedError) -> Reply:
        """A refusal as an answer."""
        status, body = door.worded(refusal.status, refusal.reason, refusal.sentence)
        headers = [("retry-after", f"{max(1, round(refusal.retry_after_s))}")] if refusal.retry_after_s else []
        if status == 401:
            headers.append(("www-authenticate", 'Bearer realm="hekla"'))
        return Reply(status, body, headers, refusal=refusal)


def _nowhere(session: str) -> RefusedError:
    """The same for one that never was and for one that ended."""
    return RefusedError(404, "session_not_found", f'session "{session[:64]}" not found')


def _why(refusal: RefusedError | None) -> dict[str, str]:
    """What the log says of a refusal; a dialect's own words for its client may be fewer."""
    if refusal is None:
        return {}
    return {
        "reason": refusal.reason,
        "sentence": without_quotes(refusal.sentence, refusal.reason)[:LONGEST_SENTENCE],
    }


def too_many_misses() -> RefusedError:
    """Of one address, in a short time."""
    sentence = "too many requests for sessions that are not there, or with keys that are none; try again later"
    return RefusedError(429, "too_many_misses", sentence, retry_after_s=1.0)


def _proven(proof: Proof | None, errand: Callable[[Session], Errand]) -> Callable[[Session], Errand]:
    """The errand of somebody whose address missed too often: only with proof; RefusedError."""
    if proof is None:
        raise too_many_misses()

    def proven(session: Session) -> Errand:
        if not proof(session):
            raise too_many_misses()
        return errand(session)

    return proven


class GatewayFront:
    """Hands each request to the first door that takes it."""

    def __init__(self, house: House, doors: list[Door], last: Door) -> None:
        self._house, self._doors, self._last = house, doors, last

    def receive(self, visitor: Visitor, head: RequestHead) -> Taker:
        """Take a request."""
        house, door = self._house, self._last
        try:
            arrival = Arrival(visitor, head, _deciding(head), head.target.partition(b"?")[0].decode("latin-1"))
        except RefusedError as refusal:
            arrival = Arrival(visitor, head, {}, "")
            return self._refuse(arrival, door, refusal)
        door = next((one for one in self._doors if one.takes(arrival)), self._last)
        if house.count >= house.bounds.requests:
            sentence = "server overloaded, please try again later"
            return self._refuse(arrival, door, RefusedError(429, "SERVER_OVERLOADED", sentence, retry_after_s=1.0))
        try:
            return door.receive(house, arrival)
        except RefusedError as refusal:
            return self._refuse(arrival, door, refusal)

    def _refuse(self, arrival: Arrival, door: Door, refusal: RefusedError) -> Taker:
        async def refused(asked: Asked) -> Reply:
            raise refusal

        return self._house.document(arrival, door, refused)

    def refused(self, visitor: Visitor, status: int, sentence: str) -> bytes:
        """A request was refused before it was one."""
        return document({"error": sentence})

    def turned_away(self, answer: Answer) -> None:
        """A connection was not let in: counted."""
        self._house.metrics.turned_away(answer)


def _deciding(head: RequestHead) -> dict[str, str]:
    """The headers that decide something; RefusedError where one of them is doubtful."""
    found: dict[str, str] = {}
    for raw_name, raw_value in _DECIDING.findall(b"\n" + head.lines):
        name, value = raw_name.lower().decode(), raw_value.strip(b" \t").decode("latin-1")
        if name in found:
            if name not in _MAY_REPEAT:
                raise RefusedError(400, "header", f"the header {name} came more than once; send it once")
            found[name] = f"{found[name]}, {value}"
            continue
        if len(value) > _LONGEST or (name in _NAMED and (len(value) > _LONGEST_ID or "," in value)):
            raise RefusedError(400, "header", f"the header {name} is no single value")
        found[name] = value
    if not head.target.startswith(b"/"):
        raise RefusedError(400, "target", "the request's target must be a path")
    return found
