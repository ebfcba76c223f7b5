"""Jobs of a trace: who comes when, asks for what, and runs for how long. Readers take lines, so that files stay outside."""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

GPU = "nvidia.com/gpu"


class TraceError(ValueError):
    """A line of a trace that cannot be read; the text is a sentence with its number."""


@dataclass(frozen=True, kw_only=True)
class TraceJob:
    """One job: equal tasks that run together."""

    name: str
    submit_s: float
    run_s: float
    """How long it runs once all its tasks do."""

    queue: str = "default"
    tasks: int = 1
    request: Mapping[str, int] = field(default_factory=dict)
    """What each task asks for, in base units."""

    priority: int = 0
    estimate_s: float | None = None
    """How long its owner says it runs; None: the owner says nothing."""

    def asks(self, resource: str) -> int:
        """How much all its tasks ask for."""
        return self.tasks * self.request.get(resource, 0)


def read_philly(lines: Iterable[str], *, gpus_per_node: int = 8) -> Iterator[TraceJob]:
    """The jobs of a `timestamp,duration,num_gpus,gpu_time,cluster` file, by time; clusters become queues.

    A job that asks for more GPUs than a node has becomes one task per node, as people run distributed training.
    """
    rows = sorted(
        (_time(row, number), number, row) for number, row in enumerate(csv.DictReader(lines), start=2)
    )  # fmt: skip
    first = rows[0][0] if rows else 0.0
    for at, number, row in rows:
        gpus = amount(row, "num_gpus", number)
        tasks = max(1, -(-gpus // gpus_per_node))
        each = -(-gpus // tasks)
        yield TraceJob(
            name=f"j{number}", submit_s=at - first, run_s=float(amount(row, "duration", number)), queue=row["cluster"],
            tasks=tasks, request={"cpu": each * 4000, "memory": each * 32 << 30, GPU: each},
        )  # fmt: skip


def amount(row: Mapping[str, str | None], column: str, number: int) -> int:
    """A whole number of a row, from 0 up; an absent one is 0."""
    text = row.get(column) or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1 << 53:
        raise TraceError(f"line {number}: {column} is {text!r}; a number from 0 up is expected")
    return round(value)


def _time(row: Mapping[str, str | None], number: int) -> float:
    text = row.get("timestamp") or ""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TraceError(f"line {number}: timestamp is {text!r}; a time like 2017-10-09 07:01:55 is expected") from None
