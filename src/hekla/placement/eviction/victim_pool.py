"""Who might go, as arrays: where would how many have to leave so that a task fits?

Candidates lie row by row in the order in which they would go, so that one running sum tells for every node at once
after how many there is room. Asking plug-ins is left to those who then look at one node (`evict_for_task.py`).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from hekla.placement.columns import BoolArray, IntArray, Nodes
from hekla.placement.model import Job, Task
from hekla.placement.shape import Shape

Group = tuple[Job, Task]
"""Equal tasks of one job, as one of them: plug-ins, shields aside, say the same of each of them alone."""


class VictimPool:
    """The candidates of one kind of eviction for one queue, in one cycle."""

    def __init__(
        self, nodes: Nodes, candidates: Sequence[tuple[Task, int, int]], apart: Callable[[Task], Hashable] = lambda _: None
    ) -> None:  # fmt: skip
        """Candidates with the class of their order (equal ones cost alike) and the minutes of work lost, in order.

        `apart` says what parts equal tasks of a job into groups.
        """
        self._nodes = nodes
        by_row = sorted(range(len(candidates)), key=lambda i: candidates[i][0].row)
        self.tasks = [candidates[i][0] for i in by_row]
        self.rank = {task.uid: rank for rank, (task, _, _) in enumerate(candidates)}
        """Where each stands in the order of eviction."""

        self._at = {task.uid: position for position, task in enumerate(self.tasks)}
        self.groups: list[Group] = []
        numbers: dict[tuple[str, int, int, Hashable], int] = {}
        group = np.zeros(len(by_row), np.int64)
        for position, task in enumerate(self.tasks):
            assert task.job is not None
            key = (task.job.uid, id(task.shape), task.spec.priority, apart(task))
            if key not in numbers:
                numbers[key] = len(self.groups)
                self.groups.append((task.job, task))
            group[position] = numbers[key]
        self._of_party: dict[str, list[int]] = {}
        for place, (job, _) in enumerate(self.groups):
            self._of_party.setdefault(job.party, []).append(place)
        self._group: IntArray = group  # [candidate]
        self._row: IntArray = np.array([task.row for task in self.tasks], np.int64)  # [candidate]
        self._class: IntArray = np.array([candidates[i][1] for i in by_row], np.int64)  # [candidate]
        self._lost: IntArray = np.array([candidates[i][2] for i in by_row], np.int64)  # [candidate]
        self._is_there: BoolArray = np.ones(len(by_row), np.bool_)  # [candidate]
        self._asks: IntArray = self._amounts()
        starts = np.flatnonzero(np.diff(self._row, prepend=-1)) if len(by_row) else np.zeros(0, np.int64)
        self._starts: IntArray = starts  # [row with candidates]
        self._rows: IntArray = self._row[starts]  # [row with candidates]
        self._span: IntArray = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(by_row)))  # [candidate]
        self._of_row = {int(row): number for number, row in enumerate(self._rows)}

    def at(self, row: int, groups: BoolArray) -> list[Task]:
        """The candidates of some groups on a row that are still there, in the order in which they would go."""
        number = self._of_row.get(row)
        if number is None:
            return []
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self.tasks)
        span = range(int(self._starts[number]), int(end))
        return [self.tasks[i] for i in span if self._is_there[i] and groups[self._group[i]]]

    def mark(self, tasks: Iterable[Task], *, there: bool) -> None:
        """Tasks have been told to go, or stay after all."""
        for task in tasks:
            position = self._at.get(task.uid)
            if position is not None:
                self._is_there[position] = there

    def which(self, may_go: Callable[[Group], bool]) -> BoolArray:
        """Which groups may go, by what is said of one task of each.  # [group]"""
        return np.array([may_go(group) for group in self.groups], np.bool_)

    def groups_of(self, parties: Iterable[str]) -> BoolArray:
        """Which groups are of jobs that are known by one of these names.  # [group]"""
        found: BoolArray = np.zeros(len(self.groups), np.bool_)
        for party in parties:
            found[self._of_party.get(party, [])] = True  # an empty list takes none; an empty tuple all
        return found

    def cheapest(
        self, shape: Shape, groups: BoolArray, open_rows: BoolArray, likes: NDArray[np.int32]
    ) -> list[tuple[int, int]]:
        """Rows where enough would be free if some of these groups left, with the class of the most important one who must:
        those of the last order first, then the fewest, then those that lose least work, then the nodes that are liked best.

        Pods that stand in the way by more than what they hold are not known here: there the class may be a higher one.
        """  # fmt: skip
        if not len(self.tasks) or not len(groups):
            return []
        mask = self._is_there & groups[self._group]
        need, starts, span = shape.resources, self._starts, self._span
        future = self._nodes.future_idle()[need]  # [requested, node]
        enough: BoolArray = mask.copy()
        for place, resource in enumerate(need.tolist()):
            if resource < self._asks.shape[0]:
                freed = _running(np.where(mask, self._asks[resource], 0), starts, span)
            else:
                freed = np.zeros(len(self.tasks), np.int64)
            enough &= future[place][self._row] + freed >= shape.amounts[place]
        last = len(self.tasks)
        first: IntArray = np.minimum.reduceat(np.where(enough, np.arange(last), last), starts)
        ok = (first < last) & open_rows[self._rows]
        first, rows = first[ok], self._rows[ok]
        if not len(rows):
            return []
        number = _running(mask.astype(np.int64), starts, span)[first]
        lost = _running(np.where(mask, self._lost, 0), starts, span)[first]
        order = np.lexsort((-self._nodes.rank()[rows], -likes[rows], lost, number, self._class[first]))
        return list(zip(rows[order].tolist(), self._class[first][order].tolist(), strict=True))

    def class_of(self, tasks: Iterable[Task]) -> int:
        """The class of the most important of these candidates."""
        return max((int(self._class[self._at[task.uid]]) for task in tasks if task.uid in self._at), default=-1)

    def _amounts(self) -> IntArray:
        """What each candidate holds.  # [resource, candidate]"""
        shapes = list({id(task.shape): task.shape for _, task in self.groups}.values())
        number = {id(shape): place for place, shape in enumerate(shapes)}
        amounts: IntArray = np.zeros((len(self._nodes.resources), max(len(shapes), 1)), np.int64)
        for place, shape in enumerate(shapes):
            amounts[shape.resources, place] = shape.amounts
        of_group = np.array([number[id(task.shape)] for _, task in self.groups], np.int64)
        asks: IntArray = amounts[:, of_group[self._group]] if len(self.tasks) else amounts[:, :0]
        return asks


def _running(values: IntArray, starts: IntArray, span: IntArray) -> IntArray:
    """Sums from the start of each row on.  # [candidate]"""
    total: IntArray = np.cumsum(values)
    before = total[starts] - values[starts]
    return total - before[span]
