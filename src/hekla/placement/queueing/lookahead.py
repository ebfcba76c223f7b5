# mypy: disable-error-code="type-abstract"
# Extension points are Protocols, and asking who implements one passes the Protocol itself.
"""Decide many jobs in one pass over the nodes, where what goes before cannot change whose turn it is after.

A job that starts whole, of equal pods that nothing but amounts and node facts concern, takes what it asks for or
nothing. So while such jobs follow one another, the turns are given out as if each took what it asks for, all are
placed by one call of a kernel, and if one does not fit after all, the turns from there on are taken back. What comes
out is what placing them one by one gives, at a fraction of its cost (`tests/properties/test_lookahead.py`).

Whatever else waits, `actions/allocate.py` places one job at a time.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from hekla.placement.constraint import NO_CONSTRAINTS
from hekla.placement.framework import Allocatable, Overused, QueueOrder, Ready
from hekla.placement.model import Item, Job, Task, TaskSpec, bind_whole
from hekla.placement.queueing.job_line import Place
from hekla.placement.queueing.turns import Turns
from hekla.placement.session import Session
from hekla.placement.shape import Shape
from hekla.placement.statement import Bind

MOST_JOBS, MOST_PODS = 1024, 8192
"""How many are decided in one call, so that a slice of a cycle stays short."""

MOST_ROWS = 2_000_000
"""How many rows may be scored in one call for shapes that were not seen before: about 5 ms."""

WORTH_TELLING = 16
"""So many turns of several queues are worth telling at once (`turns_ahead.py`); where fewer can be, as many are told one by one."""

_FIRST_JOBS = 32
"""How many are looked at together at first: with 4, twenty that came since the last cycle took three calls, half as long again."""

_BIND: Callable[[Iterable[Any]], Bind] = partial(tuple.__new__, Bind)
"""`Bind._make` without its Python: there is one per pod."""


class Lookahead:
    """Places the jobs that follow one another in a line of turns."""

    def __init__(self, session: Session, turns: Turns) -> None:
        self._session = session
        self._cluster = session.cluster
        self._turns = turns
        self._placer = session.policy.placer
        deciders = session.policy.asked(Ready)
        self._is_on = (
            bool(deciders)
            and not self._placer.heeds_domains
            and all(getattr(plugin, "starts_whole_jobs", False) for plugin in deciders)
        )
        self._strict = session.strict_queues
        """Queues in which a job may have to wait because of one that did not fit."""

        self._is_free = turns.is_one_queue
        """Whether what jobs take need not be told after each of them: there is one queue, and it is far from its share."""

        points = (QueueOrder, Overused, Allocatable)
        self._can_take_turns = all(
            getattr(p, "reads_accounts", False) for one in points for p in session.policy.asked(one)
        )
        """Whether what queues are told by follows from their accounts, which are brought up to date after each turn."""

        self._most = _FIRST_JOBS
        """How many jobs are looked at together: twice as many after each success, none after a failure."""

        self._plain: dict[Shape, bool] = {}
        """Shapes that amounts and node facts alone concern, and that may find room; known while jobs follow one another."""

    def place(self, first: Job) -> list[Bind]:
        """Place a job whose turn it is and those that follow; nothing if it has to be placed by itself."""
        if not self._is_on:
            return []
        if not self._most:  # it did not fit among others
            self._most = _FIRST_JOBS
            return []
        tasks = self._whole(first)
        binds = self._place((first, tasks)) if tasks else []
        if not binds:
            self._plain.clear()
        return binds

    def _place(self, first: Item) -> list[Bind]:
        items = self._gathered(first)
        if self._is_free and not self._posted_all(items):
            self._turns.give_back(len(items) - 1)
            self._is_free = False
            items = self._gathered(first)
        if not items:
            return []
        shapes, counts = [tasks[0].shape for _, tasks in items], [len(tasks) for _, tasks in items]
        certain = self._placer.stream.certain(shapes, counts)
        if certain < len(items):
            self._most = certain or _FIRST_JOBS
            self._turns.give_back(len(items) - max(certain, 1))
            self._unpost(items[certain:])
            items, shapes, counts = items[:certain], shapes[:certain], counts[:certain]
        if not items:
            return []
        rows, placed = self._placer.stream.take(shapes, counts)
        self._most = min(2 * self._most, MOST_JOBS) if placed == len(items) else 0 if placed else _FIRST_JOBS
        # The first has had its turn: where it does not fit, placing it by itself finds out why.
        self._turns.give_back(len(items) - max(placed, 1))
        self._unpost(items[placed:])
        return self._settled(items[:placed], rows)

    # Looking ahead

    def _gathered(self, first: Item) -> list[Item]:
        """A job and those that follow it, as far as their turns can be told; none if it may not take what it asks for."""
        line = _Gathered(first, max(1, MOST_ROWS // max(self._cluster.nodes.height, 1)), self._most)
        if not self._is_free:
            return self._gathered_in_turn(line) if self._can_take_turns and self._posted(first) else []
        while not line.is_full:
            run = self._turns.run_ahead(line.lacking)
            used = self._joined(line, run)
            self._turns.give_back(len(run) - used)
            if used < len(run) or not run:
                break
        return line.items

    def _gathered_in_turn(self, line: "_Gathered") -> list[Item]:
        """The same where what each takes decides whose turn comes next."""
        turns, items, wait = self._turns, line.items, 0
        while not line.is_full:
            if not wait and line.lacking >= WORTH_TELLING:
                lone = self._interleaved(line)
                items += lone
                wait = 0 if len(lone) >= WORTH_TELLING else WORTH_TELLING
                continue
            wait = max(wait - 1, 0)
            if (job := turns.next_ahead()) is None:
                break
            tasks = self._tasks_of(job)
            if tasks is None or not self._posted((job, tasks)):
                turns.give_back(1)
                break
            items.append((job, tasks))
            if len(tasks) > 1 or not tasks[0].shape.uses:
                line.fill(tasks)
        return items

    def _interleaved(self, line: "_Gathered") -> Sequence[Item]:
        """The lone pods that come next in all queues, counted as taken; none where one by one it is to be told."""
        if self._cluster.tallies.are_minded or self._turns.waiting < WORTH_TELLING:
            return []
        lone, courses = self._turns.run_of_all(
            line.lacking, lambda shape: bool(self._plain.get(shape) and line.has_seen(shape))
        )
        posted = list[tuple[str, dict[str, int]]]()
        for course in courses:
            job, sums = course.asked()
            if not self._posted_sums(job, sums):
                for name, taken_back in posted:
                    self._cluster.ledger.post(name, taken_back, -1)
                self._turns.give_back(len(lone))
                return []
            posted.append((course.name, sums))
        return lone

    def _joined(self, line: "_Gathered", run: Sequence[Place]) -> int:
        """How many of the jobs whose turns come next can be placed with those before."""
        lone = self._lone(run)
        if lone is not None:
            line.items += lone
            return len(lone)
        items, is_plain = line.items, self._plain.get
        tasks: Sequence[Task] | None
        for used, place in enumerate(run):
            job = place[4]
            task = job.sole if job.ticket else None
            if task is not None and is_plain(shape := task.shape) and not task.carriers and not task.spec.is_gated:
                items.append((job, (task,)))  # a lone job: of what `_whole` asks, only this is left
                if shape.uses:  # no bound but that of jobs, which `lacking` heeds
                    continue
                line.fill((task,))
            else:
                tasks = self._whole(job)
                if tasks is None:
                    return used
                items.append((job, tasks))
                if len(tasks) == 1 and tasks[0].shape.uses:
                    continue
                line.fill(tasks)
            if line.is_full:
                return used + 1
        return len(run)

    def _lone(self, run: Sequence[Place]) -> list[Item] | None:
        """The jobs of a run where all are lone pods of shapes that were seen before; None where each has to be looked at.

        Nobody minds them, and their places say what else there is to ask: a run is taken at 0.2 us a pod instead of 0.6.
        """
        if not run or not run[0][3] or self._cluster.tallies.are_minded:
            return None
        items = [place[5] for place in run]
        if None in items:
            return None
        lone = cast(list[Item], items)
        shapes = {tasks[0].shape for _, tasks in lone}
        return lone if all(shape.uses and self._plain.get(shape) for shape in shapes) else None

    def _tasks_of(self, job: Job) -> Sequence[Task] | None:
        """The tasks of a job that can be decided here; None if it has to be placed by itself."""
        task = job.sole if job.ticket else None
        if task is not None and self._plain.get(task.shape) and not task.carriers and not task.spec.is_gated:
            return (task,)  # a lone job: of what `_whole` asks, only this is left
        return self._whole(job)

    def _whole(self, job: Job) -> Sequence[Task] | None:
        """The tasks of a job that starts whole: all wait, are equal, and are as many as it needs to start."""
        spec, tasks = job.spec, job.tasks
        number = len(tasks)
        if number != (spec.min_available or 1) or job.statuses[0] != number or number > MOST_PODS:
            return None
        if spec.subgroups or spec.closeness is not None or spec.queue in self._strict:
            return None
        first: Task
        first, *others = tasks.values()
        is_plain = self._plain.get(first.shape)
        if is_plain is None:
            is_plain = self._plain[first.shape] = self._is_plain(first)
        if not is_plain or first.carriers or first.spec.is_gated:
            return None
        if not others:
            return (first,)
        if self._placer.compares_alone(first):
            return None  # of a gang more are placed than are certain here, and by itself it is one pass or two
        for task in others:
            is_equal = task.shape is first.shape and task.role_counts is first.role_counts
            if not is_equal or task.carriers or task.spec.is_gated:
                return None
        return self._session.in_task_order(tasks.values())

    def _is_plain(self, task: Task) -> bool:
        if task.shape.is_best_effort or self._session.is_hopeless(task.shape):
            return False
        return not self._placer.goes_one_by_one(task) or self._placer.compares_alone(task)

    def _posted(self, item: Item) -> bool:
        """Count what a job asks for as taken, if its queue may take it: whose turn is next may depend on it."""
        job, tasks = item
        if self._session.allowance(job, tasks[0], len(tasks)) < len(tasks):
            return False
        job.post_ahead(tasks[0], len(tasks))
        return True

    def _posted_all(self, items: Sequence[Item]) -> bool:
        """The same for many jobs of one queue together, if it would still be short of its share with all of them.

        Whether a queue may take more depends on what it holds, and holding more never makes a yes of a no: so if the
        sum may be taken, each part may.
        """
        return self._posted_sums(items[0][0], _sum(items))

    def _posted_sums(self, job: Job, sums: dict[str, int]) -> bool:
        """The same of what jobs of this one's queue ask for together."""
        queue = self._cluster.queues[job.spec.queue]
        if self._session.allowance(job, self._like(sums, job), 1) < 1:
            return False
        self._cluster.ledger.post(queue.name, sums, 1)
        if self._session.is_overused(queue):
            self._cluster.ledger.post(queue.name, sums, -1)
            return False
        return True

    def _like(self, request: dict[str, int], job: Job) -> Task:
        """A task that asks for so much."""
        resources, amounts = self._cluster.nodes.vector(request)
        shape = Shape(NO_CONSTRAINTS, request, resources, amounts, {}, (NO_CONSTRAINTS, ()))
        task = Task(TaskSpec(uid="", name=job.spec.name, namespace=job.spec.namespace, request=request), shape)
        task.job = job
        return task

    # What came of it

    def _unpost(self, items: Sequence[Item]) -> None:
        if not items:
            return
        if self._is_free:
            self._cluster.ledger.post(items[0][0].spec.queue, _sum(items), -1)
            return
        for job, tasks in items:
            job.post_ahead(tasks[0], -len(tasks))

    def _settled(self, items: Sequence[Item], rows: Sequence[int]) -> list[Bind]:
        if items:
            bind_whole(items)
        placed = [task for _, tasks in items for task in tasks]
        self._cluster.settle_run(placed, rows)
        names = map(self._cluster.nodes.names.__getitem__, rows)
        return list(map(_BIND, zip(placed, rows, names, strict=True)))


