"""Trial changes to a session that stand or fall together.

    with session.statement() as statement:
        statement.allocate(task)
        if session.is_ready(job):
            yield from statement.commit()

Leaving the block without a commit takes everything back, to the bit: amounts are integers, and what follows from
them is computed from them. Who may be evicted for whom is decided elsewhere (`eviction/eligibility.py`).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import NamedTuple, Self, TypeGuard

from hekla.placement.cluster import Cluster
from hekla.placement.model import Job, Task, TaskStatus
from hekla.placement.node_selection.placer import Placer
from hekla.placement.topology.venue import Venue


class Bind(NamedTuple):
    """A decision: this task runs on this node."""

    task: Task
    row: int
    node: str


class Evict(NamedTuple):
    """A decision: this task leaves its node. It holds its room until its pod is gone (status RELEASING)."""

    task: Task
    node: str
    reason: str
    """A sentence: who needs the room, and by which right."""

    preemptor: Job | None
    """The job for whose sake it goes; None if for nobody's in particular."""

    action: str = ""
    """The action that decided so."""


class Nominate(NamedTuple):
    """A decision: room is being made on this node for this task. Row -1 and no node: the promise is off."""

    task: Task
    row: int
    node: str


Decision = Bind | Evict | Nominate
"""What actions yield. Of one statement, evictions come first, then nominations, then binds."""


class _Eviction(NamedTuple):
    task: Task
    before: TaskStatus
    decision: Evict


class _Promise(NamedTuple):
    task: Task
    evicted: bool


class _Forsaken(NamedTuple):
    task: Task
    row: int
    promised_at: float
    preemptor: Job | None
    """Who takes the promise over, if anybody does."""


_Change = list[Task] | Sequence[Task] | _Eviction | _Promise | _Forsaken
"""One thing done: a run of tasks placed, or one of the others."""


def _is_taken_over(change: _Change) -> TypeGuard[_Forsaken]:
    """Whether a promise was given up for another job, and not given back since."""
    return isinstance(change, _Forsaken) and change.preemptor is not None and not change.task.is_claim


