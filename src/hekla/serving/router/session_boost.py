"""Sessions that go on are served first: their prefix is still in an engine's cache, and their user waits for the next step.

A session is known by a header and remembered when one of its requests has ended. Among those who wait, follow-ups of remembered
sessions go first, the one whose last request ended most recently at the front; then everybody else as they came. It orders
requests and pins nothing: where a follow-up goes is the policies' business.
"""

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hekla.serving.router.plan import Usage
from hekla.serving.router.providers import HEADER_NAME
from hekla.serving.router.question import Question
from hekla.serving.router.queues import LONGEST_NAME, MOST_TOLD, Deed, Place
from hekla.serving.router.variables import Reader, VariableError


@dataclass(frozen=True, kw_only=True)
class SessionBoost:
    """Kthena's SESSION_BOOST_* settings."""

    header: str = "x-session-id"
    """The header that names a session, in lower case."""
    max_sessions: int = 4096
    """Sessions that are remembered; the one that ended longest ago is forgotten."""
    in_flight_per_pod: int = 16
    """Requests under way per engine before others wait."""
    grace_s: float = 0.0
    """How long the place of an ended request is kept for the session's follow-up."""
    timeout_s: float = 30.0


def read_session_boost(environment: Mapping[str, str]) -> SessionBoost:
    """The settings of the environment."""
    read = Reader(environment, "SESSION_BOOST_")
    header = read.text("HEADER", "X-Session-ID")
    if not HEADER_NAME.match(header):
        raise VariableError(f'SESSION_BOOST_HEADER "{header}" must be the name of a header, such as X-Session-ID')
    return SessionBoost(
        header=header.lower(),
        max_sessions=int(read.number("MAX_SESSIONS", 4096, least=1, most=1_000_000)),
        in_flight_per_pod=int(read.number("INFLIGHT_PER_POD", 16, least=1, most=100_000)),
        grace_s=read.seconds("GRACE_PERIOD", 0.0, most=60.0),
        timeout_s=read.seconds("TIMEOUT", 30.0, least=0.001),
    )


class BoostOrder:
    """An order for `queues.Lines`."""

    name = "session_boost_queue"

    def __init__(self, settings: SessionBoost) -> None:
        self._settings = settings
        self.timeout_s = settings.timeout_s
        self._ended: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._graces: dict[str, deque[tuple[float, str]]] = {}
        self._untold: list[Deed] = []

    def turn(self, places: Iterable[Place], now: float) -> Place:
        """The follow-up of the session that ended most recently, else who came first."""
        return min(places, key=lambda one: (-self._ended_at(one.question), one.number))

    def may_start(self, model: str, in_flight: int, now: float) -> bool:
        """The engines decide alone."""
        return True

    def kept_from(self, question: Question, now: float) -> int:
        """The places of requests that ended just now, for their sessions' follow-ups."""
        graces = self._graces.get(question.model)
        while graces and graces[0][0] <= now:
            graces.popleft()
        is_follow_up = (question.model, self._session(question)) in self._ended
        return 0 if is_follow_up or not graces else len(graces)

    def started(self, question: Question, now: float) -> None:
        """A follow-up has come: nothing is kept for it any more."""
        session = self._session(question)
        graces = self._graces.get(question.model)
        if session and graces:
            self._graces[question.model] = deque(one for one in graces if one[1] != session)

    def ended(self, question: Question, usage: Usage | None, now: float) -> None:
        """Remember the session."""
        session = self._session(question)
        if not session:
            return
        if len(session) <= LONGEST_NAME and len(self._untold) < self._settings.max_sessions:
            self._untold.append((question.model, session, 0.0))
        self._remember((question.model, session), now)

    def tell(self) -> list[Deed]:
        """Sessions of which a request ended here since the last time."""
        told, self._untold = self._untold[:MOST_TOLD], self._untold[MOST_TOLD:]
        return told

    def take_told(self, deeds: Iterable[Deed], sharers: int, now: float) -> None:
        """Sessions of which a request ended in another process of this router: their follow-ups go first here, too."""
        for model, session, _ in deeds:
            self._remember((model, session), now)

    def _remember(self, key: tuple[str, str], now: float) -> None:
        self._ended[key] = now
        self._ended.move_to_end(key)
        if len(self._ended) > self._settings.max_sessions:
            self._ended.popitem(last=False)
        if self._settings.grace_s:  # bounded by the requests that end within a grace
            self._graces.setdefault(key[0], deque()).append((now + self._settings.grace_s, key[1]))

    def _session(self, question: Question) -> str:
        return question.headers.get(self._settings.header, "")

    def _ended_at(self, question: Question) -> float:
        return self._ended.get((question.model, self._session(question)), float("-inf"))
