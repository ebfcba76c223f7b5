"""Time-division multiplexing: nodes of a revocable zone are ours only within the zone's hours.

    refused     a revocable node outside its hours, and at all times to pods that may not be driven off it
    score       1 on a revocable node within its hours
    preempt     a pod that may not be evicted itself drives others off the nodes that are always ours
    shuffle     when a zone's hours are over, evictable pods leave its nodes, each job's within its budget, once a period
    job order   jobs that may not be evicted go first

A node's zone is its label `volcano.sh/revocable-zone`; pods with that annotation (`*`), or that say they are
preemptable, may use revocable nodes. Hours are those of `tdm.time-zone`, which is UTC unless configured: Volcano takes
its container's zone, which is UTC in its images; so decisions can be replayed anywhere. `20:00-06:00` reaches past
midnight (the peer's ends there), and equal times are the whole day.
"""

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from math import ceil, inf
from typing import Any, ClassVar, Self
from zoneinfo import ZoneInfo

import numpy as np

from hekla.placement.columns import FloatArray, Nodes
from hekla.placement.constraint import Constraints, Refusal
from hekla.placement.framework import Departure, Key, Opinion, Refused, Vote, plugin
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.node_selection.score import NEUTRAL, Score, by_node
from hekla.placement.registry import ArgumentError, as_seconds_above_0
from hekla.placement.session import Session
from hekla.placement.shape import Shape

NAME = "tdm"
LABEL = "volcano.sh/revocable-zone"
MIN_KEY, MAX_KEY = "volcano.sh/jdb-min-available", "volcano.sh/jdb-max-unavailable"
PREFIX = "tdm.revocable-zone."

NOT_ALLOWED = Refusal("tdm", "not allow to dispatch to revocable node")

DEFAULT_EVICTIONS = 1
"""How many pods of a job without budget leave in one period."""

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class Hours:
    """A stretch of every day, in minutes since midnight; from a time to itself is the whole day."""

    start: int
    end: int
    text: str

    def contains(self, minute: int) -> bool:
        """Whether a minute of the day is in it; the end is not."""
        if self.start < self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end


@plugin
@dataclass(frozen=True, kw_only=True)
class Tdm:
    """Shares nodes with others by the hour."""

    zones: Mapping[str, Hours] = field(default_factory=dict)
    """When the nodes of a zone are ours."""

    period_s: float = 60.0
    """How often pods are driven off nodes whose hours are over."""

    time_zone: tzinfo = UTC
    """Where the hours are told."""

    argument_prefixes: ClassVar[tuple[str, ...]] = (PREFIX,)

    weight: float = 1.0
    """So that a point is worth what it is in Volcano, where this plug-in has no weight."""

    def outlook(self, session: Session) -> Hashable:
        """Which zones are ours now; asks for a cycle when that changes next."""
        for hours in self.zones.values():
            session.look_again(self._next_change(hours, session.wall_s))
        return tuple(sorted(name for name in self.zones if self._is_open(name, session.wall_s)))

    def refuse(self, nodes: Nodes, constraints: Constraints) -> Iterator[Refused]:
        """Zone by zone; nodes without a zone are nobody's but ours."""
        ids, values = nodes.label(LABEL), nodes.label_values(LABEL)
        for zone, position in values.items():
            why = self._why_closed(zone, nodes.wall_s) if zone else None
            if why is not None:
                yield Refused(why, ids == position)
            elif zone and constraints.trait(LABEL) is None:
                yield Refused(NOT_ALLOWED, ids == position)

    def score(self, nodes: Nodes, shape: Shape) -> Score:
        """The nodes that will not be ours for long are used while they are."""
        if shape.constraints.trait(LABEL) is None:
            return NEUTRAL
        values = nodes.label_values(LABEL)
        ours = [position for zone, position in values.items() if zone and self._is_open(zone, nodes.wall_s)]
        liked: FloatArray = np.isin(nodes.label(LABEL), ours).astype(np.float32)
        return by_node(liked)

    def job_key(self, session: Session, job: Job) -> Key:
        """Jobs that may not be evicted go first."""
        return (is_evictable(job),)

    def is_pipelined(self, session: Session, job: Job) -> Opinion:
        """Whether a job has its minimum once what it was promised is free."""
        promised = job.statuses[TaskStatus.PIPELINED] + job.ready_count
        return Opinion(Vote.PERMIT if promised >= job.spec.min_available else Vote.REJECT)

    def is_starving(self, session: Session, job: Job) -> bool:
        """A job that may not be evicted may always have others evicted for what it still waits for."""
        return not is_evictable(job) and job.statuses[TaskStatus.PENDING] > 0

    def apart(self, session: Session, victim: Task) -> Hashable:
        """Where a victim runs makes the difference, and whether it does."""
        return bool(zone_of(session.cluster.nodes, victim.row)), victim.status is TaskStatus.RUNNING

    def preemptable(self, session: Session, task: Task, victims: Sequence[Task]) -> Sequence[Task] | None:
        """Running pods on nodes that are always ours, as many of each job as its budget allows."""
        if task.spec.is_preemptable or task.shape.constraints.trait(LABEL) is not None:
            return []
        nodes = session.cluster.nodes
        always_ours = [
            victim for victim in victims
            if _may_be_driven_off(victim) and victim.row >= 0 and not zone_of(nodes, victim.row)
        ]  # fmt: skip
        return _within_budgets(always_ours)

    def victims(self, session: Session) -> Sequence[Departure]:
        """Pods on nodes whose hours are over."""
        if not self._over(session) or not session.is_due(NAME, self.period_s):
            return []
        session.look_again(session.wall_s + self.period_s)
        return [
            Departure(task, self._why(session.cluster.nodes, task)) for task in _within_budgets(self._late(session))
        ]

    def to_leave(self, session: Session) -> int:
        """The pods that are still on nodes whose hours are over: nobody is let onto these."""
        return len(self._late(session))

    def _late(self, session: Session) -> list[Task]:
        """Pods on nodes whose hours are over."""
        nodes, over = session.cluster.nodes, self._over(session)
        rows = np.isin(nodes.label(LABEL), [nodes.label_values(LABEL)[zone] for zone in over])
        return [task for task in session.running() if rows[task.row] and _may_be_driven_off(task)] if over else []

    def _over(self, session: Session) -> list[str]:
        """The zones whose hours are over."""
        known = session.cluster.nodes.label_values(LABEL)
        return [zone for zone in self.zones if zone in known and not self._is_open(zone, session.wall_s)]

    @classmethod
    def from_arguments(cls, arguments: Mapping[str, Any]) -> Self:
        """From Volcano's `tdm.revocable-zone.<zone>` and `tdm.evict.period`, and our `tdm.time-zone`."""
        keys = [key for key in arguments if key.startswith(PREFIX)]
        return cls(
            zones={key.removeprefix(PREFIX): _hours(key, arguments[key]) for key in keys},
            period_s=as_seconds_above_0("tdm.evict.period", arguments.get("tdm.evict.period", "1m")),
            time_zone=_time_zone(arguments.get("tdm.time-zone", "UTC")),
        )

    def _is_open(self, zone: str, wall_s: float) -> bool:
        return zone in self.zones and self.zones[zone].contains(self._minute(wall_s))

    def _minute(self, wall_s: float) -> int:
        local = datetime.fromtimestamp(wall_s, self.time_zone)
        return local.hour * 60 + local.minute

    def _why_closed(self, zone: str, wall_s: float) -> Refusal | None:
        if zone not in self.zones:
            return Refusal("tdm-zone", f"revocable zone {zone} not support")
        if self._is_open(zone, wall_s):
            return None
        hours = self.zones[zone].text
        return Refusal("tdm-hours", f"current time beyond revocable zone {zone}:{hours}")

    def _next_change(self, hours: Hours, wall_s: float) -> float:
        """When the hours begin or end next; clocks that are set forward or back are followed within the day."""
        if hours.start == hours.end:
            return inf
        midnight = datetime.fromtimestamp(wall_s, self.time_zone).replace(hour=0, minute=0, second=0, microsecond=0)
        times = [
            (midnight + timedelta(days=day, minutes=minute)).timestamp()
            for day in (0, 1, 2)
            for minute in (hours.start, hours.end)
        ]
        return min(time for time in times if time > wall_s)

    def _why(self, nodes: Nodes, task: Task) -> str:
        zone = zone_of(nodes, task.row)
        return f"the hours {self.zones[zone].text} of revocable zone {zone} are over"


