"""Trial changes to a session that stand or fall together.

    with session.statement() as statement:
        statement.allocate(tasks)
        if session.is_ready(job):
            yield from statement.commit()

Leaving the block without a commit takes everything back, to the bit: amounts are integers, and what follows from
them is computed from them.
"""

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self

from hekla.placement.cluster import Cluster
from hekla.placement.model import Task, TaskStatus
from hekla.placement.placer import Placer
from hekla.placement.topology.venue import Venue


class Bind(NamedTuple):
    """A decision: this task runs on this node."""

    task: Task
    row: int
    node: str


class Statement:
    """One attempt. Reclaiming actions will add `evict` and `pipeline`; their undo belongs here, beside the others'."""

    def __init__(self, cluster: Cluster, placer: Placer) -> None:
        self._cluster = cluster
        self._placer = placer
        self._allocated: list[Task] = []
        self._runs: list[Sequence[Task]] = []
        """The same tasks in runs of one role, as they were placed."""

        self.is_committed = False

    def allocate(self, task: Task, venue: Venue | None = None) -> bool:
        """Put a task on the best node, of a venue where one is given; whether there was one."""
        row = self._placer.place(task, venue)
        if row < 0:
            return False
        self._settle(task, row)
        return True

    def allocate_run(self, tasks: Sequence[Task], venue: Venue | None = None) -> int:
        """Put tasks of one shape on the best nodes, one after the other; how many found one."""
        if not tasks:
            return 0
        first = tasks[0]
        if len(tasks) == 1 or self._placer.goes_one_by_one(first):
            return self._one_by_one(tasks, venue)
        first.shape.uses += len(tasks)
        rows = self._placer.place_run(first.shape, len(tasks), venue)
        self._settle_run(tasks[: len(rows)], rows)
        return len(rows)

    def __len__(self) -> int:
        return len(self._allocated)

    @property
    def placed(self) -> Sequence[Task]:
        """The tasks placed so far."""
        return self._allocated

    def commit(self) -> Iterator[Bind]:
        """Let the attempt stand: every task placed is now being bound."""
        self.is_committed = True
        nodes = self._cluster.nodes
        for run in self._runs:
            assert run[0].job is not None
            run[0].job.move_run(run, TaskStatus.BINDING)
        names = nodes.names
        return iter([Bind(task, task.row, names[task.row]) for task in self._allocated])

    def discard(self) -> None:
        """Take everything back, last first."""
        self.back_to(0)

    def back_to(self, length: int) -> None:
        """Take back what was placed since so many tasks were."""
        while len(self._allocated) > length:
            run = self._runs.pop()
            assert len(self._allocated) - len(run) >= length, "runs are taken back whole"
            for task in reversed(run):
                assert task.job is not None
                self._cluster.displace(task)
                task.job.move(task, TaskStatus.PENDING)
            del self._allocated[len(self._allocated) - len(run) :]

    def _one_by_one(self, tasks: Sequence[Task], venue: Venue | None) -> int:
        for count, task in enumerate(tasks):
            if not self.allocate(task, venue):
                return count
        return len(tasks)

    def _settle(self, task: Task, row: int) -> None:
        assert task.job is not None
        self._cluster.settle(task, row)
        task.job.move(task, TaskStatus.ALLOCATED)
        self._allocated.append(task)
        self._runs.append([task])

    def _settle_run(self, tasks: Sequence[Task], rows: Sequence[int]) -> None:
        """The same for a run: counts change once, not once per task."""
        if not rows:
            return
        job, tallies = tasks[0].job, self._cluster.tallies
        assert job is not None
        for task, row in zip(tasks, rows, strict=True):
            task.row = row
            if task.matched:
                tallies.add(task, row)
        job.move_run(tasks, TaskStatus.ALLOCATED)
        self._allocated += tasks
        self._runs.append(tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_committed:
            self.discard()
