"""What the gateway tells Prometheus: its requests, and the sessions of its desk."""

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric, generate_latest

from hekla.kube.measured import Collector, Family, Tally, metric
from hekla.sandbox.gateway.shares import Answer
from hekla.sandbox.sessions.counts import FAMILIES as OF_SESSIONS
from hekla.sandbox.sessions.counts import START_S, SessionCounts

PASSED = Family(
    "hekla_agents_requests_passed_total", "counter", "Requests to sandboxes, by the first digit of their status.", ("class",)
)  # fmt: skip
PASSAGE = Family("hekla_agents_passage_seconds", "histogram", "Requests to sandboxes, to the last byte.", (), START_S)
ANSWERED = Family(
    "hekla_agents_requests_answered_total",
    "counter",
    "Requests that the gateway answered itself, by its door (dialect).",
    ("door", "status"),
)
ANSWER = Family(
    "hekla_agents_answer_seconds", "histogram", "Requests that the gateway answered itself.", ("door",), START_S
)
WOKEN = Family("hekla_agents_woken_total", "counter", "Requests that woke a session.")
TURNED_AWAY = Family(
    "hekla_agents_connections_refused_total",
    "counter",
    "Connections that were not let in, by why: the gateway was full, or their address had its share.",
    ("why",),
)
SESSIONS = Family("hekla_agents_sessions", "gauge", "Live sessions by state.", ("state",))
COUNTED = (PASSED, PASSAGE, ANSWERED, ANSWER, WOKEN, TURNED_AWAY)
FAMILIES = (*COUNTED, SESSIONS, *OF_SESSIONS)


class GatewayMetrics:
    """The gateway's own numbers."""

    def __init__(self) -> None:
        self._tally = Tally()
        for digit in range(1, 6):
            self._tally.count(PASSED, f"{digit}", by=0)
        for answer in (Answer.FULL, Answer.SHARE):
            self._tally.count(TURNED_AWAY, answer, by=0)

    def passed(self, status: int, took_s: float) -> None:
        """A request to a sandbox is over; counted by the class of its status."""
        self._tally.count(PASSED, f"{status // 100}" if 100 <= status < 600 else "5")
        self._tally.observe(PASSAGE, took_s)

    def answered(self, door: str, status: int, took_s: float) -> None:
        """The gateway answered a request itself."""
        self._tally.count(ANSWERED, door, f"{status}")
        self._tally.observe(ANSWER, took_s, door)

    def woken(self) -> None:
        """A request woke a session."""
        self._tally.count(WOKEN)

    def turned_away(self, answer: Answer) -> None:
        """A connection was not let in."""
        self._tally.count(TURNED_AWAY, answer)

    def collect(self, sessions: Mapping[str, int], counts: SessionCounts) -> Iterator[Metric]:
        """All families, as they stand now; `sessions` counts live ones by state."""
        yield from self._tally.collect(COUNTED)
        yield metric(SESSIONS, {(state,): count for state, count in sessions.items()})
        yield from counts.tally.collect(OF_SESSIONS)


def exposition(metrics: Iterable[Metric]) -> bytes:
    """A page of these alone, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(lambda: metrics))
    return generate_latest(registry)
