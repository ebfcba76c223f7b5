"""What came of a simulation: waits, completion times, utilisation, fairness between queues, evictions, lost work.

wait            from submission to the moment when all tasks run for the first time; unfinished jobs count to the end
utilisation     resource-seconds of jobs that make progress, by capacity; `held` counts tasks that wait for siblings too
fairness        Jain's index (sum x)^2 / (n sum x^2) over queues that ask, x = min(1, held / entitled), where entitled
                is the water-filled share by weight; taken while more is asked for than there is
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hekla.placement.queue import Queue
from hekla.quota.water_fill import Claim, water_fill

SIZES: Mapping[str, tuple[int, int]] = {
    "1": (0, 1), "2-7": (2, 7), "8": (8, 8), "9-16": (9, 16), "17+": (17, 1 << 60),
}  # fmt: skip
"""Classes of jobs by how much they ask for."""

_R = "r"


@dataclass(slots=True)
class Fate:
    """What became of one job."""

    name: str
    queue: str
    size: int
    """How much it asks for, in all."""

    run_s: float
    submit_s: float
    started_s: float = -1.0
    ended_s: float = -1.0
    evictions: int = 0
    """How many of its pods were evicted."""

    restarts: int = 0
    lost_s: float = 0.0
    """Work that was done and had to be done again."""

    def wait_s(self, end_s: float) -> float:
        """How long it waited to start; until the end if it never did."""
        return (self.started_s if self.started_s >= 0 else end_s) - self.submit_s


@dataclass(frozen=True)
class Spread:
    """Mean and percentiles."""

    count: int
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True)
class Sample:
    """One look at the cluster."""

    at_s: float
    held: int
    asked: int
    jain: float
    """Jain's index; -1 where nobody has to wait."""

    waiting: int
    """Jobs that have not started."""


@dataclass(frozen=True, kw_only=True)
class SimulationOutcome:
    """Everything that was measured."""

    end_s: float
    cycles: int
    capacity: int
    fates: Sequence[Fate]
    samples: Sequence[Sample]
    useful: float
    """Resource-seconds of jobs while all their tasks ran."""

    held: float
    """Resource-seconds of tasks that had a node."""

    held_by_queue: Mapping[str, float] = field(default_factory=dict)
    """While there was contention."""

    entitled_by_queue: Mapping[str, float] = field(default_factory=dict)

    def waits(self, size: str = "") -> Spread:
        """Waits of jobs of one of `SIZES`, or of all."""
        return spread([fate.wait_s(self.end_s) for fate in self._of(size)])

    def completion_times(self, size: str = "") -> Spread:
        """From submission to the end, of jobs that ended."""
        return spread([fate.ended_s - fate.submit_s for fate in self._of(size) if fate.ended_s >= 0])

    @property
    def utilisation(self) -> float:
        """The part of the capacity that made progress, from the start until the last event."""
        return (self.useful - self.lost) / (self.capacity * self.end_s) if self.end_s else 0.0

    @property
    def lost(self) -> float:
        """Resource-seconds of work that had to be done again."""
        return sum(fate.lost_s * fate.size for fate in self.fates)

    @property
    def unfinished(self) -> int:
        """Jobs that had not ended."""
        return sum(1 for fate in self.fates if fate.ended_s < 0)

    @property
    def evictions(self) -> int:
        """Pods that were evicted."""
        return sum(fate.evictions for fate in self.fates)

    @property
    def fairness(self) -> float:
        """The mean of Jain's index over the samples with contention; 1 if there was none."""
        told = [sample.jain for sample in self.samples if sample.jain >= 0]
        return float(np.mean(told)) if told else 1.0

    @property
    def contended(self) -> float:
        """The part of the samples in which more was asked for than there is."""
        return sum(1 for sample in self.samples if sample.jain >= 0) / len(self.samples) if self.samples else 0.0

    @property
    def slowdown_fairness(self) -> float:
        """Jain's index over the queues' mean wait, where everybody waits alike is 1."""
        waits: dict[str, list[float]] = {}
        for fate in self.fates:
            waits.setdefault(fate.queue, []).append(fate.wait_s(self.end_s) + 60.0)
        return jain([1.0 / float(np.mean(one)) for one in waits.values()])

    def _of(self, size: str) -> Sequence[Fate]:
        if not size:
            return self.fates
        low, high = SIZES[size]
        return [fate for fate in self.fates if low <= fate.size <= high]


