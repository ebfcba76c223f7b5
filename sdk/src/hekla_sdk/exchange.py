"""One exchange with the gateway, without doing it: what is asked, what was answered, and when to ask again.

An operation is a generator of requests that is sent their answers and returns what the program gets; `session.py` and
`async_session.py` do the exchanges, and nothing else.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from hekla_sdk.documents import document_of
from hekla_sdk.errors import BadAnswerError, RefusedError, refusal

Told = TypeVar("Told")
MOST_ANSWER: Final = 64 * 1024 * 1024
MOST_REFUSAL: Final = 64 * 1024
CONNECT_S: Final = 10.0
PATIENCE_S: Final = 120.0
"""The gateway may hold a request while a session wakes or a place is found."""
MOST_TRIES: Final = 4
LONGEST_WAIT_S: Final = 10.0
"""A server that wants more than this is believed, and its refusal told."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked; the path is below /hekla/v1/."""

    method: str
    path: str
    body: bytes = field(default=b"", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict)
    patience_s: float | None = PATIENCE_S
    """Between two pieces of the answer; None: any."""
    most: int = MOST_ANSWER
    """Bytes of an answer that are taken."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered."""

    status: int
    body: bytes
    retry_after: str = ""


Steps = Generator[Request, Answer, Told]
"""An operation."""


def fine(answer: Answer) -> bytes:
    """The body of an answer that is no refusal."""
    if answer.status < 300:
        return answer.body
    try:
        told = document_of(answer.body)
    except BadAnswerError:
        told = {}
    sentence = told.get("message") or told.get("error") or answer.body[:500].decode("utf-8", "replace").strip()
    reason = told.get("reason") or told.get("code") or ""
    raise refusal(answer.status, f"{reason}", f"{sentence or 'the gateway gave no reason'}")


def state_asked(request: Request) -> Request | None:
    """What to ask when a connection broke: how the session is by now. None: the request was about none."""
    parts = request.path.split("/")
    if len(parts) < 3 or parts[0] != "sessions":
        return None
    return Request("GET", f"sessions/{parts[1]}", patience_s=CONNECT_S)


def spent(answer: Answer) -> RefusedError | None:
    """The refusal that broke a connection: a session whose budget is used up stands still in the middle of what it does."""
    try:
        told = document_of(answer.body) if answer.status < 300 else {}
    except BadAnswerError:
        return None
    if not told.get("why") or told.get("state") == "running":
        return None
    return refusal(402, "budget_spent", f'session "{told.get("id")}" stands still: {told["why"]}')


def wait_unconnected_s(tries: int) -> float | None:
    """After so many tries no connection was made: how long until the next; None: that was the last."""
    return 0.1 * 2**tries if tries < MOST_TRIES else None


def wait_refused_s(answer: Answer, tries: int) -> float | None:
    """After so many tries the server has too much to do: how long until the next; None: take the answer."""
    if answer.status not in (429, 503) or tries >= MOST_TRIES or not answer.retry_after.isdigit():
        return None
    wait_s = float(answer.retry_after)
    return wait_s if wait_s <= LONGEST_WAIT_S else None
