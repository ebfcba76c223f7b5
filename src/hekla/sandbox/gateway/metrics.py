"""What the gateway counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120)


class GatewayMetrics:
    """The gateway's own registry."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._passed = Counter("hekla_agents_requests_passed", "Requests to sandboxes.", ["class"], registry=registry)
        self._took = Histogram("hekla_agents_passage_seconds", "Requests to sandboxes, to the last byte.", buckets=_BUCKETS, registry=registry)  # fmt: skip
        self._answered = Counter("hekla_agents_requests_answered", "Requests answered by the gateway itself.", ["door", "status"], registry=registry)  # fmt: skip
        self._answer_took = Histogram("hekla_agents_answer_seconds", "Requests answered by the gateway itself.", ["door"], buckets=_BUCKETS, registry=registry)  # fmt: skip
        self.woken = Counter("hekla_agents_woken", "Requests that woke a session.", registry=registry)
        self._sessions = Gauge("hekla_agents_sessions", "Live sessions by state.", ["state"], registry=registry)
        self._by_status = {status: self._passed.labels(f"{status}") for status in range(1, 6)}

    def passed(self, status: int, took_s: float) -> None:
        """A request to a sandbox is over; counted by the class of its status."""
        self._by_status.get(status // 100, self._by_status[5]).inc()
        self._took.observe(took_s)

    def answered(self, door: str, status: int, took_s: float) -> None:
        """The gateway answered a request itself."""
        self._answered.labels(door, f"{status}").inc()
        self._answer_took.labels(door).observe(took_s)

    def text(self, sessions: dict[str, int]) -> bytes:
        """The exposition; `sessions` counts live ones by state."""
        self._sessions.clear()
        for state, count in sessions.items():
            self._sessions.labels(state).set(count)
        return generate_latest(self.registry)
