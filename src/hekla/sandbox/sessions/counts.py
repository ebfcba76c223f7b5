"""What a desk counts of its sessions: how long starts and wakings take and from where, who was refused, who sleeps, who ended and why.

Times are those that a caller waits. `gateway/metrics.py` puts them on the gateway's page, beside its own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

from hekla.kube.measured import Family, Tally
from hekla.sandbox.sessions.limits import RefusedError

START_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
"""From a warm sandbox of a process, 3 ms, to an image that is pulled first."""


class Start(StrEnum):
    """What a session began with."""

    WARM = "warm"
    """A sandbox that waited in a pool."""

    COLD = "cold"
    """One that was made for it."""

    RESTORED = "restored"
    """A snapshot."""

    FORK = "fork"
    """A session that runs."""


class Sleep(StrEnum):
    """How a session sleeps."""

    FROZEN = "frozen"
    """Until the next request."""

    PAUSED = "paused"
    """In memory, until it is asked for."""

    STORED = "stored"
    """Its files alone; the sandbox was given back."""


STARTS = Family(
    "hekla_agents_start_seconds",
    "histogram",
    "From a session's being asked for until it ran, by what it began with: warm (from a pool), cold, restored, fork.",
    ("start",),
    START_S,
)
REFUSED = Family(
    "hekla_agents_refused_total", "counter", "Sessions that were asked for in vain, by the reason of the refusal.", ("reason",)
)  # fmt: skip
WAKINGS = Family(
    "hekla_agents_wake_seconds",
    "histogram",
    "From the first request to a sleeping session until it ran, by how it slept: frozen, paused, stored.",
    ("sleep",),
    START_S,
)
SLEPT = Family("hekla_agents_slept_total", "counter", "Times that a session was put to sleep, by how.", ("sleep",))
SANDBOX_GONE = "its sandbox is gone"
"""Why a session ended that lost its sandbox."""

ENDED = Family("hekla_agents_ended_total", "counter", "Sessions that ended, by why.", ("why",))
FAMILIES = (STARTS, REFUSED, WAKINGS, SLEPT, ENDED)


class SessionCounts:
    """All that one desk counted since it opened."""

    def __init__(self) -> None:
        self.tally = Tally()
        for sleep in Sleep:
            self.tally.count(SLEPT, sleep, by=0)
        # told from the start: Prometheus sees no increase in a series that begins with what it should warn of
        self.tally.count(ENDED, SANDBOX_GONE, by=0)

    def started(self, start: Start, took_s: float) -> None:
        """A session runs."""
        self.tally.observe(STARTS, took_s, start)

    def refused(self, reason: str, count: int = 1) -> None:
        """So many sessions were not to be had."""
        self.tally.count(REFUSED, reason, by=count)

    @contextmanager
    def refusals(self, count: int) -> Iterator[None]:
        """So many sessions are asked for; a refusal is counted for each and goes on."""
        try:
            yield
        except RefusedError as error:
            self.refused(error.reason, count)
            raise

    def slept(self, sleep: Sleep) -> None:
        """A session was put to sleep."""
        self.tally.count(SLEPT, sleep)

    def woke(self, sleep: Sleep, took_s: float) -> None:
        """A session runs again."""
        self.tally.observe(WAKINGS, took_s, sleep)

    def ended(self, why: str) -> None:
        """A session is over, or about to be."""
        self.tally.count(ENDED, why)
