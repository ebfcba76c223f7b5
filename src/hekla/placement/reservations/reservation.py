"""Room that is kept for a job: on which nodes, how much of each, and from when (`book.py` says who heeds it)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hekla.placement.named_jobs import NamedJob, Telling
from hekla.placement.reservations.forecast_equal_pods import Rooms

MOST_NODES_TOLD = 3
NOBODY = "nobody"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """Which nodes are kept for a job, from when, and how much of each."""

    uid: str
    job: str
    priority: int
    start_s: float
    """When it is expected to start, by the wall clock."""

    told_s: float
    """When it was to start by what was told first."""

    rooms: Rooms = field(default_factory=dict)
    """By node, what it needs there."""

    is_imagined: bool = False
    """Whether it was planned before the job made its pods, so that it is planned anew when they are there."""

    @property
    def until_s(self) -> float:
        """Until when others may use its room: a start that was put off is not time for more to come in."""
        return min(self.start_s, self.told_s)

    @property
    def places(self) -> Mapping[str, int]:
        """By node, for how many pods."""
        return {name: room["pods"] for name, room in self.rooms.items()}

    def telling(self, now_s: float) -> Telling:
        """`node-1, node-2 are reserved for ml/big, which is to start in 12 min, 5 min later than was told first`."""
        names = sorted(self.rooms)
        more = f" and {len(names) - MOST_NODES_TOLD} more" if len(names) > MOST_NODES_TOLD else ""
        verb = "are" if len(names) > 1 else "is"
        told = ", ".join(names[:MOST_NODES_TOLD]) + more
        return f"{told} {verb} reserved for ", NamedJob(self.job), f", which is to start {self.start_told(now_s)}"

    def start_told(self, now_s: float) -> str:
        """`in 12 min, 5 min later than was told first`."""
        late_s = self.start_s - self.told_s
        return when(self.start_s - now_s) + (f", {length(late_s)} later than was told first" if late_s > 0 else "")

    def who_may_use_it(self, now_s: float) -> str:
        """`a job that ends before`, `a job that ends within 5 min`, `nobody`."""
        if self.until_s >= self.start_s:
            return "a job that ends before"
        return f"a job that ends within {length(self.until_s - now_s)}" if self.until_s > now_s else NOBODY


def when(seconds: float) -> str:
    """`now`, `in 90 s`."""
    return "now" if seconds <= 0 else f"in {length(seconds)}"


def length(seconds: float) -> str:
    """`90 s`, `12 min`, `2.5 h`."""
    if seconds < 7200:
        return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f}".removesuffix(".0") + " h"