def is_evictable(job: Job) -> bool:
    """Whether a job says that its pods may be evicted: one that says nothing does not."""
    return bool(job.spec.is_preemptable)


def zone_of(nodes: Nodes, row: int) -> str:
    """The revocable zone of a node; "" for one that is always ours."""
    spec = nodes.specs[row]
    return spec.labels.get(LABEL, "") if spec is not None else ""


def most_evictions(job: Job) -> int:
    """How many of a job's pods may be driven off now, by its disruption budget.

    A job that is below its minimum already loses nobody (the peer takes one all the same).
    """
    running, total = job.statuses[TaskStatus.RUNNING], len(job.tasks)
    least, most = job.spec.traits.get(MIN_KEY, ""), job.spec.traits.get(MAX_KEY, "")
    if least:
        return max(running - _count(least, total), 0)
    if most:
        over = job.count((TaskStatus.SUCCEEDED, TaskStatus.FAILED))
        return max(_count(most, total) - (total - over - running), 0)
    return DEFAULT_EVICTIONS


def _within_budgets(tasks: Sequence[Task]) -> list[Task]:
    """The first of each job's tasks, as many as its budget allows."""
    left: dict[str, int] = {}
    chosen = []
    for task in tasks:
        assert task.job is not None
        number = left.setdefault(task.job.uid, most_evictions(task.job))
        if number > 0:
            left[task.job.uid] = number - 1
            chosen.append(task)
    return chosen


def _may_be_driven_off(task: Task) -> bool:
    return task.status is TaskStatus.RUNNING and task.spec.is_preemptable and task.job is not None


def _count(text: str, total: int) -> int:
    """A number of pods, or a percentage of all, rounded up; 0 for what is neither."""
    number = text.removesuffix("%")
    if not (number.isascii() and number.isdigit() and len(number) < 10):
        return 0
    return ceil(int(number) * total / 100) if text.endswith("%") else int(number)


def _hours(key: str, value: Any) -> Hours:
    match = _HOURS.fullmatch(str(value).strip())
    if match is None:
        raise ArgumentError(f"argument {key} is {value!r}; hours like 10:00-21:00 are expected")
    first, second, third, fourth = (int(part) for part in match.groups())
    return Hours(first * 60 + second, third * 60 + fourth, str(value).strip())


def _time_zone(value: Any) -> tzinfo:
    try:
        return UTC if value == "UTC" else ZoneInfo(str(value))
    except (KeyError, ValueError, OSError) as error:
        raise ArgumentError(f"argument tdm.time-zone is {value!r}; a name like Europe/Berlin is expected") from error