class Recorder:
    """Follows a simulation as it goes: running totals by event, fairness by samples."""

    def __init__(self, queues: Sequence[Queue], capacity: int, sample_s: float) -> None:
        self._queues = list(queues)
        self._capacity = capacity
        self._sample_s = sample_s
        self._fates: list[Fate] = []
        self._samples: list[Sample] = []
        self._held = dict.fromkeys((queue.name for queue in queues), 0)
        self._asked = dict.fromkeys((queue.name for queue in queues), 0)
        self._total = self._progressing = self._waiting = 0
        self._useful = self._held_time = 0.0
        self._sums: tuple[dict[str, float], dict[str, float]] = ({}, {})
        self.now_s = 0.0
        """The time of the last event."""

    def pass_to(self, now: float) -> None:
        """Let time pass, in which nothing changes."""
        if not self._fates:
            self.now_s = now
            return
        next_s = (len(self._samples) + 1) * self._sample_s
        while next_s <= now:
            self._sample(next_s)
            next_s += self._sample_s
        self._useful += self._progressing * (now - self.now_s)
        self._held_time += self._total * (now - self.now_s)
        self.now_s = now

    def arrived(self, fate: Fate) -> None:
        """A job came."""
        self._fates.append(fate)
        self._asked[fate.queue] = self._asked.get(fate.queue, 0) + fate.size
        self._held.setdefault(fate.queue, 0)
        self._waiting += 1

    def placed(self, fate: Fate, part: int) -> None:
        """A task of a job, that asks for so much, has a node."""
        self._held[fate.queue] += part
        self._total += part

    def released(self, fate: Fate, part: int) -> None:
        """Tasks of a job left their nodes."""
        self._held[fate.queue] -= part
        self._total -= part

    def started(self, fate: Fate, now: float) -> None:
        """All tasks of a job run."""
        if fate.started_s < 0:
            fate.started_s = now
            self._waiting -= 1
        else:
            fate.restarts += 1
        self._progressing += fate.size

    def stopped(self, fate: Fate) -> None:
        """A job that ran does not any more."""
        self._progressing -= fate.size

    def ended(self, fate: Fate, now: float) -> None:
        """A job is done."""
        fate.ended_s = now
        self._asked[fate.queue] -= fate.size

    def outcome(self, end_s: float, cycles: int) -> SimulationOutcome:
        """What came of it."""
        held, entitled = self._sums
        return SimulationOutcome(
            end_s=end_s, cycles=cycles, capacity=self._capacity, fates=self._fates, samples=self._samples,
            useful=self._useful, held=self._held_time, held_by_queue=held, entitled_by_queue=entitled,
        )  # fmt: skip

    def _sample(self, at_s: float) -> None:
        asked, index = sum(self._asked.values()), -1.0
        if asked > self._capacity:
            claims = [
                Claim(name=queue.name, weight=queue.weight, request={_R: self._asked[queue.name]})
                for queue in self._queues if self._asked[queue.name] > 0
            ]  # fmt: skip
            deserved = {name: shares[_R] for name, shares in water_fill({_R: self._capacity}, claims).items()}
            index = jain([min(1.0, self._held[name] / share) for name, share in deserved.items() if share > 0])
            for sums, now in zip(self._sums, (self._held, deserved), strict=True):
                for name in deserved:
                    sums[name] = sums.get(name, 0.0) + now[name] * self._sample_s
        self._samples.append(Sample(at_s, self._total, asked, index, self._waiting))


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness: 1 where all are equal, 1/n where one has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 1.0


def spread(values: Sequence[float]) -> Spread:
    """Mean and percentiles; all zero for no values."""
    if not values:
        return Spread(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    p50, p90, p95, p99 = np.percentile(values, [50, 90, 95, 99]).tolist()
    return Spread(len(values), float(np.mean(values)), p50, p90, p95, p99, float(max(values)))
