"""The plain oracle's line: whose turn it is, and what a queue deserves (specs/volcano-scheduler.md 2.2, 3.2, 4.4, 4.5).

Queues by priority, then by how much of what they deserve they hold; jobs by priority, those that are not whole before those
that grow, then by dominant share, age and name. Shares are fractions, and nothing is kept between turns but what is held.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from heapq import heappop, heappush
from typing import Any

from bench.placement.plain import natural
from hekla.placement.model import JobSpec, TaskSpec
from hekla.placement.queue import Queue

Amounts = Mapping[str, int]
BOUNDED = ("cpu", "memory", "nvidia.com/gpu")
COUNTED = (*BOUNDED, "pods")
"""Shares are weighed with the number of pods, and nobody is held back by it."""


@dataclass
class PlainJob:
    """A job, its pods that wait, and what it holds."""

    spec: JobSpec
    waiting: list[TaskSpec]
    ready: int = 0
    held: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, spec: JobSpec, waiting: Sequence[TaskSpec], running: Sequence[TaskSpec]) -> "PlainJob":
        """The priority plug-in's order of tasks, then by number."""
        held: Counter[str] = Counter(pods=len(running))
        for pod in running:
            held.update(pod.request)
        return cls(spec, sorted(waiting, key=lambda task: (-task.priority, natural(task.name))), len(running), held)

    @property
    def is_ready(self) -> bool:
        return self.ready >= self.spec.min_available

    @property
    def turn(self) -> list[TaskSpec]:
        """The pods that go next: those that it lacks to be whole, or one more."""
        return self.waiting[: max(1, self.spec.min_available - self.ready)]


@dataclass
class PlainQueues:
    """What queues are owed and hold."""

    queues: Mapping[str, Queue]
    total: Amounts
    asked: Mapping[str, Counter[str]]
    held: Mapping[str, Counter[str]]
    without: frozenset[str] = frozenset()
    """Plug-ins that are left out."""

    deserved: dict[str, dict[str, Fraction]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [name for name in self.queues if name in self.asked]
        for resource in COUNTED:
            shares = self._dealt(resource, names)
            for name in names:
                self.deserved.setdefault(name, {})[resource] = shares[name]

    def _dealt(self, resource: str, names: Sequence[str]) -> dict[str, Fraction]:
        """4.5: what is left is dealt by weight among those that lack, round by round."""
        left, shares = Fraction(self.total.get(resource, 0)), dict.fromkeys(names, Fraction(0))
        while True:
            unmet = [name for name in names if shares[name] < self.asked[name][resource]]
            weights = sum(self.queues[name].weight for name in unmet)
            if not unmet or left <= 0:
                return shares
            dealt = Fraction(0)
            for name in unmet:
                most = self.asked[name][resource]
                more = min(left * self.queues[name].weight / weights, most - shares[name])
                shares[name] += more
                dealt += more
            left -= dealt

    def key(self, name: str) -> Any:
        queue = self.queues[name]
        share: Fraction = Fraction(0)
        if "proportion" not in self.without:
            for resource, owed in self.deserved[name].items():
                held = self.held[name][resource]
                share = max(share, held / owed if owed else Fraction(1 if held else 0))
        return (-queue.priority if "proportion" not in self.without else 0, share, queue.created, name)

    def is_overused(self, name: str) -> bool:
        """Whether it holds all that it deserves, and asks for more."""
        if "proportion" in self.without:
            return False
        owed, held = self.deserved[name], self.held[name]
        is_short = any(owed[r] < self.asked[name][r] for r in BOUNDED)
        return is_short and all(held[r] >= owed[r] for r in BOUNDED)

    def may_take(self, name: str, pod: TaskSpec) -> bool:
        """Whether a pod keeps its queue within what it deserves."""
        if "proportion" in self.without:
            return True
        return all(
            self.held[name][r] + pod.request.get(r, 0) <= self.deserved[name][r] for r in BOUNDED if pod.request.get(r)
        )


@dataclass
class PlainTurns:
    """Gives out turns."""

    queues: PlainQueues
    jobs: Sequence[PlainJob]
    total: Amounts
    without: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._lines: dict[str, list[tuple[Any, PlainJob]]] = {}
        self._over: set[str] = set()
        for job in self.jobs:
            self.again(job)

    def again(self, job: PlainJob) -> None:
        """Put a job in line."""
        heappush(self._lines.setdefault(job.spec.queue, []), (self._key(job), job))

    def next(self) -> PlainJob | None:
        """Who goes next; None when all had their turn."""
        while names := [name for name, line in self._lines.items() if line and name not in self._over]:
            name = min(names, key=self.queues.key)
            if self.queues.is_overused(name):
                self._over.add(name)
                continue
            return heappop(self._lines[name])[1]
        return None

    def _key(self, job: PlainJob) -> Any:
        share = max((Fraction(job.held[r], self.total[r]) for r in COUNTED if self.total.get(r)), default=Fraction(0))
        return (
            -job.spec.priority if "priority" not in self.without else 0,
            job.is_ready if "gang" not in self.without else False,
            share if "drf" not in self.without else 0,
            job.spec.created,
            job.spec.name,
        )
