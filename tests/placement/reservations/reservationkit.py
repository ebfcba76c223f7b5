"""Lives of small clusters with reservations, for properties: jobs come, run as long as they say or do not, and end."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from hypothesis import strategies as st
from msgspec.structs import replace

from hekla.placement.model import JobPhase, TaskStatus
from hekla.testing.cluster import World, amounts, check

RESERVATION = ("reservation", {"depth": 2})
INSIDE = ("predicates", "binpack")
AT_THE_DOOR = ("overcommit", "proportion", *INSIDE)


@dataclass(frozen=True)
class Plan:
    nodes: tuple[int, ...]
    jobs: tuple[tuple[int, int, int, float], ...]
    """(arrives, runs, tasks, cpu of each)"""

    is_outside: bool = False
    """Whether jobs wait to be let in."""

    most: int | None = None
    """How many cpus the queue may hold."""


@st.composite
def plans(draw: st.DrawFn, *, at_the_door: bool = False) -> Plan:
    nodes = draw(st.lists(st.integers(2, 6), min_size=1, max_size=4))
    jobs = st.tuples(st.integers(0, 30), st.integers(1, 40), st.integers(1, 6), st.sampled_from([1, 2, 3]))
    most = draw(st.none() | st.integers(3, 12)) if at_the_door else None
    return Plan(tuple(nodes), tuple(draw(st.lists(jobs, min_size=2, max_size=10))), at_the_door, most)


class Life:
    """A world in which every pod runs exactly as long as its job says, or so many times as long."""

    def __init__(
        self, plan: Plan, *, times_as_long: Sequence[float] = (1.0,), backwards: bool = False, reserves: bool = True,
        says_how_long: bool = True,
    ) -> None:  # fmt: skip
        self.times_as_long, self.says_how_long = times_as_long, says_how_long
        first = ("gang", RESERVATION) if reserves else ("gang",)
        self.world = World(plugins=(first, AT_THE_DOOR if plan.is_outside else INSIDE))
        self.world.queue("default", capability=amounts(cpu=plan.most) if plan.most else {})
        self.ends: dict[str, float] = {}
        self.started: dict[str, float] = {}
        self.binds: list[tuple[float, str, str]] = []
        """What was decided, in order: when, which pod, where."""

        self.told: dict[str, float] = {}
        """By job, the first start that was reserved."""

        arrivals = [(job[0], number) for number, job in enumerate(plan.jobs)]
        self.arrivals = sorted(arrivals[::-1] if backwards else arrivals, key=lambda one: one[0], reverse=True)
        self.plan = plan
        for number, cpu in sorted(enumerate(plan.nodes), reverse=backwards):
            self.world.node(f"n{number}", cpu=cpu)

    def end_of(self, uid: str) -> float:
        """When a job ended, that was started."""
        number = int(uid[1:])
        return self.started[uid] + self.plan.jobs[number][1] * self._factor(number)

    def _factor(self, number: int) -> float:
        return self.times_as_long[number % len(self.times_as_long)]

    def run(self) -> None:
        while self.arrivals or self.ends:
            now = min([*(float(at) for at, _ in self.arrivals[-1:]), *self.ends.values()])
            self.world.tell_time(now)
            for name in [name for name, end in self.ends.items() if end <= now]:
                del self.ends[name]
                self.world.finish(name)
            while self.arrivals and self.arrivals[-1][0] <= now:
                self._arrive(self.arrivals.pop()[1], now)
            for name, node in self.world.schedule().items():
                self.binds.append((now, name, node))
                self._start(name, now)
            for uid, reservation in self.world.cluster.reservations.items():
                self.told.setdefault(uid, reservation.start_s)
            check(self.world.cluster)
            self._nothing_is_overfull_and_no_gang_in_part()

    def _nothing_is_overfull_and_no_gang_in_part(self) -> None:
        assert (self.world.cluster.nodes.idle >= 0).all(), "more is used than there is"
        for job in self.world.cluster.jobs.values():
            waiting = job.statuses[TaskStatus.PENDING]
            assert waiting in (0, len(job.tasks)), f"{job} started in part"

    def _arrive(self, number: int, now: float) -> None:
        _, runs, tasks, cpu = self.plan.jobs[number]
        clock = vars(self.world)
        more: dict[str, Any] = {"created": float(number)}
        if self.says_how_long:
            more["estimate_s"] = float(runs)
        if self.plan.is_outside:
            more |= {"phase": JobPhase.PENDING, "min_resources": amounts(cpu=cpu * tasks)}
        self.world.job(f"j{number}", tasks=tasks, more=more, cpu=cpu)
        clock["_clock"] = now  # building a job takes no time here

    def _start(self, name: str, now: float) -> None:
        task = self.world.cluster.tasks[name]
        assert task.job is not None
        node = self.world.cluster.nodes.name(task.row)
        self.world.cluster.put_task(replace(task.spec, node=node, status=TaskStatus.RUNNING, started=now), task.job)
        task.job.phase = JobPhase.RUNNING
        number = int(task.job.uid[1:])
        self.ends[name] = now + self.plan.jobs[number][1] * self._factor(number)
        self.started.setdefault(task.job.uid, now)


def fits(plan: Plan, number: int) -> bool:
    """Whether a job fits the empty cluster."""
    _, _, tasks, cpu = plan.jobs[number]
    return sum(size // cpu for size in plan.nodes) >= tasks and cpu * tasks <= (plan.most or inf)