class Statement:
    """One attempt, as a list of changes, each of which knows how it is undone."""

    def __init__(self, cluster: Cluster, placer: Placer, *, now: float = 0.0) -> None:
        self._cluster = cluster
        self._placer = placer
        self._now = now
        self._tallies_at = cluster.tallies.changes
        self._placed: list[Task] = []
        """The tasks placed or promised a place so far."""

        self._changes: list[_Change] = []
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
        if len(tasks) == 1:
            return self._one_by_one(tasks, venue)
        if self._placer.goes_one_by_one(first):
            apart = self._placer.place_apart(tasks) if venue is None else None
            if apart is None:
                return self._one_by_one(tasks, venue)
            self._settle_run(tasks[: len(apart)], apart)
            return len(apart)
        first.shape.uses += len(tasks)
        rows = self._placer.place_run(first.shape, len(tasks), venue)
        self._settle_run(tasks[: len(rows)], rows)
        return len(rows)

    def allocate_at(self, task: Task, row: int) -> None:
        """Put a task on this row, where there must be room."""
        assert task.job is not None
        self._cluster.place(task, row)
        task.job.move(task, TaskStatus.ALLOCATED)
        self._placed.append(task)
        self._changes.append([task])

    def pipeline(self, task: Task, row: int, *, evicted: bool = False) -> None:
        """Promise a task this row, where room is free or being freed; `evicted` says that somebody goes for it."""
        assert task.job is not None
        self._cluster.claim(task, row, self._now)
        task.job.move(task, TaskStatus.PIPELINED)
        self._placed.append(task)
        self._changes.append(_Promise(task, evicted))

    def forsake(self, task: Task, preemptor: Job | None = None) -> None:
        """Give up the row that a task was promised: it waits again. A job that takes the promise over goes before it."""
        assert task.job is not None
        self._changes.append(_Forsaken(task, task.row, task.promised_at, preemptor))
        self._cluster.displace(task)
        task.job.move(task, TaskStatus.PENDING)

    def evict(self, task: Task, reason: str, preemptor: Job | None, action: str = "") -> None:
        """Have a task leave its node."""
        assert task.job is not None
        node = self._cluster.nodes.names[task.row]
        self._changes.append(_Eviction(task, task.status, Evict(task, node, reason, preemptor, action)))
        self._cluster.let_go(task)
        self._cluster.spend(task, 1)
        task.job.move(task, TaskStatus.RELEASING)
        task.evicted_at = task.leaving_since = self._now

    def __len__(self) -> int:
        return len(self._placed)

    @property
    def placed(self) -> Sequence[Task]:
        """The tasks placed so far, or promised a place."""
        return self._placed

    @property
    def evictions(self) -> Sequence[Evict]:
        """Who leaves, so far."""
        return [change.decision for change in self._changes if isinstance(change, _Eviction)]

    def evictions_since(self, savepoint: int) -> Sequence[Task]:
        """The tasks told to leave since then."""
        return [change.task for change in self._changes[savepoint:] if isinstance(change, _Eviction)]

    def commit(self) -> Iterator[Decision]:
        """Let the attempt stand: evictions, then nominations, then binds of every task that has its room now.

        Who was promised room beside evictions is nominated, siblings for whom nobody had to go included: a job that starts
        whole is promised its room whole. Others find theirs by themselves.
        """
        self.is_committed = True
        self._note_precedence()
        names, decisions = self._cluster.nodes.names, list[Decision](self.evictions)
        promises = [change for change in self._changes if isinstance(change, _Promise)]
        is_owed = bool(self.evictions) or any(_is_taken_over(change) for change in self._changes)
        decisions += [Nominate(p.task, p.task.row, names[p.task.row]) for p in promises if p.evicted or is_owed]
        for change in self._changes:
            if isinstance(change, _Forsaken) and not change.task.is_claim:
                self._cluster.forsaken[change.task.uid] = change.task
            if not isinstance(change, _Eviction | _Promise | _Forsaken):
                assert change[0].job is not None
                change[0].job.move_run(change, TaskStatus.BINDING)
        decisions += [Bind(task, task.row, names[task.row]) for task in self._placed if not task.is_claim]
        return iter(decisions)

    def _note_precedence(self) -> None:
        """Keep in mind who makes way for whom, and assert of each eviction that it lowers the measure (`eviction/termination_measure.py`)."""
        losers = [(eviction.task, eviction.preemptor) for eviction in self.evictions]
        losers += [(change.task, change.preemptor) for change in self._changes if _is_taken_over(change)]
        for winner in {id(one): one for _, one in losers if one is not None}.values():
            assert self._is_better_off(winner), f"others would leave for nobody: {winner} gains nothing by it"
        for loser, preemptor in losers:
            victim = loser.job
            if preemptor is not None and victim is not None:
                self._cluster.precedence.note(preemptor.party, victim.party, self._now)

    def _is_better_off(self, job: Job) -> bool:
        """Whether the tasks of a job that have found a place count for more than those that have lost theirs."""
        found = Counter(task.spec.priority for task in self._placed if task.job is job)
        lost = [change.task for change in self._changes if isinstance(change, _Eviction | _Forsaken)]
        found.subtract(task.spec.priority for task in lost if task.job is job)
        highest = max((priority for priority, number in found.items() if number), default=None)
        return highest is not None and found[highest] > 0

    def promise_all(self) -> None:
        """Turn what was placed into promises: the job cannot start yet, and its room is kept until it can.

        What was placed where room is free is then reserved there, so that nobody takes it meanwhile.
        """
        assert not self.evictions, "promises are made where somebody leaves already"
        places = [(task, task.row) for task in self._placed]
        self.back_to(0)
        for task, row in places:
            self.pipeline(task, row)

    @property
    def savepoint(self) -> int:
        """Where the attempt stands, for `back_to_savepoint`."""
        return len(self._changes)

    def discard(self) -> None:
        """Take everything back, last first; it is no news then that others came and went."""
        self.back_to_savepoint(0)
        self._cluster.tallies.changes = self._tallies_at

    def back_to(self, length: int) -> None:
        """Take back everything since so many tasks were placed."""
        while len(self._placed) > length:
            self._undo_last()
        assert len(self._placed) == length, "runs are taken back whole"

    def back_to_savepoint(self, savepoint: int) -> None:
        """Take back everything since then."""
        while len(self._changes) > savepoint:
            self._undo_last()

    def _undo_last(self) -> None:
        change = self._changes.pop()
        match change:
            case _Eviction(task=task, before=before):
                assert task.job is not None
                task.evicted_at = None
                task.job.move(task, before)
                self._cluster.spend(task, -1)
                self._cluster.keep(task)
            case _Forsaken(task=task, row=row, promised_at=promised_at):
                assert task.job is not None
                self._cluster.claim(task, row, promised_at)
                task.job.move(task, TaskStatus.PIPELINED)
            case _Promise(task=task):
                self._unplace([task])
            case _:
                self._unplace(change)

    def _unplace(self, tasks: Sequence[Task]) -> None:
        for task in reversed(tasks):
            assert task.job is not None
            self._cluster.displace(task)
            task.job.move(task, TaskStatus.PENDING)
        del self._placed[len(self._placed) - len(tasks) :]

    def _one_by_one(self, tasks: Sequence[Task], venue: Venue | None) -> int:
        for count, task in enumerate(tasks):
            if not self.allocate(task, venue):
                return count
        return len(tasks)

    def _settle(self, task: Task, row: int) -> None:
        assert task.job is not None
        self._cluster.settle(task, row)
        task.job.move(task, TaskStatus.ALLOCATED)
        self._placed.append(task)
        self._changes.append([task])

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
        self._placed += tasks
        self._changes.append(tasks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.is_committed:
            self.discard()