class _Gathered:
    """Jobs that are to be placed together, up to the bounds."""

    __slots__ = ("_is_filled", "_most", "_most_unseen", "_pods", "_unseen", "items")

    def __init__(self, first: Item, most_unseen: int, most: int) -> None:
        self.items = [first]
        self._most, self._most_unseen = most, most_unseen
        self._pods, self._unseen, self._is_filled = len(first[1]) - 1, set[Shape](), False
        """Pods beyond one for each job."""

    @property
    def is_full(self) -> bool:
        """Whether no more may join."""
        return self._is_filled or len(self.items) >= self._most

    @property
    def lacking(self) -> int:
        """How many more may join."""
        return self._most - len(self.items)

    def has_seen(self, shape: Shape) -> bool:
        """Whether one more of a shape costs no pass over all rows."""
        return bool(shape.uses) or shape in self._unseen

    def fill(self, tasks: Sequence[Task]) -> None:
        """Count the last that joined, which is more than one pod or of a shape that was not seen before."""
        shape = tasks[0].shape
        self._pods += len(tasks) - 1
        if not shape.uses:
            self._unseen.add(shape)
        is_long = self._pods + self._most > MOST_PODS
        self._is_filled = is_long or len(self._unseen) >= self._most_unseen


def _sum(items: Sequence[Item]) -> dict[str, int]:
    """What jobs ask for together."""
    numbers: dict[Shape, int] = Counter([tasks[0].shape for _, tasks in items])
    for tasks in [tasks for _, tasks in items if len(tasks) > 1]:
        numbers[tasks[0].shape] += len(tasks) - 1
    sums: dict[str, int] = {}
    for shape, number in numbers.items():
        for name, amount in shape.request.items():
            sums[name] = sums.get(name, 0) + amount * number
    return sums
